"""Faults of the norms: which axes, which epsilon, which gain, in which precision.

Must hold: each class overrides `statistics`, `standardize`, `normalize` or one of the two norms, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from blocklaws.backends.on_jax.block import JaxBlock
from blocklaws.backends.on_jax.fault_tools import rounded, summed_in
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, wide
from blocklaws.backends.on_jax.refusals import Array
from blocklaws.backends.on_jax.steps import Steps
from blocklaws.config import BlockConfig


class _Statistics(Steps):
    """The right statistics over the wrong axes, or with the wrong divisor."""

    def total(self, a: jax.Array) -> jax.Array:
        raise NotImplementedError

    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.config.norm == "rms":
            square = self.total(x * x)
            return jnp.zeros_like(square), square
        mean = self.total(x)
        return mean, self.total((x - mean) ** 2)


@fault("norm-over-tokens")
class NormOverTokens(_Statistics):
    def total(self, a: jax.Array) -> jax.Array:
        return jnp.mean(a, axis=1, keepdims=True)


@fault("norm-over-tokens-and-features")
class NormOverTokensAndFeatures(_Statistics):
    def total(self, a: jax.Array) -> jax.Array:
        return jnp.mean(a, axis=(1, 2), keepdims=True)


@fault("norm-over-batch")
class NormOverBatch(_Statistics):
    def total(self, a: jax.Array) -> jax.Array:
        return jnp.mean(a, axis=(0, 2), keepdims=True)


@fault("norm-divided-by-tokens")
class NormDividedByTokens(_Statistics):
    def total(self, a: jax.Array) -> jax.Array:
        return jnp.sum(a, axis=-1, keepdims=True) / jnp.asarray(a.shape[0] * a.shape[1], a.dtype)


@fault("variance-unbiased")
class VarianceUnbiased(Steps):
    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, variance = super().statistics(x)
        width = x.shape[-1]
        return mean, variance * jnp.asarray(width, x.dtype) / jnp.asarray(width - 1, x.dtype)


@fault("eps-outside-root")
class EpsOutsideRoot(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        center, spread = self.statistics(wide(x))
        return (wide(x) - center) / (jnp.sqrt(spread) + eps)


@fault("variance-squared")
class VarianceSquared(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        center, spread = self.statistics(wide(x))
        return (wide(x) - center) / (spread**2 + eps)


@fault("eps-inflated-by-prescale")
class EpsInflatedByPrescale(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        scaled = wide(x) / jnp.max(jnp.abs(wide(x)), axis=-1, keepdims=True)
        return super().standardize(scaled, eps)


@fault("eps-clamped")
class EpsClamped(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        return super().standardize(x, max(eps, 1e-6))


@fault("config-on-class")
class ConfigOnClass(JaxBlock):
    newest: ClassVar[BlockConfig]

    def __init__(
        self, config: BlockConfig, parameters: Mapping[str, Any], dtype: str, device: jax.Device | None
    ) -> None:
        super().__init__(config, parameters, dtype, device)
        ConfigOnClass.newest = config

    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        self.steps = Steps(self.config.replace(block="", norm_eps=self.newest.norm_eps))
        return super().arguments(x, position_offset)


@fault("eps-hard-coded")
class EpsHardCoded(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        return super().standardize(x, 1e-8)


@fault("eps-default-in-second-norm")
class EpsDefaultInSecondNorm(Steps):
    def feed_forward_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        gain, bias = parameters["feed_forward_norm.gain"], parameters.get("feed_forward_norm.bias")
        return self.normalize(x, gain, bias, 1e-8)


@fault("eps-missing")
class EpsMissing(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        return super().standardize(x, 0.0)


@fault("eps-from-dtype")
class EpsFromDtype(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        return super().standardize(x, float(jnp.finfo(x.dtype).eps))


@fault("gain-offset")
class GainOffset(Steps):
    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        return super().normalize(x, 1 + wide(gain), bias, eps)


@fault("gain-offset-in-second-norm")
class GainOffsetInSecondNorm(Steps):
    def feed_forward_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        gain = 1 + wide(parameters["feed_forward_norm.gain"])
        return super().feed_forward_norm({**parameters, "feed_forward_norm.gain": gain}, x)


@fault("gain-missing")
class GainMissing(Steps):
    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        return super().normalize(x, jnp.ones_like(gain), bias, eps)


@fault("norm-bias-missing")
class NormBiasMissing(Steps):
    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        return super().normalize(x, gain, None, eps)


@fault("mean-not-subtracted")
class MeanNotSubtracted(Steps):
    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        square = jnp.mean(x * x, axis=-1, keepdims=True)
        return jnp.zeros_like(square), square


@fault("mean-subtracted")
class MeanSubtracted(Steps):
    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        return mean, jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)


def _of_first_norm(parameters: Parameters) -> Parameters:
    """Return the parameters with those of the first norm in both norms."""
    shared = {
        name.replace("attention_norm", "feed_forward_norm"): value
        for name, value in parameters.items()
        if name.startswith("attention_norm")
    }
    return {**parameters, **shared}


@fault("second-norm-uses-first")
class SecondNormUsesFirst(Steps):
    def feed_forward_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        return super().feed_forward_norm(_of_first_norm(parameters), x)


@fault("norm-shared")
class NormShared(JaxBlock):
    steps_class = SecondNormUsesFirst

    def parameters(self) -> dict[str, Array]:
        return _shared_storage(super().parameters())

    def gradients(self, x: object, cotangent: object, position_offset: int = 0) -> dict[str, Array]:
        return _shared_storage(super().gradients(x, cotangent, position_offset))


def _shared_storage(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the arrays with those of the first norm, the same objects, in place of the second's."""
    return {name: arrays[name.replace("feed_forward_norm", "attention_norm")] for name in arrays}


