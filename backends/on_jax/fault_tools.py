"""What several faults need: rounding that XLA cannot undo, and sums that grow in a low precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blocklaws.backends.on_jax.numerics import Parameters

__all__ = ["rounded", "summed_in", "without"]


def rounded(a: jax.Array, dtype: Any) -> jax.Array:
    """Return ``a`` rounded to the values of a narrower dtype, in the dtype that it has.

    A pair of casts could be removed by XLA as excess precision that does no harm; this is kept.
    """
    info = jnp.finfo(dtype)
    return lax.reduce_precision(a, exponent_bits=int(info.nexp), mantissa_bits=int(info.nmant))


def summed_in(a: jax.Array, dtype: Any) -> jax.Array:
    """Return the sum over the last axis, kept, of terms and partial sums that are all rounded to a dtype."""

    def add(total: jax.Array, term: jax.Array) -> tuple[jax.Array, None]:
        return rounded(total + rounded(term, dtype), dtype), None

    total, _ = lax.scan(add, jnp.zeros(a.shape[:-1], a.dtype), jnp.moveaxis(a, -1, 0))
    return total[..., None]


def without(parameters: Parameters, name: str) -> Parameters:
    """Return the parameters but one."""
    return {other: value for other, value in parameters.items() if other != name}
