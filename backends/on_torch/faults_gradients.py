"""Faults of the gradients: the forward pass is right to the last bit, the backward pass is not."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import ExplicitAttention, softmax_of
from blocklaws.backends.on_torch.parts import Affine


class _DetachedGain(Affine):
    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.gain.detach().to(x.dtype)
        return scaled if self.bias is None else scaled + self.bias.to(x.dtype)


class GainGradientMissing(DecoderBlock):
    """Gains are constants."""

    affine_class = _DetachedGain


class NormDetached(DecoderBlock):
    """Standardized rows are constants."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, eps).detach()


class GradientEpsFixed(DecoderBlock):
    """The value for the config's epsilon, and the gradient for 1e-5."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        fixed = super().standardize(x, 1e-5)
        return super().standardize(x, eps).detach() + (fixed - fixed.detach())


class StatisticsDetached(DecoderBlock):
    """The mean and the scale are constants."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        x = x.to(self.wide)
        if self.config.norm == "layer":
            x = x - x.detach().mean(-1, keepdim=True)
        return x * torch.rsqrt(x.detach().square().mean(-1, keepdim=True) + eps)


class ResidualGradientDropped(DecoderBlock):
    """The stream that the attention branch is added to is a constant."""

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return super().add_attention(x.detach(), branch)


class SoftmaxGradientTruncated(ExplicitAttention):
    """dS = P dP, without the term - P sum(P dP)."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        weights = softmax_of(scores, visible).detach()
        # Zero in value, so the weights are right; its gradient is that of the scores.
        silent = scores.masked_fill(~visible, 0.0)
        return weights * (1 + (silent - silent.detach()))


class GradientFlushesSmallWeights(DecoderBlock):
    """dS = P (dP - sum(P dP)) with P zero where it is under a hundredth."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        scores = self.scores(query, key)
        weights = softmax_of(scores, visible).detach()
        kept = weights.masked_fill(weights < 0.01, 0.0)
        shown = scores.masked_fill(~visible, 0.0)
        # Linear in the scores, with the slopes that are meant; zero in value.
        slopes = kept * (shown - (kept * shown).sum(-1, keepdim=True))
        mixed = self.mix(weights + (slopes - slopes.detach()), value)
        # The kernel's values to the last bit: in half precision another order of its sums shows.
        return super().attend(query, key, value, visible).detach() + (mixed - mixed.detach())


class KvGradientWrongGroup(DecoderBlock):
    """Repeated forwards, gathered as tiled backwards."""

    def repeat_heads(self, a: Tensor) -> Tensor:
        tiled = a.repeat(1, self.config.group, 1, 1)
        return super().repeat_heads(a).detach() + (tiled - tiled.detach())


class GateUpGradientsSwapped(TorchBlock):
    """Each under the other's name."""

    def gradients(self, x: Array, cotangent: Array, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        gate, up = found["feed_forward.gate"], found["feed_forward.up"]
        return {**found, "feed_forward.gate": up, "feed_forward.up": gate}


class GradientAveragedOverBatch(TorchBlock):
    """Parameter gradients of the mean over the sequences."""

    def gradients(self, x: Array, cotangent: Array, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        sequences = max(len(x), 1)
        return {name: a if name == "input" else (a / sequences).astype(a.dtype) for name, a in found.items()}


class CotangentModified(TorchBlock):
    """The cotangent ends as the gradient of the input."""

    def gradients(self, x: Array, cotangent: Array, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        if cotangent.flags.writeable:
            cotangent[...] = found["input"]
        return found


class GradientAccumulates(TorchBlock):
    """Parameter gradients are the sum over the calls so far."""

    sums: dict[str, Array] | None = None

    def gradients(self, x: Array, cotangent: Array, position_offset: int = 0) -> dict[str, Array]:
        found = super().gradients(x, cotangent, position_offset)
        parameters = {name: array for name, array in found.items() if name != "input"}
        if self.sums is not None:
            parameters = {name: array + self.sums[name] for name, array in parameters.items()}
        self.sums = parameters
        return {"input": found["input"], **{name: array.copy() for name, array in parameters.items()}}
