"""Faults of the residual wiring: what a branch reads, what it is added to, and in which order."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import CallAware
from blocklaws.backends.on_torch.parts import Pass


class ResidualFromNorm(DecoderBlock):
    """norm_a(x) + MHA(norm_a(x))."""

    def attention_half(self, x: Tensor, run: Pass) -> Tensor:
        normed = run.record("attention_norm", self.attention_norm(x))
        return self.add_attention(normed, run.record("attention_branch", self.attention(normed, run)))


class FeedForwardResidualFromNorm(DecoderBlock):
    """norm_f(x') + FFN(norm_f(x'))."""

    def feed_forward_half(self, x: Tensor, source: Tensor, run: Pass) -> Tensor:
        normed = run.record("feed_forward_norm", self.feed_forward_norm(source))
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


class SecondNormReadsInput(DecoderBlock):
    """x' + FFN(norm_f(x)), with x the block's input."""

    def feed_forward_source(self, x: Tensor, middle: Tensor) -> Tensor:
        return x


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
    """Post-norm for a pre-norm block, pre-norm for any other."""

    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        return "post" if super().placement == "pre" else "pre"


class PlacementIgnored(DecoderBlock):
    """Pre-norm whatever the config says."""

    placement = "pre"


class PostNormOnBranch(DecoderBlock):
    """x + norm_a(MHA(x)), then x' + norm_f(FFN(x'))."""

    placement = "inside"


class ResidualRounded(DecoderBlock):
    """The first sum with eight bits of mantissa."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return super().add_attention(x, branch).to(torch.bfloat16).to(x.dtype)


class StreamInFloat16(DecoderBlock):
    """A float16, the largest there is where the sum is larger."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        end = torch.finfo(torch.float16).max
        return super().add_attention(x, branch).clamp(-end, end).to(torch.float16).to(x.dtype)


class BranchOrderSwapped(DecoderBlock):
    """The second half of the block before the first."""

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        run = Pass() if run is None else run
        run.record("input", x)
        middle = self.feed_forward_half(x, x, run)
        return run.record("output", run.record("after_attention", self.attention_half(middle, run)))


class InsideAsPre(DecoderBlock):
    """x + branch(norm(x))."""

    placement = "pre"


class InsideAsPost(DecoderBlock):
    """norm(x + branch(x))."""

    placement = "post"


class ParallelAsSequential(DecoderBlock):
    """FFN(norm_f(x + MHA(norm_a(x))))."""

    def feed_forward_source(self, x: Tensor, middle: Tensor) -> Tensor:
        return middle


class ParallelSharedNorm(DecoderBlock):
    """FFN(norm_a(x))."""

    def feed_forward_norm(self, x: Tensor) -> Tensor:
        return self.attention_norm(x)


class ParallelInputTwice(CallAware):
    """(x + MHA(...)) + (x + FFN(...))."""

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + super().add_feed_forward(self.source, branch)


class ResidualScaleIgnored(DecoderBlock):
    """x + branch."""

    def scale_branch(self, branch: Tensor) -> Tensor:
        return branch


class ResidualScaleOnAttentionOnly(DecoderBlock):
    """x' + FFN(...)."""

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch


class ResidualScaleOnSum(DecoderBlock):
    """s (x + branch)."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.scale_branch(x + branch)

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.scale_branch(x + branch)
