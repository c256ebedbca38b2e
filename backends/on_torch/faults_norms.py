"""Faults of the two norms: their gains, biases, epsilons, which one is used where, and the dtype that leaves them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import FollowingProjection
from blocklaws.backends.on_torch.parts import Affine
from blocklaws.config import BlockConfig


class EpsDefaultInSecondNorm(DecoderBlock):
    """1e-8 for the second norm's epsilon."""

    def feed_forward_norm(self, x: Tensor) -> Tensor:
        affine: Tensor = self.feed_forward_affine(self.standardize(x, 1e-8))
        return affine.to(x.dtype)


class _OffsetAffine(Affine):
    def forward(self, x: Tensor) -> Tensor:
        scaled = x * (1 + self.gain.to(x.dtype))
        return scaled if self.bias is None else scaled + self.bias.to(x.dtype)


class GainOffset(DecoderBlock):
    """Both gains count from one."""

    affine_class = _OffsetAffine


class GainOffsetInSecondNorm(DecoderBlock):
    """The second gain counts from one."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self.feed_forward_affine = _OffsetAffine(
            tensors["feed_forward_norm.gain"], tensors.get("feed_forward_norm.bias")
        )


class _GainlessAffine(Affine):
    def forward(self, x: Tensor) -> Tensor:
        return x if self.bias is None else x + self.bias.to(x.dtype)


class GainMissing(DecoderBlock):
    """Gains are stored and not used."""

    affine_class = _GainlessAffine


class _RoundedAffine(Affine):
    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.gain.to(torch.bfloat16).to(x.dtype)
        return scaled if self.bias is None else scaled + self.bias.to(x.dtype)


class GainsRounded(DecoderBlock):
    """Gains with eight bits of mantissa."""

    affine_class = _RoundedAffine


class _BiaslessAffine(Affine):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain.to(x.dtype)


class NormBiasMissing(DecoderBlock):
    """Biases of the norms are stored and not used."""

    affine_class = _BiaslessAffine


class NormShared(DecoderBlock):
    """One module under two names."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self.feed_forward_affine = self.attention_affine


class SecondNormUsesFirst(DecoderBlock):
    """The second norm is the first one called again."""

    def feed_forward_norm(self, x: Tensor) -> Tensor:
        return self.attention_norm(x)


class NormsSwapped(DecoderBlock):
    """Each norm is called by the other's name."""

    def attention_norm(self, x: Tensor) -> Tensor:
        return super().feed_forward_norm(x)

    def feed_forward_norm(self, x: Tensor) -> Tensor:
        return super().attention_norm(x)


class AttentionNormSkipped(DecoderBlock):
    """The first norm returns its input."""

    def attention_norm(self, x: Tensor) -> Tensor:
        return x


class FeedForwardNormSkipped(DecoderBlock):
    """The second norm returns its input."""

    def feed_forward_norm(self, x: Tensor) -> Tensor:
        return x


class NormPromotesOutput(DecoderBlock):
    """Both norms return float32, and everything after them follows."""

    projection_class = FollowingProjection

    def attention_norm(self, x: Tensor) -> Tensor:
        affine: Tensor = self.attention_affine(self.standardize(x, self.config.norm_eps))
        return affine

    def feed_forward_norm(self, x: Tensor) -> Tensor:
        affine: Tensor = self.feed_forward_affine(self.standardize(x, self.config.norm_eps))
        return affine
