"""Functions that work on each element alone, in float64; whole numbers stay whole where the result is one."""

from __future__ import annotations

import math

import numpy as np

from blocklaws.expressions.operators import broadcast
from blocklaws.expressions.registry import Context, function
from blocklaws.expressions.values import Array, Value, exact, real, widened

__all__: list[str] = []

_erf = np.frompyfunc(math.erf, 1, 1)


@function()
def abs_(x: Value) -> Array:
    """The absolute value.

    >>> show("abs([-1, 2])")
    [1, 2]
    """
    return np.abs(exact(x))


@function()
def sign(x: Value) -> Array:
    """-1, 0 or 1.

    >>> show("sign([-3, 0, 2])")
    [-1, 0, 1]
    """
    return np.sign(exact(x))


@function()
def floor(x: Value) -> Array:
    """The largest whole number that is not above.

    >>> show("floor([-0.5, 1.5])")
    [-1.0, 1.0]
    """
    return np.floor(real(x))


@function()
def sqrt(x: Value) -> Array:
    """The square root; NaN below zero.

    >>> show("sqrt([4, 9])")
    [2.0, 3.0]
    """
    return np.sqrt(real(x))


@function(weight=3)
def exp(x: Value) -> Array:
    """e to the power x.

    >>> show("exp([0, 1])")
    [1.0, 2.7183]
    """
    return np.exp(real(x))


@function(weight=3)
def log(x: Value) -> Array:
    """The natural logarithm; -inf at zero, NaN below.

    >>> show("log(exp([0, 2]))")
    [0.0, 2.0]
    """
    return np.log(real(x))


@function(weight=20)  # the reduction of a huge angle is slow
def sin(x: Value) -> Array:
    """The sine of an angle in radians.

    >>> show("sin([0, 1])")
    [0.0, 0.8415]
    """
    return np.sin(real(x))


@function(weight=20)  # the reduction of a huge angle is slow
def cos(x: Value) -> Array:
    """The cosine of an angle in radians.

    >>> show("cos([0, 1])")
    [1.0, 0.5403]
    """
    return np.cos(real(x))


@function(weight=4)
def tanh(x: Value) -> Array:
    """The hyperbolic tangent.

    >>> show("tanh([0, 1])")
    [0.0, 0.7616]
    """
    return np.tanh(real(x))


@function(weight=30)
def erf(x: Value) -> Array:
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    >>> show("erf([0, 1])")
    [0.0, 0.8427]
    """
    return np.asarray(_erf(real(x)), dtype=np.float64)


def _sigmoid(x: Array) -> Array:
    # exp(-|x|) cannot overflow, so both tails are exact.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


@function(weight=5)
def sigmoid(x: Value) -> Array:
    """1 / (1 + exp(-x)).

    >>> show("sigmoid([-1000, 0, 1])")
    [0.0, 0.5, 0.7311]
    """
    return _sigmoid(real(x))


@function()
def relu(x: Value) -> Array:
    """The value where it is above zero, 0 elsewhere.

    >>> show("relu([-1, 2])")
    [0, 2]
    """
    return np.maximum(exact(x), 0)


@function(weight=6)
def silu(x: Value) -> Array:
    """x sigmoid(x), the gate of `swiglu` (Shazeer 2020, eq. 5).

    >>> show("silu([-1, 0, 1])")
    [-0.2689, 0.0, 0.7311]
    """
    array = real(x)
    return array * _sigmoid(array)


@function(weight=32)
def gelu(x: Value) -> Array:
    """x (1 + erf(x / sqrt(2))) / 2, the exact form (Hendrycks and Gimpel 2016, eq. 1).

    >>> show("gelu([-1, 0, 1])")
    [-0.1587, 0.0, 0.8413]
    """
    array = real(x)
    return array * 0.5 * (1.0 + np.asarray(_erf(array / math.sqrt(2.0)), dtype=np.float64))


@function(weight=12)
def gelu_tanh(x: Value) -> Array:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel 2016, eq. 2).

    >>> show("gelu_tanh([-1, 0, 1])")
    [-0.1588, 0.0, 0.8412]
    """
    array = real(x)
    return array * 0.5 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (array + 0.044715 * array * array * array)))


@function(weight=0)
def minimum(context: Context, a: Value, b: Value) -> Array:
    """The smaller of two, element by element; NaN where either is.

    >>> show("minimum([1, 5], 3)")
    [1, 3]
    """
    x, y = exact(a), exact(b)
    broadcast(context.meter, x, y)
    return np.minimum(x, y)


@function(weight=0)
def maximum(context: Context, a: Value, b: Value) -> Array:
    """The larger of two, element by element; NaN where either is.

    >>> show("maximum([1, 5], 3)")
    [3, 5]
    """
    x, y = exact(a), exact(b)
    broadcast(context.meter, x, y)
    return np.maximum(x, y)


@function(weight=0)
def clip(context: Context, x: Value, low: Value, high: Value) -> Array:
    """The values, none below ``low`` or above ``high``.

    >>> show("clip([-5, 0, 5], -1, 1)")
    [-1, 0, 1]
    """
    array, least, most = exact(x), exact(low), exact(high)
    broadcast(context.meter, array, least, most, weight=2)
    return np.minimum(np.maximum(array, least), most)


@function(weight=0)
def where(context: Context, condition: Value, a: Value, b: Value) -> Array:
    """``a`` where the condition is true, ``b`` elsewhere.

    >>> show("where(causal(2, 2), 1, 0)")
    [[1, 0], [1, 1]]
    """
    chosen, x, y = widened(condition) != 0, exact(a), exact(b)
    broadcast(context.meter, chosen, x, y)
    return np.where(chosen, x, y)
