"""The command ``verify``: one run, from the names on the command line to the exit status.

Must hold: a place that cannot be written to is refused before anything runs; an interrupt shows what is known by then; what
a backend prints does not mix with the report. Must not: judge.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from blocklaws.errors import BlocklawsError
from blocklaws.failure_text import verify_command
from blocklaws.files import write_json, write_text
from blocklaws.replaying import store_failures
from blocklaws.report import Report
from blocklaws.running import Run, prepare
from blocklaws.terminal import Terminal

__all__ = ["check_writable", "quiet_stdout", "verify_and_show"]

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
    junit_file: Path | None,
    quiet: bool,
    verbose: bool,
    no_progress: bool,
    **request: Any,
) -> int:
    """Run, show, store and write; return the exit status."""
    if quiet and verbose:
        raise BlocklawsError("--quiet and --verbose exclude each other; leave one out")
    check_writable(json_file, junit_file)
    terminal = Terminal(quiet=quiet, verbose=verbose, progress=not no_progress)
    with quiet_stdout():
        run = prepare(backends, **request)
    terminal.header(run)
    report, interrupted = _run(run, workers, terminal)
    status = INTERRUPTED if interrupted else report.exit_status

    problem = store_failures(report)
    replays = {case.id: verify_command(case) for case in report.failures} if problem else {}
    terminal.report(report, replays, status)
    if problem:
        print(f"blocklaws: {problem}", file=sys.stderr)
    if interrupted:
        unwritten = [str(file) for file in (json_file, junit_file) if file is not None]
        if unwritten:
            print(f"blocklaws: interrupted, so {' and '.join(unwritten)} is not written", file=sys.stderr)
        return status
    if json_file is not None:
        write_json(json_file, report.as_dict())
    if junit_file is not None:
        from blocklaws.junit import junit_xml

        write_text(junit_file, junit_xml(report))
    return status


def _run(run: Run, workers: int, terminal: Terminal) -> tuple[Report, bool]:
    results = {}
    interrupted = False
    with terminal.progress(len(run.cases)) as advance:
        try:
            with quiet_stdout():
                for number, found in run.results(workers):
                    results[number] = found
                    advance(found)
        except KeyboardInterrupt:
            interrupted = True
    report = run.report(results)
    if interrupted:
        # Entries of a known-failures file that matched nothing may yet have matched.
        report = Report(**{**vars(report), "stale": ()})
    return report, interrupted
