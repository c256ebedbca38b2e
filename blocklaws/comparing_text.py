"""What a comparison looks like on a terminal: the two reports, what is worse, what else changed, the exit status.

Must hold: the worst comes first and every kind is counted, also where its lines are cut. Must not: decide anything.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from blocklaws.comparing import Comparison

__all__ = ["comparison_lines"]

_MOST_LISTED = 20


def comparison_lines(comparison: Comparison, width: int, *, verbose: bool = False) -> Iterator[Text]:
    """Yield the lines of a comparison; ``verbose`` lists everything."""
    for label, report, told in zip(
        ("old", "new"), (comparison.old, comparison.new), comparison.told, strict=True
    ):  # fmt: skip
        yield from _wrapped(f"{label}  ", f"{report.name}: {told}", width, "bold")
    for note in comparison.notes:
        yield Text(f"     {note}", "yellow")
    for kind, changes in comparison.by_kind.items():
        worse = kind in comparison.regressions
        yield Text()
        yield Text(f"{kind} ({len(changes)})", "bold red" if worse else "bold")
        lines = comparison.lines(changes)
        shown = lines if verbose else lines[:_MOST_LISTED]
        for line in shown:
            yield Text(f"  {line.what}")
            if line.detail:
                yield from _wrapped("    ", line.detail, width, "")
        if more := len(lines) - len(shown):
            yield Text(f"  and {more} more; --verbose lists them")
    yield Text()
    yield _status(comparison)


def _wrapped(start: str, text: str, width: int, style: str) -> Iterator[Text]:
    prose, separator, command = text.partition("; blocklaws replay ")
    for line in textwrap.wrap(
        prose, max(width, 40), initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False,
        break_on_hyphens=False,
    ):  # fmt: skip
        yield Text(line, style)
    if separator:  # what may be pasted is never broken
        yield Text(f"{' ' * len(start)}{separator[2:]}{command}", style)


def _status(comparison: Comparison) -> Text:
    worse = ", ".join(f"{len(changes)} {kind}" for kind, changes in comparison.worse.items())
    if worse:
        return Text(f"exit status 1: {worse}", "bold red")
    rest = ", ".join(f"{len(changes)} {kind}" for kind, changes in comparison.by_kind.items())
    return Text(f"exit status 0: nothing got worse ({rest or 'nothing changed'})", "green")
