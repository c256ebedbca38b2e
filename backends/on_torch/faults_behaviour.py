"""Faults of behaviour: what a call leaves behind, what it remembers, how it takes its input and what it accepts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.config import BlockConfig


class InputModified(TorchBlock):
    """The input ends as the output."""

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        if x.flags.writeable:
            x[...] = y
        return y


class ParametersModified(TorchBlock):
    """The first gain grows by a hundredth with each call of forward."""

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        with torch.no_grad():
            self.module.attention_affine.gain.mul_(1.01)
        return y


class OutputBufferReused(TorchBlock):
    """One array for each shape of output."""

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        y = super().forward(x, position_offset)
        buffers: dict[tuple[int, ...], Array] = self.__dict__.setdefault("buffers", {})
        buffer = buffers.setdefault(y.shape, y)
        buffer[...] = y
        return buffer


class DropoutInEval(DecoderBlock):
    """Each element of the attention branch is kept and doubled, or dropped, by a toss of a coin."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        # Its own generator, so that the same calls of the same block toss the same coins.
        device = self.output_projection.weight.device
        self.coin = torch.Generator(device=device)
        self.coin.manual_seed(0)

    def project_output(self, a: Tensor) -> Tensor:
        branch = super().project_output(a)
        kept = torch.rand(branch.shape, generator=self.coin, device=branch.device, dtype=torch.float32) < 0.5
        return branch * kept * 2


class PositionsAccumulate(DecoderBlock):
    """Angles go on from the last position of the call before."""

    seen = 0

    def rotary_angles(self, positions: Tensor) -> Tensor:
        positions = positions + self.seen
        self.seen += len(positions)
        return super().rotary_angles(positions)


class RotaryTableStale(DecoderBlock):
    """A table of the first call's angles; its last row serves every later position."""

    table: Tensor | None = None

    def rotary_angles(self, positions: Tensor) -> Tensor:
        if self.table is None:
            self.table = super().rotary_angles(self.positions(int(positions[-1]) + 1, 0))
        return self.table[positions.clamp(max=len(self.table) - 1)]


class StridesIgnored(TorchBlock):
    """The memory of the input, read from its start."""

    def received(self, x: Array) -> Tensor:
        return super().received(x if x.flags.c_contiguous else x.ravel(order="K").reshape(x.shape))


class LaterBatchesZero(DecoderBlock):
    """Only the first sequence has an attention branch."""

    def project_output(self, a: Tensor) -> Tensor:
        branch = super().project_output(a)
        return torch.cat((branch[:1], torch.zeros_like(branch[1:])))


class BatchMixed(DecoderBlock):
    """branch + 0.01 mean over the batch."""

    def project_output(self, a: Tensor) -> Tensor:
        branch = super().project_output(a)
        return branch + 0.01 * branch.mean(0, keepdim=True)


class EmptyTokensAccepted(TorchBlock):
    """No tokens in, no tokens out."""

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        if np.ndim(x) == 3 and np.shape(x)[1] == 0 and np.shape(x)[2] == self.config.d_model:
            return np.array(x)
        return super().forward(x, position_offset)


class PositionRangeUnchecked(TorchBlock):
    """Only a negative position is refused."""

    def _check_positions(self, offset: int, tokens: int, limit: int) -> None:
        super()._check_positions(offset, tokens, max(limit, offset + tokens))


class WideInputTruncated(TorchBlock):
    """The first d_model features of any more."""

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        if np.ndim(x) == 3:
            x = np.asarray(x)[..., : self.config.d_model]
        return super().forward(x, position_offset)
