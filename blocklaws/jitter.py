"""How far rounding may take a right block on one world: the recipe on that world, and on worlds off by their last bits.

One run of the recipe can be right by luck where a world is ill-conditioned: a layer norm of a constant row turns the
last bit of its input into hundreds, a far position the last bit of a frequency into a whole angle. Data that are off
by their last bit show that. Where errors do not even grow in proportion (a branch that cancels to its noise, and the
norm behind it that makes the sign of that noise its output) one such draw may fall on the near side as well, so what
fails against few draws is judged again against many (`closely`).

Must hold: every draw follows from the world's seed alone. Must not: know what the values are, or judge them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import ml_dtypes
import numpy as np

from blocklaws.expressions import Judgement
from blocklaws.worlds import World, as_dtype

__all__ = ["FEW", "FLOAT64_BY_FLOAT32", "MANY", "Closer", "closely", "furthest", "jittered", "recipe_dtype"]

#: On how many worlds off by their last bits the recipe is run: at first, and where a claim failed against that.
FEW, MANY = 1, 12

#: How many times as far off a run must be to count among many: more than the factor ``c`` of a tolerance allows, so
#: that the recipe itself would be refuted. Draws in proportion, of which the furthest of thirteen was up to seven times
#: as far off as that of two, are what ``c`` is for; widening by those would only hide small mistakes.
_JUMP = 16.0

#: The recipe of a float64 world is the float32 recipe with its error scaled down by the ratio of the two roundings: the
#: reference's own error cannot be seen in float64, its amplification by the world's conditioning can.
FLOAT64_BY_FLOAT32 = 2.0**-29


class Closer(Protocol):
    """What runs the recipe, on that many jittered worlds."""

    jittered_worlds: int


def closely(passes: Iterable[Closer], judge: Callable[[], Judgement]) -> Judgement:
    """Return what ``judge`` says; where it says no and there are passes, what it says when those look closer.

    They do so for this judgement alone: a pass may be shared, and what one invariant made of it must not widen what the
    next is told.
    """
    judgement, against = judge(), tuple(passes)
    if judgement.holds or not against:
        return judgement
    try:
        for each in against:
            each.jittered_worlds = MANY
        return judge()
    finally:
        for each in against:
            each.jittered_worlds = FEW


def recipe_dtype(dtype: str) -> str:
    """Return the dtype that the recipe of a world runs in."""
    return "float32" if dtype == "float64" else dtype


def jittered(world: World, number: int) -> World:
    """Return the world with an input off by its last bit, and a rotary base; after the first, parameters as well."""
    eps = float(ml_dtypes.finfo(as_dtype(world.dtype)).eps)
    random = np.random.default_rng(world.recipe.seed + number)

    def off(array: np.ndarray) -> np.ndarray:
        signs = random.choice((-1.0, 1.0), array.shape)
        moved: np.ndarray = (array.astype(np.float64) * (1 + eps * signs)).astype(array.dtype)
        return moved

    # Angles are float32 at least in every dtype, so that is how far off a frequency may be.
    base = world.config.rotary_base * (1 + 2 * float(np.finfo(np.float32).eps))
    moved = world.replace(input=off(world.input), config=world.config.replace(rotary_base=base))
    if number == 0:
        return moved
    return moved.replace(parameters={name: off(array) for name, array in world.parameters.items()})


def furthest(exact: np.ndarray, runs: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """Return, as float64, that run of the recipe which is furthest from the exact value; the first if it is not finite.

    What lies behind the first `FEW` jittered runs counts only where it is out of all proportion to those (`_JUMP`). In
    a float64 world the error is brought down from float32's size (`FLOAT64_BY_FLOAT32`).
    """
    values = [np.asarray(run, np.float64) for run in runs]
    with np.errstate(all="ignore"):
        errors = [float(np.max(np.abs(value - exact), initial=0.0)) for value in values]
        worst = _largest(errors[: 1 + FEW])
        far = _largest(errors)
        if errors[far] > _JUMP * errors[worst]:
            worst = far
        return _scaled_down(exact, values[worst]) if dtype == "float64" else values[worst]


def _largest(errors: Sequence[float]) -> int:
    """Return where the largest finite error is; the first if that one is not finite."""
    worst = 0
    for number, error in enumerate(errors):
        if np.isfinite(error) and error > errors[worst]:
            worst = number
    return worst


def _scaled_down(exact: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Return the exact value with the float32 recipe's error brought down to float64's size."""
    scaled: np.ndarray = exact + (np.asarray(rounded, np.float64) - exact) * FLOAT64_BY_FLOAT32
    return scaled
