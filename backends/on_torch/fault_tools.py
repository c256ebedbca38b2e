"""What several faults need: attention written out, the call in progress, and projections that follow their input.

Must hold: each class here computes the right block, so that a fault is only what its own few lines change.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.parts import Pass, Projection

__all__ = ["CallAware", "ExplicitAttention", "FollowingProjection", "softmax_of"]


class ExplicitAttention(DecoderBlock):
    """Attention as `scores`, `softmax` and `mix`, for a fault in one of these, which the fused kernel hides."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        return self.mix(self.softmax(self.scores(query, key), visible), value)


class CallAware(DecoderBlock):
    """Keeps the pass and the input of the call in progress, for a step that is wrong only in some calls."""

    run: Pass
    source: Tensor
    #: Whether this call was given a cache.
    continues: bool

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        self.run, self.source = Pass() if run is None else run, x
        self.continues = self.run.cached is not None
        return super().forward(x, self.run)


class FollowingProjection(Projection):
    """A projection in the dtype of its input, whatever dtype it is stored in."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


def softmax_of(scores: Tensor, visible: Tensor) -> Tensor:
    """Return the right weights, [batch, n_heads, query, key]."""
    return scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
