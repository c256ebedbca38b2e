"""Faults of one call beside ``forward``, which is right: in what it gives, writes to, reads or goes by."""

from __future__ import annotations

import numpy as np

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.cache import KeyValueCache


class CacheBeginsAtLastOffset(TorchBlock):
    """The first tokens of a cache lie where the last forward began, the later ones where they belong."""

    last, begins = 0, False

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        self.last = position_offset
        return y

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        self.begins = cache is None
        try:
            y, extended = super().forward_cached(x, cache)
        finally:
            self.begins = False
        if cache is None:
            extended.tokens = x.shape[1]
        return y, extended

    def _checked_input(self, x: Array, position_offset: int) -> tuple[Array, int]:
        return super()._checked_input(x, self.last if self.begins else position_offset)


class GradientInputModified(TorchBlock):
    """The input ends as its gradient."""

    def gradients(self, x: Array, cotangent: Array, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        if x.flags.writeable:
            x[...] = found["input"]
        return found


class TraceStridesIgnored(TorchBlock):
    """The memory of the input of a trace, read from its start."""

    def trace(self, x: Array, position_offset: int = 0) -> dict[str, Array]:
        return super().trace(x.ravel(order="K").reshape(x.shape), position_offset)


def _of_another_dtype(arrays: dict[str, Array]) -> dict[str, Array]:
    with np.errstate(over="ignore"):
        return {name: a.astype(np.float32 if a.dtype == np.float64 else np.float64) for name, a in arrays.items()}


class TraceDtypeChanged(TorchBlock):
    """Each stage is float64, or float32 where the block is float64."""

    def trace(self, x: Array, position_offset: int = 0) -> dict[str, Array]:
        return _of_another_dtype(super().trace(x, position_offset))


class GradientDtypeChanged(TorchBlock):
    """Each gradient is float64, or float32 where the block is float64."""

    def gradients(self, x: Array, cotangent: Array, position_offset: int = 0) -> dict[str, Array]:
        return _of_another_dtype(super().gradients(x, cotangent, position_offset))


class ParametersDtypeChanged(TorchBlock):
    """Each parameter is listed in float64, or in float32 where the block is float64."""

    def parameters(self) -> dict[str, Array]:
        return _of_another_dtype(super().parameters())
