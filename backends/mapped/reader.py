"""A mapping file as a tree of nodes, each with its place and with the questions a schema asks of it.

Must hold: every refusal begins with ``file:line:column`` and says what was found and what was expected. The YAML
itself, with its bounds and its refusal of duplicate keys and aliases, is `blocklaws.located_yaml`. Must not know what a
mapping means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from blocklaws import located_yaml
from blocklaws.errors import BackendError, SpecError, did_you_mean, plain_word
from blocklaws.located_yaml import LocatedDict, LocatedList, Place

__all__ = ["Node", "read"]


#: What people write -> the key that means it.
_OTHER_WORDS = {"kwargs": "with", "keywords": "with", "arguments": "args", "positional": "args", "index": "take"}


@dataclasses.dataclass(frozen=True)
class Node:
    """One value of the file: a scalar, a list of nodes, or a dict of key -> node, with its place.

    ``keys`` has the place of each key of a dict, which is where a wrong key is reported.
    """

    value: Any
    place: Place
    keys: dict[str, Place] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the value is, in the words of a message."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        if self.value is None or isinstance(self.value, bool):
            return plain_word(self.value)
        return repr(self.value)

    @property
    def plain(self) -> Any:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        return [node.plain for node in self.value] if isinstance(self.value, list) else self.value

    def refuse(self, message: str) -> NoReturn:
        """Raise `BackendError` at this value's place."""
        _refuse(self.place, message)

    def fields(self, what: str, allowed: Iterable[str], required: Iterable[str] = ()) -> dict[str, Node]:
        """Return the entries of a dict whose keys must be among ``allowed`` and include ``required``."""
        entries, known = self.entries(what), list(allowed)
        for key in entries:
            if key not in known:
                meant = _OTHER_WORDS.get(key, "")
                hint = f" (did you mean {meant!r}?)" if meant in known else did_you_mean(key, known)
                _refuse(self.keys[key], f"{what}: unknown key {key!r}{hint}; expected {_words(known)}")
        for key in required:
            if key not in entries:
                self.refuse(f"{what}: the key {key!r} is missing")
        return entries

    def entries(self, what: str) -> dict[str, Node]:
        """Return the entries of a dict, whatever its keys."""
        if not isinstance(self.value, dict):
            self.refuse(f"{what}: expected a mapping, found {self.kind}")
        return self.value

    def items(self, what: str) -> list[Node]:
        """Return the nodes of a list."""
        if not isinstance(self.value, list):
            self.refuse(f"{what}: expected a list, found {self.kind}")
        return self.value

    def text(self, what: str) -> str:
        """Return a non-empty string."""
        if not isinstance(self.value, str) or not self.value.strip():
            self.refuse(f"{what}: expected text, found {self.kind}")
        return self.value

    def integer(self, what: str) -> int:
        """Return an integer (YAML's true and false are none)."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.refuse(f"{what}: expected an integer, found {self.kind}")
        return self.value

    def word(self, what: str, allowed: Iterable[str]) -> str:
        """Return a string that is one of ``allowed``."""
        known = list(allowed)
        if not isinstance(self.value, str) or self.value not in known:
            hint = did_you_mean(str(self.value), known)
            self.refuse(f"{what}: {self.kind} is not known{hint}; expected {_words(known)}")
        return self.value

    def over(self, base: Node) -> Node:
        """Return ``base`` with this node laid over it: dicts are merged key by key, anything else is replaced."""
        if not (isinstance(self.value, dict) and isinstance(base.value, dict)):
            return self
        merged = dict(base.value)
        for key, node in self.value.items():
            merged[key] = node.over(merged[key]) if key in merged else node
        return Node(merged, base.place, {**base.keys, **self.keys})


def _words(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def _refuse(place: Place, message: str) -> NoReturn:
    raise BackendError(f"{place}: {message}")


def read(path: Path) -> Node:
    """Read one mapping file.

    Raises:
        BackendError: the file cannot be read or is not plain YAML.
    """
    try:
        data = located_yaml.load(path)
    except SpecError as error:
        raise BackendError(str(error)) from None
    return _node(data, Place(str(path), 1, 1))


def _node(data: Any, place: Place) -> Node:
    if isinstance(data, LocatedDict):
        entries = {key: _node(value, data.values_at[key]) for key, value in data.items()}
        return Node(entries, data.place, dict(data.keys_at))
    if isinstance(data, LocatedList):
        return Node([_node(item, at) for item, at in zip(data, data.items_at, strict=True)], data.place)
    return Node(data, place)
