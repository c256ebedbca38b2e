"""Faults of one way to compute the forward: right as it is compiled, wrong operation by operation.

Must hold: what is traced, for any of the compiled functions, is the right block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.steps import Steps


def _half_unless_traced(a: jax.Array) -> jax.Array:
    return a if isinstance(a, jax.core.Tracer) else a.astype(jnp.bfloat16).astype(a.dtype)


@fault("angles-in-half-by-one-way")
class AnglesInHalfByOneWay(Steps):
    def rotary_angles(self, positions: jax.Array) -> jax.Array:
        return _half_unless_traced(super().rotary_angles(positions))


@fault("norm-in-half-by-one-way")
class NormInHalfByOneWay(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        return _half_unless_traced(super().standardize(x, eps))
