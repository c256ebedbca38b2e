"""Functions that move elements about. The dtype stays as it is, and so does every value.

What can grow (`repeat`, `tile`, `take`, `stack`, `concatenate`) reserves its result before it is made.
"""

from __future__ import annotations

import numpy as np

from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.registry import Context, function
from blocklaws.expressions.values import Array, Value, array_of, axis_of, describe, integer, real

__all__: list[str] = []


def shape_of(shape: Value) -> tuple[int, ...]:
    """Return a shape given as a list of whole numbers, or as one number."""
    lengths = shape if isinstance(shape, tuple) else (shape,)
    return tuple(integer(length, "a length") for length in lengths)


@function(weight=0)
def transpose(x: Value, axes: Value = None) -> Array:
    """The axes in another order; without one, reversed.

    >>> show("transpose([[1, 2], [3, 4]])")
    [[1, 3], [2, 4]]
    """
    array = array_of(x)
    if axes is None:
        return array.T
    order = tuple(axis_of(axis, array.ndim) for axis in (axes if isinstance(axes, tuple) else (axes,)))
    if sorted(order) != list(range(array.ndim)):
        raise EvaluationError(f"axes {describe(axes)} must name each of the {array.ndim} axes once")
    return np.transpose(array, order)


@function(weight=0)
def swap(x: Value, axis_a: Value, axis_b: Value) -> Array:
    """Two axes exchanged.

    >>> show("swap(query, 'head', 'token').shape")
    (2, 3, 2, 2)
    """
    array = array_of(x)
    return np.swapaxes(array, axis_of(axis_a, array.ndim), axis_of(axis_b, array.ndim))


@function()
def reshape(x: Value, shape: Value) -> Array:
    """The same elements in another shape; one length may be -1.

    >>> show("reshape(arange(6), (2, -1))")
    [[0, 1, 2], [3, 4, 5]]
    """
    array, lengths = array_of(x), shape_of(shape)
    if len(lengths) > 8:
        raise EvaluationError(f"a shape of {len(lengths)} axes is too long")
    return array.reshape(lengths)


@function()
def flip(x: Value, axis: Value) -> Array:
    """The order along an axis reversed.

    >>> show("flip([1, 2, 3], 0)")
    [3, 2, 1]
    """
    array = array_of(x)
    return np.flip(array, axis_of(axis, array.ndim))


@function()
def roll(x: Value, shift: Value, axis: Value) -> Array:
    """The elements moved along an axis by ``shift`` places, the last ones to the front.

    >>> show("roll([1, 2, 3], 1, 0)")
    [3, 1, 2]
    """
    array = array_of(x)
    return np.roll(array, integer(shift, "shift"), axis_of(axis, array.ndim))


def _places(indices: Value, length: int) -> Array:
    places = array_of(indices if not isinstance(indices, int) else (indices,))
    if places.size == 0:
        return places.astype(np.int64).reshape(places.shape)
    if places.dtype.kind not in "iu" or places.ndim != 1:
        raise EvaluationError(f"indices must be a list of whole numbers, got {describe(indices)}")
    if int(places.min()) < -length or int(places.max()) >= length:
        raise EvaluationError(f"an index is out of range, the axis has length {length}")
    return places


@function()
def permute(x: Value, axis: Value, order: Value) -> Array:
    """The elements along an axis in another order, which names each place once.

    >>> show("permute([5, 6, 7], 0, [2, 0, 1])")
    [7, 5, 6]
    """
    array = array_of(x)
    place = axis_of(axis, array.ndim)
    places = _places(order, array.shape[place])
    length = array.shape[place]
    if places.size != length or not np.all(np.bincount(places % max(1, length), minlength=length) == 1):
        raise EvaluationError(f"order must name each of the {length} places once")
    return np.take(array, places, axis=place)


