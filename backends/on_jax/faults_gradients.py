"""Faults that show in gradients alone: what does not flow, what is exchanged, scaled, added up or written over.

Must hold: `forward` and `trace` are right.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from blocklaws.backends.on_jax.block import JaxBlock
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.refusals import Array
from blocklaws.backends.on_jax.steps import Steps


@fault("gradient-eps-fixed")
class GradientEpsFixed(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        fixed = super().standardize(x, 1e-5)
        return lax.stop_gradient(super().standardize(x, eps)) + (fixed - lax.stop_gradient(fixed))


@fault("gain-gradient-missing")
class GainGradientMissing(Steps):
    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        return super().normalize(x, lax.stop_gradient(gain), bias, eps)


@fault("norm-detached")
class NormDetached(Steps):
    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        return lax.stop_gradient(super().normalize(x, gain, bias, eps))


@fault("statistics-detached")
class StatisticsDetached(Steps):
    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        center, spread = super().statistics(x)
        return lax.stop_gradient(center), lax.stop_gradient(spread)


@fault("residual-gradient-dropped")
class ResidualGradientDropped(Steps):
    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return super().add_attention(lax.stop_gradient(x), branch)


@fault("gate-up-gradients-swapped")
class GateUpGradientsSwapped(JaxBlock):
    def gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        swapped = {"feed_forward.gate": found["feed_forward.up"], "feed_forward.up": found["feed_forward.gate"]}
        return found | swapped


@fault("gradient-averaged-over-batch")
class GradientAveragedOverBatch(JaxBlock):
    def gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        batch = max(1, np.asarray(x).shape[0])
        return {name: value if name == "input" else value / self.dtype.type(batch) for name, value in found.items()}


@fault("cotangent-modified")
class CotangentModified(JaxBlock):
    def gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        given = np.asarray(cotangent)
        if given.flags.writeable:
            given += 1
        return found


@fault("gradient-accumulates")
class GradientAccumulates(JaxBlock):
    _earlier: dict[str, Array] | None = None

    def gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        earlier = self._earlier or {}
        found = {name: value if name == "input" else value + earlier.get(name, 0) for name, value in found.items()}
        self._earlier = {name: value.copy() for name, value in found.items()}
        return found
