"""The commands that run cases, ``verify`` and ``faults``: from the names on the command line to the exit status.

Must hold: a place that cannot be written to is refused before anything runs; an interrupt, or the end of what runs the
cases, shows and writes what is known by then; what a backend prints does not mix with the report. Must not: judge.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blocklaws.campaign import Limits, campaign, seconds_of
from blocklaws.discovery import is_own
from blocklaws.errors import BlocklawsError
from blocklaws.files import check_writable, write_all, write_json, write_text
from blocklaws.journal import Journal, fixed_by
from blocklaws.processes import cores
from blocklaws.report import CaseResult
from blocklaws.report_files import ReportFiles, complain, conclude
from blocklaws.running import Run, prepare, processes
from blocklaws.terminal import Terminal

if TYPE_CHECKING:
    from blocklaws.kill_results import Matrix

# Fewer cases than these are done before further processes have begun; and each process holds a framework.
_MANY = 500
_AT_MOST = 4

__all__ = ["faults_and_show", "quiet_stdout", "unasked", "verify_and_show"]


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send what a backend prints to standard error: standard output is the report's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def verify_and_show(backends: list[str], *, workers: int | None, scheduler: str | None, **options: Any) -> int:
    """Run where it is asked for, show, store and write; return the exit status."""
    if scheduler is not None and workers not in (None, 1):
        raise BlocklawsError("--workers and --scheduler exclude each other; the scheduler has its own workers")
    if scheduler is not None:
        from blocklaws.schedulers import scheduled

        with scheduled(scheduler) as executor:
            # A process of an MPI job that was a worker has nothing to tell.
            return 0 if executor is None else _verify_and_show(backends, lambda _: nullcontext(executor), **options)
    return _verify_and_show(backends, lambda run: processes(workers or unasked(run, backends)), **options)


def unasked(run: Run, backends: list[str]) -> int:
    """Return how many processes a run has for which nobody gave a number.

    Code of others may not stand beside itself (on one device, one port, one file), so it has one until more are asked
    for.
    """
    alone = len(run.numbers) < _MANY or run.request["device"] is not None or not all(map(is_own, backends))
    return 1 if alone else min(cores(), _AT_MOST)


def _verify_and_show(
    backends: list[str],
    place: Callable[[Run], AbstractContextManager[Executor | None]],
    *,
    json_file: Path | None,
    html_file: Path | None,
    junit_file: Path | None,
    markdown_file: Path | None,
    badge_file: Path | None,
    quiet: bool,
    verbose: bool,
    no_progress: bool,
    max_time: str | None,
    until_failure: bool,
    resume_file: Path | None,
    **request: Any,
) -> int:
    limits = Limits(until_failure, None if max_time is None else time.monotonic() + seconds_of(max_time))
    if quiet and verbose:
        raise BlocklawsError("--quiet and --verbose exclude each other; leave one out")
    if until_failure and request["shard"] is not None:
        raise BlocklawsError("--until-failure and --shard exclude each other: each shard would end with another seed")
    files = ReportFiles(json_file, html_file, junit_file, markdown_file, badge_file)
    files.check(resume_file)
    terminal = Terminal(quiet=quiet, verbose=verbose, progress=not no_progress)
    with quiet_stdout():
        run = prepare(backends, **request)
    with (
        nullcontext() if resume_file is None else _journal(resume_file, run, limits) as journal,
        place(run) as executor,
    ):
        terminal.header(run)
        done = campaign(run, executor, limits, journal, _watched(terminal, limits, journal), terminal.seed)
        if done.why and not done.report.cases:
            raise BlocklawsError(done.why)
        return conclude(
            done.report, terminal, files, done.status, [done.why], unwritten=bool(journal and journal.problem)
        )


def _journal(file: Path, run: Run, limits: Limits) -> Journal:
    return Journal(file, run, fixed_by(run, until_failure=limits.until_failure))


def _watched(
    terminal: Terminal, limits: Limits, journal: Journal | None
) -> Callable[[Run], AbstractContextManager[Callable[[int, list[CaseResult]], None]]]:
    """Return what shows the cases of a seed as they are done, and at once that the journal cannot be written to."""
    complained = False

    @contextlib.contextmanager
    def watch(run: Run) -> Iterator[Callable[[int, list[CaseResult]], None]]:
        with (
            terminal.progress(run.cases, run.numbers, groups_told=not limits.until_failure) as advance,
            quiet_stdout(),
        ):

            def case(number: int, results: list[CaseResult]) -> None:
                nonlocal complained
                advance(number, results)
                if journal is not None and journal.problem and not complained:
                    complained = True
                    complain([f"{journal.problem}; the run goes on without it"])

            yield case

    return watch


def faults_and_show(
    backends: list[str], *, json_file: Path | None, html_file: Path | None, no_progress: bool, **options: Any
) -> int:
    """Make the kill matrix, show it, write it; return the exit status."""
    from blocklaws.kill_matrix import run_faults

    check_writable(json_file, html_file)
    terminal = Terminal(progress=not no_progress)
    with terminal.counting() as count, quiet_stdout():
        matrix = run_faults(backends, progress=count, **options)
    matrix.render(terminal.console)
    unwritten = write_all(
        [
            (json_file, lambda file: write_json(file, matrix.as_dict())),
            (html_file, lambda file: _write_html(file, matrix)),
        ]
    )
    complain(unwritten)
    status: int = matrix.exit_status
    return status or 2 * bool(unwritten)


def _write_html(file: Path, matrix: Matrix) -> None:
    from blocklaws.html import faults_page

    write_text(file, faults_page(matrix.as_dict()))
