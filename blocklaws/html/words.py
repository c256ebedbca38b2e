"""How numbers and verdicts are written in a page.

Must hold: a verdict is told by a word or a mark, never by a colour alone; a number that is none ("nan", "inf") is shown
as what it is.
"""

from __future__ import annotations

import math

__all__ = ["MARKS", "SHOWN", "count", "number", "percent", "used"]

#: What a verdict looks like beside its word.
MARKS = {"holds": "✓", "violated": "✗", "error": "!", "unchecked": "?", "known": "≈"}
#: A verdict after a number of cases.
SHOWN = {"holds": "hold", "violated": "violated", "error": "in error", "unchecked": "unchecked", "known": "known"}


def number(value: float | str | None, digits: int = 3) -> str:
    """Return a number with a few digits; nothing for None."""
    if value is None:
        return ""
    try:
        value = float(value)
    except ValueError:
        return str(value)
    return f"{value:.{digits}g}" if math.isfinite(value) else {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")


def percent(share: float) -> str:
    """Return a share in percent, rounded down: 100 % means all of it."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


def used(nearest: tuple[float, float] | None) -> str:
    """Return how much of what is allowed was used: ``12 % of 2.8e-06``."""
    if nearest is None:
        return ""
    difference, allowed = nearest
    if not allowed:
        return f"{number(difference)} where none is allowed" if difference else "none of none"
    share = difference / allowed
    if not math.isfinite(share):
        return f"{number(difference)} of {number(allowed, 2)}"
    told = f"{100 * share:.0f} %" if share >= 0.01 or not share else "< 1 %"
    return f"{told if share < 100 else f'{number(share, 2)} times'} of {number(allowed, 2)}".replace(
        "times of", "times"
    )


def count(amount: int, noun: str) -> str:
    """Return ``1 case`` or ``2 cases``, the thousands apart."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"
