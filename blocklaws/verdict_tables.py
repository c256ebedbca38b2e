"""The tables at the end of a run: invariants, and blocks, against backends, with what each verdict rests on.

Must hold: beside the verdicts stand the number of examples, the share of them that could have failed (rounded down:
100 % means all), the largest error that a claim of closeness saw and the time; where the columns do not fit, the same
numbers stand in a list. Must not: print, or decide anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from blocklaws.report import CaseResult, Report

__all__ = ["SHOWN", "STYLES", "Evidence", "tables", "verdicts"]

STYLES: Mapping[str, str] = {"holds": "green", "violated": "bold red", "error": "bold magenta", "unchecked": "yellow"}
SHOWN: Mapping[str, str] = {"holds": "hold", "violated": "violated", "error": "in error", "unchecked": "unchecked"}
_HEADS = ("examples", "informative", "max error", "time")


class Evidence:
    """What some cases rest on, as texts.

    Attributes:
        examples: how many worlds were looked at.
        informative: the share of them in which the claim could have failed, rounded down; ``-`` where there are none.
        max_error: the largest difference that a claim of closeness saw; ``-`` where none was made.
        seconds: the time.
    """

    def __init__(self, cases: Sequence[CaseResult]) -> None:
        number = sum(case.examples for case in cases)
        informative = sum(case.informative for case in cases)
        errors = [case.max_error for case in cases if case.max_error is not None]
        self.examples = f"{number}"
        self.informative = f"{100 * informative // number} %" if number else "-"
        self.max_error = f"{_largest(errors):.2g}" if errors else "-"
        self.seconds = f"{sum(case.seconds for case in cases):.1f} s"

    @property
    def columns(self) -> tuple[str, ...]:
        """The texts, in the order of the columns."""
        return (self.examples, self.informative, self.max_error, self.seconds)

    def __str__(self) -> str:
        """The texts as a sentence."""
        error = f", max error {self.max_error}" if self.max_error != "-" else ""
        share = f"{self.informative} informative" if self.informative != "-" else "nothing looked at"
        return f"{self.examples} examples, {share}{error}, {self.seconds}"


def _largest(errors: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def verdicts(cases: Sequence[CaseResult]) -> Text:
    """Return how many cases have which verdict, the expected failures apart."""
    if not cases:
        return Text("-", "dim")
    counts = Counter("known" if case.known else case.verdict for case in cases)
    parts = [
        Text(f"{counts[verdict]} {shown}", STYLES.get(verdict, "yellow"))
        for verdict, shown in {**SHOWN, "known": "known"}.items()
        if counts[verdict]
    ]
    return Text(", ").join(parts)


def tables(report: Report, width: int, *, verbose: bool = False) -> Iterator[Text]:
    """Yield the lines of all tables: invariants, blocks, and with ``verbose`` the invariants of each backend alone."""
    backends = [str(backend["name"]) for backend in report.backends]
    place = {invariant: number for number, invariant in enumerate(report.invariants)}
    unproven = {case.invariant for case in report.cases if case.unproven}
    invariants = sorted(
        dict.fromkeys(case.invariant for case in report.cases), key=lambda id: place.get(id, len(place))
    )
    blocks = list(dict.fromkeys(case.block for case in report.cases))

    def label(id: str) -> str:
        return f"{id} (unproven)" if id in unproven else id

    def by_invariant(cases: Sequence[CaseResult]) -> dict[str, list[CaseResult]]:
        grouped: dict[str, list[CaseResult]] = {label(id): [] for id in invariants}
        for case in cases:
            grouped[label(case.invariant)].append(case)
        return grouped

    yield from _table("invariant", by_invariant(report.cases), backends, width)
    if len(blocks) > 1:
        yield Text()
        grouped = {block: [case for case in report.cases if case.block == block] for block in blocks}
        yield from _table("block", grouped, backends, width)
    if verbose and len(backends) > 1:
        for backend in backends:
            yield Text()
            own = [case for case in report.cases if case.backend == backend]
            yield from _table(f"invariant on {backend}", by_invariant(own), [backend], width)


def _table(head: str, rows: Mapping[str, list[CaseResult]], backends: Sequence[str], width: int) -> Iterator[Text]:
    cells = {
        row: [verdicts([case for case in cases if case.backend == backend]) for backend in backends]
        for row, cases in rows.items()
    }
    evidence = {row: Evidence(cases) for row, cases in rows.items()}
    first = max(map(cell_len, [head, *rows]))
    widths = [
        max([cell_len(name), *(row[place].cell_len for row in cells.values())]) for place, name in enumerate(backends)
    ]
    numbers = [
        max([len(name), *(len(each.columns[place]) for each in evidence.values())]) for place, name in enumerate(_HEADS)
    ]
    if first + sum(wide + 2 for wide in (*widths, *numbers)) > width:
        yield from _list(head, cells, evidence, backends)
        return
    yield _row(head, first, list(map(Text, backends)), widths, _HEADS, numbers, style="bold")
    for row, shown in cells.items():
        yield _row(row, first, shown, widths, evidence[row].columns, numbers)


def _row(
    label: str,
    first: int,
    cells: Sequence[Text],
    widths: Sequence[int],
    texts: Sequence[str],
    numbers: Sequence[int],
    style: str = "",
) -> Text:
    row = Text(label + " " * (first - cell_len(label)), style)
    for cell, room in zip(cells, widths, strict=True):
        row.append("  ").append_text(cell).append(" " * (room - cell.cell_len))
    for text, room in zip(texts, numbers, strict=True):
        row.append(f"  {text:>{room}}")
    return row


def _list(
    head: str, cells: Mapping[str, Sequence[Text]], evidence: Mapping[str, Evidence], backends: Sequence[str]
) -> Iterator[Text]:
    """Yield the same where it is too narrow for columns: an entry a row, a line a backend."""
    yield Text(f"by {head}", "bold")
    column = max(map(cell_len, backends))
    for row, shown in cells.items():
        yield Text(f"  {row}")
        for backend, cell in zip(backends, shown, strict=True):
            yield Text(f"    {backend}{' ' * (column - cell_len(backend))}  ").append_text(cell)
        yield Text(f"    {evidence[row]}", "dim")
