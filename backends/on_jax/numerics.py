"""What the steps are made of: types, wide arithmetic, contractions, and an addition that keeps its first term.

Must hold: what accumulates is computed in float32 at least ("wide") and at the highest precision a device has, and is
rounded once. Must not: know a config, or leave a dtype to a default (see `compiled`: 64-bit types are always allowed
there, so a default would be float64).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["KeyValues", "Parameters", "Stages", "add", "contract", "wide"]

Parameters = dict[str, jax.Array]
Stages = dict[str, jax.Array]


class KeyValues(NamedTuple):
    """Keys and values of all tokens so far, in buffers with room to grow.

    Attributes:
        key: [B, n_kv_heads, K, d_head], turned; slots at and past ``length`` are zero.
        value: the same shape.
        length: int32 scalar, how many slots are filled.
    """

    key: jax.Array
    value: jax.Array
    length: jax.Array


def wide(a: jax.Array) -> jax.Array:
    """Return ``a`` in the dtype in which it is computed with: float64 for float64, float32 for everything narrower."""
    return a.astype(jnp.float64 if a.dtype == jnp.float64 else jnp.float32)


def contract(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return an einsum, computed wide and returned wide.

    The highest precision keeps a float32 product from running in tensor-float-32 or bfloat16 on accelerators.
    """
    return jnp.einsum(equation, wide(a), wide(b), precision=lax.Precision.HIGHEST)


@jax.custom_jvp
def add(x: jax.Array, branch: jax.Array) -> jax.Array:
    """Return ``x + branch``, and ``x`` itself bit for bit where the branch is zero.

    XLA runs a CPU with subnormals flushed to zero, so a plain ``x + 0`` loses a subnormal ``x``.
    """
    total = x + branch
    return jnp.where(branch == 0, x.astype(total.dtype), total)


@add.defjvp
def _add_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # Both arguments get the whole cotangent, where the branch is zero too.
    total = add(*primals)
    return total, tangents[0].astype(total.dtype) + tangents[1].astype(total.dtype)
