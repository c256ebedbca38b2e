"""What a decoder block is put together from: its projections, its gains, the pairs of a rotary embedding, and one pass.

Must hold: making a part draws no random number, and each part keeps its parameters as ``nn.Parameter``s of the block's
dtype. The steps of the computation are in `decoder`.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Affine", "Pass", "Projection", "join_pairs", "split_pairs"]


@dataclasses.dataclass
class Pass:
    """What one pass through the block carries beside the tokens.

    Attributes:
        offset: the position of the first token.
        cached: keys and values before this call, [batch, n_kv_heads, key, d_head] each; after it, with its own.
        stages: where the stages are recorded, or None to record nothing.
    """

    offset: int = 0
    cached: tuple[Tensor, Tensor] | None = None
    stages: dict[str, Tensor] | None = None

    def record(self, stage: str, tensor: Tensor) -> Tensor:
        """Keep ``tensor`` as ``stage`` where stages are wanted, and return it."""
        if self.stages is not None:
            self.stages[stage] = tensor
        return tensor


class Projection(nn.Module):
    """y = x W + b, W stored [out, in]; not ``nn.Linear``, whose initial weights are drawn from the global generator."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.T.contiguous())
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Affine(nn.Module):
    """The gain and, for a layer norm, the bias of one norm, applied in the dtype of what they are given."""

    def __init__(self, gain: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.gain = nn.Parameter(gain)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.gain.to(x.dtype)
        return scaled if self.bias is None else scaled + self.bias.to(x.dtype)


def split_pairs(a: Tensor, layout: str | None) -> tuple[Tensor, Tensor]:
    """Return the first and the second feature of every rotary pair, [..., d_head / 2] each."""
    if layout == "interleaved":
        return a[..., 0::2], a[..., 1::2]
    first, second = a.chunk(2, dim=-1)
    return first, second


def join_pairs(first: Tensor, second: Tensor, layout: str | None) -> Tensor:
    """Undo `split_pairs`."""
    if layout == "interleaved":
        return torch.stack((first, second), dim=-1).flatten(-2)
    return torch.cat((first, second), dim=-1)
