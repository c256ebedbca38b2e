"""The judgements as plain Python functions, for properties and reports that judge without an expression.

Must hold: each is the function of the language of that name, so that a property and a spec cannot judge differently.
"""

from __future__ import annotations

import numpy as np

from blocklaws.expressions import judgements
from blocklaws.expressions.budget import DEFAULT_BUDGET, Meter
from blocklaws.expressions.judging import Judgement
from blocklaws.expressions.registry import Context, ToleranceLike
from blocklaws.expressions.values import as_value

__all__ = ["apart", "calibrated", "close", "differs", "finite", "identical"]


def _context(claim: str, tolerance: ToleranceLike | None = None) -> Context:
    return Context(Meter(DEFAULT_BUDGET), tolerance, claim)


def identical(a: object, b: object, claim: str = "identical") -> Judgement:
    """Return whether all values are equal, bit for bit but for the sign of zero."""
    with np.errstate(all="ignore"):
        return judgements.identical(_context(claim), as_value(a), as_value(b))


def close(a: object, b: object, tolerance: ToleranceLike, times: float = 1.0, claim: str = "close") -> Judgement:
    """Return whether ``|a - b| <= times (atol + rtol r)`` everywhere, r the largest magnitude of the row."""
    with np.errstate(all="ignore"):
        return judgements.close(_context(claim, tolerance), as_value(a), as_value(b), times)


def calibrated(
    candidate: object, reference: object, recipe: object, tolerance: ToleranceLike, claim: str = "calibrated"
) -> Judgement:
    """Return whether the candidate is about as near to the reference as the recipe in the same dtype is.

    Raises:
        EvaluationError: the reference or the recipe is not finite, or their shapes differ.
    """
    values = (as_value(candidate), as_value(reference), as_value(recipe))
    with np.errstate(all="ignore"):
        return judgements.calibrated(_context(claim, tolerance), *values)


def finite(x: object, claim: str = "finite") -> Judgement:
    """Return whether every value is a number."""
    return judgements.finite(_context(claim), as_value(x))


def differs(a: object, b: object, claim: str = "differs") -> Judgement:
    """Return whether some value differs, and none is NaN."""
    with np.errstate(all="ignore"):
        return judgements.differs(_context(claim), as_value(a), as_value(b))


def apart(a: object, b: object, tolerance: ToleranceLike, claim: str = "apart") -> Judgement:
    """Return whether some value differs by more than ten times the tolerance of `close`, and none is NaN."""
    with np.errstate(all="ignore"):
        return judgements.apart(_context(claim, tolerance), as_value(a), as_value(b))
