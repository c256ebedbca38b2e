"""The commands that run something, ``verify`` above all: from the names on the command line to the exit status.

Must hold: a place that cannot be written to is refused before anything runs; an interrupt shows what is known by then;
what a backend prints does not mix with the report. Must not: judge.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from blocklaws.errors import BlocklawsError
from blocklaws.failure_text import verify_command
from blocklaws.files import write_json, write_text
from blocklaws.replaying import as_test, read_failure, replay, store_failures
from blocklaws.report import Report
from blocklaws.running import Run, prepare
from blocklaws.terminal import Terminal

__all__ = ["check_writable", "faults_and_show", "quiet_stdout", "replay_and_show", "verify_and_show"]

INTERRUPTED = 130


def check_writable(*files: Path | None) -> None:
    """Refuse a file that cannot be written, before a run of minutes and not after it."""
    for file in files:
        if file is None:
            continue
        if not file.parent.is_dir():
            raise BlocklawsError(f"cannot write {file}: there is no folder {file.parent}")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise BlocklawsError(f"cannot write {file}: permission denied")


@contextlib.contextmanager
def quiet_stdout() -> Any:
    """Send what a backend prints to standard error: standard output is the report's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def verify_and_show(
    backends: list[str],
    *,
    workers: int,
    json_file: Path | None,
    html_file: Path | None,
    junit_file: Path | None,
    quiet: bool,
    verbose: bool,
    no_progress: bool,
    **request: Any,
) -> int:
    """Run, show, store and write; return the exit status."""
    if quiet and verbose:
        raise BlocklawsError("--quiet and --verbose exclude each other; leave one out")
    check_writable(json_file, html_file, junit_file)
    terminal = Terminal(quiet=quiet, verbose=verbose, progress=not no_progress)
    with quiet_stdout():
        run = prepare(backends, **request)
    terminal.header(run)
    report, done = _run(run, workers, terminal)
    interrupted = done < len(run.cases)
    status = INTERRUPTED if interrupted else report.exit_status

    problem = store_failures(report)
    replays = {case.id: verify_command(case) for case in report.failures} if problem else {}
    terminal.report(report, replays, status, len(run.cases) - done)
    if problem:
        print(f"blocklaws: {problem}", file=sys.stderr)
    if interrupted:
        unwritten = [str(file) for file in (json_file, html_file, junit_file) if file is not None]
        if unwritten:
            print(f"blocklaws: interrupted, so {' and '.join(unwritten)} is not written", file=sys.stderr)
        return status
    if json_file is not None:
        write_json(json_file, report.as_dict())
    if html_file is not None:
        from blocklaws.html import verify_page

        write_text(html_file, verify_page(report))
    if junit_file is not None:
        from blocklaws.junit import junit_xml

        write_text(junit_file, junit_xml(report))
    return status


def _run(run: Run, workers: int, terminal: Terminal) -> tuple[Report, int]:
    """Return the report of the cases that are done, and how many these are."""
    results = {}
    with terminal.progress(len(run.cases)) as advance, contextlib.suppress(KeyboardInterrupt), quiet_stdout():
        for number, found in run.results(workers):
            results[number] = found
            advance(found)
    report = run.report(results)
    if len(results) < len(run.cases):
        # Entries of a known-failures file that matched nothing may yet have matched.
        report = dataclasses.replace(report, stale=())
    return report, len(results)


def replay_and_show(source: str, case_id: str | None, test_file: Path | None) -> int:
    """Replay one failure, show it, and write it as a test where that is asked for; return the exit status."""
    case = read_failure(source, case_id)
    with quiet_stdout():
        result = replay(case)
    terminal = Terminal()
    if result.verdict in ("violated", "error"):
        terminal.failures(
            [result],
            {result.id: shlex.join(["blocklaws", "replay", source, *(["--case", case_id] if case_id else [])])},
        )
        terminal.line()
    told = {"violated": "still violated", "error": "still in error", "holds": "holds now"}.get(
        result.verdict, "unchecked"
    )
    reason = f": {result.reason}" if result.verdict == "unchecked" else ""
    terminal.line(f"{result.name} on {result.backend}, {result.block}, {result.dtype}: {told}{reason}")
    if test_file is not None:
        as_test(case, result, test_file)
        terminal.line(f"wrote {test_file}; run it with: {shlex.join(['pytest', str(test_file)])}")
    return {"holds": 0, "unchecked": 2}.get(result.verdict, 1)


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
    if json_file is not None:
        write_json(json_file, matrix.as_dict())
    if html_file is not None:
        from blocklaws.html import faults_page

        write_text(html_file, faults_page(matrix.as_dict()))
    status: int = matrix.exit_status
    return status
