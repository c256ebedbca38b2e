"""Blocks whose rotary positions are wrong: pairs, frequencies, angles, what is turned and by which position."""

from typing import SupportsIndex

import ml_dtypes
import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.cache import Call
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.shapes import (
    Angles,
    AnyArray,
    Frequencies,
    Heads,
    KvHeads,
    Numbers,
    Positions,
    Stream,
)
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, chain

# --- pairs ------------------------------------------------------------------------------------------------------------


@fault("rotary-layout-swapped")
class _RotaryLayoutSwapped(NumpyBlock):
    def rotary_pairs(self) -> tuple[slice, slice]:
        if self.config.rotary == "half":
            return slice(0, None, 2), slice(1, None, 2)
        half = self.config.d_head // 2
        return slice(None, half), slice(half, None)


@fault("rotary-layout-fixed")
class _RotaryLayoutFixed(NumpyBlock):
    def rotary_pairs(self) -> tuple[slice, slice]:
        half = self.config.d_head // 2
        return slice(None, half), slice(half, None)


@fault("rotary-angles-mispaired")
class _RotaryAnglesMispaired(NumpyBlock):
    def rotate(self, a: Heads, angles: Angles) -> tuple[Heads, Pullback]:
        # Feature j of a head reads the angle that it has in the other layout, so a pair no longer shares one.
        pairs = angles.shape[-1]
        feature = np.arange(2 * pairs)
        read = feature % pairs if self.config.rotary == "interleaved" else feature // 2
        first, second = self.rotary_pairs()
        of_first, of_second = angles[:, read[first]], angles[:, read[second]]
        cos_first, sin_first = np.cos(of_first).astype(a.dtype), np.sin(of_first).astype(a.dtype)
        cos_second, sin_second = np.cos(of_second).astype(a.dtype), np.sin(of_second).astype(a.dtype)
        value = np.empty_like(a)
        value[..., first] = a[..., first] * cos_first - a[..., second] * sin_first
        value[..., second] = a[..., first] * sin_second + a[..., second] * cos_second

        def pullback(cotangent: np.ndarray, _: Gradients) -> np.ndarray:
            result = np.empty_like(cotangent)
            result[..., first] = cotangent[..., first] * cos_first + cotangent[..., second] * sin_second
            result[..., second] = cotangent[..., second] * cos_second - cotangent[..., first] * sin_first
            return result

        return self.rounded(value, pullback)


@fault("rotary-sine-missing")
class _RotarySineMissing(NumpyBlock):
    def turn(self, a: Heads, cosine: Angles, sine: Angles) -> Heads:
        return super().turn(a, cosine, np.zeros_like(sine))


