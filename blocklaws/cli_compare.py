"""The command ``compare``: two report files in, what changed out.

Must hold: a file that is no report is one line and exit status 2, also when the other one is good. Must not: import
NumPy; comparing is reading.
"""

from __future__ import annotations

import sys
from pathlib import Path

from blocklaws.comparing import compare
from blocklaws.comparing_text import comparison_lines
from blocklaws.files import check_writable, write_all, write_text
from blocklaws.markdown import comparison_markdown
from blocklaws.report_reading import read_report
from blocklaws.terminal import Terminal

__all__ = ["compare_and_show"]


def compare_and_show(
    old: Path, new: Path, *, slower: float, fail_on: tuple[str, ...], markdown_file: Path | None, verbose: bool
) -> int:
    """Compare two reports, show and write what changed; return the exit status."""
    check_writable(markdown_file)
    comparison = compare(read_report(old), read_report(new), slower, "slower" in fail_on)
    terminal = Terminal()
    for line in comparison_lines(comparison, terminal.console.width, verbose=verbose):
        terminal.line(line)
    unwritten = write_all([(markdown_file, lambda file: write_text(file, comparison_markdown(comparison)))])
    for problem in unwritten:
        print(f"blocklaws: {problem}", file=sys.stderr)
    return comparison.exit_status or 2 * bool(unwritten)
