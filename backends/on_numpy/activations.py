"""The activations and their derivatives, element by element, any shape.

Must hold: each function returns ``(value, slope)``, where ``slope()`` computes the derivative at the same points, only
when it is asked for. A finite input gives a finite value and a finite slope, in its own dtype: no exponential is taken
of a positive number, and what has saturated is clipped before it is squared.

Sources: silu, Elfwing, Uchibe and Doya 2017, section 2; gelu and its tanh form, Hendrycks and Gimpel 2016, section 2;
relu, Vaswani et al. 2017, equation 2.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

__all__ = ["ACTIVATIONS", "Activated", "erf", "erfc", "gelu", "gelu_tanh", "relu", "sigmoid", "silu"]

Activated = tuple[Float[np.ndarray, "*shape"], Callable[[], Float[np.ndarray, "*shape"]]]

# tanh(u) is exactly 1 in float64 from u = 19.1 on, which u(a) passes before a = 8.
_TANH_SATURATED = 8.0
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


def _elementwise(function: Callable[[float], float], a: np.ndarray) -> np.ndarray:
    # NumPy has no error function. The C library's is accurate to an ulp, which a vectorised rational approximation
    # in float64 is not, and map() keeps the loop out of the interpreter.
    values = np.fromiter(map(function, a.ravel().tolist()), np.float64, count=a.size)
    return values.astype(a.dtype).reshape(a.shape)


def erf(a: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return the error function of each element."""
    return _elementwise(math.erf, a)


def erfc(a: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return ``1 - erf`` of each element, without cancellation where it is small."""
    return _elementwise(math.erfc, a)


def sigmoid(a: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return ``1 / (1 + exp(-a))``."""
    decay = np.exp(-np.abs(a))
    result: np.ndarray = np.where(a >= 0, 1, decay) / (1 + decay)
    return result


def silu(a: Float[np.ndarray, "*shape"]) -> Activated:
    """Return ``a sigmoid(a)``."""
    s = sigmoid(a)
    return a * s, lambda: s * (1 + a * (1 - s))


def gelu(a: Float[np.ndarray, "*shape"]) -> Activated:
    """Return ``a Phi(a)``, Phi the cumulative normal distribution ``(1 + erf(a / sqrt(2))) / 2``."""
    # erfc(-z) is 1 + erf(z) that keeps its digits for negative z.
    cumulative = 0.5 * erfc(a * -math.sqrt(0.5))

    def slope() -> np.ndarray:
        density = np.exp(-0.5 * np.square(np.clip(a, -40, 40))) * (1 / math.sqrt(2 * math.pi))
        result: np.ndarray = cumulative + a * density
        return result

    return a * cumulative, slope


def gelu_tanh(a: Float[np.ndarray, "*shape"]) -> Activated:
    """Return ``a (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) / 2``."""
    bounded = np.clip(a, -_TANH_SATURATED, _TANH_SATURATED)
    t = np.tanh(_TANH_SCALE * (bounded + _TANH_CUBIC * bounded * bounded * bounded))

    def slope() -> np.ndarray:
        inner = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * bounded * bounded)
        result: np.ndarray = 0.5 * (1 + t) + 0.5 * bounded * (1 - t * t) * inner
        return result

    return 0.5 * a * (1 + t), slope


def relu(a: Float[np.ndarray, "*shape"]) -> Activated:
    """Return ``max(a, 0)``; the slope at 0 is 0."""
    return np.maximum(a, 0), lambda: (a > 0).astype(a.dtype)


#: The activation of each word of ``config.feed_forward``.
ACTIVATIONS: Mapping[str, Callable[[np.ndarray], Activated]] = {
    "swiglu": silu,
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
}
