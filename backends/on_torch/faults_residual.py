"""Faults of the residual wiring: what a branch reads, what it is added to, and in which order."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import CallAware
from blocklaws.backends.on_torch.parts import Pass
from blocklaws.config import BlockConfig


class ResidualFromNorm(DecoderBlock):
    """norm_a(x) + MHA(norm_a(x))."""

    def attention_half(self, x: Tensor, run: Pass) -> Tensor:
        normed = run.record("attention_norm", self.attention_norm(x))
        return self.add_attention(normed, run.record("attention_branch", self.attention(normed, run)))


class FeedForwardResidualFromNorm(DecoderBlock):
    """norm_f(x') + FFN(norm_f(x'))."""

    def feed_forward_half(self, x: Tensor, run: Pass) -> Tensor:
        normed = run.record("feed_forward_norm", self.feed_forward_norm(x))
        return self.add_feed_forward(normed, run.record("feed_forward_branch", self.feed_forward(normed)))


class ResidualDropped(DecoderBlock):
    """The attention branch alone."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return branch


class FeedForwardResidualDropped(DecoderBlock):
    """The feed-forward branch alone."""

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return branch


class FeedForwardResidualFromInput(CallAware):
    """x + FFN(...), with x the block's input."""

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return super().add_feed_forward(self.source, branch)


class SecondNormReadsInput(CallAware):
    """x' + FFN(norm_f(x)), with x the block's input."""

    def feed_forward_half(self, x: Tensor, run: Pass) -> Tensor:
        normed = run.record("feed_forward_norm", self.feed_forward_norm(self.source))
        return self.add_feed_forward(x, run.record("feed_forward_branch", self.feed_forward(normed)))


class StreamOverwritten(DecoderBlock):
    """The attention branch twice."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return super().add_attention(branch, branch)


class ResidualScaled(DecoderBlock):
    """(x + branch) / sqrt(2)."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return super().add_attention(x, branch) / math.sqrt(2)


class BranchScaled(DecoderBlock):
    """x' + branch / 2."""

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return super().add_feed_forward(x, branch / 2)


class PlacementSwapped(DecoderBlock):
    """Built for the other placement."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config.replace(placement="post" if config.placement == "pre" else "pre"), tensors)


class PlacementIgnored(DecoderBlock):
    """Built as pre-norm whatever the config says."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config.replace(placement="pre"), tensors)


class PostNormOnBranch(DecoderBlock):
    """x + norm_a(MHA(x)), then x' + norm_f(FFN(x'))."""

    def attention_half(self, x: Tensor, run: Pass) -> Tensor:
        branch = run.record("attention_branch", self.attention(x, run))
        return self.add_attention(x, run.record("attention_norm", self.attention_norm(branch)))

    def feed_forward_half(self, x: Tensor, run: Pass) -> Tensor:
        branch = run.record("feed_forward_branch", self.feed_forward(x))
        return self.add_feed_forward(x, run.record("feed_forward_norm", self.feed_forward_norm(branch)))


class ResidualRounded(DecoderBlock):
    """The first sum with eight bits of mantissa."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return super().add_attention(x, branch).to(torch.bfloat16).to(x.dtype)


class BranchOrderSwapped(DecoderBlock):
    """The second half of the block before the first."""

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        run = Pass() if run is None else run
        run.record("input", x)
        middle = self.feed_forward_half(x, run)
        return run.record("output", run.record("after_attention", self.attention_half(middle, run)))
