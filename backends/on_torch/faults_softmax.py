"""Faults of the softmax, and of the scale and the soft-cap of its scores."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import ExplicitAttention


class MaskAfterSoftmax(ExplicitAttention):
    """softmax(s), then hidden weights to zero."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * visible


class MaskMultiplied(ExplicitAttention):
    """softmax(s * visible): a hidden score is zero, and not minus infinity."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return (scores * visible).softmax(dim=-1)


class MaskTooSmall(ExplicitAttention):
    """softmax(s - 1e4 hidden)."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return (scores - 1e4 * ~visible).softmax(dim=-1)


class MaskFillZeroPoint(ExplicitAttention):
    """A hidden score is -30."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.masked_fill(~visible, -30.0).softmax(dim=-1)


class SoftmaxOverQueries(ExplicitAttention):
    """Columns sum to one."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.masked_fill(~visible, -torch.inf).softmax(dim=-2)


class SoftmaxOverHeads(ExplicitAttention):
    """The heads of each query and key sum to one."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.softmax(dim=1) * visible


class SoftmaxWithoutMaximum(ExplicitAttention):
    """exp(s) / sum exp(s)."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        weights = scores.masked_fill(~visible, -torch.inf).exp()
        return weights / weights.sum(dim=-1, keepdim=True)


class SoftmaxInHalf(ExplicitAttention):
    """Scores and weights with eight bits of mantissa."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return super().softmax(scores.to(torch.bfloat16), visible).to(scores.dtype)


class SoftmaxOneMore(ExplicitAttention):
    """exp(s) / (1 + sum exp(s))."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        scores = scores.masked_fill(~visible, -torch.inf)
        # One more key, of score zero, whose weight is thrown away.
        return torch.cat((scores, torch.zeros_like(scores[..., :1])), dim=-1).softmax(dim=-1)[..., :-1]


class WeightsNotNormalised(ExplicitAttention):
    """exp(s - max) / number of visible keys."""

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        scores = scores.masked_fill(~visible, -torch.inf)
        return (scores - scores.amax(dim=-1, keepdim=True)).exp() / visible.sum(dim=-1, keepdim=True)


class ScaleByDModel(DecoderBlock):
    """1 / sqrt(d_model)."""

    def score_scale(self) -> float:
        return float(self.config.d_model**-0.5)


class ScaleMissing(DecoderBlock):
    """One."""

    def score_scale(self) -> float:
        return 1.0


class ScaleTwice(DecoderBlock):
    """1 / d_head."""

    def score_scale(self) -> float:
        return 1 / self.config.d_head


class ScaleByNHeads(DecoderBlock):
    """1 / sqrt(n_heads)."""

    def score_scale(self) -> float:
        return float(self.config.n_heads**-0.5)


class SoftcapMissing(DecoderBlock):
    """No bound."""

    def cap_scores(self, scores: Tensor) -> Tensor:
        return scores


class SoftcapAfterMask(DecoderBlock):
    """c tanh(-inf / c) = -c for a hidden score."""

    def cap_scores(self, scores: Tensor) -> Tensor:
        return scores

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        return super().cap_scores(scores.masked_fill(~visible, -torch.inf)).softmax(dim=-1)


class SoftcapBeforeScale(DecoderBlock):
    """c tanh(q . k / c) / sqrt(d_head)."""

    def cap_scores(self, scores: Tensor) -> Tensor:
        scale = self.score_scale()
        return super().cap_scores(scores / scale) * scale


class SoftcapMultipliesScores(DecoderBlock):
    """s tanh(s / c)."""

    def cap_scores(self, scores: Tensor) -> Tensor:
        cap = self.config.softcap
        return scores if cap is None else scores * torch.tanh(scores / cap)


class SoftcapNotMultipliedBack(DecoderBlock):
    """tanh(s / c)."""

    def cap_scores(self, scores: Tensor) -> Tensor:
        return super().cap_scores(scores) / (self.config.softcap or 1.0)
