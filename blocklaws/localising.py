"""Says where a traced block went wrong: the first stage that diverges from the reference, and which part of which axes.

Must hold: a stage is named only when it lies outside the calibrated bound of its dtype while every stage before it lies
inside. Must not: judge the case; the verdict is in when this is asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from blocklaws.built import BlockRaised
from blocklaws.canonical import one_array, stage_order, stage_shapes
from blocklaws.config import BlockConfig
from blocklaws.expressions import EvaluationError, Judgement
from blocklaws.passes import Pass, Unavailable
from blocklaws.recipe_bound import within_bound
from blocklaws.specification import Tolerance

__all__ = ["Divergence", "axis_pattern", "first_divergence"]


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first stage that is not what the reference gives, in which pass, and how far it is off."""

    stage: str
    passed: str
    judgement: Judgement
    placement: str = "pre"
    """Where the norms of that pass stand, and so in which order its stages come."""
    output_right: bool = False
    """Whether the output of that pass is inside its bound all the same: then the trace may be wrong, not the block."""


def axis_pattern(mask: np.ndarray, names: Sequence[str]) -> str:
    """Say in words which elements of an array are wrong.

    >>> mask = np.zeros((1, 4, 2), bool); mask[:, 2:] = True
    >>> axis_pattern(mask, ("batch", "token", "feature"))
    'tokens >= 2, every batch and feature'
    """
    mask = np.asarray(mask, bool)
    if not mask.any():
        return "nowhere"
    whole, parts = [], []
    for axis, name in enumerate(names):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        hit = np.flatnonzero(mask.any(axis=others))
        if len(hit) == mask.shape[axis]:
            whole.append(name)
        else:
            parts.append(_indices(name, hit, mask.shape[axis]))
    text = ", ".join(parts)
    if whole:
        everywhere = " and ".join([", ".join(whole[:-1]), whole[-1]] if len(whole) > 1 else whole)
        text = f"{text}, every {everywhere}" if text else f"every {everywhere}"
    # The pattern is a box around the wrong elements; say so when the box has right ones in it.
    box = np.prod(
        [len(np.flatnonzero(mask.any(axis=tuple(o for o in range(mask.ndim) if o != a)))) for a in range(mask.ndim)]
    )
    return text if mask.sum() == box else f"{text} ({int(mask.sum())} of {int(box)} there)"


def _indices(name: str, hit: np.ndarray, length: int) -> str:
    first, last = int(hit[0]), int(hit[-1])
    if name[-1:].isdigit():  # an axis that has but a number
        name = names = f"{name}:"
    else:
        names = _plural(name)
    if len(hit) == 1:
        return f"{name} {first}"
    if last - first + 1 == len(hit):
        if last == length - 1:
            return f"{names} >= {first}"
        return f"{names} <= {last}" if first == 0 else f"{names} {first} to {last}"
    shown = ", ".join(str(int(index)) for index in hit[:8])
    return f"{names} {shown}" + (" ..." if len(hit) > 8 else "")


def _plural(name: str) -> str:
    """Return the name of several indices of an axis: tokens, keys, but queries and batches."""
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("ch") else f"{name}s"


def first_divergence(passes: Mapping[str, Pass], tolerance: Tolerance) -> Divergence | None:
    """Return the first stage, in the order of the computation, that is outside its calibrated bound in some pass.

    A pass may have a config of its own, and each is looked at in the order of its own. Of several passes that one is
    told which went wrong earliest; of those that went wrong in one place, the first.

    Returns None when the block cannot be traced, when the reference cannot run the world, or when every stage agrees.
    """
    found = [each for name, passed in passes.items() if (each := _divergence_of(name, passed, tolerance)) is not None]
    return min(found, key=lambda each: _place(each.stage, passes[each.passed].world.config), default=None)


def _place(stage: str, config: BlockConfig) -> int:
    """Return where a stage is computed, comparably between placements: what ends a half does so in the same place."""
    return stage_order(config).index(one_array(config.placement).get(stage, stage))


def _divergence_of(name: str, passed: Pass, tolerance: Tolerance) -> Divergence | None:
    """Return the first stage of one pass that is outside its bound, in the order of its own config."""
    try:
        shown = passed.stages()
        passed.reference().stages()  # what refuses this world says nothing of the block
        if "output" not in shown:
            shown = {**shown, "output": passed.output()}
    except (BlockRaised, Unavailable, AttributeError):
        return None
    batch, tokens, _ = passed.world.input.shape
    config = passed.world.config
    wanted = stage_shapes(config, batch, tokens)
    for stage in stage_order(config)[1:]:
        if stage not in shown:
            continue
        if shown[stage].shape != wanted[stage]:
            detail = f"has shape {shown[stage].shape} where {wanted[stage]} was expected"
            return Divergence(stage, name, Judgement(False, stage, detail, wrong=1, total=1), config.placement)
        try:
            judgement = within_bound(passed, stage, shown[stage], tolerance)
        except EvaluationError:
            continue  # the reference itself is not finite here: it says nothing of the block
        if not judgement.holds:
            right = stage != "output" and _output_right(passed, tolerance)
            return Divergence(stage, name, judgement, config.placement, right)
    return None


def _output_right(passed: Pass, tolerance: Tolerance) -> bool:
    try:
        return within_bound(passed, "output", passed.output(), tolerance).holds
    except (BlockRaised, EvaluationError):
        return False
