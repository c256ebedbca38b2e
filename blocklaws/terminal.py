"""What a run looks like on a terminal: the header, progress, failures, the matrix of verdicts, totals.

Must hold: what is unchecked is counted with its reasons and never looks like a pass; nothing that a reader may want to
paste is wrapped; it reads well without colours, in a narrow window, and where only ASCII can be shown. Must not:
decide anything.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from blocklaws.failure_text import failure_fields, field_lines, headline, shown_place

if TYPE_CHECKING:
    from blocklaws.report import CaseResult, Report
    from blocklaws.running import Run

__all__ = ["STATUS", "Terminal", "make_console"]

#: What an exit status says.
STATUS = {
    0: "everything that was checked holds",
    1: "something is violated or in error",
    2: "nothing could be checked",
    130: "interrupted",
}
_STYLES = {"holds": "green", "violated": "bold red", "error": "bold magenta", "unchecked": "yellow"}
_SHOWN = {"holds": "hold", "violated": "violated", "error": "in error", "unchecked": "unchecked"}
# A log has no width of its own.
_WIDTH_OF_A_LOG = 120


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that shows texts as they are: no markup, no highlighting, no emoji."""
    stream = sys.stderr if stderr else sys.stdout
    # What the encoding of the stream cannot show is escaped, and not an exception in the middle of a report.
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH_OF_A_LOG
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, legacy_windows=False)


