"""Functions that take a part of an array, or change one. Except for `scale_rows` the dtype stays as it is.

Must hold: a place is an index along an axis named by its word, so that the same text means the same part of a stream
and of heads; an index out of range is an error and never an empty part.
"""

from __future__ import annotations

import numpy as np

from blocklaws.expressions.operators import broadcast
from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.registry import Context, function
from blocklaws.expressions.values import Array, Value, array_of, axis_of, describe, integer, real

__all__: list[str] = []


def _chosen(array: Array, axes: dict[str, Value]) -> dict[int, Value]:
    """Return position -> index for the axes that a call names; None means that it does not name one."""
    chosen = {}
    for name, index in axes.items():
        if index is None:
            continue
        place = axis_of(name, array.ndim)
        if place in chosen:
            raise EvaluationError(f"{name!r} names an axis that is named already")
        if not isinstance(index, slice):
            number, length = integer(index, name), array.shape[place]
            if not -length <= number < length:
                raise EvaluationError(f"{name}={number} is out of range, there are {length}")
            number %= length
            index = slice(number, number + 1)
        chosen[place] = index
    if not chosen:
        raise EvaluationError("name an axis and a place, such as token=j or token=slice(0, p)")
    return chosen


@function()
def without(
    x: Value,
    *,
    batch: Value = None,
    head: Value = None,
    token: Value = None,
    query: Value = None,
    feature: Value = None,
    key: Value = None,
) -> Array:
    """The array less one place, or a slice of places, along each axis that is named.

    >>> show("without(input, token=1).shape")
    (2, 2, 4)
    """
    array = array_of(x)
    axes = {"batch": batch, "head": head, "token": token, "query": query, "feature": feature, "key": key}
    for place, index in _chosen(array, axes).items():
        array = np.delete(array, index, axis=place)
    return array


@function(weight=0)
def only(
    x: Value,
    *,
    batch: Value = None,
    head: Value = None,
    token: Value = None,
    query: Value = None,
    feature: Value = None,
    key: Value = None,
) -> Array:
    """That place alone, or a slice of places, along each axis that is named; no axis is lost.

    >>> show("only(input, batch=0, token=1)")
    [[[4.0, 5.0, 6.0, 7.0]]]
    """
    array = array_of(x)
    axes = {"batch": batch, "head": head, "token": token, "query": query, "feature": feature, "key": key}
    chosen = _chosen(array, axes)
    part: Array = array[tuple(chosen.get(place, slice(None)) for place in range(array.ndim))]
    return part


@function()
def replace(
    x: Value,
    value: Value,
    *,
    batch: Value = None,
    head: Value = None,
    token: Value = None,
    query: Value = None,
    feature: Value = None,
    key: Value = None,
) -> Array:
    """A copy in which the named part has another value, a number or an array that fits; it takes the dtype of ``x``.

    >>> show("replace(input, 0, token=slice(1, None))[0]")
    [[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    array, new = array_of(x).copy(), array_of(value)
    axes = {"batch": batch, "head": head, "token": token, "query": query, "feature": feature, "key": key}
    chosen = _chosen(array, axes)
    part = array[tuple(chosen.get(place, slice(None)) for place in range(array.ndim))]
    try:
        fits = np.broadcast_shapes(part.shape, new.shape) == part.shape
    except ValueError:
        fits = False
    if not fits:
        raise EvaluationError(f"a value of shape {new.shape} does not fit into a part of shape {part.shape}")
    part[...] = new.astype(array.dtype)
    return array


@function(weight=0)
def scale_rows(context: Context, x: Value, factors: Value) -> Array:
    """Each row (the last axis) times its own factor, in float64; ``factors`` has the shape of ``x`` less that axis.

    >>> show("scale_rows([[1, 2], [3, 4]], [10, 0])")
    [[10.0, 20.0], [0.0, 0.0]]
    """
    array, row = real(x), real(factors)[..., None]
    shape = broadcast(context.meter, array, row)
    if shape != array.shape:
        raise EvaluationError(f"factors of shape {row.shape[:-1]} do not fit rows of shape {array.shape[:-1]}")
    return array * row


@function()
def tril(x: Value, offset: Value = 0) -> Array:
    """The lower triangle of the last two axes, zero above; ``offset`` moves the diagonal to the right.

    >>> show("tril([[1, 2], [3, 4]])")
    [[1, 0], [3, 4]]
    """
    array = array_of(x)
    if array.ndim < 2:
        raise EvaluationError(f"expected an array with rows and columns, got {describe(x)}")
    rows, columns = array.shape[-2:]
    keep = np.tri(rows, columns, k=integer(offset, "offset"), dtype=bool)
    return np.where(keep, array, array.dtype.type(0))


@function(weight=0)
def slice_(start: Value, stop: Value, step: Value = None) -> slice:
    """A slice as a value, for `without`, `only` and `replace`; None means from the start or to the end.

    >>> show("only(arange(24) + zeros((2, 3, 24)), token=slice(0, 2)).shape")
    (2, 2, 24)
    """
    ends = [None if end is None else integer(end, "the end of a slice") for end in (start, stop, step)]
    if ends[2] == 0:
        raise EvaluationError("the step of a slice must not be zero")
    return slice(*ends)
