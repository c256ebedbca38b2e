"""What a run looks like on a terminal: the header, progress, failures by their causes, tables of verdicts, totals.

Must hold: what is unchecked is counted with its reasons and never looks like a pass; nothing that a reader may want to
paste is wrapped; it reads well without colours, in a narrow window, and where only ASCII can be shown; no text of a
backend, a spec or a file can steer the terminal. Must not: decide anything.
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from blocklaws.causes import Cause, causes
from blocklaws.failure_text import failure_fields, field_lines, headline, shown_place
from blocklaws.verdict_tables import SHOWN, STYLES, tables, verdicts

if TYPE_CHECKING:
    from blocklaws.checking import Case
    from blocklaws.report import CaseResult, Report
    from blocklaws.running import Run

__all__ = ["STATUS", "Terminal", "make_console", "meaning"]

#: What an exit status says.
STATUS = {
    0: "everything that was checked holds",
    1: "something is violated or in error",
    2: "nothing could be checked",
    130: "interrupted",
}
# A log has no width of its own.
_WIDTH_OF_A_LOG = 120
# A longer list of failures of one cause is for --verbose and the JSON.
_MOST_OTHERS = 12
# What moves a cursor, changes a colour or turns the direction of writing; a tab and the end of a line may stay.
_STEERING = {
    number: "?"
    for number in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if number not in (0x09, 0x0A)
}


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that shows texts as they are: no markup, no highlighting, no emoji."""
    stream = sys.stderr if stderr else sys.stdout
    # What the encoding of the stream cannot show is escaped, and not an exception in the middle of a report.
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH_OF_A_LOG
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, legacy_windows=False)


def meaning(status: int, report: Report) -> str:
    """Return what the exit status of a run means, on one line."""
    why = STATUS[status]
    if status == 1 and not report.failures:
        why = "a known failure is stale"
    elif status == 2 and any(case.verdict != "unchecked" for case in report.cases):
        why = "the run was cut off"
    return why + (f"; {_count(report.not_run, 'more case')} would have been looked at" if report.not_run else "")


def _may_be_live() -> bool:
    """Whether somebody looks on: a terminal that can move its cursor, both ways, and no CI."""
    able = os.environ.get("TERM", "") not in ("dumb", "unknown")
    return able and not os.environ.get("CI") and sys.stdout.isatty() and sys.stderr.isatty()


