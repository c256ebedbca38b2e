"""Faults of a block that keeps something between calls, or writes where it may not.

Must hold: the mathematics of a first call on a contiguous input is right (but for dropout, and for what leaks between
the sequences of a batch).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blocklaws.backends.on_jax import compiled
from blocklaws.backends.on_jax.block import JaxBlock
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import Parameters
from blocklaws.backends.on_jax.refusals import Array
from blocklaws.backends.on_jax.steps import Steps


@fault("input-modified")
class InputModified(JaxBlock):
    def forward(self, x: Any, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        given = np.asarray(x)
        if given.flags.writeable:
            given += 1
        return y


@fault("parameters-modified")
class ParametersModified(JaxBlock):
    def forward(self, x: Any, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        gain = self.operands["attention_norm.gain"]
        with compiled.precise():
            self.operands["attention_norm.gain"] = (gain * 1.01).astype(gain.dtype)
        return y


@fault("output-buffer-reused")
class OutputBufferReused(JaxBlock):
    _buffers: dict[tuple[int, ...], Array] | None = None

    def forward(self, x: Any, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        self._buffers = self._buffers or {}
        buffer = self._buffers.setdefault(y.shape, y)
        buffer[...] = y
        return buffer


_SEED = "dropout.seed"


class _DropoutSteps(Steps):
    def project_output(self, parameters: Parameters, a: jax.Array) -> jax.Array:
        seed = parameters[_SEED].astype(jnp.int32)
        kept = jax.random.bernoulli(jax.random.PRNGKey(seed), 0.5, a.shape)
        return super().project_output(parameters, jnp.where(kept, a * 2, 0).astype(a.dtype))


@fault("dropout-in-eval")
class DropoutInEval(JaxBlock):
    steps_class = _DropoutSteps
    _calls = 0

    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        self._calls += 1
        # A float, because the compiled functions take the gradient of every operand.
        self.operands[_SEED] = jnp.float32(self._calls)
        return super().arguments(x, position_offset)


@fault("positions-accumulate")
class PositionsAccumulate(JaxBlock):
    _end = 0

    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        x, offset = super().arguments(x, position_offset)
        start = np.int32(self._end + offset)
        self._end = int(start) + x.shape[1]
        return x, start


class _StaleSteps(Steps):
    def positions(self, tokens: int, offset: jax.Array) -> jax.Array:
        return jnp.minimum(super().positions(tokens, offset[0]), offset[1])


@fault("rotary-table-stale")
class RotaryTableStale(JaxBlock):
    """The offset goes to the steps together with the last position of the table."""

    steps_class = _StaleSteps
    _last: int | None = None

    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        x, offset = super().arguments(x, position_offset)
        if self._last is None:
            self._last = int(offset) + x.shape[1] - 1
        return x, np.array([offset, self._last], np.int32)


@fault("strides-ignored")
class StridesIgnored(JaxBlock):
    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        given = np.asarray(x)
        if given.ndim == 3 and not given.flags.c_contiguous:
            given = _in_memory_order(given)
        return super().arguments(given, position_offset)


def _in_memory_order(a: Array) -> Array:
    """Return as many elements as ``a`` has, as they lie in memory from its first one on, in its shape."""
    span = sum((length - 1) * stride for length, stride in zip(a.shape, a.strides, strict=True)) + a.itemsize
    if min(a.strides) > 0 and span >= a.nbytes:
        wrong = np.cumprod([a.itemsize, *a.shape[:0:-1]])[::-1]
        return np.lib.stride_tricks.as_strided(a, strides=tuple(int(stride) for stride in wrong)).copy()
    # Reversed or repeated axes: reading on from the first element would leave the array. From the lowest one, then.
    forwards = a[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in a.strides)]
    return forwards.ravel(order="K").reshape(a.shape)


@fault("later-batches-zero")
class LaterBatchesZero(Steps):
    def project_output(self, parameters: Parameters, a: jax.Array) -> jax.Array:
        branch = super().project_output(parameters, a)
        first = jnp.arange(branch.shape[0]) == 0
        return jnp.where(first[:, None, None], branch, 0)


@fault("batch-mixed")
class BatchMixed(Steps):
    def project_output(self, parameters: Parameters, a: jax.Array) -> jax.Array:
        branch = super().project_output(parameters, a)
        return branch + (0.01 * jnp.mean(branch, axis=0, keepdims=True)).astype(branch.dtype)
