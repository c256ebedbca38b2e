"""Blocks that decode wrongly: right in one pass, wrong in chunks, except for what the cache keeps.

Must hold: ``forward``, ``trace`` and ``gradients`` are those of the right block.
"""

from collections.abc import Mapping

import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.cache import Call, KeyValueCache, KeyValues
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.faults_mask import MaskMissing
from blocklaws.backends.on_numpy.faults_rotary import RotaryKeyNotTurned
from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Heads, KeyPositions, Positions, QueryPositions, Stream, Visible
from blocklaws.backends.on_numpy.steps import Pullback
from blocklaws.config import BlockConfig


class WrongThroughCache(NumpyBlock):
    """The right block, with another block in its place when it decodes through a cache; windows use it too."""

    decoder: type[NumpyBlock]

    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, parameters, precision)
        self._decoder = self.decoder(config, parameters, precision)

    def forward_cached(self, x: AnyArray, cache: KeyValueCache | None) -> tuple[Stream, KeyValueCache]:
        return self._decoder.forward_cached(x, cache)


# --- positions and masks ----------------------------------------------------------------------------------------------


@fault("cache-position-restarts")
class _CachePositionRestarts(NumpyBlock):
    def next_position(self, cache: KeyValueCache | None) -> int:
        return 0


class _QueriesFromZero(NumpyBlock):
    def queries(self, n: Stream, positions: Positions) -> tuple[Heads, Pullback]:
        return super().queries(n, positions - positions[0])


@fault("cache-query-position-zero")
class _CacheQueryPositionZero(WrongThroughCache):
    decoder = _QueriesFromZero


@fault("cache-keys-not-turned")
class _CacheKeysNotTurned(WrongThroughCache):
    decoder = RotaryKeyNotTurned


@fault("cache-mask-top-left")
class _CacheMaskTopLeft(NumpyBlock):
    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        # Without a cache the two counts are equal and this is the right mask.
        return super().visible(query_positions - query_positions[0], key_positions - key_positions[0])


@fault("cache-mask-missing")
class _CacheMaskMissing(WrongThroughCache):
    decoder = MaskMissing


@fault("cache-first-chunk-unmasked")
class _CacheFirstChunkUnmasked(WrongThroughCache):
    decoder = MaskMissing

    def forward_cached(self, x: AnyArray, cache: KeyValueCache | None) -> tuple[Stream, KeyValueCache]:
        if cache is None:
            return super().forward_cached(x, cache)
        return NumpyBlock.forward_cached(self, x, cache)


# --- what is kept -----------------------------------------------------------------------------------------------------


def _part(content: KeyValues, keys: slice) -> KeyValues:
    return KeyValues(content.key[:, :, keys], content.value[:, :, keys])


@fault("cache-drops-oldest")
class _CacheDropsOldest(NumpyBlock):
    def extend_cache(self, cache: KeyValues | None, new: KeyValues) -> KeyValues:
        return super().extend_cache(None if cache is None else _part(cache, slice(-3, None)), new)


@fault("cache-in-float16")
class _CacheInFloat16(NumpyBlock):
    def extend_cache(self, cache: KeyValues | None, new: KeyValues) -> KeyValues:
        if cache is not None:
            held = (each.astype(np.float16).astype(each.dtype) for each in (cache.key, cache.value))
            cache = KeyValues(*held)
        return super().extend_cache(cache, new)


class _CacheKeeps(NumpyBlock):
    def kept(self, tokens: int) -> slice:
        """Return which keys are kept after a chunk of that many tokens."""
        raise NotImplementedError

    def make_cache(self, call: Call) -> KeyValueCache:
        assert call.present is not None
        tokens = len(call.positions)
        return KeyValueCache(_part(call.present, self.kept(tokens)), int(call.positions[-1]) + 1)


@fault("cache-drops-newest")
class _CacheDropsNewest(_CacheKeeps):
    def kept(self, tokens: int) -> slice:
        return slice(None, -1)


@fault("cache-overwrites")
class _CacheOverwrites(_CacheKeeps):
    def kept(self, tokens: int) -> slice:
        return slice(-tokens, None)


class _EpsFixed(NumpyBlock):
    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        return super().standardize(x, 1e-5)


@fault("cache-eps-fixed")
class _CacheEpsFixed(WrongThroughCache):
    decoder = _EpsFixed


@fault("cache-input-modified")
class _CacheInputModified(NumpyBlock):
    def forward_cached(self, x: AnyArray, cache: KeyValueCache | None) -> tuple[Stream, KeyValueCache]:
        output, cache = super().forward_cached(x, cache)
        if x.flags.writeable:
            x[...] = output
        return output, cache


@fault("cache-output-reused")
class _CacheOutputReused(NumpyBlock):
    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, parameters, precision)
        self._outputs: dict[tuple[int, ...], Stream] = {}

    def forward_cached(self, x: AnyArray, cache: KeyValueCache | None) -> tuple[Stream, KeyValueCache]:
        y, cache = super().forward_cached(x, cache)
        output = self._outputs.setdefault(y.shape, y)
        output[...] = y
        return output, cache


@fault("cache-strides-ignored")
class _CacheStridesIgnored(NumpyBlock):
    def forward_cached(self, x: AnyArray, cache: KeyValueCache | None) -> tuple[Stream, KeyValueCache]:
        return super().forward_cached(x.ravel(order="K").reshape(x.shape), cache)


@fault("cache-on-block")
class _CacheOnBlock(NumpyBlock):
    _latest: KeyValueCache | None = None

    def forward_cached(self, x: AnyArray, cache: KeyValueCache | None) -> tuple[Stream, KeyValueCache]:
        y, self._latest = super().forward_cached(x, cache and self._latest)
        return y, self._latest
