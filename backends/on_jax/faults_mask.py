"""Faults of the mask: which keys a query may look at.

Must hold: each class overrides `visible` (slots of queries and keys to True where a key is seen), or what the softmax
is told is visible. Unfilled slots of a cache stay hidden: they are no keys.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import KeyValues
from blocklaws.backends.on_jax.steps import Steps


@fault("mask-off-by-one")
class MaskOffByOne(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return super().visible(query_slots + 1, key_slots)


@fault("self-hidden")
class SelfHidden(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return super().visible(query_slots - 1, key_slots) | ((key_slots == 0) & (query_slots[:, None] == 0))


@fault("mask-missing")
class MaskMissing(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return jnp.ones((query_slots.size, key_slots.size), bool)


@fault("mask-inverted")
class MaskInverted(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return key_slots[None, :] >= query_slots[:, None]


@fault("mask-missing-in-last-head")
class MaskMissingInLastHead(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        last = jnp.arange(self.config.n_heads) == self.config.n_heads - 1
        return super().visible(query_slots, key_slots) | last[:, None, None]


@fault("mask-missing-in-later-batches")
class MaskMissingInLaterBatches(Steps):
    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        later = jnp.arange(scores.shape[0]) > 0
        # Every key that there is, is seen by some query.
        seen = jnp.any(visible, axis=-2, keepdims=True)
        return super().softmax(scores, visible | (later[:, None, None, None] & seen))


@fault("window-never-asked")
class WindowNeverAsked(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return super().visible(query_slots, key_slots) & (key_slots >= query_slots[:, None] - 1)


@fault("long-context-truncated")
class LongContextTruncated(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return super().visible(query_slots, key_slots) & (key_slots > query_slots[:, None] - 16)


@fault("partial-key-block-dropped")
class PartialKeyBlockDropped(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        # The last query's slot tells how many keys there are, in a cache with room to grow too.
        full = (query_slots[-1] + 1) // 4 * 4
        own = key_slots == query_slots[:, None]
        return super().visible(query_slots, key_slots) & (own | (key_slots < full))


@fault("first-token-hidden")
class FirstTokenHidden(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return super().visible(query_slots, key_slots) & ((key_slots > 0) | (query_slots[:, None] == 0))


@fault("cache-mask-top-left")
class CacheMaskTopLeft(Steps):
    def visible_in_cache(self, query_slots: jax.Array, key_slots: jax.Array, cache: KeyValues) -> jax.Array:
        return self.visible(query_slots - cache.length, key_slots)


@fault("cache-mask-missing")
class CacheMaskMissing(Steps):
    def visible_in_cache(self, query_slots: jax.Array, key_slots: jax.Array, cache: KeyValues) -> jax.Array:
        return jnp.ones((query_slots.size, key_slots.size), bool)


@fault("cache-first-chunk-unmasked")
class CacheFirstChunkUnmasked(Steps):
    def visible_in_cache(self, query_slots: jax.Array, key_slots: jax.Array, cache: KeyValues) -> jax.Array:
        return self.visible(query_slots, key_slots) | (cache.length == 0)


@fault("window-ignored")
class WindowIgnored(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return _causal(query_slots, key_slots)


@fault("window-off-by-one")
class WindowOffByOne(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        visible, window = super().visible(query_slots, key_slots), self.config.window
        return visible if window is None else visible | (_back(query_slots, key_slots) == window)


@fault("window-short-by-one")
class WindowShortByOne(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        visible, window, back = (
            super().visible(query_slots, key_slots),
            self.config.window,
            _back(query_slots, key_slots),
        )
        return visible if window is None else visible & ((back == 0) | (back < window - 1))


@fault("window-fixed")
class WindowFixed(Steps):
    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        return _causal(query_slots, key_slots) & (_back(query_slots, key_slots) < 3)


@fault("window-ignored-in-cache")
class WindowIgnoredInCache(Steps):
    def visible_in_cache(self, query_slots: jax.Array, key_slots: jax.Array, cache: KeyValues) -> jax.Array:
        return _causal(query_slots, key_slots)


@fault("window-cache-cut-early")
class WindowCacheCutEarly(Steps):
    def visible_in_cache(self, query_slots: jax.Array, key_slots: jax.Array, cache: KeyValues) -> jax.Array:
        visible, window = self.visible(query_slots, key_slots), self.config.window
        # What was cut before is older than the window of every later query.
        kept = key_slots.size if window is None else max(window, query_slots.size)
        return visible & (key_slots > query_slots[-1] - kept)


def _causal(query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
    return _back(query_slots, key_slots) >= 0


def _back(query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
    """Return how many keys before its own a query finds a key, [T, K]; less than zero for a later one."""
    return query_slots[:, None] - key_slots[None, :]
