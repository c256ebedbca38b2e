"""What a check found, with all that is needed to say where and by how much.

Must hold: an element that cannot be compared counts as wrong; a judgement that holds still says how near it came. Must
not: choose bounds, which is the business of `judgements`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.registry import Context
from blocklaws.expressions.values import Array, Value, describe

__all__ = ["Judgement", "as_judgement", "failed", "judge_elements", "judge_mask", "judge_some", "no_evidence"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Judgement:
    """The outcome of one check. ``bool(judgement)`` is ``holds``.

    Attributes:
        holds: whether the claim holds.
        claim: the part of the expression that claims it.
        detail: one sentence that says what was found instead; empty where the claim holds.
        worst: index of the element that is farthest beyond what is allowed, or nearest to it where all hold.
        got, want: the two values there.
        difference, allowed: how far apart they are, and how far they may be.
        wrong, total: how many elements are wrong, of how many; a total of 0 means that nothing was compared.
        mask: True where an element is wrong, in the shape that was compared; None where the claim holds.
        shape: the shape that was compared.
        name: the parameter that was compared, where there were several.
        undecided: a NaN, or shapes that do not fit, made the comparison meaningless; then `not` of it fails as well.
    """

    holds: bool
    claim: str
    detail: str = ""
    worst: tuple[int, ...] | None = None
    got: float | None = None
    want: float | None = None
    difference: float | None = None
    allowed: float | None = None
    wrong: int = 0
    total: int = 0
    mask: Array | None = None
    shape: tuple[int, ...] = ()
    name: str = ""
    undecided: bool = False

    def __bool__(self) -> bool:
        return self.holds

    @property
    def nearness(self) -> tuple[float, float] | None:
        """The worst (difference, allowed) of a claim that the one is at most the other; None for any other claim."""
        if self.difference is None or self.allowed is None:
            return None
        within = self.difference <= self.allowed
        # A claim that something differs holds when the difference is the larger one.
        return (self.difference, self.allowed) if within == self.holds else None

    @property
    def incomparable(self) -> str:
        """What to say of two values between which there is no number, as where one is NaN; empty for all others."""
        if self.difference is None or not math.isnan(self.difference):
            return ""
        got, want = (value is not None and math.isfinite(value) for value in (self.got, self.want))
        which = "neither is" if not (got or want) else "what was got is not" if want else "what was expected is not"
        return f"{which} finite, so no difference can be told"

    def __str__(self) -> str:
        return f"holds: {self.claim}" if self.holds else f"fails: {self.claim}: {self.detail}"


def as_judgement(value: Value, claim: str) -> Judgement:
    """Return a judgement as it is, or make one of a truth value.

    Raises:
        EvaluationError: the value is neither.
    """
    if isinstance(value, Judgement):
        return value
    if isinstance(value, bool):
        return Judgement(value, claim, "" if value else f"{claim} is false", wrong=int(not value), total=1)
    if isinstance(value, np.ndarray) and value.dtype.kind == "b":
        raise EvaluationError(f"{describe(value)} is many truth values; say all(...) or any(...)")
    raise EvaluationError(f"expected a judgement or a truth value, got {describe(value)}")


def failed(context: Context, detail: str, **facts: Any) -> Judgement:
    """Return a failed judgement that has no single worst element."""
    return Judgement(False, context.claim, detail, **{"wrong": 1, "total": 1, **facts})


def _peak(values: Array) -> tuple[int, ...]:
    """Return the index of the largest value."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


def _at(array: Array, shape: tuple[int, ...], index: tuple[int, ...]) -> float:
    return float((array if array.shape == shape else np.broadcast_to(array, shape))[index])


def _place(which: str, index: tuple[int, ...]) -> str:
    return f"{which} at {index}" if index else "the only one"


def judge_elements(context: Context, a: Array, b: Array, difference: Array, allowed: Array | float) -> Judgement:
    """Judge that every element's ``difference`` is at most ``allowed``; one that cannot be compared is wrong."""
    shape = difference.shape
    if difference.size == 0:
        return Judgement(True, context.claim, shape=shape)
    bound = np.broadcast_to(np.asarray(allowed, dtype=np.float64), shape)
    # An infinite difference is wrong whatever the bound: a bound that overflowed must not excuse it.
    mask = ~((difference <= bound) & (difference < np.inf))
    wrong = int(mask.sum())
    excess = np.where(np.isnan(difference), np.inf, difference - np.where(np.isfinite(bound), bound, 0.0))
    worst = _peak(np.where(mask, excess, -np.inf) if wrong else excess)
    judgement = Judgement(
        holds=not wrong,
        claim=context.claim,
        worst=worst,
        got=_at(a, shape, worst),
        want=_at(b, shape, worst),
        difference=float(difference[worst]),
        allowed=float(bound[worst]),
        wrong=wrong,
        total=mask.size,
        mask=mask if wrong else None,
        shape=shape,
        undecided=bool(np.isnan(difference).any()),
    )
    if not wrong:
        return judgement
    found = f"difference {judgement.difference:.3g}, allowed {judgement.allowed:.3g}"
    detail = (
        f"{wrong} of {mask.size} elements wrong, {_place('worst', worst)}: got {judgement.got!r}, "
        f"want {judgement.want!r}, {judgement.incomparable or found}"
    )
    return dataclasses.replace(judgement, detail=detail)


def judge_mask(context: Context, array: Array, mask: Array, fault: str) -> Judgement:
    """Judge that no element is marked in ``mask``; ``fault`` says what a marked one is."""
    wrong = int(mask.sum())
    if not wrong:
        return Judgement(True, context.claim, total=mask.size, shape=mask.shape)
    worst = _peak(mask)
    got = float(array[worst])
    shown = "" if array.dtype.kind == "b" else f": {got!r}"
    detail = f"{wrong} of {mask.size} elements {fault}, {_place('the first', worst)}{shown}"
    return Judgement(
        False, context.claim, detail, worst, got, wrong=wrong, total=mask.size, mask=mask, shape=mask.shape
    )


def judge_some(context: Context, x: Array, y: Array, far: Array, least: Array | float, verb: str) -> Judgement:
    """Judge that some element's difference ``far`` is beyond ``least``; a NaN anywhere is no evidence."""
    if (nothing := no_evidence(context, x, y, far.shape)) is not None:
        return nothing
    shape = far.shape
    bound = np.broadcast_to(np.asarray(least, dtype=np.float64), shape)
    worst = _peak(far - bound)
    holds = bool((far > bound).any())
    return Judgement(
        holds=holds,
        claim=context.claim,
        detail="" if holds else f"none of {far.size} elements {verb}, the largest difference is {far[worst]:.3g}",
        worst=worst,
        got=_at(x, shape, worst),
        want=_at(y, shape, worst),
        difference=float(far[worst]),
        allowed=float(bound[worst]),
        wrong=0 if holds else far.size,
        total=far.size,
        mask=None if holds else np.ones(shape, dtype=bool),
        shape=shape,
    )


def no_evidence(context: Context, x: Array, y: Array, shape: tuple[int, ...]) -> Judgement | None:
    """Return the failed judgement of two arrays that cannot show a difference: one has a NaN, or both are empty."""
    if broken := int((np.isnan(x) | np.isnan(y)).sum()):
        detail = f"{broken} elements are NaN, which is no difference"
        return failed(context, detail, shape=shape, total=x.size, undecided=True)
    if 0 in shape:
        return failed(context, "there is nothing to compare", shape=shape, wrong=0, total=0)
    return None
