"""What an example is drawn from, where a draw must depend on nothing but the seed of the search.

Must hold: the same seed draws the same in any process, whatever else is loaded there. Hypothesis mixes integers of a
hundred and more that it finds in the sources of loaded modules into what it draws (those that stand outside of
site-packages: an adapter, a script, this checkout), and which modules are loaded differs between one process, its
workers and pytest. Must not: rely on how Hypothesis does so.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

__all__ = ["choices", "integers", "permutations"]

# Hypothesis takes nothing smaller from a source. Larger numbers are drawn in digits, as hours are told in minutes.
_FEW = 100
_DIGITS = [st.integers(0, digit) for digit in range(_FEW)]


@st.composite
def integers(draw: st.DrawFn, low: int, high: int) -> int:
    """Draw an integer from low to high, which may be drawn too; shrinks towards low."""
    number, at_most = 0, True  # whether all digits so far are those of the highest
    for most in _digits(high - low):
        digit = draw(_DIGITS[most if at_most else _FEW - 1])
        at_most = at_most and digit == most
        number = number * _FEW + digit
    return low + number


@functools.lru_cache
def _digits(number: int) -> tuple[int, ...]:
    return (*(_digits(number // _FEW) if number >= _FEW else ()), number % _FEW)


def choices(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Draw one of some values; shrinks towards the first."""
    if len(values) <= _FEW:
        return st.sampled_from(values)
    return integers(0, len(values) - 1).map(lambda number: values[number])


def permutations(count: int) -> st.SearchStrategy[list[int]]:
    """Draw an order of 0 .. count - 1; shrinks towards that one."""
    return st.permutations(range(count)) if count <= _FEW else _long_permutation(count)


@st.composite
def _long_permutation(draw: st.DrawFn, count: int) -> list[int]:
    order = list(range(count))
    for place in range(count - 1):
        other = draw(integers(place, count - 1))
        order[place], order[other] = order[other], order[place]
    return order
