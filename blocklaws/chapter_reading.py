"""Chapters: what a teaching text prints of its worked examples, as lines with places that expressions fill.

A chapter names fixtures, the worlds of its expressions, and gives its records as templates: all outside braces is
printed as it stands, ``{expression}`` is what the expression gives, ``{expression|8}`` the same with eight digits. What
the language cannot say is measured (`blocklaws.measuring`). Must hold: every name in a template is known before
anything runs; a mistake in a file is a `SpecError` with its place. Must not: evaluate anything.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blocklaws.errors import SpecError, did_you_mean
from blocklaws.expressions import Expression, ExpressionError, Vocabulary, parse
from blocklaws.fields import Fields, as_mapping, as_sequence, described
from blocklaws.fixture_reading import fixture_names, load_fixture, numbers, read_parameters
from blocklaws.invariant_reading import SIZE_WORDS, needs_of
from blocklaws.located_yaml import LocatedDict, Place, load
from blocklaws.packaged import packaged_file, packaged_names

__all__ = [
    "FORMATS",
    "Chapter",
    "ChapterWorld",
    "Field",
    "Measured",
    "Record",
    "chapter_names",
    "load_chapter",
    "read_chapter",
]

#: For people, and to be compared line by line.
FORMATS = ("learner", "strict")

_KEYS = ("says", "source", "fixture", "worlds", "constants", "labels", "measured", "values", "digits", *FORMATS)
_PLACE = re.compile(r"\{([^{}|]*)(?:\|\s*(\d{1,2})\s*)?\}")


@dataclasses.dataclass(frozen=True)
class ChapterWorld:
    """A world of a fixture, or what differs from it; `input` and `cotangent` are expressions of worlds named before it.

    Attributes:
        layer: which block of the fixture's stack it is; 0 is the lowest.
        set: parameters that are changed.
    """

    fixture: str
    layer: int = 0
    set: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    input: Expression | None = None
    cotangent: Expression | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a measurement is asked for: ``gives`` is its own word -> the name in this chapter."""

    by: str
    of: str
    arguments: Mapping[str, Any]
    gives: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Field:
    """A place in a record: an expression, and how many digits it is printed with."""

    expression: Expression
    digits: int


@dataclasses.dataclass(frozen=True)
class Record:
    """One line, or one for each combination of its loops: name -> how many, the last one fastest.

    ``texts`` are what stands between the fields: one more than there are fields.
    """

    texts: tuple[str, ...]
    fields: tuple[Field, ...]
    loops: Mapping[str, Expression]
    place: Place


@dataclasses.dataclass(frozen=True)
class Chapter:
    """Everything that one chapter says.

    Attributes:
        fixture: the fixture whose names are said as they are; ``changed`` is its variant.
        worlds: further worlds by the names that go before a dot, in an order in which each can be made.
        labels: what a word of ours is called in print.
        values: names for expressions, each of names before it.
        formats: format -> records.
    """

    name: str
    says: str
    source: str
    fixture: str
    worlds: Mapping[str, ChapterWorld]
    constants: Mapping[str, np.ndarray]
    labels: Mapping[str, str]
    measured: tuple[Measured, ...]
    values: Mapping[str, Expression]
    formats: Mapping[str, tuple[Record, ...]]
    vocabulary: Vocabulary
    place: Place

    def needs(self, form: str) -> frozenset[str]:
        """Return what a block must show for one format, the names that it uses followed to their ends."""
        waiting = [field.expression for record in self.formats[form] for field in record.fields]
        seen: set[str] = set()
        needs: frozenset[str] = frozenset()
        while waiting:
            for path in waiting.pop().references:
                needs |= needs_of(path, self.vocabulary)
                for name in {path[0]} - seen:
                    seen.add(name)
                    waiting += self._behind(name)
        return needs - {"forward"}

    def _behind(self, name: str) -> list[Expression]:
        """Return the expressions that a name stands for: a value, or what differs in a world."""
        found = [self.values.get(name)]
        if (world := self.worlds.get(name)) is not None:
            found += [world.input, world.cotangent]
        return [expression for expression in found if expression is not None]


@functools.cache
def chapter_names() -> tuple[str, ...]:
    """Return the names of the built-in chapters."""
    return packaged_names("chapters")


@functools.cache
def load_chapter(name: str) -> Chapter:
    """Return a built-in chapter.

    Raises:
        SpecError: its file says something that cannot be meant.
    """
    with packaged_file("chapters", name) as path:
        return read_chapter(name, path)


def read_chapter(name: str, path: Path) -> Chapter:
    """Read a chapter's file.

    Raises:
        SpecError: with the place in the file, what is wrong and what was expected.
    """
    what = f"chapter {name!r}"
    root = as_mapping(load(path), Place(str(path), 1, 1), what)
    fields = Fields(root, _KEYS, what)
    fixture = fields.word("fixture", fixture_names())
    constants = dict(load_fixture(fixture).constants)
    reader = _Reader(what, set(constants), {"changed"} if load_fixture(fixture).changed else set())
    for word, value, at in _entries(fields, "constants"):
        constants[reader.given(word, at)] = numbers(value, at, f"{what}: constants: {word}")
    worlds = {word: reader.world(word, value, at) for word, value, at in _entries(fields, "worlds")}
    measured = reader.measured(fields)
    values = {word: reader.value(word, value, at) for word, value, at in _entries(fields, "values")}
    digits = int(fields.number("digits", 6, low=0, high=16))
    formats = {form: reader.records(fields, form, digits) for form in FORMATS if form in fields}
    if not formats:
        root.place.refuse(f"{what} has no records; give it {' or '.join(FORMATS)}")
    labels = fields.mapping["labels"] if "labels" in fields else LocatedDict()
    inner = Fields(as_mapping(labels, fields.place("labels"), f"{what}: labels"), tuple(labels), f"{what}: labels")
    return Chapter(
        name=name,
        says=fields.text("says"),
        source=fields.text("source"),
        fixture=fixture,
        worlds=worlds,
        constants=constants,
        labels={word: inner.text(word) for word in labels},
        measured=measured,
        values=values,
        formats=formats,
        vocabulary=reader.vocabulary(),
        place=root.place,
    )


