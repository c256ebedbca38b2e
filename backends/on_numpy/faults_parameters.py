"""Blocks whose parameters are not what they list: missing, extra, tied, reordered or transposed."""

from typing import SupportsIndex

import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.shapes import AnyArray, Features, Numbers, Stream
from blocklaws.backends.on_numpy.steps import Pullback


@fault("bias-left-on")
class _BiasLeftOn(NumpyBlock):
    def parameters(self) -> dict[str, Numbers]:
        listed: dict[str, Numbers] = {}
        for name, array in super().parameters().items():
            listed[name] = array
            if name.startswith("attention."):
                listed[f"{name}_bias"] = np.zeros(array.shape[-1], array.dtype)
        return listed


@fault("bias-not-listed")
class _BiasNotListed(NumpyBlock):
    def parameters(self) -> dict[str, Numbers]:
        return {name: array for name, array in super().parameters().items() if not name.endswith("_bias")}


@fault("parameters-out-of-order")
class _ParametersOutOfOrder(NumpyBlock):
    def parameters(self) -> dict[str, Numbers]:
        listed = super().parameters()
        names = list(listed)
        query, key = names.index("attention.query"), names.index("attention.key")
        value = names.index("attention.value")
        ordered = [*names[:query], *names[key:value], *names[query:key], *names[value:]]
        return {name: listed[name] for name in ordered}


@fault("key-value-tied")
class _KeyValueTied(NumpyBlock):
    def project_value(self, n: Stream) -> tuple[Features, Pullback]:
        return self.linear(n, "attention.key")

    def _tie(self, arrays: dict[str, Numbers]) -> dict[str, Numbers]:
        return {name: arrays[name.replace("attention.value", "attention.key")] for name in arrays}

    def parameters(self) -> dict[str, Numbers]:
        return self._tie(super().parameters())

    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        return self._tie(super().gradients(x, cotangent, position_offset))


@fault("parameter-not-registered")
class _ParameterNotRegistered(NumpyBlock):
    def parameters(self) -> dict[str, Numbers]:
        return {name: array for name, array in super().parameters().items() if name != "feed_forward.down"}


@fault("parameters-transposed")
class _ParametersTransposed(NumpyBlock):
    def parameters(self) -> dict[str, Numbers]:
        return {name: array.T for name, array in super().parameters().items()}
