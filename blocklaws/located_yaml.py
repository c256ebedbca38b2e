"""YAML whose every key and value knows its line: the reader of specs, mappings and known-failures files.

Must hold: whatever the file contains, reading it ends within a second and bounded memory, in data or in a `SpecError`
that begins with ``file:line:column``. Duplicate keys, anchors, aliases, tags, several documents and deep nesting are
refused: a spec is plain data. Plain scalars follow the YAML 1.2 core schema (``no`` is a word, ``1e-5`` a number).
Must not: construct any Python object but dict, list, str, int, float, bool and None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from blocklaws.errors import SpecError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "LocatedDict", "LocatedList", "Place", "load", "loads"]

MAX_BYTES = 1_000_000
MAX_DEPTH = 24
MAX_NODES = 100_000

# The C parser is ten times faster; both give the same events.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Place(NamedTuple):
    """A position in a file: lines and columns count from one."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def refuse(self, message: str) -> NoReturn:
        """Raise a `SpecError` at this place."""
        raise SpecError(f"{self}: {message}")

    def shifted(self, columns: int) -> Place:
        """Return the place some columns further right on the same line."""
        return self._replace(column=self.column + columns)


class LocatedDict(dict[str, Any]):
    """A mapping that knows where it, its keys and its values stand."""

    place: Place
    keys_at: dict[str, Place]
    values_at: dict[str, Place]


class LocatedList(list[Any]):
    """A sequence that knows where it and its items stand."""

    place: Place
    items_at: list[Place]


_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= 64:
        if _INTEGER.match(text):
            return int(text)
        if _FLOAT.match(text):
            return float(text)
    return text


def load(path: Path | str, data: bytes | None = None) -> Any:
    """Read a YAML file, or the bytes that one has on another machine.

    Raises:
        SpecError: the file is not there, too large, not UTF-8, or not the plain YAML described in this module.
    """
    if data is None:
        data = _bytes_of(Path(path))
    if len(data) > MAX_BYTES:
        raise SpecError(f"{path}: is larger than {MAX_BYTES:,} bytes; a spec is a short text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{path}:{line}:1: byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from None
    return loads(text, str(path))


def _bytes_of(path: Path) -> bytes:
    try:
        if not os.path.isfile(path):
            raise SpecError(f"{path}: there is no such file" if not os.path.exists(path) else f"{path}: is not a file")
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def loads(text: str, name: str) -> Any:
    """Read YAML from a string; ``name`` stands for the file in messages."""
    if len(text) > MAX_BYTES:
        raise SpecError(f"{name}: is larger than {MAX_BYTES:,} characters; a spec is a short text")
    try:
        return _Composer(name, yaml.parse(text, Loader=_Loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name, 1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise SpecError(f"{place}: not valid YAML: {what}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise SpecError(
            f"{name}:{line}:1: not valid YAML: a character that YAML does not allow ({error.reason})"
        ) from None


class _Composer:
    """Builds located data from YAML events; one level of Python recursion a level of nesting, at most MAX_DEPTH."""

    def __init__(self, name: str, events: Iterator[Any]) -> None:
        self._name = name
        self._events = events
        self._nodes = 0

    def _place(self, event: Any) -> Place:
        return Place(self._name, event.start_mark.line + 1, event.start_mark.column + 1)

    def _inside(self, event: Any) -> Place:
        # A quoted text begins after its quote, so that a column inside the text can be added to its place.
        quoted = isinstance(event, yaml.ScalarEvent) and event.style in ("'", '"')
        return self._place(event).shifted(1 if quoted else 0)

    def document(self) -> Any:
        next(self._events)  # the start of the stream
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        data = self._node(next(self._events), 0)
        next(self._events)  # the end of the document
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._place(after).refuse("a second document ('---'); a spec file holds one")
        return data

    def _node(self, event: Any, depth: int) -> Any:
        place = self._place(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            place.refuse(f"more than {MAX_NODES:,} values; a spec is a short text")
        if depth > MAX_DEPTH:
            place.refuse(f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            place.refuse(f"an alias ('*{event.anchor}'); write the value out, aliases are not part of a spec")
        if event.anchor is not None:
            place.refuse(f"an anchor ('&{event.anchor}'); anchors are not part of a spec")
        if event.tag not in (None, "!"):
            place.refuse(f"a tag ({event.tag!r}); tags are not part of a spec")
        if isinstance(event, yaml.ScalarEvent):
            return _plain(event.value) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(place, depth)
        return self._mapping(place, depth)

    def _sequence(self, place: Place, depth: int) -> LocatedList:
        items = LocatedList()
        items.place, items.items_at = place, []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.items_at.append(self._inside(event))
            items.append(self._node(event, depth + 1))
        return items

    def _mapping(self, place: Place, depth: int) -> LocatedDict:
        mapping = LocatedDict()
        mapping.place, mapping.keys_at, mapping.values_at = place, {}, {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            at = self._place(event)
            if not isinstance(event, yaml.ScalarEvent):
                at.refuse("a key must be a word, not a list or a mapping")
            key = event.value
            if key in mapping:
                at.refuse(f"duplicate key {key!r}; it stands already on line {mapping.keys_at[key].line}")
            mapping.keys_at[key] = at
            event = next(self._events)
            mapping.values_at[key] = self._inside(event)
            mapping[key] = self._node(event, depth + 1)
        return mapping
