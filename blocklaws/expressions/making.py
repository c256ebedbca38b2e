"""Functions that make arrays from sizes, the rotary turn, and what can be asked of a set of parameters.

Must hold: every size is reserved before the array is made.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.rearranging import shape_of
from blocklaws.expressions.registry import Context, function
from blocklaws.expressions.values import Array, Value, array_of, describe, integer, is_number, named, real

__all__: list[str] = []

_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}


@function(weight=0)
def arange(context: Context, start: Value, stop: Value = None, step: Value = 1) -> Array:
    """The whole numbers from ``start`` up to but not including ``stop``; with one argument, from 0.

    >>> show("arange(3)")
    [0, 1, 2]
    >>> show("arange(1, 6, 2)")
    [1, 3, 5]
    """
    first, last = (0, integer(start, "stop")) if stop is None else (integer(start, "start"), integer(stop, "stop"))
    stride = integer(step, "step")
    if stride == 0:
        raise EvaluationError("step must not be zero")
    numbers = range(first, last, stride)
    # Not len(numbers): a range past 64 bits has a length, but len() refuses to say it.
    context.meter.reserve((max(0, (last - first + stride - (1 if stride > 0 else -1)) // stride),))
    return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)


@function(weight=0)
def zeros(context: Context, shape: Value) -> Array:
    """An array of zeros.

    >>> show("zeros((1, 2))")
    [[0.0, 0.0]]
    """
    context.meter.reserve(lengths := shape_of(shape))
    return np.zeros(lengths)


@function(weight=0)
def ones(context: Context, shape: Value) -> Array:
    """An array of ones.

    >>> show("ones(2)")
    [1.0, 1.0]
    """
    context.meter.reserve(lengths := shape_of(shape))
    return np.ones(lengths)


@function()
def zeros_like(x: Value) -> Array:
    """Zeros in the shape and dtype of an array.

    >>> show("zeros_like([1, 2])")
    [0, 0]
    """
    return np.zeros_like(array_of(x))


@function()
def ones_like(x: Value) -> Array:
    """Ones in the shape and dtype of an array.

    >>> show("ones_like([1, 2])")
    [1, 1]
    """
    return np.ones_like(array_of(x))


@function()
def full_like(x: Value, value: Value) -> Array:
    """One number in the shape and dtype of an array.

    >>> show("full_like([1.0, 2.0], 7)")
    [7.0, 7.0]
    """
    if not is_number(value):
        raise EvaluationError(f"expected a number, got {describe(value)}")
    array = array_of(x)
    return np.full(array.shape, np.asarray(value).astype(array.dtype))


@function(weight=0)
def eye(context: Context, n: Value) -> Array:
    """The identity matrix.

    >>> show("eye(2)")
    [[1.0, 0.0], [0.0, 1.0]]
    """
    length = integer(n, "n")
    context.meter.reserve((length, length))
    return np.eye(length)


@function(weight=0)
def causal(context: Context, queries: Value, keys: Value, offset: Value = 0, window: Value = None) -> Array:
    """True where a query may look at a key: key position <= query position + ``offset``, in shape (queries, keys).

    ``offset`` is the position of the first query among the keys, which is not 0 when there is a cache. With a
    ``window`` a query sees that many keys at most, itself included.

    >>> show("causal(2, 3, 1)")
    [[True, True, False], [True, True, True]]
    >>> show("causal(2, 3, 1, window=2)")
    [[True, True, False], [False, True, True]]
    """
    rows, columns, first = integer(queries, "queries"), integer(keys, "keys"), integer(offset, "offset")
    context.meter.reserve((rows, columns))
    ahead = np.arange(columns) - np.arange(rows)[:, None] - first
    visible: Array = ahead <= 0
    return visible if window is None else visible & (ahead > -integer(window, "window"))


@function()
def astype(x: Value, dtype: Value) -> Array:
    """The values rounded to a dtype, given by name: float64, float32, float16, bfloat16, int64, bool.

    >>> show("astype(1.2345678901, 'float32') == 1.2345678901")
    fails: astype(1.2345678901, 'float32') == 1.2345678901: left is 1.2345678806304932, right is 1.2345678901
    """
    if dtype not in _DTYPES:
        raise EvaluationError(f"unknown dtype {describe(dtype)}; expected one of {', '.join(_DTYPES)}")
    return array_of(x).astype(_DTYPES[dtype])


@function(weight=30)
def rotary(x: Value, positions: Value, base: Value, layout: Value, width: Value = None) -> Array:
    """Each pair (a, b) of features turned to (a cos t - b sin t, a sin t + b cos t), t = p base^(-2 i / width).

    ``x`` is [..., T, d_head] and ``positions`` has T numbers p. Pairs are features (2i, 2i + 1) for ``"interleaved"``
    and (i, i + width / 2) for ``"half"``; with None nothing turns. ``width`` is how many features turn, the first ones
    of each head; all of them where it is not given. In float64. Su et al. 2021, eq. 34.

    >>> show("rotary([[1, 0], [1, 0]], [0, 1], 10000, 'half')")
    [[1.0, 0.0], [0.5403, 0.8415]]
    >>> show("rotary([[1, 0, 5, 6], [1, 0, 5, 6]], [0, 1], 10000, 'half', width=2)")
    [[1.0, 0.0, 5.0, 6.0], [0.5403, 0.8415, 5.0, 6.0]]
    """
    array = real(x)
    if layout is None:
        return array
    if layout not in ("interleaved", "half"):
        raise EvaluationError(f"layout must be 'interleaved', 'half' or None, got {describe(layout)}")
    if array.ndim < 2 or array.shape[-1] % 2:
        raise EvaluationError(f"expected [..., token, d_head] with an even d_head, got {describe(x)}")
    if not is_number(base) or not base > 0:
        raise EvaluationError(f"base must be a positive number, got {describe(base)}")
    places = real(positions)
    if places.shape != array.shape[-2:-1]:
        raise EvaluationError(f"positions have shape {places.shape}, expected one for each of {array.shape[-2]} tokens")
    d_head = array.shape[-1]
    turning = d_head if width is None else integer(width, "width")
    if turning % 2 or not 2 <= turning <= d_head:
        raise EvaluationError(f"width must be an even number from 2 to d_head={d_head}, got {turning}")
    half = turning // 2
    angles = places[:, None] * np.power(float(base), -2.0 * np.arange(half) / turning)
    pair = (
        (slice(0, turning, 2), slice(1, turning, 2))
        if layout == "interleaved"
        else (slice(0, half), slice(half, turning))
    )
    a, b = (array[..., part] for part in pair)
    turned = array.copy()
    turned[..., pair[0]] = a * np.cos(angles) - b * np.sin(angles)
    turned[..., pair[1]] = a * np.sin(angles) + b * np.cos(angles)
    return turned


@function(weight=0)
def count(parameters: Value) -> int:
    """How many numbers the parameters hold in all.

    >>> show("count(parameters)")
    20
    """
    return sum(array.size for array in named(parameters).values())


@function(weight=0)
def names(parameters: Value) -> tuple[str, ...]:
    """The names of the parameters, in their order.

    >>> show("names(parameters)")
    ('attention_norm.gain', 'attention.query')
    """
    return tuple(named(parameters))


@function(weight=0)
def shapes(parameters: Value) -> tuple[tuple[int, ...], ...]:
    """The shapes of the parameters, in their order.

    >>> show("shapes(parameters)")
    ((4,), (4, 4))
    """
    return tuple(array.shape for array in named(parameters).values())


@function(weight=0)
def len_(x: Value) -> int:
    """The length of a list, of the first axis of an array, or the number of parameters.

    >>> show("len(input)")
    2
    """
    if isinstance(x, (tuple, Mapping)):
        return len(x)
    array = array_of(x)
    if array.ndim == 0:
        raise EvaluationError("a number has no length")
    return int(array.shape[0])
