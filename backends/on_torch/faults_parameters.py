"""Faults of what ``parameters()`` lists: the block computes rightly (but for the tied one) and shows something else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.config import BlockConfig


class BiasLeftOn(TorchBlock):
    """A zero bias after each matrix of attention."""

    def parameters(self) -> dict[str, Array]:
        listed = {}
        for name, array in super().parameters().items():
            listed[name] = array
            if name.startswith("attention.") and array.ndim == 2:
                listed[f"{name}_bias"] = np.zeros(array.shape[1], dtype=array.dtype)
        return listed


class BiasNotListed(TorchBlock):
    """No bias of a projection."""

    def parameters(self) -> dict[str, Array]:
        return {name: array for name, array in super().parameters().items() if not name.endswith("_bias")}


class ParametersOutOfOrder(TorchBlock):
    """Key, then query."""

    def parameters(self) -> dict[str, Array]:
        listed = super().parameters()
        names = list(listed)
        query, key = names.index("attention.query"), names.index("attention.key")
        names[query], names[key] = names[key], names[query]
        return {name: listed[name] for name in names}


class KeyValueTied(DecoderBlock):
    """One projection under two names."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self.value_projection = self.key_projection


class ParameterNotRegistered(TorchBlock):
    """No feed_forward.down."""

    def parameters(self) -> dict[str, Array]:
        listed = super().parameters()
        del listed["feed_forward.down"]
        return listed


class ParametersTransposed(TorchBlock):
    """Matrices as torch stores them."""

    def parameters(self) -> dict[str, Array]:
        return {name: np.ascontiguousarray(array.T) for name, array in super().parameters().items()}
