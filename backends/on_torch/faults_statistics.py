"""Faults of ``standardize``: the statistics of a norm are of the wrong elements, or epsilon is in the wrong place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.config import BlockConfig


class _OverAxes(DecoderBlock):
    """The right norm, over whichever axes."""

    axes: tuple[int, ...] = (-1,)

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        x = x.to(self.wide)
        if self.config.norm == "layer":
            x = x - x.mean(self.axes, keepdim=True)
        return x * torch.rsqrt(x.square().mean(self.axes, keepdim=True) + eps)


class NormOverTokens(_OverAxes):
    """One mean and scale for each feature of a sequence."""

    axes = (1,)


class NormOverTokensAndFeatures(_OverAxes):
    """One mean and scale for each sequence."""

    axes = (1, 2)


class NormOverBatch(_OverAxes):
    """One mean and scale for each token position."""

    axes = (0, 2)


class _Divided(DecoderBlock):
    """The right norm in separate pieces: what is removed, and what it is divided by."""

    def centred(self, x: Tensor) -> Tensor:
        x = x.to(self.wide)
        return x - x.mean(-1, keepdim=True) if self.config.norm == "layer" else x

    def divisor(self, mean_square: Tensor, eps: float) -> Tensor:
        return torch.sqrt(mean_square + eps)

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        x = self.centred(x)
        return x / self.divisor(x.square().mean(-1, keepdim=True), eps)


class NormDividedByTokens(DecoderBlock):
    """Sums over features, divided by batch times tokens."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        count = x.shape[0] * x.shape[1]
        x = x.to(self.wide)
        if self.config.norm == "layer":
            x = x - x.sum(-1, keepdim=True) / count
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) / count + eps)


class VarianceUnbiased(_Divided):
    """The sample variance, with one degree of freedom taken off."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        x = self.centred(x)
        # A tensor, since one feature alone would be a division of Python numbers by zero.
        degrees = torch.tensor(x.shape[-1] - 1, dtype=self.wide, device=x.device)
        return x / self.divisor(x.square().mean(-1, keepdim=True) * x.shape[-1] / degrees, eps)


class EpsOutsideRoot(_Divided):
    """sqrt(mean square) + eps."""

    def divisor(self, mean_square: Tensor, eps: float) -> Tensor:
        return torch.sqrt(mean_square) + eps


class VarianceSquared(_Divided):
    """(mean square + eps)^2."""

    def divisor(self, mean_square: Tensor, eps: float) -> Tensor:
        return (mean_square + eps).square()


class EpsInflatedByPrescale(_Divided):
    """Epsilon counts relative to the row's largest magnitude; a zero row is 0/0."""

    def centred(self, x: Tensor) -> Tensor:
        x = x.to(self.wide)
        return x / x.abs().amax(-1, keepdim=True)


class EpsClamped(DecoderBlock):
    """At least 1e-6."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, max(eps, 1e-6))


class ConfigOnClass(DecoderBlock):
    """The epsilon of the newest block."""

    newest: ClassVar[BlockConfig]

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        ConfigOnClass.newest = config

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, self.newest.norm_eps)


class EpsHardCoded(DecoderBlock):
    """1e-8 for any epsilon."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, 1e-8)


class EpsMissing(DecoderBlock):
    """Zero for any epsilon."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, 0.0)


class EpsFromDtype(DecoderBlock):
    """The spacing of the dtype at one for any epsilon."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, torch.finfo(x.dtype).eps)


class MeanNotSubtracted(_Divided):
    """Layer norm without the mean removed."""

    def centred(self, x: Tensor) -> Tensor:
        return x.to(self.wide)


class MeanSubtracted(_Divided):
    """RMS norm with the mean removed."""

    def centred(self, x: Tensor) -> Tensor:
        x = x.to(self.wide)
        return x - x.mean(-1, keepdim=True)


class MeanSquareInHalf(DecoderBlock):
    """Means, squares and the root in the dtype of the input."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        if self.config.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).to(self.wide)


class VarianceInOnePass(DecoderBlock):
    """mean(x^2) - mean(x)^2, not less than zero."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        if self.config.norm == "rms":
            return super().standardize(x, eps)
        x = x.to(self.wide)
        mean = x.mean(-1, keepdim=True)
        variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
        return (x - mean) * torch.rsqrt(variance + eps)


class EpsInHalf(DecoderBlock):
    """The float16 nearest to epsilon."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, torch.tensor(eps, dtype=torch.float16).item())


class SquareOverflows(_Divided):
    """Squares in float16, their mean in float32."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        x = self.centred(x)
        squares = x.to(torch.float16).square().to(self.wide)
        return x / self.divisor(squares.mean(-1, keepdim=True), eps)


class SquaresSummedInHalf(_Divided):
    """Squares rounded to float16 and added up there."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        x = self.centred(x)
        total = x.square().to(torch.float16).sum(-1, keepdim=True).to(self.wide)
        return x / self.divisor(total / x.shape[-1], eps)


class InsideNormInHalf(SquaresSummedInHalf):
    """The same of the norms of the branches: queries and keys, which are normed by heads, have an axis more."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, eps) if x.ndim == 3 else DecoderBlock.standardize(self, x, eps)


class _WritesItsArgument(DecoderBlock):
    def standardize(self, x: Tensor, eps: float) -> Tensor:
        standard = super().standardize(x, eps)
        # Behind autograd's back, as a foreign kernel would: it refuses to write to what it still needs.
        x.data.copy_(standard)
        return standard


class NormModifiesInput(TorchBlock):
    """The norm scales its argument in place; the first norm's is the caller's own memory."""

    module_class = _WritesItsArgument

    def received(self, x: Array) -> Tensor:
        usable = x.flags.writeable and x.dtype.kind == "f" and all(stride > 0 for stride in x.strides)
        return torch.from_numpy(x).to(self.device) if usable else super().received(x)
