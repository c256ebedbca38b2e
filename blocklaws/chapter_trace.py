"""Fills the records of a chapter: what a backend's blocks compute, line by line as the chapter prints it.

Must hold: every number comes from calls of the blocks of the backend that is asked, or by the chapter's own arithmetic
from them; a field that cannot be formed (a wrong shape, nothing measured) is printed as `UNAVAILABLE`, and the record
stays. Must not: know a chapter; judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import blocklaws
from blocklaws.chapter_reading import Chapter, ChapterWorld, Record, chapter_names, load_chapter
from blocklaws.errors import BackendError, BlocklawsError, did_you_mean
from blocklaws.expressions import EvaluationError, Expression, Judgement, evaluate
from blocklaws.fixture_reading import fixture_names, load_fixture
from blocklaws.measuring import measure
from blocklaws.passes import Pass, Scope, Unavailable
from blocklaws.planning import reference_subject
from blocklaws.printed_numbers import printed
from blocklaws.specification import Specification
from blocklaws.subjects import BlockRaised, Subject
from blocklaws.tracing import trace_text, trace_world, traced_dtype
from blocklaws.worlds import World

__all__ = ["UNAVAILABLE", "chapter_trace", "fixture_text", "trace_fixture"]

#: What stands where a value cannot be formed.
UNAVAILABLE = "unavailable"


def trace_fixture(
    subject: Subject,
    spec: Specification,
    name: str,
    form: str | None = None,
    block: str | None = None,
    dtype: str | None = None,
) -> dict[str, Any]:
    """Return a chapter's records, or the stages of a fixture beside the reference's, as data.

    Args:
        form: ``learner``, ``strict`` or ``table``; a chapter's first one, and ``table`` for a fixture, by default.
        block: another kind of block of which the fixture holds too.
        dtype: float64 by default, where the backend offers it.

    Raises:
        BlocklawsError: there is no such fixture or format, or the backend cannot show what it is about.
    """
    if name not in (names := (*chapter_names(), *fixture_names())):
        raise BlocklawsError(f"unknown fixture {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")
    chapter = load_chapter(name) if name in chapter_names() else None
    forms = (*(chapter.formats if chapter else ()), "table")
    form = form or forms[0]
    if form not in forms:
        raise BlocklawsError(f"{name} has no format {form!r}; it has {' and '.join(forms)}")
    dtype = traced_dtype(subject, spec, dtype or ("float64" if "float64" in subject.dtypes else None))
    if chapter is not None and form != "table":
        return chapter_trace(subject, spec, chapter, form, block, dtype)
    fixture = chapter.fixture if chapter else name
    world = _world_of(ChapterWorld(fixture), spec, block, dtype, name)
    return {"fixture": fixture, **trace_world(subject, spec, world)}


def fixture_text(data: Mapping[str, Any]) -> str:
    """Return what `trace_fixture` gives as it is printed, without the last newline."""
    return "\n".join(record["text"] for record in data["records"]) if "records" in data else trace_text(data)


def chapter_trace(
    subject: Subject, spec: Specification, chapter: Chapter, form: str, block: str | None, dtype: str
) -> dict[str, Any]:
    """Return the records of one format of a chapter; see `trace_fixture`.

    Each record has its ``text`` and its ``values``: expression -> what was printed of it, unrounded.
    """
    sheet = _Sheet(subject, spec, chapter, block, dtype)
    sheet.require(form)
    try:
        records = [record for each in chapter.formats[form] for record in sheet.filled(each)]
    except BlockRaised as error:
        raise BackendError(f"backend {subject.name!r}: {error}") from None
    return {
        "blocklaws": blocklaws.__version__,
        "backend": subject.name,
        "fixture": chapter.name,
        "format": form,
        "block": sheet.base.world.config.block,
        "dtype": dtype,
        "records": records,
    }


def _world_of(world: ChapterWorld, spec: Specification, block: str | None, dtype: str, name: str) -> World:
    """Return the world of a fixture, on the block that was asked for where the fixture holds for it."""
    fixture = load_fixture(world.fixture)
    if block is not None and block not in fixture.blocks:
        spec.one("blocks", block)
        within = "" if world.fixture == name else f" (of {name})"
        raise BlocklawsError(
            f"fixture {world.fixture}{within} is of {' and '.join(fixture.blocks)}, not of {block}; leave --block out"
        )
    return fixture.world(spec.one("blocks", block or fixture.blocks[0]), dtype, world.set, world.layer)


class _Sheet:
    """One chapter being filled: its passes, measurements and values, each made when it is first asked for, once."""

    def __init__(
        self, subject: Subject, spec: Specification, chapter: Chapter, block: str | None, dtype: str
    ) -> None:
        self.subject, self.spec, self.chapter, self.block, self.dtype = subject, spec, chapter, block, dtype
        self.reference = reference_subject()
        self.known: dict[str, Any] = dict(chapter.constants)
        self.passes: dict[str, Pass] = {}
        self.measured: dict[int, Mapping[str, Any]] = {}
        self.base = self._pass("", ChapterWorld(chapter.fixture))
        #: Where nothing is computed yet, a block that was refused is told of before any of it.
        for world in chapter.worlds.values():
            _world_of(world, spec, block, dtype, chapter.name)

    def require(self, form: str) -> None:
        """Refuse a backend whose blocks cannot show what a format is about.

        Raises:
            BlocklawsError: with what is missing, on one line.
        """
        what = f"backend {self.subject.name!r} cannot give the {form} records of {self.chapter.name}"
        try:
            for world in {each.fixture: each for each in self.chapter.worlds.values()}.values():
                config = _world_of(world, self.spec, self.block, self.dtype, self.chapter.name).config
                if (reason := self.subject.refusal(config)) is not None:
                    raise BlocklawsError(f"{what}: it does not support the block {config.block!r}: {reason}")
            # The block first: what it cannot be asked for cannot be missing.
            _ = self.base.built
            lacking = self.subject.abilities(self.base.world).missing(self.chapter.needs(form))
        except (BlockRaised, Unavailable) as error:
            raise BackendError(f"{what}: {error}") from None
        if lacking:
            raise BlocklawsError(f"{what}: {lacking}")

    def filled(self, record: Record) -> Iterator[dict[str, Any]]:
        """Yield a record for each combination of its loops."""
        counts = [self._value(count, {}) for count in record.loops.values()]
        for places in itertools.product(*(range(int(count)) for count in counts)):
            loops = dict(zip(record.loops, places, strict=True))
            values = {field.expression.text.strip(): self._value(field.expression, loops) for field in record.fields}
            shown = [
                printed(values[field.expression.text.strip()], field.digits, self.chapter.labels)
                for field in record.fields
            ]
            text = record.texts[0] + "".join(a + b for a, b in zip(shown, record.texts[1:], strict=True))
            yield {"text": text, "values": {**loops, **{name: _plain(value) for name, value in values.items()}}}

    def _value(self, expression: Expression, loops: Mapping[str, int]) -> Any:
        try:
            scope = Scope(self.base, _Passes(self), _Picks(self, loops))
            value = evaluate(
                expression, scope, self.spec.tolerances[self.dtype], exact=self.subject.deterministic
            )
        except (EvaluationError, Unavailable):
            return UNAVAILABLE
        return value.holds if isinstance(value, Judgement) else value

    def pick(self, name: str) -> Any:
        """Return a constant, what was measured, or a value of the chapter by its name."""
        if name not in self.known:
            self.known[name] = self._picked(name)
        if isinstance(found := self.known[name], str) and found == UNAVAILABLE:
            raise Unavailable(f"{name} is not available")
        return found

    def _picked(self, name: str) -> Any:
        if name in self.chapter.values:
            return self._value(self.chapter.values[name], {})
        number, word = next(
            (number, word)
            for number, each in enumerate(self.chapter.measured)
            for word, given in each.gives.items()
            if given == name
        )
        if number not in self.measured:
            each = self.chapter.measured[number]
            base = self.pass_of(each.of) if each.of else self.base
            kind = self.spec.one("blocks", base.world.config.block)
            try:
                self.measured[number] = measure(each.by, each.arguments, self.subject, self.spec, kind, base)
            except Unavailable:
                self.measured[number] = {}
        return self.measured[number].get(word, UNAVAILABLE)

    def pass_of(self, name: str) -> Pass:
        """Return the pass of a world by its name."""
        if name not in self.passes:
            if name == "changed":
                world = load_fixture(self.chapter.fixture).changed_world(self.base.world)
                self.passes[name] = Pass(self.subject, world, self.reference, self.base)
            else:
                self.passes[name] = self._pass(name, self.chapter.worlds[name])
        return self.passes[name]

    def _pass(self, name: str, asked: ChapterWorld) -> Pass:
        world = _world_of(asked, self.spec, self.block, self.dtype, self.chapter.name)
        for part, expression in (("input", asked.input), ("cotangent", asked.cotangent)):
            if expression is not None:
                value = self._value(expression, {})
                if not isinstance(value, np.ndarray) or value.shape != world.input.shape:
                    raise Unavailable(f"the {part} of {name} cannot be formed")
                world = world.replace(**{part: value.astype(world.input.dtype)})
        return Pass(self.subject, world, self.reference)


class _Passes(Mapping[str, Pass]):
    """The worlds of a chapter by name; the pass of one is made when it is asked for."""

    def __init__(self, sheet: _Sheet) -> None:
        self._sheet = sheet
        self._names = (*(("changed",) if load_fixture(sheet.chapter.fixture).changed else ()), *sheet.chapter.worlds)

    def __getitem__(self, name: str) -> Pass:
        return self._sheet.pass_of(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Picks(Mapping[str, Any]):
    """Constants, measured values, named expressions and the counters of a record's loops."""

    def __init__(self, sheet: _Sheet, loops: Mapping[str, int]) -> None:
        self._sheet, self._loops = sheet, loops

    def __getitem__(self, name: str) -> Any:
        return self._loops[name] if name in self._loops else self._sheet.pick(name)

    def __contains__(self, name: object) -> bool:
        return name in self._loops or name in self._sheet.chapter.vocabulary.picks

    def __iter__(self) -> Iterator[str]:
        return iter((*self._loops, *self._sheet.chapter.vocabulary.picks))

    def __len__(self) -> int:
        return len(self._loops) + len(self._sheet.chapter.vocabulary.picks)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: no arrays, and numbers that are none as texts."""
    if isinstance(value, np.ndarray):
        return _plain(value.astype(np.float64).tolist() if value.dtype.kind not in "biu" else value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value