class Terminal:
    """Shows one run.

    Args:
        quiet: failures and totals only.
        verbose: one line a case, as it is done.
        progress: whether a live line may be shown; it is on a terminal only, and not where CI says that it is CI.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, progress: bool = True) -> None:
        self.console = make_console()
        self.quiet = quiet
        self.verbose = verbose
        self._live = progress and not quiet and not verbose and sys.stderr.isatty() and not os.environ.get("CI")
        self._begin = time.perf_counter()

    def line(self, text: str | Text = "", style: str = "") -> None:
        """Print one line, as long as it is."""
        self.console.print(Text(text, style) if isinstance(text, str) else text, soft_wrap=True)

    def header(self, run: Run) -> None:
        """Say what is about to be checked."""
        if self.quiet:
            return
        import blocklaws

        name = shown_place(run.spec_file) if run.spec_file else "blocklaws"
        count = len({case.invariant.id for case in run.cases})
        self.line(
            f"blocklaws {blocklaws.__version__}, spec {name} ({run.spec.sha256[:8]}), {_count(count, 'invariant')}, "
            f"{_count(len(run.cases), 'case')}, profile {run.choice.profile}, seed {run.choice.seed}",
            "bold",
        )
        for subject in run.subjects:
            device = f" on {subject.device}" if subject.device else ""
            odd = "" if subject.deterministic else ", not deterministic: identical is judged as close"
            dtypes = [dtype for dtype in run.choice.dtypes or subject.dtypes if dtype in subject.dtypes]
            label = f" ({subject.label})" if subject.label not in (subject.name, f"<{subject.name}>") else ""
            self.line(f"  {subject.name}{label}: {', '.join(dtypes) or 'none of the chosen dtypes'}{device}{odd}")

    @contextlib.contextmanager
    def counting(self, total: int | None = None) -> Iterator[Callable[[int, int, str], None] | None]:
        """Give a function to be called with (how many are done, of how many, what); None where nothing may be shown."""
        if not self._live:
            yield None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        told = TextColumn("{task.description}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), told)
        with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Callable[[Sequence[CaseResult]], None]]:
        """Give a function to be called with the results of each case as it is done."""
        with self.counting(total) as count:
            done = failed = 0

            def advance(results: Sequence[CaseResult]) -> None:
                nonlocal done, failed
                done += 1
                failed += sum(result.failed for result in results)
                self._case(results)
                if count is not None:
                    last = results[-1]
                    told = f"{last.invariant} on {last.backend}, {last.block}, {last.dtype}"
                    count(done, total, (f"{failed} failed; " if failed else "") + told)

            yield advance

    def _case(self, results: Sequence[CaseResult]) -> None:
        if not self.verbose:
            return
        for result in results:
            text = Text(f"{result.verdict:<10}", _STYLES[result.verdict])
            known = f" (known: {result.known})" if result.known else ""
            text.append(f"{result.invariant} {result.backend} {result.block} {result.dtype}", "")
            text.append(f"  {_count(result.examples, 'example')}, {result.seconds:.2f} s", "dim")
            reason = result.reason if result.verdict != "holds" else ""
            self.line(text + Text(f"  {reason}{known}" if reason or known else ""))

    def report(self, report: Report, replays: Mapping[str, str], status: int, not_run: int = 0) -> None:
        """Show everything that a run found; ``replays`` gives the command of each failure by its id."""
        self.failures(report.failures, replays)
        if not self.quiet:
            self.matrix(report)
            self._unchecked(report)
            self._known(report)
        for sentence in report.stale:
            file, rest = sentence.split(":", 1)
            self.line(f"stale known failure: {shown_place(file)}:{rest}", "bold red")
        self._totals(report, status, not_run)

    def failures(self, failures: Sequence[CaseResult], replays: Mapping[str, str]) -> None:
        """Show failures, those of one cause together: the first complete, the others in a line each."""
        groups: dict[tuple[Any, ...], list[CaseResult]] = {}
        for result in failures:
            groups.setdefault(_cause(result), []).append(result)
        for number, group in enumerate(groups.values()):
            if number or not self.quiet:
                self.line()
            self._failure(group[0], replays.get(group[0].id))
            if others := group[1:]:
                self.line(f"  also     {_count(len(others), 'other case')} in the same way:", "dim")
                for other in others[:12]:
                    told = "" if other.name == group[0].name else f"{other.name}, "
                    told += "" if other.backend == group[0].backend else f"{other.backend}, "
                    how = f"   {replays.get(other.id, other.replay)}" if other.counterexample is not None else ""
                    self.line(f"           {told}{other.block}, {other.dtype}{how}")
                if len(others) > 12:
                    self.line(f"           and {len(others) - 12} more")

    def _failure(self, result: CaseResult, replay: str | None) -> None:
        self.line(headline(result), _STYLES[result.verdict])
        for label, text in failure_fields(result, replay):
            for line in field_lines(label, text, self.console.width):
                shown = Text(line)
                if line.startswith(f"  {label}"):
                    shown.stylize("dim", 0, 2 + len(label))
                self.line(shown)

    def matrix(self, report: Report) -> None:
        """Show invariants x backends, each cell with the number of cases of each verdict."""
        names = [str(backend["name"]) for backend in report.backends]
        cells: dict[str, dict[str, Text]] = {}
        order = {invariant: place for place, invariant in enumerate(report.invariants)}
        for invariant in sorted(
            {case.invariant: None for case in report.cases}, key=lambda id: order.get(id, len(order))
        ):
            cases = [case for case in report.cases if case.invariant == invariant]
            shown = f"{invariant} (unproven)" if cases[0].unproven else invariant
            cells[shown] = {name: _cell([case for case in cases if case.backend == name]) for name in names}
        first = max([len("invariant"), *(cell_len(name) for name in cells)])
        widths = {name: max([cell_len(name), *(row[name].cell_len for row in cells.values())]) for name in names}
        self.line()
        if first + sum(width + 2 for width in widths.values()) <= self.console.width:
            self.line(_row("invariant", first, [(Text(name), widths[name]) for name in names]), "bold")
            for invariant, row in cells.items():
                self.line(_row(invariant, first, [(row[name], widths[name]) for name in names]))
            return
        # Too narrow for columns: one list a backend.
        for name in names:
            self.line(name, "bold")
            for invariant, row in cells.items():
                self.line(Text(f"  {invariant}: ") + row[name])

    def _unchecked(self, report: Report) -> None:
        reasons = Counter((case.backend, case.reason) for case in report.cases if case.verdict == "unchecked")
        if reasons:
            self.line()
            self.line(
                f"unchecked, so nothing is known of {_count(sum(reasons.values()), 'case')}:", _STYLES["unchecked"]
            )
            for (backend, reason), count in reasons.most_common():
                self.line(f"  {count:>5}  {backend}: {reason}")
        if unproven := dict.fromkeys(case.invariant for case in report.cases if case.unproven):
            self.line()
            self.line(
                f"unproven, for no fault is named that would refute it (refuted_by): {', '.join(unproven)}", "yellow"
            )

    def _known(self, report: Report) -> None:
        reasons = Counter(case.known for case in report.cases if case.known)
        if reasons:
            self.line()
            self.line(f"known failures, expected in {_count(sum(reasons.values()), 'case')}:")
            for reason, count in reasons.items():
                self.line(f"  {count:>5}  {reason}")

    def _totals(self, report: Report, status: int, not_run: int) -> None:
        summary = report.summary
        counts = ", ".join(f"{summary[verdict]} {shown}" for verdict, shown in _SHOWN.items())
        known = sum(bool(case.known) for case in report.cases)
        expected = f" ({known} of them known)" if known else ""
        if not self.quiet or report.failures:
            self.line()
        seconds = time.perf_counter() - self._begin
        compiled = "".join(
            f"; {backend['name']} compiled {_count(backend['compilations'], 'program')}"
            for backend in report.backends
            if "compilations" in backend
        )
        self.line(f"{_count(len(report.cases), 'case')}: {counts}{expected}, in {seconds:.1f} s{compiled}")
        why = "a known failure is stale" if status == 1 and not report.failures else STATUS[status]
        if not_run:
            why += f"; {_count(not_run, 'more case')} would have been looked at"
        self.line(f"exit status {status}: {why}", "green" if status == 0 else "bold red")


def _cause(result: CaseResult) -> tuple[Any, ...]:
    """What failures must share to be shown as one: a block that raises does so whatever is asked of it.

    What is wrong in the spec is wrong on every backend, if perhaps in the words of other sizes.
    """
    if result.spec_mistake:
        return ("the spec", result.invariant)
    if result.verdict == "error":
        return (result.backend, "error", result.reason)
    return (result.backend, result.name, result.stage)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cell(cases: Sequence[CaseResult]) -> Text:
    if not cases:
        return Text("-", "dim")
    counts: Counter[str] = Counter()
    for case in cases:
        counts["known" if case.known else case.verdict] += 1
    parts = []
    for verdict, shown in {**_SHOWN, "known": "known"}.items():
        if counts[verdict]:
            parts.append(Text(f"{counts[verdict]} {shown}", _STYLES.get(verdict, "yellow")))
    return Text(", ").join(parts)


def _row(first: str, width: int, cells: Sequence[tuple[Text, int]]) -> Text:
    row = Text(first + " " * (width - cell_len(first)))
    for cell, room in cells[:-1]:
        row.append("  ").append_text(cell).append(" " * (room - cell.cell_len))
    return row.append("  ").append_text(cells[-1][0])