@function(weight=0)
def take(context: Context, x: Value, indices: Value, axis: Value) -> Array:
    """The elements at a list of places along an axis, in that order; a place may come twice.

    >>> show("take([5, 6, 7], [0, 0, 2], 0)")
    [5, 5, 7]
    """
    array = array_of(x)
    place = axis_of(axis, array.ndim)
    places = _places(indices, array.shape[place])
    context.meter.reserve((*array.shape[:place], places.size, *array.shape[place + 1 :]))
    return np.take(array, places, axis=place)


def _arrays(arrays: Value) -> list[Array]:
    if not isinstance(arrays, tuple) or not arrays:
        raise EvaluationError(f"expected a list of arrays, got {describe(arrays)}")
    found = [array_of(array) for array in arrays]
    # One dtype for all, and never one that rounds: bfloat16 beside float32 would have no common type in NumPy.
    return found if len({array.dtype for array in found}) == 1 else [real(array) for array in found]


@function(weight=0)
def concatenate(context: Context, arrays: Value, axis: Value = 0) -> Array:
    """A list of arrays joined along an axis they have.

    >>> show("concatenate([arange(2), arange(3)])")
    [0, 1, 0, 1, 2]
    """
    found = _arrays(arrays)
    place = axis_of(axis, found[0].ndim)
    context.meter.reserve((sum(array.size for array in found),))
    return np.concatenate(found, axis=place)


@function(weight=0)
def stack(context: Context, arrays: Value, axis: Value = 0) -> Array:
    """A list of arrays of one shape, joined along a new axis.

    >>> show("stack([arange(2), arange(2)], axis=1)")
    [[0, 0], [1, 1]]
    """
    found = _arrays(arrays)
    place = axis_of(axis, found[0].ndim + 1)
    context.meter.reserve((len(found), *found[0].shape))
    return np.stack(found, axis=place)


def _grown(context: Context, array: Array, times: Value, axis: Value) -> tuple[int, int]:
    count, place = integer(times, "times"), axis_of(axis, array.ndim)
    if count < 0:
        raise EvaluationError(f"times must not be negative, got {count}")
    context.meter.reserve((*array.shape[:place], array.shape[place] * count, *array.shape[place + 1 :]))
    return count, place


@function(weight=0)
def repeat(context: Context, x: Value, times: Value, axis: Value) -> Array:
    """Each element ``times`` times in a row, along an axis: how key/value heads serve a group.

    >>> show("repeat([1, 2], 2, 0)")
    [1, 1, 2, 2]
    """
    array = array_of(x)
    count, place = _grown(context, array, times, axis)
    return np.repeat(array, count, axis=place)


@function(weight=0)
def tile(context: Context, x: Value, times: Value, axis: Value) -> Array:
    """The whole array ``times`` times, one after the other along an axis.

    >>> show("tile([1, 2], 2, 0)")
    [1, 2, 1, 2]
    """
    array = array_of(x)
    count, place = _grown(context, array, times, axis)
    return np.tile(array, [count if axis == place else 1 for axis in range(array.ndim)])


@function()
def split_heads(x: Value, heads: Value) -> Array:
    """[B, T, heads d_head] to [B, heads, T, d_head]; head i owns columns i d_head to (i + 1) d_head.

    >>> show("split_heads(input, 2).shape")
    (2, 2, 3, 2)
    """
    array, count = array_of(x), integer(heads, "heads")
    if array.ndim != 3 or count < 1 or array.shape[2] % count:
        raise EvaluationError(f"{describe(x)} does not split into {count} heads; expected [batch, token, heads d_head]")
    batch, tokens, width = array.shape
    return array.reshape(batch, tokens, count, width // count).transpose(0, 2, 1, 3)


@function()
def merge_heads(x: Value) -> Array:
    """[B, heads, T, d_head] to [B, T, heads d_head], the opposite of `split_heads`.

    >>> show("identical(merge_heads(split_heads(input, 2)), input)")
    holds: identical(merge_heads(split_heads(input, 2)), input)
    """
    array = array_of(x)
    if array.ndim != 4:
        raise EvaluationError(f"expected [batch, head, token, feature], got {describe(x)}")
    batch, heads, tokens, width = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)
