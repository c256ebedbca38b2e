"""Blocks whose norms are wrong: the axes of the statistics, the epsilon, the gains and biases, which norm is where."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, SupportsIndex

import ml_dtypes
import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.cache import Call
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Numbers, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, chain
from blocklaws.config import BlockConfig

# --- the axes of the statistics ---------------------------------------------------------------------------------------
# ``pull_standardize`` holds for every average that is a projection onto what is constant along its axes.


class _AveragedOver(NumpyBlock):
    axes: tuple[int, ...]

    def average(self, x: Stream) -> Numbers:
        count = max(1, int(np.prod([x.shape[axis] for axis in self.axes])))
        mean: np.ndarray = np.add.reduce(x, axis=self.axes, keepdims=True) / count
        return mean


@fault("norm-over-tokens")
class _NormOverTokens(_AveragedOver):
    axes = (1,)


@fault("norm-over-tokens-and-features")
class _NormOverTokensAndFeatures(_AveragedOver):
    axes = (1, 2)


@fault("norm-over-batch")
class _NormOverBatch(_AveragedOver):
    axes = (0, 2)


@fault("norm-divided-by-tokens")
class _NormDividedByTokens(NumpyBlock):
    def average(self, x: Stream) -> Numbers:
        batch, tokens, _ = x.shape
        mean: np.ndarray = np.add.reduce(x, axis=-1, keepdims=True) / max(1, batch * tokens)
        return mean


# --- what a row is divided by -----------------------------------------------------------------------------------------


class _Divided(NumpyBlock):
    """A norm that divides the (centred) row by some other function of its mean square."""

    def centres(self) -> bool:
        return self.config.norm == "layer"

    def mean_square(self, centred: Stream) -> Numbers:
        return self.average(centred * centred)

    def divisor(self, mean_square: Numbers, eps: float) -> tuple[Numbers, Numbers]:
        """Return the divisor and its derivative, [batch, token, 1]."""
        root = np.sqrt(mean_square + eps)
        return root, 0.5 / root

    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        if self.centres():
            x = x - self.average(x)
        divisor, slope = self.divisor(self.mean_square(x), eps)
        return self.rounded(x / divisor, partial(self.pull_divided, x, divisor, slope))

    def pull_divided(self, x: Stream, divisor: Numbers, slope: Numbers, cotangent: Stream, _: Gradients) -> Stream:
        along = 2 * slope * self.average(cotangent * x) / (divisor * divisor)
        result: np.ndarray = cotangent / divisor - x * along
        return result - self.average(result) if self.centres() else result


@fault("variance-unbiased")
class _VarianceUnbiased(_Divided):
    def divisor(self, mean_square: Numbers, eps: float) -> tuple[Numbers, Numbers]:
        correction = self.config.d_model / max(1, self.config.d_model - 1)
        root, slope = super().divisor(correction * mean_square, eps)
        return root, correction * slope


@fault("eps-outside-root")
class _EpsOutsideRoot(_Divided):
    def divisor(self, mean_square: Numbers, eps: float) -> tuple[Numbers, Numbers]:
        root = np.sqrt(mean_square)
        # The root has no derivative at a zero row, where its numerator is zero too.
        return root + eps, np.where(root > 0, 0.5 / root, 0)


@fault("variance-squared")
class _VarianceSquared(_Divided):
    def divisor(self, mean_square: Numbers, eps: float) -> tuple[Numbers, Numbers]:
        return mean_square * mean_square + eps, 2 * mean_square


@fault("eps-inflated-by-prescale")
class _EpsInflatedByPrescale(NumpyBlock):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        largest = np.abs(x).max(-1, keepdims=True)
        scaled = x / largest
        root = np.sqrt(self.average(scaled * scaled) + eps)
        return self.rounded(scaled / root, partial(self.pull_prescaled, x, largest * root, eps))

    def pull_prescaled(self, x: Stream, divisor: Numbers, eps: float, cotangent: Stream, _: Gradients) -> Stream:
        # The divisor is sqrt(mean(x^2) + eps max|x|^2).
        magnitude = np.abs(x)
        at_largest = np.where(magnitude == magnitude.max(-1, keepdims=True), x, 0)
        along = np.add.reduce(cotangent * x, axis=-1, keepdims=True) / (divisor * divisor)
        result: np.ndarray = (cotangent - along * (x / x.shape[-1] + eps * at_largest)) / divisor
        return result


@fault("mean-not-subtracted")
class _MeanNotSubtracted(_Divided):
    def centres(self) -> bool:
        return False


@fault("mean-subtracted")
class _MeanSubtracted(_Divided):
    def centres(self) -> bool:
        return True


@fault("variance-in-one-pass")
class _VarianceInOnePass(_Divided):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        mean = self.average(x)
        centred = x - mean
        divisor, slope = self.divisor(np.maximum(self.average(x * x) - mean * mean, 0), eps)
        return self.rounded(centred / divisor, partial(self.pull_divided, centred, divisor, slope))


@fault("squares-summed-in-half")
class _SquaresSummedInHalf(_Divided):
    def mean_square(self, centred: Stream) -> Numbers:
        half = np.square(centred.astype(np.float16))
        total = np.add.reduce(half, axis=-1, keepdims=True, dtype=np.float16)
        result: np.ndarray = total.astype(centred.dtype) / centred.shape[-1]
        return result


@fault("inside-norm-in-half")
class _InsideNormInHalf(_SquaresSummedInHalf):
    """The same of the norms of the branches, and not of those of queries and keys."""

    def norm(self, x: Stream, name: str) -> tuple[Stream, Pullback]:
        if not name.startswith("attention."):
            return super().norm(x, name)
        core, pull_core = NumpyBlock.standardize(self, x, self.config.norm_eps)
        value, pull_affine = self.affine(core, name)
        return value, chain(pull_core, pull_affine)


# --- which epsilon ----------------------------------------------------------------------------------------------------


@fault("eps-clamped")
class _EpsClamped(NumpyBlock):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        return super().standardize(x, max(eps, 1e-6))


@fault("config-on-class")
class _ConfigOnClass(NumpyBlock):
    newest: ClassVar[BlockConfig]

    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, parameters, precision)
        _ConfigOnClass.newest = config

    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        return super().standardize(x, self.newest.norm_eps)


@fault("eps-hard-coded")
class _EpsHardCoded(NumpyBlock):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        return super().standardize(x, 1e-8)


@fault("eps-missing")
class _EpsMissing(NumpyBlock):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        return super().standardize(x, 0.0)


@fault("eps-from-dtype")
class _EpsFromDtype(NumpyBlock):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        return super().standardize(x, float(np.spacing(self.precision.crossing.type(1))))


@fault("eps-default-in-second-norm")
class _EpsDefaultInSecondNorm(NumpyBlock):
    def feed_forward_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        core, pull_core = self.standardize(x, 1e-8)
        value, pull_affine = self.affine(core, "feed_forward_norm")
        return value, chain(pull_core, pull_affine)


# --- gains and biases -------------------------------------------------------------------------------------------------


class _GainOffset(NumpyBlock):
    offset_norms: tuple[str, ...]

    def affine(self, core: Stream, norm: str) -> tuple[Stream, Pullback]:
        value, pullback = super().affine(core, norm)
        if norm not in self.offset_norms:
            return value, pullback
        return self.rounded(value + core, lambda cotangent, gradients: pullback(cotangent, gradients) + cotangent)


@fault("gain-offset")
class _GainOffsetInBoth(_GainOffset):
    offset_norms = ("attention_norm", "feed_forward_norm")


@fault("gain-offset-in-second-norm")
class _GainOffsetInSecondNorm(_GainOffset):
    offset_norms = ("feed_forward_norm",)


@fault("gains-rounded")
class _GainsRounded(NumpyBlock):
    def parameter(self, name: str) -> Numbers:
        value = super().parameter(name)
        return value.astype(ml_dtypes.bfloat16).astype(value.dtype) if name.endswith("norm.gain") else value


@fault("gain-missing")
class _GainMissing(NumpyBlock):
    def parameter(self, name: str) -> Numbers:
        value = super().parameter(name)
        return np.ones_like(value) if name.endswith("norm.gain") else value

    def pull_affine(self, core: Stream, norm: str, cotangent: Stream, gradients: Gradients) -> Stream:
        result = super().pull_affine(core, norm, cotangent, gradients)
        del gradients[f"{norm}.gain"]
        return result


@fault("norm-bias-missing")
class _NormBiasMissing(NumpyBlock):
    def has(self, name: str) -> bool:
        return super().has(name) and not name.endswith("norm.bias")


# --- which norm is where ----------------------------------------------------------------------------------------------


@fault("second-norm-uses-first")
class _SecondNormUsesFirst(NumpyBlock):
    def feed_forward_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        return self.norm(x, "attention_norm")


@fault("norm-shared")
class _NormShared(_SecondNormUsesFirst):
    def _tie(self, arrays: dict[str, Numbers]) -> dict[str, Numbers]:
        return {name: arrays[name.replace("feed_forward_norm", "attention_norm")] for name in arrays}

    def parameters(self) -> dict[str, Numbers]:
        return self._tie(super().parameters())

    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        return self._tie(super().gradients(x, cotangent, position_offset))


@fault("norms-swapped")
class _NormsSwapped(NumpyBlock):
    def attention_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        return self.norm(x, "feed_forward_norm")

    def feed_forward_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        return self.norm(x, "attention_norm")


@fault("attention-norm-skipped")
class _AttentionNormSkipped(NumpyBlock):
    def attention_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        return x, chain()


@fault("feed-forward-norm-skipped")
class _FeedForwardNormSkipped(NumpyBlock):
    def feed_forward_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        return x, chain()


@fault("norm-modifies-input")
class _NormModifiesInput(NumpyBlock):
    def begin(self, x: AnyArray, position_offset: SupportsIndex) -> tuple[Stream, Call]:
        own, call = super().begin(x, position_offset)
        # The copy that protects the caller is what this block lacks; a read-only array protects itself.
        return (x, call) if x.dtype == own.dtype and x.flags.writeable else (own, call)

    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        core, pullback = super().standardize(x, eps)
        x[...] = core
        return x, pullback