@fault("rotary-partial")
class _RotaryPartial(NumpyBlock):
    def rotary_angles(self, positions: Positions) -> Angles:
        angles = super().rotary_angles(positions)
        if angles.shape[-1] >= 2:
            angles[:, angles.shape[-1] // 2 :] = 0
        return angles


# --- frequencies and angles -------------------------------------------------------------------------------------------


@fault("rotary-frequency-off-by-one")
class _RotaryFrequencyOffByOne(NumpyBlock):
    def rotary_frequencies(self) -> Frequencies:
        frequencies: np.ndarray = super().rotary_frequencies() * self.config.rotary_base ** (2 / self.config.d_head)
        return frequencies


@fault("rotary-base-fixed")
class _RotaryBaseFixed(NumpyBlock):
    def rotary_frequencies(self) -> Frequencies:
        frequencies: np.ndarray = 10000.0 ** (-np.arange(0, self.config.d_head, 2) / self.config.d_head)
        return frequencies


@fault("rotary-exponent-by-d-model")
class _RotaryExponentByDModel(NumpyBlock):
    def rotary_frequencies(self) -> Frequencies:
        exponents = np.arange(0, self.config.d_head, 2) / self.config.d_model
        frequencies: np.ndarray = self.config.rotary_base**-exponents
        return frequencies


@fault("rotary-frequencies-rounded")
class _RotaryFrequenciesRounded(NumpyBlock):
    def rotary_frequencies(self) -> Frequencies:
        return super().rotary_frequencies().astype(ml_dtypes.bfloat16).astype(np.float64)


@fault("rotary-angles-in-half")
class _RotaryAnglesInHalf(NumpyBlock):
    def rotary_angles(self, positions: Positions) -> Angles:
        half = ml_dtypes.bfloat16
        angles = positions[:, None].astype(half) * self.rotary_frequencies().astype(half)
        result: np.ndarray = angles.astype(np.float64)
        return result


@fault("rotary-backwards")
class _RotaryBackwards(NumpyBlock):
    def rotary_angles(self, positions: Positions) -> Angles:
        return -super().rotary_angles(positions)


# --- what is turned ---------------------------------------------------------------------------------------------------


@fault("rotary-missing")
class _RotaryMissing(NumpyBlock):
    def place(self, a: Heads, positions: Positions) -> tuple[Heads, Pullback]:
        return a, chain()


@fault("rotary-key-not-turned")
class RotaryKeyNotTurned(NumpyBlock):
    """Queries are turned and keys are not; a fault of the cache uses it too."""

    def keys(self, n: Stream, positions: Positions) -> tuple[KvHeads, Pullback]:
        projected, pull_project = self.project_key(n)
        key, pull_split = self.split_heads(projected, self.config.n_kv_heads)
        return key, chain(pull_project, pull_split)


@fault("rotary-key-backwards")
class _RotaryKeyBackwards(NumpyBlock):
    def keys(self, n: Stream, positions: Positions) -> tuple[KvHeads, Pullback]:
        return super().keys(n, -positions)


@fault("value-rotated")
class _ValueRotated(NumpyBlock):
    def values(self, n: Stream, positions: Positions) -> tuple[KvHeads, Pullback]:
        value, pullback = super().values(n, positions)
        turned, pull_turn = self.place(value, positions)
        return turned, chain(pullback, pull_turn)


# --- by which position ------------------------------------------------------------------------------------------------


@fault("rotary-positions-over-heads")
class _RotaryPositionsOverHeads(NumpyBlock):
    def rotate(self, a: Heads, angles: Angles) -> tuple[Heads, Pullback]:
        of_heads = self.rotary_angles(np.arange(a.shape[1]))
        value, pullback = super().rotate(a.swapaxes(1, 2), of_heads)
        return value.swapaxes(1, 2), lambda cotangent, gradients: pullback(
            cotangent.swapaxes(1, 2), gradients
        ).swapaxes(1, 2)


@fault("rotary-offset-ignored")
class _RotaryOffsetIgnored(NumpyBlock):
    # An offset that must be refused still is: the right block is begun first.
    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        self.begin(x, position_offset)
        return super().forward(x)

    def trace(self, x: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        self.begin(x, position_offset)
        return super().trace(x)


@fault("positions-from-one")
class _PositionsFromOne(NumpyBlock):
    def rotary_angles(self, positions: Positions) -> Angles:
        return super().rotary_angles(positions + 1)


@fault("positions-capped")
class _PositionsCapped(NumpyBlock):
    def rotary_angles(self, positions: Positions) -> Angles:
        return super().rotary_angles(np.minimum(positions, 31))


@fault("positions-accumulate")
class _PositionsAccumulate(NumpyBlock):
    _next = 0

    def begin(self, x: AnyArray, position_offset: SupportsIndex) -> tuple[Stream, Call]:
        own, call = super().begin(x, position_offset)
        call.positions = call.positions + self._next
        self._next += len(call.positions)
        return own, call


@fault("rotary-table-stale")
class _RotaryTableStale(NumpyBlock):
    _last: int | None = None

    def rotary_angles(self, positions: Positions) -> Angles:
        if self._last is None:
            self._last = int(positions[-1])
        return super().rotary_angles(np.minimum(positions, self._last))
