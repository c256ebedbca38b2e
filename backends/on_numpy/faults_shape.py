"""Blocks that return another shape or dtype than they must, or take what they must refuse."""

from collections.abc import Mapping
from typing import SupportsIndex

import numpy as np
from numpy.lib.stride_tricks import as_strided

from blocklaws.backends.on_numpy.block import NumpyBlock, ieee
from blocklaws.backends.on_numpy.cache import Call
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Numbers, Stream
from blocklaws.config import BlockConfig

# --- what comes out ---------------------------------------------------------------------------------------------------


class _OutputChanged(NumpyBlock):
    """Another output than the one computed, from ``forward`` and as the stage."""

    def changed(self, output: Stream) -> Numbers:
        """Return what is given in place of the output."""
        raise NotImplementedError

    @ieee
    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Numbers:
        return self.changed(super().forward(x, position_offset))

    @ieee
    def trace(self, x: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        stages = super().trace(x, position_offset)
        return {**stages, "output": self.changed(stages["output"])}


@fault("one-token-squeezed")
class _OneTokenSqueezed(_OutputChanged):
    def changed(self, output: Stream) -> Numbers:
        return output[:, 0] if output.shape[1] == 1 else output


@fault("batch-of-one-squeezed")
class _BatchOfOneSqueezed(_OutputChanged):
    def changed(self, output: Stream) -> Numbers:
        return output[0] if output.shape[0] == 1 else output


@fault("last-token-dropped")
class _LastTokenDropped(_OutputChanged):
    def changed(self, output: Stream) -> Numbers:
        return output[:, :-1] if output.shape[1] > 1 else output


@fault("output-dtype-changed")
class _OutputDtypeChanged(_OutputChanged):
    def changed(self, output: Stream) -> Numbers:
        return output.astype(np.float32 if output.dtype == np.float64 else np.float64)


# --- what is taken ----------------------------------------------------------------------------------------------------


@fault("strides-ignored")
class _StridesIgnored(NumpyBlock):
    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        return super().forward(_read_in_memory_order(x), position_offset)


def _read_in_memory_order(x: AnyArray) -> AnyArray:
    span = sum((length - 1) * abs(stride) for length, stride in zip(x.shape, x.strides, strict=True)) + x.itemsize
    if x.flags.c_contiguous or span < x.nbytes:
        # A broadcast array has less memory than elements: there is nothing to misread.
        return x
    start = x[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in x.strides)]
    contiguous = np.empty(x.shape, x.dtype).strides
    return as_strided(start, x.shape, contiguous, writeable=False)


@fault("empty-tokens-accepted")
class _EmptyTokensAccepted(NumpyBlock):
    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        if x.ndim == 3 and x.shape[1:] == (0, self.config.d_model):
            return np.empty(x.shape, self.precision.crossing)
        return super().forward(x, position_offset)


@fault("position-range-unchecked")
class _PositionRangeUnchecked(NumpyBlock):
    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config.replace(max_positions=2**40), parameters, precision)


@fault("wide-input-truncated")
class _WideInputTruncated(NumpyBlock):
    def begin(self, x: AnyArray, position_offset: SupportsIndex) -> tuple[Stream, Call]:
        return super().begin(x[..., : self.config.d_model] if x.ndim == 3 else x, position_offset)
