"""The files that a report is written to, and the end of a command that has one: shown, stored, written.

Must hold: a place that cannot be written to is refused before anything runs; a file that could not be written costs no
other file and no verdict. Must not: judge, or load what a file needs that nobody asked for.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path

from blocklaws.failure_text import verify_command
from blocklaws.files import check_writable, write_all, write_json, write_text
from blocklaws.report import Report
from blocklaws.stored_failures import store_failures
from blocklaws.terminal import Terminal, meaning

__all__ = ["ReportFiles", "complain", "conclude"]


@dataclasses.dataclass(frozen=True)
class ReportFiles:
    """The files that were asked for; None where one was not."""

    json_file: Path | None = None
    html_file: Path | None = None
    junit_file: Path | None = None
    markdown_file: Path | None = None
    badge_file: Path | None = None

    def check(self, *others: Path | None) -> None:
        """Refuse a place that cannot be written to, of these files and of others that a run writes."""
        check_writable(self.json_file, self.html_file, self.junit_file, self.markdown_file, self.badge_file, *others)

    def write(self, report: Report, status: int) -> list[str]:
        """Write them; return why some could not be written."""
        return write_all(
            [
                (self.json_file, lambda file: write_json(file, report.as_dict())),
                (self.html_file, lambda file: _write_html(file, report)),
                (self.junit_file, lambda file: _write_junit(file, report)),
                (self.markdown_file, lambda file: _write_markdown(file, report, status)),
                (self.badge_file, lambda file: _write_badge(file, report)),
            ]
        )


def conclude(
    report: Report,
    terminal: Terminal,
    files: ReportFiles,
    status: int,
    problems: Iterable[str | None] = (),
    *,
    unwritten: bool = False,
) -> int:
    """Store the failures, write the files, show the report; return the exit status.

    Args:
        report: what was found.
        terminal: where it is shown.
        files: where it is written to.
        status: the exit status, if the files can be written.
        problems: what else is to be complained of.
        unwritten: whether another file could not be written, of which the user knows.
    """
    not_stored = store_failures(report)
    left_out = files.write(report, status)
    why = meaning(status, report)
    if (left_out or unwritten) and status == 0:
        status, why = 2, "everything that was checked holds, but a file could not be written"
    replays = {case.id: verify_command(case) for case in report.failures} if not_stored else {}
    terminal.report(report, replays, status, why)
    complain([not_stored, *left_out, *problems])
    return status


def complain(problems: Iterable[str | None]) -> None:
    """Print problems to standard error, a line each."""
    for problem in problems:
        if problem:
            print(f"blocklaws: {' '.join(problem.split())}", file=sys.stderr)


def _write_html(file: Path, report: Report) -> None:
    from blocklaws.html import verify_page

    write_text(file, verify_page(report))


def _write_junit(file: Path, report: Report) -> None:
    from blocklaws.junit import junit_xml

    write_text(file, junit_xml(report))


def _write_markdown(file: Path, report: Report, status: int) -> None:
    from blocklaws.markdown import report_markdown

    write_text(file, report_markdown(report, status, meaning(status, report)))


def _write_badge(file: Path, report: Report) -> None:
    from blocklaws.badge import badge_svg

    write_text(file, badge_svg(report))
