"""Numbers as a reader compares them by eye or by `diff`: so many digits after the point, on every backend the same.

Must hold: two values that differ by roundings of float64 alone are printed alike where the exact value is a number of
few digits, ties among them, and zero has no sign. Must not: shorten, or use an exponent.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["fixed", "printed"]

# A value is rounded twice, first to this many digits more than are printed. Backends differ by some 1e-15, and where a
# result is a short decimal whose next digit is a 5, one of them lies above that tie and another below. The first
# rounding brings both onto it, the second rounds it to even. That moves the cut to numbers that are not short, where
# nothing gathers.
_MORE = 4

_CONTEXT = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_EVEN)


def fixed(value: float, digits: int) -> str:
    """Return a number with ``digits`` digits after the point, rounded half to even after its noise is rounded away.

    >>> fixed(-1e-17, 6), fixed(0.1234565 + 1e-16, 6), fixed(0.1234565 - 1e-16, 6)
    ('0.000000', '0.123456', '0.123456')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    number = decimal.Decimal(value)
    for places in (digits + _MORE, digits):
        number = number.quantize(decimal.Decimal(1).scaleb(-places), context=_CONTEXT)
    return f"{number if number else abs(number):f}"


def printed(value: Any, digits: int, labels: Mapping[str, str]) -> str:
    """Return a value of the expression language as a record shows it.

    Truth values are ``true`` and ``false``, whole numbers have no point, lists and arrays stand in brackets without
    spaces, and a word that has a label is shown by it.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return labels.get(value, value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return fixed(value, digits)
    items = value.astype(np.float64).tolist() if _is_floating(value) else getattr(value, "tolist", lambda: value)()
    if isinstance(items, list | tuple):
        return f"[{','.join(printed(item, digits, labels) for item in items)}]"
    return printed(items, digits, labels)


def _is_floating(value: Any) -> bool:
    # The low-precision dtypes of ml_dtypes are of kind "V".
    return isinstance(value, np.ndarray) and value.dtype.kind not in "biu"
