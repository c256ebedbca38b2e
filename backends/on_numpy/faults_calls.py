"""Blocks of which ``forward`` is right and another call misbehaves: in what it gives, writes to, reads or goes by."""

from typing import SupportsIndex

import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock, ieee
from blocklaws.backends.on_numpy.cache import Call, KeyValueCache
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.shapes import AnyArray, Numbers, Stream


@fault("cache-begins-at-last-offset")
class _CacheBeginsAtLastOffset(NumpyBlock):
    _offset: SupportsIndex = 0

    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        output = super().forward(x, position_offset)
        self._offset = position_offset
        return output

    def next_position(self, cache: KeyValueCache | None) -> int:
        return int(self._offset) if cache is None else super().next_position(cache)

    def make_cache(self, call: Call) -> KeyValueCache:
        assert call.present is not None
        return KeyValueCache(call.present, call.present.key.shape[2])


@fault("gradient-input-modified")
class _GradientInputModified(NumpyBlock):
    @ieee
    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        result = super().gradients(x, cotangent, position_offset)
        if x.flags.writeable:
            x += result["input"]
        return result


@fault("trace-strides-ignored")
class _TraceStridesIgnored(NumpyBlock):
    def trace(self, x: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        return super().trace(x.ravel(order="K").reshape(x.shape), position_offset)


def _of_another_dtype(arrays: dict[str, Numbers]) -> dict[str, Numbers]:
    return {name: a.astype(np.float32 if a.dtype == np.float64 else np.float64) for name, a in arrays.items()}


@fault("trace-dtype-changed")
class _TraceDtypeChanged(NumpyBlock):
    @ieee
    def trace(self, x: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        return _of_another_dtype(super().trace(x, position_offset))


@fault("gradient-dtype-changed")
class _GradientDtypeChanged(NumpyBlock):
    @ieee
    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        return _of_another_dtype(super().gradients(x, cotangent, position_offset))


@fault("parameters-dtype-changed")
class _ParametersDtypeChanged(NumpyBlock):
    def parameters(self) -> dict[str, Numbers]:
        return _of_another_dtype(super().parameters())
