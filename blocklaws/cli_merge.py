"""The command ``merge``: the reports of all shards in, the report of the run out.

Must hold: the exit status is that of the whole run. Must not: run anything, or import NumPy before the files are read.
"""

from __future__ import annotations

from pathlib import Path

from blocklaws.merging import merge
from blocklaws.report_files import ReportFiles, conclude
from blocklaws.terminal import Terminal

__all__ = ["merge_and_show"]


def merge_and_show(shards: list[Path], *, quiet: bool, verbose: bool, **files: Path | None) -> int:
    """Join reports, show the whole and write it; return the exit status."""
    written = ReportFiles(**files)
    written.check()
    report = merge(shards)
    return conclude(report, Terminal(quiet=quiet, verbose=verbose, progress=False), written, report.exit_status)
