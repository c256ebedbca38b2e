"""The stages of one pass beside those of the float64 reference, as data small enough to keep with a failure.

Must hold: a stage counts as outside its bound by the judgement that also names the first diverging stage; an array is
cut to a window around its worst element, the numbers of one table never exceed a fixed count, and what was cut or left
out is said. Must not: hold arrays, or give a verdict.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised
from blocklaws.canonical import stage_order, stage_shapes
from blocklaws.claim_axes import axes_of_stage
from blocklaws.expressions import EvaluationError, Judgement
from blocklaws.passes import Pass, Unavailable
from blocklaws.recipe_bound import within_bound
from blocklaws.specification import Tolerance

__all__ = ["MOST_COLUMNS", "MOST_NUMBERS", "MOST_ROWS", "stage_table", "table_of_failure"]

#: An array is shown in one plane, its last two axes, and in a window of at most this size.
MOST_ROWS, MOST_COLUMNS = 24, 24
#: How many numbers one table holds, over all of its planes and both sides.
MOST_NUMBERS = 4096

#: Always shown, since which keys a query sees is asked even where the numbers are right.
_ALWAYS = ("attention_weights",)
_NO_TRACE = "the block shows no stages (it has no trace), so its output alone is compared"
_NO_REFERENCE = "the reference is not finite on this world, so there is nothing to compare with"


def table_of_failure(passes: Mapping[str, Pass], first: str, tolerance: Tolerance) -> dict[str, Any] | None:
    """Return the table of the pass that is wrong: that of ``first``, unless it shows nothing wrong and another does."""
    names = dict.fromkeys([first, *passes])
    shown = [table for name in names if (table := stage_table(passes, name, tolerance)) is not None]
    wrong = (table for table in shown if any(row.get("within") is False for row in table["rows"]))
    return next(wrong, shown[0] if shown else None)


def stage_table(passes: Mapping[str, Pass], name: str, tolerance: Tolerance) -> dict[str, Any] | None:
    """Return the stages of one pass beside the reference's, or None where the block shows not even an output.

    The table is ``{"pass", "note", "rows"}``. A row has ``stage``; ``shape``, or None where it is not shown;
    ``expected_shape`` where the shape is wrong; the largest magnitudes ``max`` and ``reference_max``; the worst
    ``difference``, what is ``allowed`` there and the index ``at``; and ``within``, None where nothing can be said. A
    stage outside its bound and the attention weights also have a ``plane``: ``{"axes", "at", "from", "of", "got",
    "want"}``, the last two axes around the worst element, with ``from`` the first index of the window and ``of`` the
    whole lengths; ``got`` and ``want`` are lists of rows.

    Args:
        passes: the passes of an examination.
        name: which of them; "" is the base.
        tolerance: the bounds of the dtype.
    """
    if name not in passes:
        return None
    passed = passes[name]
    try:
        shown, note = _shown(passed)
        exact = passed.reference().stages()
    except (BlockRaised, Unavailable):
        return None
    batch, tokens, _ = passed.world.input.shape
    wanted = stage_shapes(passed.world.config, batch, tokens)
    rows, planes = [], {}
    for stage in stage_order(passed.world.config)[1:]:
        if (array := shown.get(stage)) is None:
            rows.append({"stage": stage, "shape": None})
            continue
        row: dict[str, Any] = {
            "stage": stage,
            "shape": list(array.shape),
            "max": _largest(array),
            "reference_max": _largest(exact[stage]),
        }
        if array.shape != wanted[stage]:
            row |= {"expected_shape": list(wanted[stage]), "within": False}
        else:
            judgement = _judged(array, passed, stage, tolerance)
            row |= _differs(judgement)
            if judgement is None or not judgement.holds or stage in _ALWAYS:
                planes[stage] = _plane(stage, array, exact[stage])
        rows.append(row)
    _keep(rows, planes)
    if any(row.get("within", True) is None for row in rows):
        note = _NO_REFERENCE
    return {"pass": name, "note": note, "rows": rows}


def _shown(passed: Pass) -> tuple[dict[str, np.ndarray], str]:
    """Return the stages that the block shows, its output among them, and what is to be said of them."""
    shown: dict[str, np.ndarray] = {}
    note = ""
    if "trace" in passed.built.capabilities:
        shown = dict(passed.stages())
    else:
        note = _NO_TRACE
    if "output" not in shown:
        shown["output"] = passed.output()
    return shown, note


def _judged(array: np.ndarray, passed: Pass, stage: str, tolerance: Tolerance) -> Judgement | None:
    with contextlib.suppress(EvaluationError):
        return within_bound(passed, stage, array, tolerance)
    return None


def _differs(judgement: Judgement | None) -> dict[str, Any]:
    if judgement is None:
        return {"within": None}
    if judgement.worst is None:
        return {"difference": 0.0, "allowed": 0.0, "at": [], "within": judgement.holds}
    return {
        "difference": _number(judgement.difference),
        "allowed": _number(judgement.allowed),
        "at": list(judgement.worst),
        "within": judgement.holds,
    }


def _plane(stage: str, array: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Return the last two axes of a stage where it is furthest off, cut to a window."""
    with np.errstate(all="ignore"):
        far = np.abs(array.astype(np.float64) - exact.astype(np.float64))
    far = np.where(np.isnan(far), np.inf, far)
    if not far.size:
        return {
            "axes": list(axes_of_stage(stage, far.ndim)),
            "at": [],
            "from": [0, 0],
            "of": [0, 0],
            "got": [],
            "want": [],
        }
    worst = [int(index) for index in np.unravel_index(int(np.argmax(far)), far.shape)]
    outer = tuple(worst[:-2])
    windows = [
        _window(index, length, most)
        for index, length, most in zip(worst[-2:], far.shape[-2:], (MOST_ROWS, MOST_COLUMNS), strict=True)
    ]
    part: tuple[Any, ...] = (*outer, *(slice(start, stop) for start, stop in windows))
    return {
        "axes": list(axes_of_stage(stage, far.ndim)),
        "at": list(outer),
        "from": [start for start, _ in windows],
        "of": list(far.shape[-2:]),
        "got": _rows(array[part]),
        "want": _rows(exact[part]),
    }


def _window(index: int, length: int, most: int) -> tuple[int, int]:
    """Return where a window of at most ``most`` around an index begins and ends."""
    start = max(0, min(index - most // 2, length - most))
    return start, min(length, start + most)


def _rows(array: np.ndarray) -> list[list[float | str]]:
    return [[_number(value) for value in row] for row in array.astype(np.float64)]


def _keep(rows: list[dict[str, Any]], planes: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the rows their planes: the first stage outside its bound, the output and the weights before all others."""
    outside = [row["stage"] for row in rows if row.get("within") is False]
    left = MOST_NUMBERS
    by_stage = {row["stage"]: row for row in rows}
    for stage in dict.fromkeys([*outside[:1], "output", *_ALWAYS, *planes]):
        if (plane := planes.get(stage)) is None:
            continue
        count = 2 * sum(len(row) for row in plane["got"])
        if count <= left:
            by_stage[stage]["plane"] = plane
            left -= count
        else:
            by_stage[stage]["plane_left_out"] = True


def _largest(array: np.ndarray) -> float | str:
    return _number(np.abs(array.astype(np.float64)).max(initial=0.0))


def _number(value: Any) -> float | str:
    """Return six digits of a number; JSON has no infinities and no NaN, so they are written as texts."""
    value = math.nan if value is None else float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else repr(value)
