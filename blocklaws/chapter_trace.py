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
from blocklaws.built import BlockRaised
from blocklaws.chapter_reading import Chapter, ChapterWorld, Record, chapter_names, load_chapter
from blocklaws.errors import BackendError, BlocklawsError, did_you_mean
from blocklaws.expressions import EvaluationError, Expression, Judgement, evaluate
from blocklaws.fixture_reading import fixture_names, load_fixture
from blocklaws.measuring import measure
from blocklaws.passes import Pass, Scope, Unavailable
from blocklaws.planning import reference_subject
from blocklaws.printed_numbers import printed
from blocklaws.specification import Specification
from blocklaws.subjects import Subject
from blocklaws.tracing import refusal_of, trace_text, trace_world, traced_dtype
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
    world = _world_of(ChapterWorld(fixture), subject, spec, block, dtype, name)
    return {"fixture": fixture, **trace_world(subject, spec, world)}


def fixture_text(data: Mapping[str, Any]) -> str:
    """Return what `trace_fixture` gives as it is printed, without the last newline."""
    return "\n".join(record["text"] for record in data["records"]) if "records" in data else trace_text(data)


def chapter_trace(
    subject: Subject, spec: Specification, chapter: Chapter, form: str, block: str | None, dtype: str
) -> dict[str, Any]:
    """Return the records of one format of a chapter; see `trace_fixture`.

    Each record has its ``text`` and its ``values``: expression -> what was printed of it, unrounded. ``unavailable``
    has the reasons why some fields could not be filled.
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
        "unavailable": sheet.reasons,
    }


def _world_of(
    asked: ChapterWorld, subject: Subject, spec: Specification, block: str | None, dtype: str, name: str
) -> World:
    """Return the world of a fixture, on the block that was asked for or else the first that the backend supports."""
    fixture = load_fixture(asked.fixture)
    if block is not None and block not in fixture.blocks:
        spec.one("blocks", block)
        within = "" if asked.fixture == name else f" (of {name})"
        raise BlocklawsError(
            f"fixture {asked.fixture}{within} is of {' and '.join(fixture.blocks)}, not of {block}; leave --block out"
        )
    worlds = [
        fixture.world(spec.one("blocks", kind), dtype, asked.set, asked.layer)
        for kind in ((block,) if block else fixture.blocks)
    ]
    return next((world for world in worlds if refusal_of(subject, world.config) is None), worlds[0])


class _Sheet:
    """One chapter being filled: its passes, measurements and values, each made when it is first asked for, once."""

    def __init__(self, subject: Subject, spec: Specification, chapter: Chapter, block: str | None, dtype: str) -> None:
        self.subject, self.spec, self.chapter, self.block, self.dtype = subject, spec, chapter, block, dtype
        self.reference = reference_subject()
        self.known: dict[str, Any] = dict(chapter.constants)
        self.passes: dict[str, Pass] = {}
        self.measured: dict[int, Mapping[str, Any]] = {}
        #: Why some values are not available.
        self.reasons: list[str] = []
        self.base = self._pass("", ChapterWorld(chapter.fixture))
        for world in chapter.worlds.values():  # a kind of block that some fixture does not hold for is told first
            _world_of(world, subject, spec, block, dtype, chapter.name)

    def require(self, form: str) -> None:
        """Refuse a backend whose blocks cannot show what a format is about.

        Raises:
            BlocklawsError: with what is missing, on one line.
        """
        what = f"backend {self.subject.name!r} cannot give the {form} records of {self.chapter.name}"
        try:
            # The block first: what it cannot be asked for cannot be missing.
            _ = self.base.built
            world = self.base.world
            abilities = self.subject.abilities(world.config.block, world.dtype, lambda: world)
            lacking = abilities.missing(self.chapter.needs(form))
        except BlockRaised as error:
            raise BackendError(f"{what}: {error}") from None
        except Unavailable as error:
            lacking = f"it does not support the block {self.base.world.config.block!r}: {error}"
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
        def value_of(path: tuple[str, ...]) -> Any:
            name, rest = path[0], path[1:]
            if name in loops:
                return loops[name]
            if name in self.chapter.vocabulary.picks:
                return self._picked(name)
            at, rest = (self._pass_of(name), rest) if name in self.chapter.vocabulary.variants else (self.base, path)
            return Scope(at, {}, {})(rest)

        tolerance = self.spec.tolerances[self.dtype]
        try:
            value = evaluate(expression, value_of, tolerance, exact=self.subject.deterministic)
        except EvaluationError as error:
            return self._unavailable(f"{expression.text.strip()}: {error.message}")
        except Unavailable as error:
            return self._unavailable(str(error))
        return value.holds if isinstance(value, Judgement) else value

    def _unavailable(self, reason: str) -> str:
        if reason and reason not in self.reasons:
            self.reasons.append(reason)
        return UNAVAILABLE

    def _picked(self, name: str) -> Any:
        """Return a constant, what was measured, or a value of the chapter by its name."""
        if name not in self.known:
            values = self.chapter.values
            self.known[name] = self._value(values[name], {}) if name in values else self._measured(name)
        if isinstance(found := self.known[name], str) and found == UNAVAILABLE:
            raise Unavailable("")  # its reason is known already
        return found

    def _measured(self, name: str) -> Any:
        number, each = next((n, each) for n, each in enumerate(self.chapter.measured) if name in each.gives.values())
        if number not in self.measured:
            try:
                base = self._pass_of(each.of) if each.of else self.base
                _ = base.built  # a block that the backend does not support is not built by the measurement either
                kind = self.spec.one("blocks", base.world.config.block)
                self.measured[number] = measure(each.by, each.arguments, self.subject, self.spec, kind, base)
            except (Unavailable, BlockRaised) as error:
                # A measurement calls the block in ways of its own; what it cannot take there does not hide the rest.
                self._unavailable(f"{each.by}: {error}")
                self.measured[number] = {}
        word = next(word for word, given in each.gives.items() if given == name)
        if word not in self.measured[number]:
            return self._unavailable(f"{each.by} gives no {word} here" if self.measured[number] else "")
        return self.measured[number][word]

    def _pass_of(self, name: str) -> Pass:
        if name not in self.passes:
            if name == "changed":
                world = load_fixture(self.chapter.fixture).changed_world(self.base.world)
                self.passes[name] = Pass(self.subject, world, self.reference, self.base)
            else:
                self.passes[name] = self._pass(name, self.chapter.worlds[name])
        return self.passes[name]

    def _pass(self, name: str, asked: ChapterWorld) -> Pass:
        world = _world_of(asked, self.subject, self.spec, self.block, self.dtype, self.chapter.name)
        for part, expression in (("input", asked.input), ("cotangent", asked.cotangent)):
            if expression is not None:
                value = self._value(expression, {})
                if not isinstance(value, np.ndarray) or value.shape != world.input.shape:
                    raise Unavailable(f"the {part} of {name} cannot be formed")
                world = world.replace(**{part: value.astype(world.input.dtype)})
        return Pass(self.subject, world, self.reference)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: no arrays, and numbers that are none as texts."""
    if isinstance(value, np.ndarray):
        return _plain(value.astype(np.float64).tolist() if value.dtype.kind not in "biu" else value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value