def _entries(fields: Fields, key: str) -> list[tuple[str, Any, Place]]:
    if key not in fields:
        return []
    mapping = as_mapping(fields.mapping[key], fields.place(key), f"{fields.what}: {key}")
    return [(name, value, mapping.values_at[name]) for name, value in mapping.items()]


class _Reader:
    """Reads the parts of one chapter in their order: a name can be said once it has been given."""

    def __init__(self, what: str, names: set[str], worlds: set[str]) -> None:
        self.what, self.names, self.worlds = what, names, worlds

    def vocabulary(self, *loops: str) -> Vocabulary:
        return Vocabulary(sizes=SIZE_WORDS, picks=frozenset({*self.names, *loops}), variants=frozenset(self.worlds))

    def parsed(self, text: Any, at: Place, what: str, vocabulary: Vocabulary) -> Expression:
        if not isinstance(text, str):
            at.refuse(f"{what}: an expression is a text, but here is {described(text)}")
        try:
            return parse(text, vocabulary)
        except ExpressionError as error:
            at.refuse(f"{what}: {text.strip()!r}: {error.message}")

    def new(self, name: str, at: Place) -> str:
        """Return a name, refusing one that means something already."""
        if name in self.names | self.worlds:
            at.refuse(f"{self.what}: {name!r} already means something else; choose another word")
        try:
            Vocabulary(sizes=SIZE_WORDS, picks=frozenset({name}), variants=frozenset())
        except SpecError as error:
            at.refuse(f"{self.what}: {error}")
        return name

    def given(self, name: str, at: Place) -> str:
        """Return a new name, which from here on can be said."""
        self.names.add(self.new(name, at))
        return name

    def world(self, name: str, value: Any, at: Place) -> ChapterWorld:
        what = f"{self.what}: world {name!r}"
        fields = Fields(as_mapping(value, at, what), ("fixture", "layer", "set", "input", "cotangent"), what)
        fixture = fields.word("fixture", fixture_names())
        highest = len(load_fixture(fixture).above)
        inner = {
            key: self.parsed(fields.mapping[key], fields.place(key), f"{what}: {key}", self.vocabulary())
            for key in ("input", "cotangent")
            if key in fields
        }
        found = ChapterWorld(
            fixture=fixture,
            layer=int(fields.number("layer", 0, low=0, high=highest)),
            set=read_parameters(fields.mapping["set"], fields.place("set"), f"{what}: set") if "set" in fields else {},
            **inner,
        )
        self.worlds.add(self.new(name, at))
        return found

    def measured(self, fields: Fields) -> tuple[Measured, ...]:
        if "measured" not in fields:
            return ()
        entries = as_sequence(fields.mapping["measured"], fields.place("measured"), f"{self.what}: measured")
        return tuple(self.one_measured(entry, at) for entry, at in zip(entries, entries.items_at, strict=True))

    def one_measured(self, entry: Any, at: Place) -> Measured:
        what = f"{self.what}: measured"
        fields = Fields(as_mapping(entry, at, what), ("by", "of", "with", "gives"), what)
        if "of" in fields and (of := fields.text("of")) not in self.worlds:
            fields.refuse("of", f"there is no world {of!r}{did_you_mean(of, self.worlds)}")
        arguments = _entries(fields, "with")
        gives = as_mapping(fields.mapping.get("gives"), fields.place("gives"), f"{what}: gives")
        names = Fields(gives, tuple(gives), f"{what}: gives")
        return Measured(
            by=fields.text("by"),
            of=fields.mapping.get("of", ""),
            arguments={word: value for word, value, _ in arguments},
            gives={word: self.given(names.text(word), gives.values_at[word]) for word in gives},
        )

    def value(self, name: str, value: Any, at: Place) -> Expression:
        expression = self.parsed(value, at, f"{self.what}: value {name!r}", self.vocabulary())
        self.given(name, at)
        return expression

    def records(self, fields: Fields, form: str, digits: int) -> tuple[Record, ...]:
        what = f"{self.what}: {form}"
        entries = as_sequence(fields.mapping[form], fields.place(form), what)
        return tuple(self.record(entry, at, what, digits) for entry, at in zip(entries, entries.items_at, strict=True))

    def record(self, entry: Any, at: Place, what: str, digits: int) -> Record:
        loops: dict[str, Expression] = {}
        if isinstance(entry, LocatedDict):
            inner = Fields(entry, ("each", "record"), what)
            for name, count, where in _entries(inner, "each"):
                loops[self.new(name, where)] = self.parsed(str(count), where, what, self.vocabulary())
            entry = inner.text("record")
        if not isinstance(entry, str):
            at.refuse(f"{what}: a record is a text, or each and record, but here is {described(entry)}")
        parts = _PLACE.split(entry)
        texts = tuple(parts[::3])
        if any(brace in text for text in texts for brace in "{}"):
            at.refuse(f"{what}: {entry!r} has a brace without its partner; a place to fill is {{expression}}")
        vocabulary = self.vocabulary(*loops)
        return Record(
            texts=texts,
            fields=tuple(
                Field(self.parsed(text, at, what, vocabulary), digits if own is None else int(own))
                for text, own in zip(parts[1::3], parts[2::3], strict=True)
            ),
            loops=loops,
            place=at,
        )
