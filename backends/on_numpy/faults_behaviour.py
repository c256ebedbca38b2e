"""Blocks that misbehave between calls or in their precision: arguments changed, state kept, randomness left on."""

import copy
from collections.abc import Mapping
from typing import SupportsIndex

import ml_dtypes
import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Features, LinearInput, LinearOutput, Numbers, Stream
from blocklaws.backends.on_numpy.steps import Pullback
from blocklaws.config import BlockConfig

# --- arguments and state ----------------------------------------------------------------------------------------------


@fault("input-modified")
class _InputModified(NumpyBlock):
    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        output = super().forward(x, position_offset)
        if x.flags.writeable:
            x[...] = output
        return output


@fault("parameters-modified")
class _ParametersModified(NumpyBlock):
    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        output = super().forward(x, position_offset)
        self._parameters["attention_norm.gain"] *= 1.01
        return output


@fault("output-buffer-reused")
class _OutputBufferReused(NumpyBlock):
    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, parameters, precision)
        self._buffers: dict[tuple[int, ...], Stream] = {}

    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        output = super().forward(x, position_offset)
        buffer = self._buffers.setdefault(output.shape, output)
        buffer[...] = output
        return buffer


@fault("dropout-in-eval")
class _DropoutInEval(NumpyBlock):
    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, parameters, precision)
        # Seeded, so that a run can be repeated; each call draws on.
        self._random = np.random.default_rng(0)

    def project_output(self, a: Features) -> tuple[Stream, Pullback]:
        branch, pullback = super().project_output(a)
        kept = self._random.integers(0, 2, branch.shape).astype(branch.dtype) * 2
        return branch * kept, lambda cotangent, gradients: pullback(cotangent * kept, gradients)


@fault("norm-in-half-by-one-way")
class _NormInHalfByOneWay(NumpyBlock):
    _half = False

    def forward_each(
        self, x: AnyArray, parameters: Mapping[str, AnyArray], position_offset: SupportsIndex = 0
    ) -> Stream:
        other = copy.copy(self)
        other._half = True
        return NumpyBlock.forward_each(other, x, parameters, position_offset)

    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        core, pullback = super().standardize(x, eps)
        return core.astype(ml_dtypes.bfloat16).astype(core.dtype) if self._half else core, pullback


# --- the batch --------------------------------------------------------------------------------------------------------


@fault("later-batches-zero")
class _LaterBatchesZero(NumpyBlock):
    def project_output(self, a: Features) -> tuple[Stream, Pullback]:
        branch, pullback = super().project_output(a)
        first = (np.arange(len(a)) == 0)[:, None, None]
        return branch * first, lambda cotangent, gradients: pullback(cotangent * first, gradients)


@fault("batch-mixed")
class _BatchMixed(NumpyBlock):
    def project_output(self, a: Features) -> tuple[Stream, Pullback]:
        branch, pullback = super().project_output(a)
        return self.rounded(_mixed(branch), lambda cotangent, gradients: pullback(_mixed(cotangent), gradients))


def _mixed(branch: Stream) -> Stream:
    result: np.ndarray = branch + 0.01 * branch.sum(0) / max(1, len(branch))
    return result


# --- precision --------------------------------------------------------------------------------------------------------


@fault("weights-rounded")
class _WeightsRounded(NumpyBlock):
    #: What the matrices pass through.
    held: type = ml_dtypes.bfloat16

    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, parameters, precision)
        with np.errstate(over="ignore"):
            self._rounded = {
                name: array.astype(self.held).astype(array.dtype)
                for name, array in self._parameters.items()
                if array.ndim == 2
            }

    def parameter(self, name: str) -> Numbers:
        return self._rounded[name] if name in self._rounded else super().parameter(name)


@fault("weights-through-float16")
class _WeightsThroughFloat16(_WeightsRounded):
    held = np.float16


@fault("computed-in-float32")
class _ComputedInFloat32(NumpyBlock):
    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, parameters, Precision(precision.name, precision.crossing, np.dtype(np.float32)))


@fault("matmul-in-tf32")
class _MatmulInTf32(NumpyBlock):
    def linear(self, x: LinearInput, name: str) -> tuple[LinearOutput, Pullback]:
        return super().linear(_tf32(x), name)

    def parameter(self, name: str) -> Numbers:
        value = super().parameter(name)
        return _tf32(value) if value.ndim == 2 else value


def _tf32(values: Numbers) -> Numbers:
    """Round to ten bits of mantissa after the leading one."""
    fraction, exponent = np.frexp(values)
    result: np.ndarray = np.ldexp(np.rint(fraction * 2**11) / 2**11, exponent)
    return result
