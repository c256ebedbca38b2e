"""The commands that run cases, ``verify`` and ``faults``: from the names on the command line to the exit status.

Must hold: a place that cannot be written to is refused before anything runs; an interrupt, or the end of what runs the
cases, shows and writes what is known by then; what a backend prints does not mix with the report. Must not: judge.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blocklaws.errors import BlocklawsError
from blocklaws.files import check_writable, write_all, write_json, write_text
from blocklaws.report import Report
from blocklaws.report_files import ReportFiles, complain, conclude
from blocklaws.running import Run, prepare
from blocklaws.terminal import Terminal

if TYPE_CHECKING:
    from blocklaws.kill_results import Matrix

__all__ = ["faults_and_show", "quiet_stdout", "verify_and_show"]

INTERRUPTED = 130


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send what a backend prints to standard error: standard output is the report's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@dataclasses.dataclass(frozen=True)
class Place:
    """Where cases run."""

    workers: int = 1
    executor: Executor | None = None


def verify_and_show(backends: list[str], *, workers: int, scheduler: str | None, **options: Any) -> int:
    """Run where it is asked for, show, store and write; return the exit status."""
    if scheduler is None:
        return _verify_and_show(backends, Place(workers), **options)
    if workers != 1:
        raise BlocklawsError("--workers and --scheduler exclude each other; the scheduler has its own workers")
    from blocklaws.schedulers import scheduled

    with scheduled(scheduler) as executor:
        # A process of an MPI job that was a worker has nothing to tell.
        return 0 if executor is None else _verify_and_show(backends, Place(executor=executor), **options)


def _verify_and_show(
    backends: list[str],
    place: Place,
    *,
    json_file: Path | None,
    html_file: Path | None,
    junit_file: Path | None,
    markdown_file: Path | None,
    badge_file: Path | None,
    quiet: bool,
    verbose: bool,
    no_progress: bool,
    **request: Any,
) -> int:
    if quiet and verbose:
        raise BlocklawsError("--quiet and --verbose exclude each other; leave one out")
    files = ReportFiles(json_file, html_file, junit_file, markdown_file, badge_file)
    files.check()
    terminal = Terminal(quiet=quiet, verbose=verbose, progress=not no_progress)
    with quiet_stdout():
        run = prepare(backends, **request)
    terminal.header(run)
    report, why_ended = _run(run, place, terminal)
    if why_ended and not report.cases:
        raise BlocklawsError(why_ended)
    status = (2 if why_ended else INTERRUPTED) if report.not_run else report.exit_status
    return conclude(report, terminal, files, status, [why_ended])


def _run(run: Run, place: Place, terminal: Terminal) -> tuple[Report, str]:
    """Return the report of the cases that are done, and why that is not all of them; empty for an interrupt."""
    results = {}
    why_ended = ""
    with terminal.progress(run.cases, run.numbers) as advance, contextlib.suppress(KeyboardInterrupt), quiet_stdout():
        try:
            for number, found in run.results(place.workers, place.executor):
                results[number] = found
                advance(number, found)
        except BlocklawsError as error:
            why_ended = str(error)
    return run.report(results), why_ended


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
