"""Functions along axes: reductions, softmax, running sums, the matrix product. In float64 or whole numbers.

An ``axis`` is a number, a name (``"token"``), or a list of them for the reductions; None means all axes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blocklaws.expressions import operators
from blocklaws.expressions.judging import Judgement, failed, judge_mask
from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.registry import Context, function
from blocklaws.expressions.values import Array, Value, array_of, axis_of, describe, exact, real, widened

__all__: list[str] = []

Axes = tuple[int, ...]


def axes_of(axis: Value, rank: int) -> Axes:
    """Return the positions of one axis, of several, or of all."""
    if axis is None:
        return tuple(range(rank))
    axes = tuple(axis_of(one, rank) for one in (axis if isinstance(axis, tuple) else (axis,)))
    if len(set(axes)) < len(axes):
        raise EvaluationError(f"axis {describe(axis)} names one axis twice")
    return axes


def _flag(keepdims: Value) -> bool:
    if not isinstance(keepdims, bool):
        raise EvaluationError(f"keepdims must be True or False, got {describe(keepdims)}")
    return keepdims


def _mean(array: Array, axes: Axes, keepdims: bool) -> Array:
    # Not np.mean: it warns of an empty axis, where the mean is simply NaN.
    count = math.prod(array.shape[axis] for axis in axes)
    return np.asarray(np.true_divide(np.sum(array, axis=axes, keepdims=keepdims), count))


def _variance(array: Array, axes: Axes, keepdims: bool) -> Array:
    return _mean(np.square(array - _mean(array, axes, True)), axes, keepdims)


def _some(array: Array, axes: Axes) -> None:
    if any(array.shape[axis] == 0 for axis in axes):
        raise EvaluationError(f"an array of shape {array.shape} has no largest or smallest value along an empty axis")


@function()
def sum_(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The sum along an axis, or of all.

    >>> show("sum([[1, 2], [3, 4]], axis=0)")
    [4, 6]
    """
    array = exact(x)
    return np.asarray(np.sum(array, axis=axes_of(axis, array.ndim), keepdims=_flag(keepdims)))


@function()
def prod(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The product along an axis, or of all.

    >>> show("prod([2, 3])")
    6
    """
    array = exact(x)
    product = np.prod(array.astype(np.float64), axis=axes_of(axis, array.ndim), keepdims=_flag(keepdims))
    if array.dtype.kind == "f" or np.any(np.abs(product) >= 2.0**53):
        return np.asarray(product)
    return np.asarray(product).astype(np.int64)


@function()
def mean(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The mean along an axis, or of all; NaN along an empty one.

    >>> show("mean(input, axis='feature')[0]")
    [1.5, 5.5, 9.5]
    """
    array = real(x)
    return _mean(array, axes_of(axis, array.ndim), _flag(keepdims))


@function(weight=3)
def var(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The population variance, mean((x - mean(x))^2), as in a layer norm.

    >>> show("var([1, 3, 5, 7])")
    5.0
    """
    array = real(x)
    return _variance(array, axes_of(axis, array.ndim), _flag(keepdims))


@function(weight=3)
def std(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The square root of `var`.

    >>> show("std([1, 5])")
    2.0
    """
    array = real(x)
    return np.sqrt(_variance(array, axes_of(axis, array.ndim), _flag(keepdims)))


@function()
def min_(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The smallest value along an axis, or of all; NaN where there is one.

    >>> show("min([3, 1, 2])")
    1
    """
    array = exact(x)
    _some(array, axes_of(axis, array.ndim))
    return np.asarray(np.min(array, axis=axes_of(axis, array.ndim), keepdims=_flag(keepdims)))


@function()
def max_(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The largest value along an axis, or of all; NaN where there is one.

    >>> show("max([3, 1, 2])")
    3
    """
    array = exact(x)
    _some(array, axes_of(axis, array.ndim))
    return np.asarray(np.max(array, axis=axes_of(axis, array.ndim), keepdims=_flag(keepdims)))


@function(weight=3)
def norm(x: Value, axis: Value = None, keepdims: Value = False) -> Array:
    """The Euclidean length, sqrt(sum(x^2)).

    >>> show("norm([3, 4])")
    5.0
    """
    array = real(x)
    # Scaled first: the square of a large value would overflow, that of a tiny one vanish.
    scale = np.max(np.abs(array), initial=0.0)
    scale = scale if 0 < scale < np.inf else 1.0
    squares = np.sum(np.square(array / scale), axis=axes_of(axis, array.ndim), keepdims=_flag(keepdims))
    return np.asarray(scale * np.sqrt(squares))


def _truths(x: Value) -> Array:
    array = widened(x)
    if array.dtype.kind != "b":
        raise EvaluationError(f"expected truth values, such as a comparison gives, got {describe(x)}")
    return array


@function()
def all_(context: Context, x: Value, axis: Value = None) -> Judgement | Array:
    """Every element is true: a judgement, or along an axis an array of truth values.

    >>> show("all(input < 24)")
    holds: all(input < 24)
    >>> show("all(input > 0)")
    fails: all(input > 0): 1 of 24 elements are false, the first at (0, 0, 0)
    """
    array = _truths(x)
    if axis is None:
        return judge_mask(context, array, ~array, "are false")
    return np.asarray(np.all(array, axis=axes_of(axis, array.ndim)))


@function()
def any_(context: Context, x: Value, axis: Value = None) -> Judgement | Array:
    """Some element is true: a judgement, or along an axis an array of truth values.

    >>> show("any(input > 22)")
    holds: any(input > 22)
    """
    array = _truths(x)
    if axis is not None:
        return np.asarray(np.any(array, axis=axes_of(axis, array.ndim)))
    if array.any():
        return Judgement(True, context.claim, total=array.size, shape=array.shape)
    return failed(
        context, f"none of {array.size} elements is true", wrong=array.size, total=array.size, shape=array.shape
    )


@function(weight=6)
def softmax(x: Value, axis: Value = -1) -> Array:
    """exp(x) / sum(exp(x)) along an axis, the maximum subtracted first.

    >>> show("softmax([[0, 0], [1000, 0]])")
    [[0.5, 0.5], [1.0, 0.0]]
    """
    array = real(x)
    place = axis_of(axis, array.ndim)
    _some(array, (place,))
    weights = np.exp(array - np.max(array, axis=place, keepdims=True))
    return np.asarray(weights / np.sum(weights, axis=place, keepdims=True))


@function(weight=2)
def cumsum(x: Value, axis: Value = -1) -> Array:
    """The running sum along an axis.

    >>> show("cumsum([1, 2, 3])")
    [1, 3, 6]
    """
    array = exact(x)
    return np.cumsum(array, axis=axis_of(axis, array.ndim))


@function(weight=0)
def matmul(context: Context, a: Value, b: Value) -> Any:
    """The matrix product of the last two axes, the same as ``a @ b``; leading axes broadcast.

    >>> show("matmul([[1, 2]], [[3], [4]])")
    [[11.0]]
    """
    return operators.matmul(array_of(a), array_of(b), context.meter)
