"""Faults of what a cache keeps. (Those of its mask are in `faults_mask`, those of its positions in `faults_rotary`.)

Must hold: the block without a cache is right; each class overrides what the next chunk finds in the cache.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blocklaws.backends.on_jax.block import Cache, JaxBlock
from blocklaws.backends.on_jax.fault_tools import rounded
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages, wide
from blocklaws.backends.on_jax.refusals import Array
from blocklaws.backends.on_jax.steps import Steps


@fault("cache-drops-oldest")
class CacheDropsOldest(Steps):
    def visible_in_cache(self, query_slots: jax.Array, key_slots: jax.Array, cache: KeyValues) -> jax.Array:
        # Hidden for good: what is older than three keys before this chunk is older than that before later ones.
        return self.visible(query_slots, key_slots) & (key_slots >= cache.length - 3)


@fault("cache-in-float16")
class CacheInFloat16(Steps):
    def extend_cache(self, cache: KeyValues, key: jax.Array, value: jax.Array) -> KeyValues:
        earlier = cache._replace(
            key=rounded(wide(cache.key), jnp.float16).astype(cache.key.dtype),
            value=rounded(wide(cache.value), jnp.float16).astype(cache.value.dtype),
        )
        return super().extend_cache(earlier, key, value)


class _Kept(Steps):
    """Another cache is kept for later calls than the one that this call read."""

    def kept(self, cache: KeyValues, stages: Stages) -> KeyValues:
        raise NotImplementedError

    def attention(
        self, parameters: Parameters, n: jax.Array, offset: jax.Array, cache: KeyValues | None
    ) -> tuple[Stages, KeyValues | None]:
        stages, cache = super().attention(parameters, n, offset, cache)
        return stages, None if cache is None else self.kept(cache, stages)


@fault("cache-drops-newest")
class CacheDropsNewest(_Kept):
    def kept(self, cache: KeyValues, stages: Stages) -> KeyValues:
        return cache._replace(length=cache.length - 1)


@fault("cache-overwrites")
class CacheOverwrites(_Kept):
    def kept(self, cache: KeyValues, stages: Stages) -> KeyValues:
        chunk, slots = stages["key"].shape[2], cache.key.shape[2]
        room = ((0, 0), (0, 0), (0, slots - chunk), (0, 0))
        return KeyValues(jnp.pad(stages["key"], room), jnp.pad(stages["value"], room), jnp.int32(chunk))


class _EpsFixed(Steps):
    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        return super().standardize(x, 1e-5)


@fault("cache-eps-fixed")
class CacheEpsFixed(JaxBlock):
    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        right, self.steps = self.steps, _EpsFixed(self.steps.config)
        try:
            return super().forward_cached(x, cache)
        finally:
            self.steps = right


@fault("cache-input-modified")
class CacheInputModified(JaxBlock):
    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        y, cache = super().forward_cached(x, cache)
        given = np.asarray(x)
        if given.flags.writeable:
            given += 1
        return y, cache


@fault("cache-output-reused")
class CacheOutputReused(JaxBlock):
    _outputs: dict[tuple[int, ...], Array] | None = None

    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        y, cache = super().forward_cached(x, cache)
        self._outputs = self._outputs or {}
        output = self._outputs.setdefault(y.shape, y)
        output[...] = y
        return output, cache


@fault("cache-strides-ignored")
class CacheStridesIgnored(JaxBlock):
    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        given = np.asarray(x)
        return super().forward_cached(given.ravel(order="K").reshape(given.shape), cache)


@fault("cache-on-block")
class CacheOnBlock(JaxBlock):
    _latest: Cache | None = None

    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        y, self._latest = super().forward_cached(x, cache and self._latest)
        return y, self._latest
