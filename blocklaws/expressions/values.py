"""What a value is while an expression runs: arrays, plain numbers, words, tuples, slices, parameter sets, judgements.

Must hold: arithmetic sees float64, so that a law is not judged with the rounding of the dtype it judges; what only
moves elements (slices, `without`, `reshape` ...) keeps the dtype. Must not: let an object array, a complex array or a
subclass of ndarray in, whose operators could run code of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from blocklaws.expressions.problems import EvaluationError

__all__ = [
    "AXES",
    "Array",
    "Named",
    "Value",
    "array_of",
    "as_value",
    "axis_of",
    "describe",
    "exact",
    "integer",
    "is_number",
    "named",
    "real",
    "simplify",
    "widened",
]

Array = np.ndarray[Any, np.dtype[Any]]
#: A set of named arrays: the parameters, or their gradients.
Named = Mapping[str, Array]
Value = Any

_LOW_PRECISION = frozenset(
    np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith(("bfloat", "float"))
)
_EXACT_IN_FLOAT64 = _LOW_PRECISION | {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}

#: Rank -> axis name -> position. Other ranks have numbered axes only: what a matrix is depends on where it came from.
AXES: Mapping[int, Mapping[str, int]] = {
    3: {"batch": 0, "token": 1, "feature": 2},
    4: {"batch": 0, "head": 1, "token": 2, "query": 2, "feature": 3, "key": 3},
}


def as_value(thing: object) -> Value:
    """Take what the caller's scope gave into the language.

    Raises:
        EvaluationError: it is nothing the language knows.
    """
    if isinstance(thing, np.generic):  # before the numbers: a float64 of NumPy is a float of Python too
        return simplify(_plain_array(thing))
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, Mapping):
        return {str(name): _plain_array(value) for name, value in thing.items()}
    if isinstance(thing, (tuple, list)):
        return tuple(as_value(item) for item in thing)
    if isinstance(thing, np.ndarray):
        return _plain_array(thing)
    raise EvaluationError(f"a {type(thing).__name__} is no value of the language; give NumPy arrays")


def _plain_array(thing: object) -> Array:
    array = np.asarray(thing)  # drops subclasses, keeps the memory
    if array.dtype.kind in "bi" or array.dtype.kind == "u" or array.dtype in _EXACT_IN_FLOAT64:
        return array
    raise EvaluationError(f"an array of dtype {array.dtype} is no value of the language; give real numbers")


def is_number(value: Value) -> TypeGuard[float]:
    """Say whether a value is a plain number or a truth value."""
    return isinstance(value, (bool, int, float))


def named(value: Value) -> Named:
    """Return a set of named arrays, or refuse."""
    if isinstance(value, Mapping):
        return value
    raise EvaluationError(f"expected parameters, got {describe(value)}")


def array_of(value: Value) -> Array:
    """Return an array as it is, or make one of a number or a list of numbers."""
    if isinstance(value, np.ndarray):
        return value
    if is_number(value):
        return np.asarray(value)
    if isinstance(value, tuple):
        array = np.asarray([array_of(item) if isinstance(item, tuple) else item for item in map(_element, value)])
        if array.dtype.kind in "biuf":
            return array
    raise EvaluationError(f"expected an array, got {describe(value)}")


def _element(item: Value) -> Value:
    if is_number(item) or isinstance(item, tuple):
        return item
    raise EvaluationError(f"expected a list of numbers, one of them is {describe(item)}")


def widened(value: Value) -> Array:
    """Return the value as an array in which arithmetic is exact enough: every float as float64, the rest as it is."""
    array = array_of(value)
    return array.astype(np.float64) if array.dtype in _EXACT_IN_FLOAT64 and array.dtype != np.float64 else array


def exact(value: Value) -> Array:
    """Return the value as `widened`, truth values as 0 and 1; whole numbers stay whole, they may be an index."""
    array = widened(value)
    return array.astype(np.int64) if array.dtype.kind in "bu" else array


def real(value: Value) -> Array:
    """Return the value as a float64 array; truth values count as 0 and 1."""
    return widened(value).astype(np.float64, copy=False)


def simplify(value: Value) -> Value:
    """Return an array without axes as a plain number, anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return widened(np.asarray(value)).item()
    return value


def integer(value: Value, what: str) -> int:
    """Return a whole number, or refuse with ``what`` it was for."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise EvaluationError(f"{what} must be a whole number, got {describe(value)}")
    return value


def axis_of(axis: Value, rank: int) -> int:
    """Return the position of an axis given by number or by name.

    >>> axis_of("token", 3), axis_of("token", 4), axis_of(-1, 3)
    (1, 2, 2)

    Raises:
        EvaluationError: an array of that rank has no such axis.
    """
    if isinstance(axis, str):
        names = AXES.get(rank)
        if names is None:
            raise EvaluationError(f"an array of rank {rank} has no axis names, write the axis as a number")
        if axis not in names:
            raise EvaluationError(f"an array of rank {rank} has no axis {axis!r}, it has {', '.join(names)}")
        return names[axis]
    number = integer(axis, "an axis")
    if not -rank <= number < rank:
        raise EvaluationError(f"axis {number} is out of range for an array of rank {rank}")
    return number % rank


def describe(value: Value) -> str:
    """Say in a few words what a value is."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} ({value.dtype.name})"
    if isinstance(value, Mapping):
        return f"{len(value)} parameters"
    if isinstance(value, (str, bool, int, float)) or value is None:
        text = repr(value)
    elif isinstance(value, tuple):
        text = f"a list of {len(value)}" if len(value) > 8 else repr(value)
    elif isinstance(value, slice):
        text = "a slice"
    else:
        text = f"a {type(value).__name__.lower()}"
    return text if len(text) <= 80 else text[:80] + "..."
