"""The verdicts of a run as tables: invariants by backends, blocks by backends and dtypes, and each case once.

Must hold: every case of the report has exactly one row, and every cell counts what its rows show; what is unchecked is
counted with its reason. Must not: make markup.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from blocklaws.html.words import SHOWN
from blocklaws.report import CaseResult, Report

__all__ = ["Bar", "Cell", "InvariantRow", "VerdictView", "verdict_view"]

#: How many of the slowest invariants the timings list; the others are told together.
_MOST_TIMED = 12


@dataclasses.dataclass(frozen=True)
class Cell:
    """How many cases have which verdict, those first that need looking at; empty where nothing was planned."""

    counts: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class InvariantRow:
    """One invariant: its cells, one a backend, and its cases."""

    id: str
    anchor: str
    says: str
    place: str
    why: str
    means: str
    family: str
    unproven: bool
    cells: tuple[Cell, ...]
    total: Cell
    cases: tuple[CaseResult, ...]


@dataclasses.dataclass(frozen=True)
class Bar:
    """One line of the timings: what took how long, and which share of the longest line that is."""

    name: str
    cases: int
    seconds: float
    share: float


@dataclasses.dataclass(frozen=True)
class VerdictView:
    """Everything that the verdict sections of a page show."""

    backends: tuple[str, ...]
    rows: tuple[InvariantRow, ...]
    columns: tuple[tuple[str, str], ...]
    """(backend, dtype) of the second table."""
    blocks: tuple[tuple[str, tuple[Cell, ...]], ...]
    """(block, its cells by ``columns``)."""
    unchecked: tuple[tuple[str, str, int], ...]
    """(backend, reason, number of cases), the most frequent first."""
    known: tuple[tuple[str, int], ...]
    unproven: tuple[str, ...]
    by_invariant: tuple[Bar, ...]
    by_backend: tuple[Bar, ...]
    others: Bar | None
    """The invariants that ``by_invariant`` leaves out."""
    seconds: float
    examples: int


def verdict_view(report: Report) -> VerdictView:
    """Return the tables of a report."""
    names = tuple(str(backend["name"]) for backend in report.backends)
    places = {id: number for number, id in enumerate(report.invariants)}
    by_invariant: dict[str, list[CaseResult]] = {}
    for case in report.cases:
        by_invariant.setdefault(case.invariant, []).append(case)
    ordered = sorted(by_invariant, key=lambda id: places.get(id, len(places)))
    columns = tuple(dict.fromkeys((case.backend, case.dtype) for case in report.cases))
    columns = tuple(sorted(columns, key=lambda column: names.index(column[0]) if column[0] in names else len(names)))
    bars = _bars({id: by_invariant[id] for id in ordered})
    reasons = Counter((case.backend, case.reason) for case in report.cases if case.verdict == "unchecked")
    return VerdictView(
        backends=names,
        rows=tuple(_row(number, id, by_invariant[id], names, report) for number, id in enumerate(ordered)),
        columns=columns,
        blocks=_blocks(report.cases, columns),
        unchecked=tuple((backend, reason, count) for (backend, reason), count in reasons.most_common()),
        known=tuple(Counter(case.known for case in report.cases if case.known).most_common()),
        unproven=tuple(dict.fromkeys(case.invariant for case in report.cases if case.unproven)),
        by_invariant=bars[:_MOST_TIMED],
        by_backend=_bars({name: [case for case in report.cases if case.backend == name] for name in names}),
        others=_together(bars[_MOST_TIMED:]),
        seconds=sum(case.seconds for case in report.cases),
        examples=sum(case.examples for case in report.cases),
    )


def _cell(cases: Iterable[CaseResult]) -> Cell:
    counts = Counter("known" if case.known else case.verdict for case in cases)
    first = ("violated", "error", "known", "unchecked", "holds")
    assert set(first) == set(SHOWN)
    return Cell(tuple((verdict, counts[verdict]) for verdict in first if counts[verdict]))


def _row(number: int, id: str, cases: Sequence[CaseResult], backends: Sequence[str], report: Report) -> InvariantRow:
    told: Mapping[str, str] = report.meanings.get(id, {})
    return InvariantRow(
        id=id,
        anchor=f"i{number}",
        says=cases[0].says,
        place=cases[0].location,
        why=told.get("why", ""),
        means=told.get("means", ""),
        family=told.get("family", ""),
        unproven=cases[0].unproven,
        cells=tuple(_cell(case for case in cases if case.backend == name) for name in backends),
        total=_cell(cases),
        cases=tuple(cases),
    )


def _blocks(
    cases: Sequence[CaseResult], columns: Sequence[tuple[str, str]]
) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    sorted_: dict[tuple[str, str, str], list[CaseResult]] = {}
    for case in cases:
        sorted_.setdefault((case.block, case.backend, case.dtype), []).append(case)
    blocks = dict.fromkeys(case.block for case in cases)
    return tuple((block, tuple(_cell(sorted_.get((block, *column), ())) for column in columns)) for block in blocks)


def _bars(groups: Mapping[str, Sequence[CaseResult]]) -> tuple[Bar, ...]:
    """Return how long each group took, the longest first."""
    seconds = {name: sum(case.seconds for case in cases) for name, cases in groups.items()}
    longest = max(seconds.values(), default=0.0)
    return tuple(
        Bar(name, len(groups[name]), seconds[name], seconds[name] / longest if longest else 0.0)
        for name in sorted(seconds, key=lambda name: -seconds[name])
    )


def _together(bars: Sequence[Bar]) -> Bar | None:
    if not bars:
        return None
    return Bar(str(len(bars)), sum(bar.cases for bar in bars), sum(bar.seconds for bar in bars), 0.0)
