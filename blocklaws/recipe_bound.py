"""Whether what a block shows of one stage lies within the bound that the reference recipe gives it.

Must hold: the same rule for the first diverging stage, for tables, for traces and for narrowing, so that none of them
contradicts another. Must not: know what follows from it.
"""

from __future__ import annotations

import numpy as np

from blocklaws.expressions import Judgement, calibrated
from blocklaws.jitter import closely
from blocklaws.passes import Pass
from blocklaws.specification import Tolerance

__all__ = ["within_bound"]

_CLAIM = "calibrated(output, reference.output, recipe.output)"


def within_bound(passed: Pass, stage: str, got: np.ndarray, tolerance: Tolerance) -> Judgement:
    """Return whether a stage of a pass, ``got``, is within its calibrated bound.

    Raises:
        EvaluationError: the reference or the recipe is not finite there, so that there is no bound.
        Unavailable: there is no reference.
    """
    exact = passed.resolve(("reference", stage))
    return closely((passed,), lambda: calibrated(got, exact, passed.resolve(("recipe", stage)), tolerance, _CLAIM))
