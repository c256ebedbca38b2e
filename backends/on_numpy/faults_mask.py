"""Blocks whose attention weights are wrong: who may see whom, how hidden keys are hidden, the softmax, the scale."""

import math
from functools import partial

import ml_dtypes
import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.shapes import KeyPositions, Numbers, QueryPositions, Scores, Visible
from blocklaws.backends.on_numpy.steps import Gradients, Pullback

# --- who may see whom -------------------------------------------------------------------------------------------------


@fault("mask-off-by-one")
class _MaskOffByOne(NumpyBlock):
    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        return super().visible(query_positions + 1, key_positions)


@fault("self-hidden")
class _SelfHidden(NumpyBlock):
    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        first = (key_positions == key_positions[0]) & (query_positions[:, None] == key_positions[0])
        result: np.ndarray = super().visible(query_positions - 1, key_positions) | first
        return result


@fault("mask-missing")
class MaskMissing(NumpyBlock):
    """Every query sees every key; faults of the cache use it too."""

    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        return np.ones((len(query_positions), len(key_positions)), bool)


@fault("mask-inverted")
class _MaskInverted(NumpyBlock):
    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        return key_positions >= query_positions[:, None]


@fault("mask-missing-in-last-head")
class _MaskMissingInLastHead(NumpyBlock):
    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        last = np.arange(self.config.n_heads) == self.config.n_heads - 1
        result: np.ndarray = super().visible(query_positions, key_positions) | last[:, None, None]
        return result


@fault("mask-missing-in-later-batches")
class _MaskMissingInLaterBatches(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        later = np.arange(len(scores)) > 0
        return super().softmax(scores, visible | later[:, None, None, None])


@fault("window-never-asked")
class _WindowNeverAsked(NumpyBlock):
    window = 2

    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        near = key_positions > query_positions[:, None] - self.window
        return super().visible(query_positions, key_positions) & near


@fault("long-context-truncated")
class _LongContextTruncated(_WindowNeverAsked):
    window = 16


class _KeysHidden(NumpyBlock):
    """Some keys are hidden from every query but their own."""

    def hidden(self, keys: int) -> Visible:
        """Return True for the keys, counted from the first one held, that are hidden: [1, key]."""
        raise NotImplementedError

    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        own = key_positions == query_positions[:, None]
        result: np.ndarray = super().visible(query_positions, key_positions) & (own | ~self.hidden(len(key_positions)))
        return result


@fault("partial-key-block-dropped")
class _PartialKeyBlockDropped(_KeysHidden):
    def hidden(self, keys: int) -> Visible:
        return np.arange(keys)[None] >= keys // 4 * 4


@fault("first-token-hidden")
class _FirstTokenHidden(_KeysHidden):
    def hidden(self, keys: int) -> Visible:
        result: np.ndarray = np.arange(keys)[None] == 0
        return result


# --- how hidden keys are hidden ---------------------------------------------------------------------------------------


def _all(visible: Visible) -> Visible:
    return np.ones_like(visible)


@fault("mask-after-softmax")
class _MaskAfterSoftmax(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        weights, pullback = super().softmax(scores, _all(visible))
        return weights * visible, lambda cotangent, gradients: pullback(cotangent * visible, gradients)


@fault("mask-multiplied")
class _MaskMultiplied(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        weights, pullback = super().softmax(scores * visible, _all(visible))
        return weights, lambda cotangent, gradients: pullback(cotangent, gradients) * visible


@fault("mask-too-small")
class _MaskTooSmall(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        return super().softmax(np.where(visible, scores, scores - 1e4), _all(visible))


@fault("mask-fill-zero-point")
class _MaskFillZeroPoint(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        weights, pullback = super().softmax(np.where(visible, scores, -30.0), _all(visible))
        return weights, lambda cotangent, gradients: pullback(cotangent, gradients) * visible


# --- the softmax ------------------------------------------------------------------------------------------------------


@fault("softmax-over-queries")
class _SoftmaxOverQueries(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        weights, pullback = super().softmax(scores.swapaxes(-1, -2), visible.swapaxes(-1, -2))
        return weights.swapaxes(-1, -2), lambda cotangent, gradients: pullback(
            cotangent.swapaxes(-1, -2), gradients
        ).swapaxes(-1, -2)


@fault("softmax-over-heads")
class _SoftmaxOverHeads(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        every_head = np.ones((scores.shape[2], scores.shape[1]), bool)
        weights, pullback = super().softmax(scores.swapaxes(1, -1), every_head)
        return weights.swapaxes(1, -1) * visible, lambda cotangent, gradients: pullback(
            (cotangent * visible).swapaxes(1, -1), gradients
        ).swapaxes(1, -1)


@fault("softmax-without-maximum")
class _SoftmaxWithoutMaximum(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        exponentials = np.exp(np.where(visible, scores, -np.inf))
        weights = exponentials / exponentials.sum(-1, keepdims=True)
        return self.rounded(weights, partial(self.pull_softmax, weights))


@fault("softmax-in-half")
class _SoftmaxInHalf(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        shown = np.where(visible, scores, -np.inf).astype(ml_dtypes.bfloat16)
        exponentials = np.exp(shown - shown.max(-1, keepdims=True))
        halves = exponentials / exponentials.sum(-1, keepdims=True)
        weights = halves.astype(scores.dtype)
        return self.rounded(weights, partial(self.pull_softmax, weights))


@fault("softmax-one-more")
class _SoftmaxOneMore(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        shown = np.where(visible, scores, -np.inf)
        # The extra one is a key of score zero, so zero takes part in the maximum.
        largest = np.maximum(shown.max(-1, keepdims=True), 0)
        exponentials = np.exp(shown - largest)
        weights = exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(-largest))
        return self.rounded(weights, partial(self.pull_softmax, weights))


@fault("weights-not-normalised")
class _WeightsNotNormalised(NumpyBlock):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        seen: Numbers = visible.sum(-1, keepdims=True).astype(scores.dtype)
        weights = np.exp(np.where(visible, scores, -np.inf)) / seen
        return self.rounded(weights, partial(self.pull_softmax, weights))

    def pull_softmax(self, weights: Scores, cotangent: Scores, _: Gradients) -> Scores:
        result: np.ndarray = weights * cotangent
        return result


# --- the scale --------------------------------------------------------------------------------------------------------


@fault("scale-by-d-model")
class _ScaleByDModel(NumpyBlock):
    def score_scale(self) -> float:
        return 1 / math.sqrt(self.config.d_model)


@fault("scale-missing")
class _ScaleMissing(NumpyBlock):
    def score_scale(self) -> float:
        return 1.0


@fault("scale-twice")
class _ScaleTwice(NumpyBlock):
    def score_scale(self) -> float:
        return 1 / self.config.d_head


@fault("scale-by-n-heads")
class _ScaleByNHeads(NumpyBlock):
    def score_scale(self) -> float:
        return 1 / math.sqrt(self.config.n_heads)
