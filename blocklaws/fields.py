"""Reads the keys of one located mapping, one typed getter a kind of value, so that every mistake is told in the same
words.

Must hold: an unknown key, a missing key and a value of the wrong kind are `SpecError`s with the place, what was
found, what was expected and the nearest right word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from blocklaws.errors import did_you_mean
from blocklaws.located_yaml import LocatedDict, LocatedList, Place

__all__ = ["Fields", "as_mapping", "as_sequence", "described"]


def described(value: Any) -> str:
    """Say what a YAML value is, in YAML's own words, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def as_mapping(value: Any, place: Place, what: str) -> LocatedDict:
    """Return the value if it is a mapping; refuse it otherwise."""
    if not isinstance(value, LocatedDict):
        place.refuse(f"{what} must be a mapping (key: value), but here is {described(value)}")
    return value


def as_sequence(value: Any, place: Place, what: str) -> LocatedList:
    """Return the value if it is a list; refuse it otherwise."""
    if not isinstance(value, LocatedList):
        place.refuse(f"{what} must be a list, but here is {described(value)}")
    return value


class Fields:
    """The keys of one mapping; ``what`` names it in messages, such as ``invariant 'prefix-invariance'``."""

    def __init__(self, mapping: LocatedDict, known: Collection[str], what: str) -> None:
        self.mapping = mapping
        self.what = what
        for key in mapping:
            if key not in known:
                mapping.keys_at[key].refuse(
                    f"{what} has an unknown key {key!r}{did_you_mean(key, known)}; the keys are {', '.join(known)}"
                )

    def __contains__(self, key: str) -> bool:
        return key in self.mapping

    def place(self, key: str) -> Place:
        """Where the value of a key stands, or the mapping itself when the key is absent."""
        return self.mapping.values_at.get(key, self.mapping.place)

    def refuse(self, key: str, message: str) -> NoReturn:
        """Refuse the value of a key."""
        self.place(key).refuse(f"{self.what}: {key}: {message}")

    def _required(self, key: str) -> Any:
        if key not in self.mapping:
            self.mapping.place.refuse(f"{self.what} has no {key!r}, which it must have")
        return self.mapping[key]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; required when there is no default."""
        value = self._required(key) if default is None else self.mapping.get(key, default)
        if not isinstance(value, str):
            self.refuse(key, f"must be a text, but here is {described(value)}")
        if key in self.mapping and not value.strip():
            self.refuse(key, "is empty")
        return value

    def word(self, key: str, words: Iterable[Any], default: Any = ...) -> Any:
        """Return one of a closed list of words (or true, false, null)."""
        value = self._required(key) if default is ... else self.mapping.get(key, default)
        self._check_word(key, value, list(words), self.place(key))
        return value

    def words(self, key: str, words: Collection[str] | None = None, what: str = "word") -> tuple[str, ...]:
        """Return a list of texts, each from a closed list where one is given; empty when absent."""
        if key not in self.mapping:
            return ()
        items = as_sequence(self.mapping[key], self.place(key), f"{self.what}: {key}")
        if not items:
            self.refuse(key, "is an empty list; leave the key out to mean everything")
        for item, place in zip(items, items.items_at, strict=True):
            if not isinstance(item, str):
                place.refuse(f"{self.what}: {key}: must be a list of {what} names, but here is {described(item)}")
            if words is not None and item not in words:
                place.refuse(f"{self.what}: {key}: unknown {what} {item!r}{did_you_mean(item, words)}")
            if items.count(item) > 1:
                place.refuse(f"{self.what}: {key}: {item!r} is listed twice")
        return tuple(items)

    def number(
        self, key: str, default: float | None = None, low: float = float("-inf"), high: float = float("inf")
    ) -> float:
        """Return a number between ``low`` and ``high``; required when there is no default."""
        value = self._required(key) if default is None else self.mapping.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            self.refuse(key, f"must be a number, but here is {described(value)}")
        if not low <= value <= high:
            self.refuse(key, f"is {value}, but must lie between {low:g} and {high:g}")
        return value

    def number_or_null(self, key: str, low: float = float("-inf"), high: float = float("inf")) -> float | None:
        """Return a number between ``low`` and ``high``, or None where the key is absent or null."""
        return None if self.mapping.get(key) is None else self.number(key, low=low, high=high)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.mapping.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, but here is {described(value)}")
        return value

    def _check_word(self, key: str, value: Any, words: list[Any], place: Place) -> None:
        if not any(value is word or (isinstance(word, str) and value == word) for word in words):
            listed = ", ".join(
                "null" if word is None else str(word).lower() if isinstance(word, bool) else word for word in words
            )
            hint = did_you_mean(str(value), [word for word in words if isinstance(word, str)])
            place.refuse(f"{self.what}: {key}: {described(value)} is not one of {listed}{hint}")
