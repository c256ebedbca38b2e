"""Faults of the softmax, and of the scale and the soft-cap of the scores.

Must hold: each class overrides `softmax`, `score_scale` or `cap_scores`, and nothing else. Where a fault gives hidden
keys a weight, unfilled slots of a cache still get none: they are no keys.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.fault_tools import rounded
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import wide
from blocklaws.backends.on_jax.steps import Steps


def _keys(visible: jax.Array) -> jax.Array:
    """Return True for every key that there is: some query sees it."""
    return jnp.broadcast_to(jnp.any(visible, axis=-2, keepdims=True), visible.shape)


def _exponentials(scores: jax.Array, visible: jax.Array, axis: int = -1) -> jax.Array:
    """Return exponentials less their maximum, zero where hidden; finite where everything is hidden along the axis."""
    seen = jnp.where(visible, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(visible, jnp.exp(seen - jax.lax.stop_gradient(jnp.max(seen, axis=axis, keepdims=True))), 0)


def _normalized(exponentials: jax.Array, axis: int = -1) -> jax.Array:
    """Return exponentials divided by their sum; zeros stay zeros."""
    total = jnp.sum(exponentials, axis=axis, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


@fault("mask-after-softmax")
class MaskAfterSoftmax(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        return jnp.where(visible, super().softmax(scores, _keys(visible)), 0)


@fault("mask-multiplied")
class MaskMultiplied(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        return super().softmax(scores * visible, _keys(visible))


@fault("mask-too-small")
class MaskTooSmall(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        return super().softmax(jnp.where(visible, scores, scores - 1e4), _keys(visible))


@fault("mask-fill-zero-point")
class MaskFillZeroPoint(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        return super().softmax(jnp.where(visible, scores, -30), _keys(visible))


@fault("softmax-over-queries")
class SoftmaxOverQueries(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        return _normalized(_exponentials(scores, visible, axis=-2), axis=-2)


@fault("softmax-over-heads")
class SoftmaxOverHeads(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        return _normalized(_exponentials(scores, visible, axis=1), axis=1)


@fault("softmax-without-maximum")
class SoftmaxWithoutMaximum(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        exponentials = jnp.where(visible, jnp.exp(scores), 0)
        return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


@fault("softmax-in-half")
class SoftmaxInHalf(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        half = jnp.bfloat16
        exponentials = rounded(_exponentials(rounded(scores, half), visible), half)
        total = rounded(jnp.sum(exponentials, axis=-1, keepdims=True), half)
        return rounded(exponentials / total, half)


@fault("softmax-one-more")
class SoftmaxOneMore(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        exponentials = _exponentials(scores, visible)
        return exponentials / (1 + jnp.sum(exponentials, axis=-1, keepdims=True))


@fault("weights-not-normalised")
class WeightsNotNormalised(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        return _exponentials(scores, visible) / jnp.sum(visible.astype(scores.dtype), axis=-1, keepdims=True)


@fault("softmax-gradient-truncated")
class SoftmaxGradientTruncated(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        # One in value, and its slope gives weights times the change of the scores: the part that stays.
        seen = jnp.where(visible, wide(scores), 0)
        one = jnp.exp(seen - jax.lax.stop_gradient(seen))
        return jax.lax.stop_gradient(super().softmax(scores, visible)) * one


@fault("gradient-flushes-small-weights")
class GradientFlushesSmallWeights(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        weights = jax.lax.stop_gradient(super().softmax(scores, visible))
        kept, shown = jnp.where(weights < 0.01, 0, weights), jnp.where(visible, wide(scores), 0)
        # Linear in the scores, with the slopes that are meant; zero in value.
        slopes = kept * (shown - jnp.sum(kept * shown, axis=-1, keepdims=True))
        return weights + (slopes - jax.lax.stop_gradient(slopes))


@fault("scale-by-d-model")
class ScaleByDModel(Steps):
    def score_scale(self) -> float:
        return float(self.config.d_model**-0.5)


@fault("scale-missing")
class ScaleMissing(Steps):
    def score_scale(self) -> float:
        return 1.0


@fault("scale-twice")
class ScaleTwice(Steps):
    def score_scale(self) -> float:
        return super().score_scale() ** 2


@fault("scale-by-n-heads")
class ScaleByNHeads(Steps):
    def score_scale(self) -> float:
        return float(self.config.n_heads**-0.5)


@fault("softcap-missing")
class SoftcapMissing(Steps):
    def cap_scores(self, scores: jax.Array) -> jax.Array:
        return scores


@fault("softcap-after-mask")
class SoftcapAfterMask(Steps):
    def cap_scores(self, scores: jax.Array) -> jax.Array:
        return scores

    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        hidden = jnp.where(visible, scores, -jnp.inf)
        return super().softmax(super().cap_scores(hidden), _keys(visible))


@fault("softcap-before-scale")
class SoftcapBeforeScale(Steps):
    def cap_scores(self, scores: jax.Array) -> jax.Array:
        return super().cap_scores(scores / self.score_scale()) * self.score_scale()


@fault("softcap-multiplies-scores")
class SoftcapMultipliesScores(Steps):
    def cap_scores(self, scores: jax.Array) -> jax.Array:
        bound = self.config.softcap
        return scores if bound is None else scores * jnp.tanh(scores / bound)


@fault("softcap-not-multiplied-back")
class SoftcapNotMultipliedBack(Steps):
    def cap_scores(self, scores: jax.Array) -> jax.Array:
        return super().cap_scores(scores) / (self.config.softcap or 1.0)
