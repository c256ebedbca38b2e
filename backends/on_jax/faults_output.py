"""Faults of the boundaries of a block: the shape and dtype of its output, what it refuses, and its precision.

Must hold: everything but the named boundary is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blocklaws.backends.on_jax import compiled, refusals
from blocklaws.backends.on_jax.block import Cache, JaxBlock
from blocklaws.backends.on_jax.fault_tools import rounded
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages
from blocklaws.backends.on_jax.refusals import Array
from blocklaws.backends.on_jax.steps import Steps
from blocklaws.config import BlockConfig


class _Output(JaxBlock):
    """The output leaves the block changed, by every way out."""

    def leave(self, y: Array) -> Array:
        raise NotImplementedError

    def forward(self, x: Any, position_offset: int = 0) -> Array:
        return self.leave(super().forward(x, position_offset))

    def trace(self, x: Any, position_offset: int = 0) -> dict[str, Array]:
        stages = super().trace(x, position_offset)
        return stages | {"output": self.leave(stages["output"])}

    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        y, cache = super().forward_cached(x, cache)
        return self.leave(y), cache


@fault("one-token-squeezed")
class OneTokenSqueezed(_Output):
    def leave(self, y: Array) -> Array:
        return y[:, 0] if y.shape[1] == 1 else y


@fault("batch-of-one-squeezed")
class BatchOfOneSqueezed(_Output):
    def leave(self, y: Array) -> Array:
        return y[0] if y.shape[0] == 1 else y


@fault("last-token-dropped")
class LastTokenDropped(_Output):
    def leave(self, y: Array) -> Array:
        return y[:, :-1] if y.shape[1] > 1 else y


@fault("output-dtype-changed")
class OutputDtypeChanged(_Output):
    def leave(self, y: Array) -> Array:
        with np.errstate(over="ignore"):
            return y.astype(np.float32 if y.dtype == np.float64 else np.float64)


@fault("empty-tokens-accepted")
class EmptyTokensAccepted(JaxBlock):
    def forward(self, x: Any, position_offset: int = 0) -> Array:
        given = np.asarray(x)
        if given.ndim == 3 and given.shape[1:] == (0, self.config.d_model):
            return np.empty(given.shape, self.dtype)
        return super().forward(x, position_offset)


@fault("position-range-unchecked")
class PositionRangeUnchecked(JaxBlock):
    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        x = refusals.checked_input(self.config, x, self.dtype)
        endless = self.config.replace(max_positions=2**31 - 1)
        return x, np.int32(refusals.checked_offset(endless, position_offset, x.shape[1]))


@fault("wide-input-truncated")
class WideInputTruncated(JaxBlock):
    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        return super().arguments(np.asarray(x)[..., : self.config.d_model], position_offset)


@fault("weights-rounded")
class WeightsRounded(JaxBlock):
    #: What the matrices pass through.
    held: Any = jnp.bfloat16

    def __init__(
        self, config: BlockConfig, parameters: Mapping[str, Any], dtype: str, device: jax.Device | None
    ) -> None:
        super().__init__(config, parameters, dtype, device)
        self._given = self.operands
        with compiled.precise():
            self.operands = {
                name: rounded(value, self.held) if value.ndim == 2 else value for name, value in self._given.items()
            }

    def parameters(self) -> dict[str, Array]:
        return {name: np.array(self._given[name]) for name in self.names()}


@fault("weights-through-float16")
class WeightsThroughFloat16(WeightsRounded):
    held = jnp.float16


@fault("computed-in-float32")
class ComputedInFloat32(Steps):
    def block(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None = None
    ) -> tuple[Stages, KeyValues | None]:
        narrow = {name: value.astype(jnp.float32) for name, value in parameters.items()}
        stages, kept = super().block(narrow, x.astype(jnp.float32), offset, _cast(cache, jnp.float32))
        return {stage: array.astype(x.dtype) for stage, array in stages.items()}, _cast(kept, x.dtype)


def _cast(cache: KeyValues | None, dtype: Any) -> KeyValues | None:
    if cache is None:
        return None
    return KeyValues(cache.key.astype(dtype), cache.value.astype(dtype), cache.length)


@fault("matmul-in-tf32")
class MatmulInTf32(Steps):
    def project(self, n: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
        def tf32(a: jax.Array) -> jax.Array:
            return jax.lax.reduce_precision(a, exponent_bits=8, mantissa_bits=10)

        return super().project(tf32(n), tf32(matrix), bias)
