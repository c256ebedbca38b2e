"""Carries out ``set`` and ``vary``: makes one world from another, line by line.

Must hold: a line sees the world as the lines above it left it; a parameter that the block does not have is left
alone; the result is coherent (every parameter has the shape that the config asks for). Must not: touch the world it
starts from.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blocklaws.canonical import PARAMETER_NAMES, parameter_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import BlocklawsError, ConfigError
from blocklaws.expressions import evaluate
from blocklaws.passes import Pass, Unavailable
from blocklaws.specification import Assignment, Tolerance
from blocklaws.subjects import Subject
from blocklaws.worlds import World, as_dtype, fill

__all__ = ["assign"]

_CONFIG_TARGETS = frozenset(BlockConfig.__dataclass_fields__)


def assign(
    world: World,
    assignments: tuple[Assignment, ...],
    picks: Mapping[str, Any],
    subject: Subject,
    tolerance: Tolerance,
    salt: int = 0,
) -> World:
    """Return the world after the assignments.

    Raises:
        BlocklawsError: an assignment gives a value that does not fit; the message begins with its place in the spec.
    """
    for number, assignment in enumerate(assignments):
        scope = _scope(world, picks, subject)
        if assignment.target in _CONFIG_TARGETS:
            world = _with_config(world, assignment, scope, tolerance)
        elif assignment.target == "position_offset":
            world = world.replace(position_offset=_offset(assignment, scope, tolerance))
        elif assignment.target in ("input", "cotangent"):
            old = getattr(world, assignment.target)
            new = _array(world, assignment, assignment.target, old, scope, tolerance, salt * 64 + number)
            world = world.replace(**{assignment.target: new})
            if assignment.target == "input" and new.shape != old.shape and world.cotangent.shape != new.shape:
                world = world.replace(cotangent=_fitted(world.cotangent, new.shape))
        else:
            world = _with_parameters(world, assignment, scope, tolerance, salt * 64 + number)
    if assignments:
        _check(world, assignments)
    return world


def _scope(world: World, picks: Mapping[str, Any], subject: Subject) -> Callable[[tuple[str, ...]], Any]:
    passed = Pass(subject, world, None)
    return lambda path: picks[path[0]] if path[0] in picks else passed.resolve(path)


def _value(assignment: Assignment, scope: Callable[[tuple[str, ...]], Any], tolerance: Tolerance) -> Any:
    if assignment.by is not None and assignment.value is None:
        return assignment.by
    if assignment.value is None or isinstance(assignment.value, bool | int | float):
        return assignment.value
    return evaluate(assignment.value, scope, tolerance)


def _offset(assignment: Assignment, scope: Callable[[tuple[str, ...]], Any], tolerance: Tolerance) -> int:
    value = _value(assignment, scope, tolerance)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BlocklawsError(f"{assignment.place}: position_offset is {value!r:.40}, but must be a whole number")
    return int(value)


def _with_config(
    world: World, assignment: Assignment, scope: Callable[[tuple[str, ...]], Any], tolerance: Tolerance
) -> World:
    try:
        return world.replace(config=world.config.replace(**{assignment.target: _value(assignment, scope, tolerance)}))
    except ConfigError as error:
        raise BlocklawsError(f"{assignment.place}: {error}") from None


def _with_parameters(
    world: World, assignment: Assignment, scope: Callable[[tuple[str, ...]], Any], tolerance: Tolerance, salt: int
) -> World:
    changed = dict(world.parameters)
    for name in fnmatch.filter(PARAMETER_NAMES, assignment.target):
        if name in changed:
            try:
                changed[name] = _array(world, assignment, name, changed[name], scope, tolerance, salt)
            except Unavailable:
                continue
    return world.replace(parameters=changed)


def _array(
    world: World,
    assignment: Assignment,
    target: str,
    old: np.ndarray,
    scope: Callable[[tuple[str, ...]], Any],
    tolerance: Tolerance,
    salt: int,
) -> np.ndarray:
    filled: Any
    if assignment.by is not None:
        filled = fill(world, target, assignment.by, salt)
    else:
        filled = np.asarray(_value(assignment, scope, tolerance))
        if filled.ndim == 0:
            filled = np.full(old.shape, filled)
    filled = filled.astype(as_dtype(world.dtype))
    if assignment.axis is None:
        return np.ascontiguousarray(filled)
    axis = {"batch": 0, "token": 1, "feature": 2}[assignment.axis]
    selection: Any
    if isinstance(assignment.selection, tuple):
        low, high = (None if end is None else int(evaluate(end, scope, tolerance)) for end in assignment.selection)
        selection = slice(low, high)
    else:
        assert assignment.selection is not None
        selection = int(evaluate(assignment.selection, scope, tolerance))
    where = (*(slice(None),) * axis, selection)
    changed = old.copy()
    try:
        changed[where] = filled[where] if filled.shape == old.shape else filled
    except (IndexError, ValueError) as error:
        raise BlocklawsError(f"{assignment.place}: {assignment.axis} {selection}: {error}") from None
    return changed


def _fitted(cotangent: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Cut or repeat a cotangent to the shape of a changed input."""
    if cotangent.size == 0:
        return np.zeros(shape, cotangent.dtype)
    if all(old >= new for old, new in zip(cotangent.shape, shape, strict=True)):
        return np.ascontiguousarray(cotangent[tuple(slice(length) for length in shape)])
    return np.resize(cotangent, shape)


def _check(world: World, assignments: tuple[Assignment, ...]) -> None:
    wanted = parameter_shapes(world.config)
    missing = {name: shape for name, shape in wanted.items() if name not in world.parameters}
    place = assignments[0].place
    if missing:
        raise BlocklawsError(
            f"{place}: the changed config needs parameters that the world does not have: {', '.join(missing)}"
        )
    for name, value in world.parameters.items():
        if name in wanted and value.shape != wanted[name]:
            raise BlocklawsError(f"{place}: {name} got shape {value.shape}, but the config asks for {wanted[name]}")
    if world.input.ndim != 3:
        raise BlocklawsError(f"{place}: input got shape {world.input.shape}; it is [batch, token, feature]")
