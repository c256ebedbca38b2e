"""Blocks that compute the right output and a wrong gradient: each overrides a pullback alone."""

from typing import SupportsIndex

import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock, ieee
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.shapes import AnyArray, KeyHeads, KvKeyHeads, Numbers, Scores, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback

# --- one pullback -----------------------------------------------------------------------------------------------------


@fault("gradient-eps-fixed")
class _GradientEpsFixed(NumpyBlock):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        standardized, _ = super().standardize(x, eps)
        _, pullback = super().standardize(x, 1e-5)
        return standardized, pullback


@fault("gain-gradient-missing")
class _GainGradientMissing(NumpyBlock):
    def pull_affine(self, core: Stream, norm: str, cotangent: Stream, gradients: Gradients) -> Stream:
        result = super().pull_affine(core, norm, cotangent, gradients)
        del gradients[f"{norm}.gain"]
        return result


@fault("norm-detached")
class _NormDetached(NumpyBlock):
    def pull_standardize(self, core: Stream, root: Numbers, cotangent: Stream, gradients: Gradients) -> Stream:
        return np.zeros_like(cotangent)


@fault("statistics-detached")
class _StatisticsDetached(NumpyBlock):
    def pull_standardize(self, core: Stream, root: Numbers, cotangent: Stream, gradients: Gradients) -> Stream:
        result: np.ndarray = cotangent / root
        return result


@fault("residual-gradient-dropped")
class _ResidualGradientDropped(NumpyBlock):
    def pull_add_attention(self, cotangent: Stream, _: Gradients) -> tuple[Stream, Stream]:
        return np.zeros_like(cotangent), cotangent


@fault("softmax-gradient-truncated")
class _SoftmaxGradientTruncated(NumpyBlock):
    def pull_softmax(self, weights: Scores, cotangent: Scores, _: Gradients) -> Scores:
        result: np.ndarray = weights * cotangent
        return result


@fault("gradient-flushes-small-weights")
class _GradientFlushesSmallWeights(NumpyBlock):
    def pull_softmax(self, weights: Scores, cotangent: Scores, gradients: Gradients) -> Scores:
        return super().pull_softmax(np.where(weights < 0.01, 0, weights), cotangent, gradients)


@fault("kv-gradient-wrong-group")
class _KvGradientWrongGroup(NumpyBlock):
    def pull_repeat_heads(self, cotangent: KeyHeads, _: Gradients) -> KvKeyHeads:
        batch, heads, keys, width = cotangent.shape
        tiled = cotangent.reshape(batch, self.config.group, heads // self.config.group, keys, width)
        result: np.ndarray = tiled.sum(1)
        return result


# --- what gradients() gives -------------------------------------------------------------------------------------------


@fault("gate-up-gradients-swapped")
class _GateUpGradientsSwapped(NumpyBlock):
    @ieee
    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        result = super().gradients(x, cotangent, position_offset)
        gate, up = "feed_forward.gate", "feed_forward.up"
        result[gate], result[up] = result[up], result[gate]
        return result


@fault("gradient-averaged-over-batch")
class _GradientAveragedOverBatch(NumpyBlock):
    @ieee
    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        result = super().gradients(x, cotangent, position_offset)
        batch = max(1, len(x))
        return {name: array if name == "input" else array / batch for name, array in result.items()}


@fault("cotangent-modified")
class _CotangentModified(NumpyBlock):
    @ieee
    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        result = super().gradients(x, cotangent, position_offset)
        if cotangent.flags.writeable:
            cotangent += result["input"]
        return result


@fault("gradient-accumulates")
class _GradientAccumulates(NumpyBlock):
    _sums: dict[str, Numbers] | None = None

    @ieee
    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        result = super().gradients(x, cotangent, position_offset)
        for name, earlier in (self._sums or {}).items():
            result[name] = result[name] + earlier
        self._sums = {name: array.copy() for name, array in result.items() if name != "input"}
        return result