class Terminal:
    """Shows one run.

    Args:
        quiet: failures and totals only.
        verbose: one line a case, as it is done; every failure of a cause; a table for each backend.
        progress: whether a live line may be shown; it is on a terminal only, and not where CI says that it is CI.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, progress: bool = True) -> None:
        self.console = make_console()
        self.quiet = quiet
        self.verbose = verbose
        self._live = progress and not quiet and not verbose and _may_be_live()
        self._begin = time.perf_counter()

    def line(self, text: str | Text = "", style: str = "") -> None:
        """Print one line, as long as it is."""
        shown = Text(text, style) if isinstance(text, str) else text.copy()
        shown.plain = shown.plain.translate(_STEERING)
        self.console.print(shown, soft_wrap=True)

    def prose(self, text: str, style: str = "", indent: str = "  ") -> None:
        """Print a sentence, wrapped where the window ends; the lines after its first are indented."""
        for line in textwrap.wrap(
            text, max(self.console.width, 40), subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        ):  # fmt: skip
            self.line(line, style)

    def header(self, run: Run) -> None:
        """Say what is about to be checked."""
        if self.quiet:
            return
        import blocklaws

        name = shown_place(run.spec_file) if run.spec_file else "blocklaws"
        count = len({run.cases[number].invariant.id for number in run.numbers})
        self.prose(
            f"blocklaws {blocklaws.__version__}, spec {name} ({run.spec.sha256[:8]}), {_count(count, 'invariant')}, "
            f"{_cases(run)}, profile {run.choice.profile}, seed {run.choice.seed}",
            "bold",
        )
        self.prose(f"  {', '.join(f'{package} {version}' for package, version in run.versions.items())}", "dim")
        for subject in run.subjects:
            device = f" on {subject.device}" if subject.device else ""
            if not device and hasattr(subject.backend, "with_device"):
                device = " on its default device"
            odd = "" if subject.deterministic else ", not deterministic: identical is judged as close"
            dtypes = [dtype for dtype in run.choice.dtypes or subject.dtypes if dtype in subject.dtypes]
            label = f" ({subject.label})" if subject.label not in (subject.name, f"<{subject.name}>") else ""
            self.prose(f"  {subject.name}{label}: {', '.join(dtypes) or 'none of the chosen dtypes'}{device}{odd}")
        if elsewhere := run.known.elsewhere(run.subjects):
            self.prose(f"  known failures of backends that are not in this run: {', '.join(elsewhere)}", "dim")

    @contextlib.contextmanager
    def counting(self, total: int | None = None) -> Iterator[Callable[[int, int, str], None] | None]:
        """Give a function to be called with (how many are done, of how many, what); None where nothing may be shown."""
        if not self._live:
            yield None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        # The line is cut where the window ends: two lines would be drawn again and again.
        told = Column(no_wrap=True, overflow="crop", ratio=1)
        columns = (
            BarColumn(16), MofNCompleteColumn(), TextColumn("{task.fields[rate]}", markup=False),
            TextColumn("left"), TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False, table_column=told),
        )  # fmt: skip
        begin = time.perf_counter()
        # On the console of the report, so that lines that are printed meanwhile stand above it.
        with Progress(*columns, console=self.console, transient=True, expand=True) as bar:
            task = bar.add_task("", total=total, rate="")

            def count(done: int, total: int, what: str) -> None:
                rate = f"{done / max(time.perf_counter() - begin, 1e-3):.1f}/s"
                bar.update(task, completed=done, total=total, description=what.translate(_STEERING), rate=rate)

            yield count

    def seed(self, report: Report) -> None:
        """Say that all cases of one seed are done, and none failed."""
        if not self.quiet:
            seconds = sum(case.seconds for case in report.cases)
            text = Text(f"  seed {report.seed}  ").append_text(verdicts(report.cases))
            self.line(text.append(f", {seconds:.1f} s", "dim"))

    @contextlib.contextmanager
    def progress(
        self, cases: Sequence[Case], numbers: range, *, groups_told: bool = True
    ) -> Iterator[Callable[[int, Sequence[CaseResult]], None]]:
        """Give a function to be called with the number of each case and its results as it is done.

        Args:
            cases: of the whole run.
            numbers: which of them this run checks.
            groups_told: whether a line is printed for each backend and block as it is done.
        """
        groups = [(case.subject.name, case.kind.name) for case in cases]
        left = Counter(groups[number] for number in numbers)
        found: dict[tuple[str, str], list[CaseResult]] = {}
        widths = [max((cell_len(group[place]) for group in groups), default=0) for place in (0, 1)]
        with self.counting(len(numbers)) as count:
            done = failed = 0

            def advance(number: int, results: Sequence[CaseResult]) -> None:
                nonlocal done, failed
                done += 1
                failed += sum(result.failed for result in results)
                self._case(results)
                group = groups[number]
                found.setdefault(group, []).extend(results)
                left[group] -= 1
                if not left[group] and groups_told:
                    self._group(group, widths, found[group])
                if count is not None:
                    # The case after this one is under way, unless several processes share the work.
                    case = cases[min(number + 1, numbers[-1])]
                    told = f"{case.name} on {case.subject.name}, {case.kind.name}, {case.dtype}"
                    count(done, len(numbers), (f"{failed} failed; " if failed else "") + told)

            yield advance

    def _case(self, results: Sequence[CaseResult]) -> None:
        if not self.verbose:
            return
        for result in results:
            text = Text(f"{result.verdict:<10}", STYLES[result.verdict])
            known = f" (known: {result.known})" if result.known else ""
            text.append(f"{result.name} {result.backend} {result.block} {result.dtype}", "")
            text.append(f"  {_count(result.examples, 'example')}, {result.seconds:.2f} s", "dim")
            reason = result.reason if result.verdict != "holds" else ""
            self.line(text + Text(f"  {reason}{known}" if reason or known else ""))

    def _group(self, group: tuple[str, str], widths: Sequence[int], results: Sequence[CaseResult]) -> None:
        """Show that all cases of one backend and block are done."""
        if self.quiet:
            return
        names = "  ".join(name + " " * (width - cell_len(name)) for name, width in zip(group, widths, strict=True))
        seconds = sum(result.seconds for result in results)
        self.line(Text(f"  {names}  ").append_text(verdicts(results)).append(f", {seconds:.1f} s", "dim"))

    def report(self, report: Report, replays: Mapping[str, str], status: int, why: str) -> None:
        """Show everything that a run found.

        Args:
            report: what it found.
            replays: the command of each failure by its id, where that is not what the failure itself says.
            status: the exit status.
            why: what it means.
        """
        self.failures(report.failures, replays)
        if not self.quiet:
            self.line()
            for line in tables(report, self.console.width, verbose=self.verbose):
                self.line(line)
            self._unchecked(report)
            self._known(report)
        for sentence in report.stale:
            file, rest = sentence.split(":", 1)
            self.line(f"stale known failure: {shown_place(file)}:{rest}", "bold red")
        self._totals(report, status, why)

    def failures(self, failures: Sequence[CaseResult], replays: Mapping[str, str]) -> None:
        """Show failures, those of one cause together: the smallest complete, the others in a line each."""
        for number, cause in enumerate(causes(failures)):
            if number or not self.quiet:
                self.line()
            self._failure(cause.smallest, replays.get(cause.smallest.id))
            self._others(cause, replays)

    def _others(self, cause: Cause, replays: Mapping[str, str]) -> None:
        if not cause.others:
            return
        first, count = cause.smallest, len(cause.others)
        stored = any(other.replay and other.id not in replays for other in cause.others)
        how = " (blocklaws replay ID shows one)" if stored and not first.label.startswith("<") else ""
        self.prose(f"  also     {_count(count, 'other case')} {cause.what}{how}:", "dim", " " * 11)
        shown = cause.others if self.verbose else cause.others[:_MOST_OTHERS]
        for other in shown:
            backend = "" if other.backend == first.backend else f"{other.backend}, "
            mark = f"{other.id}  " if other.counterexample is not None else " " * 12
            command = f"   {replays[other.id]}" if other.id in replays else ""
            self.line(f"           {mark}{other.name}, {backend}{other.block}, {other.dtype}{command}")
        if more := count - len(shown):
            self.prose(f"           and {more} more; --verbose lists them, --json has them in full")

    def _failure(self, result: CaseResult, replay: str | None) -> None:
        self.line(headline(result), STYLES[result.verdict])
        for label, text in failure_fields(result, replay):
            for line in field_lines(label, text, self.console.width):
                shown = Text(line)
                if line.startswith(f"  {label}"):
                    shown.stylize("dim", 0, 2 + len(label))
                self.line(shown)

    def _unchecked(self, report: Report) -> None:
        reasons = Counter((case.backend, case.reason) for case in report.cases if case.verdict == "unchecked")
        if reasons:
            self.line()
            self.prose(
                f"unchecked, so nothing is known of {_count(sum(reasons.values()), 'case')}:", STYLES["unchecked"]
            )
            for (backend, reason), count in reasons.most_common():
                self.prose(f"  {count:>5}  {backend}: {reason}", indent=" " * 9)
        for claiming in report.backends:
            if words := claiming.get("never_met"):
                told = f"{claiming['name']} supports what no block of this run has: {', '.join(words)}"
                self.prose(f"  {told}", STYLES["unchecked"], " " * 4)
        if unproven := dict.fromkeys(case.invariant for case in report.cases if case.unproven):
            self.line()
            self.prose(
                f"unproven, for no fault is named that would refute it (refuted_by): {', '.join(unproven)}", "yellow"
            )

    def _known(self, report: Report) -> None:
        reasons = Counter(case.known for case in report.cases if case.known)
        if reasons:
            self.line()
            self.line(f"known failures, expected in {_count(sum(reasons.values()), 'case')}:")
            for reason, count in reasons.items():
                self.prose(f"  {count:>5}  {reason}", indent=" " * 9)

    def _totals(self, report: Report, status: int, why: str) -> None:
        summary = report.summary
        counts = ", ".join(f"{summary[verdict]} {shown}" for verdict, shown in SHOWN.items())
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
        self.prose(f"{_count(len(report.cases), 'case')}: {counts}{expected}, in {seconds:.1f} s{compiled}")
        if report.campaign is not None and (held := report.campaign["held"]):
            first = report.campaign["first"]
            seeds = f"seed {first}" if held == 1 else f"seeds {first} to {first + held - 1}"
            examples = _count(report.campaign["examples"], "example")
            self.prose(f"with the {seeds} everything that was checked held, on {examples}")
        self.prose(f"exit status {status}: {why}", "green" if status == 0 else "bold red")


def _cases(run: Run) -> str:
    if run.shard is None:
        return _count(len(run.cases), "case")
    return f"shard {run.shard}: {len(run.numbers)} of {_count(len(run.cases), 'case')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
