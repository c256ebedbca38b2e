"""Faults of one call beside ``forward``: in what it gives, writes to, reads or goes by.

Must hold: ``forward`` is right, and so is every other call but the one that the fault names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklaws.backends.on_jax.block import Cache, JaxBlock
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.refusals import Array


@fault("cache-begins-at-last-offset")
class CacheBeginsAtLastOffset(JaxBlock):
    _last, _begins = 0, False

    def forward(self, x: Any, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        self._last = position_offset
        return y

    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        self._begins = cache is None
        try:
            return super().forward_cached(x, cache)
        finally:
            self._begins = False

    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        return super().arguments(x, self._last if self._begins else position_offset)


@fault("gradient-input-modified")
class GradientInputModified(JaxBlock):
    def gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        given = np.asarray(x)
        if given.flags.writeable:
            given += 1
        return found


@fault("trace-strides-ignored")
class TraceStridesIgnored(JaxBlock):
    def trace(self, x: Any, position_offset: int = 0) -> dict[str, Array]:
        given = np.asarray(x)
        return super().trace(given.ravel(order="K").reshape(given.shape), position_offset)


def _of_another_dtype(arrays: dict[str, Array]) -> dict[str, Array]:
    with np.errstate(over="ignore"):
        return {name: a.astype(np.float32 if a.dtype == np.float64 else np.float64) for name, a in arrays.items()}


@fault("trace-dtype-changed")
class TraceDtypeChanged(JaxBlock):
    def trace(self, x: Any, position_offset: int = 0) -> dict[str, Array]:
        return _of_another_dtype(super().trace(x, position_offset))


@fault("gradient-dtype-changed")
class GradientDtypeChanged(JaxBlock):
    def gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        return _of_another_dtype(super().gradients(x, cotangent, position_offset))


@fault("parameters-dtype-changed")
class ParametersDtypeChanged(JaxBlock):
    def parameters(self) -> dict[str, Array]:
        return _of_another_dtype(super().parameters())
