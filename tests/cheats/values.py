"""Adapters that answer rightly for some values and layouts only, or nearly."""

from __future__ import annotations

import numpy as np
from honest import Block, adapter


@adapter
class Zeros(Block):
    """Zeros: an absolute tolerance lets them pass where values are small."""

    def forward(self, x, position_offset=0):
        return np.zeros_like(x)


@adapter
class ZeroWhereSmall(Block):
    """Drops every output below 1e-3."""

    def forward(self, x, position_offset=0):
        y = super().forward(x, position_offset)
        return np.where(np.abs(y) < 1e-3, 0, y).astype(y.dtype)


@adapter
class NotANumber(Block):
    """NaN everywhere: a comparison that takes NaN for a wildcard passes it."""

    def forward(self, x, position_offset=0):
        return np.full_like(x, np.nan)


@adapter
class OneNotANumber(Block):
    """Right, but for a NaN in the last feature of the last token."""

    def forward(self, x, position_offset=0):
        y = super().forward(x, position_offset)
        y[..., -1, -1] = np.nan
        return y


@adapter
class Skip(Block):
    """The input: the residual stream without its branches, right whenever they are small."""

    def forward(self, x, position_offset=0):
        return np.array(x)


@adapter
class Half(Block):
    """Computes in half precision and says float32."""

    def compute(self, x, offset):
        self.p = {name: value.astype(np.float16) for name, value in self.p.items()}
        with np.errstate(all="ignore"):
            return super().compute(x.astype(np.float16), offset).astype(np.float64)


@adapter
class RoundedWeights(Block):
    """Keeps its matrices with 8 bits of mantissa and says float32."""

    def __init__(self, config, parameters, dtype):
        rounded = {name: (v.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, v in parameters.items()}
        super().__init__(config, rounded, dtype)


@adapter
class SeededNormalOnly(Block):
    """Right on what looks like a seeded normal draw, the input itself on all else."""

    def forward(self, x, position_offset=0):
        x = np.asarray(x)
        usual = abs(x.mean()) < 0.6 and 0.5 < x.std() < 1.6 and np.abs(x).max() < 5
        return super().forward(x, position_offset) if usual else x.copy()


@adapter
class ContiguousOnly(Block):
    """Reads the memory of its input in order, whatever its strides."""

    def forward(self, x, position_offset=0):
        order = x.ravel(order="K")[: x.size]
        return super().forward(order.reshape(x.shape), position_offset)


@adapter
class AlignedOnly(Block):
    """Reads from the nearest address below that is a multiple of the item's size."""

    def forward(self, x, position_offset=0):
        if x.ctypes.data % x.itemsize:
            return np.zeros(x.shape, x.dtype)
        return super().forward(x, position_offset)


@adapter
class PowersOfTwoOnly(Block):
    """Right where the numbers of tokens and of features are powers of two, as a kernel's tiles are."""

    def forward(self, x, position_offset=0):
        y = super().forward(x, position_offset)
        for axis in (1, 2):
            length = x.shape[axis]
            if length & (length - 1):
                np.moveaxis(y, axis, 0)[1 << (length.bit_length() - 1) :] = 0
        return y


@adapter
class FirstSequenceOnly(Block):
    """Computes the first sequence of a batch and repeats it."""

    def forward(self, x, position_offset=0):
        return np.repeat(super().forward(x[:1], position_offset), len(x), 0)