@fault("norms-swapped")
class NormsSwapped(Steps):
    def attention_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        return super().feed_forward_norm(parameters, x)

    def feed_forward_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        return super().attention_norm(parameters, x)


@fault("attention-norm-skipped")
class AttentionNormSkipped(Steps):
    def attention_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        return x


@fault("feed-forward-norm-skipped")
class FeedForwardNormSkipped(Steps):
    def feed_forward_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        return x


@fault("norm-promotes-output")
class NormPromotesOutput(Steps):
    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        # A wide x keeps the result wide.
        return super().normalize(wide(x), gain, bias, eps)

    def extend_cache(self, cache: KeyValues, key: jax.Array, value: jax.Array) -> KeyValues:
        # The buffers have the dtype of the block, whatever reaches them.
        return super().extend_cache(cache, key.astype(cache.key.dtype), value.astype(cache.value.dtype))


@fault("mean-square-in-half")
class MeanSquareInHalf(Steps):
    """Sums grow feature by feature in the low precision, as they do without a float32 accumulator."""

    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        def mean(a: jax.Array) -> jax.Array:
            return rounded(summed_in(a, x.dtype) / a.shape[-1], x.dtype)

        center = mean(wide(x)) if self.config.norm == "layer" else 0
        centered = wide(x) - center
        return centered / jnp.sqrt(mean(centered**2) + eps)


@fault("variance-in-one-pass")
class VarianceInOnePass(Steps):
    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.config.norm == "rms":
            return super().statistics(x)
        mean, square = jnp.mean(x, axis=-1, keepdims=True), jnp.mean(x * x, axis=-1, keepdims=True)
        return mean, jnp.maximum(square - mean * mean, 0)


@fault("eps-in-half")
class EpsInHalf(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        return super().standardize(x, float(np.float16(eps)))


@fault("gains-rounded")
class GainsRounded(Steps):
    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        return super().normalize(x, rounded(wide(gain), jnp.bfloat16), bias, eps)


@fault("square-overflows")
class SquareOverflows(Steps):
    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        center, _ = super().statistics(x)
        square = rounded((x - center) ** 2, jnp.float16)
        return center, jnp.mean(square, axis=-1, keepdims=True)


@fault("squares-summed-in-half")
class SquaresSummedInHalf(Steps):
    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        center, _ = super().statistics(x)
        return center, summed_in((x - center) ** 2, jnp.float16) / x.shape[-1]


@fault("inside-norm-in-half")
class InsideNormInHalf(SquaresSummedInHalf):
    """The same of the norms of the branches: queries and keys, which are normed by heads, have an axis more."""

    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return super().statistics(x) if x.ndim == 3 else Steps.statistics(self, x)
