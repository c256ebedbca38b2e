"""Faults of the shape, the dtype and the precision of the result."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import FollowingProjection
from blocklaws.backends.on_torch.parts import Pass, Projection
from blocklaws.config import BlockConfig


class OneTokenSqueezed(TorchBlock):
    """[batch, d_model] for one token."""

    def emitted(self, y: Tensor) -> Array:
        return super().emitted(y.squeeze(1))


class BatchOfOneSqueezed(TorchBlock):
    """[token, d_model] for one sequence."""

    def emitted(self, y: Tensor) -> Array:
        return super().emitted(y.squeeze(0))


class LastTokenDropped(TorchBlock):
    """[batch, token - 1, d_model]."""

    def emitted(self, y: Tensor) -> Array:
        return super().emitted(y[:, :-1] if y.shape[1] > 1 else y)


class OutputDtypeChanged(TorchBlock):
    """float64 out of anything but float64."""

    def emitted(self, y: Tensor) -> Array:
        return super().emitted(y.to(torch.float32 if y.dtype == torch.float64 else torch.float64))


class WeightsRounded(TorchBlock):
    """Matrices with eight bits of mantissa; the ones that were given are shown."""

    #: What the matrices pass through.
    held: type = ml_dtypes.bfloat16

    def __init__(
        self, config: BlockConfig, parameters: Mapping[str, npt.ArrayLike], dtype: str, device: torch.device
    ) -> None:
        # The right block first, for its refusals and for the parameters to show.
        super().__init__(config, parameters, dtype, device)
        self.given = super().parameters()
        rounded = {
            name: array.astype(self.held).astype(array.dtype) if array.ndim == 2 else array
            for name, array in self.given.items()
        }
        super().__init__(config, rounded, dtype, device)

    def parameters(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self.given.items()}


class WeightsThroughFloat16(WeightsRounded):
    """Matrices with the range of float16."""

    held = np.float16


class ComputedInFloat32(DecoderBlock):
    """float32 throughout, from float64 parameters and to a float64 output."""

    projection_class = FollowingProjection

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self.dtype = self.wide = torch.float32

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        run = Pass() if run is None else run
        y = super().forward(x.to(torch.float32), run)
        for stage, tensor in (run.stages or {}).items():
            run.record(stage, x if stage == "input" else tensor.to(x.dtype))
        return y.to(x.dtype)


class _ShortMantissa(Projection):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_ten_bits(x), _ten_bits(self.weight), self.bias)


def _ten_bits(a: Tensor) -> Tensor:
    """Return ``a`` rounded to ten bits of mantissa, half away from zero; its gradient is that of ``a``."""
    whole, dropped = {torch.float32: (torch.int32, 13), torch.float64: (torch.int64, 42)}[a.dtype]
    bits = a.detach().contiguous().view(whole) + (1 << (dropped - 1))
    rounded = (bits & ~((1 << dropped) - 1)).view(a.dtype)
    # The difference is exact, and so is the sum: the value is the rounded one.
    return a + (rounded - a.detach())


class MatmulInTf32(DecoderBlock):
    """Inputs and matrices of every projection with ten bits of mantissa."""

    projection_class = _ShortMantissa
