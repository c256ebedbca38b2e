"""Faults of the cache: a full pass is right, a pass in chunks is not. The positions in the mask stay right."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.cache import KeyValueCache
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import CallAware
from blocklaws.backends.on_torch.parts import Pass


class CachePositionRestarts(CallAware):
    """With a cache, angles of positions 0, 1, ..."""

    def rotary_angles(self, positions: Tensor) -> Tensor:
        return super().rotary_angles(positions - positions[0] if self.continues else positions)


class CacheQueryPositionZero(CallAware):
    """With a cache, queries turned by positions 0, 1, ..."""

    def rotate_query(self, query: Tensor, angles: Tensor) -> Tensor:
        if self.continues:
            angles = self.rotary_angles(self.positions(query.shape[2], 0))
        return super().rotate_query(query, angles)


class CacheMaskTopLeft(DecoderBlock):
    """The triangle starts at the first key, and not at the first key of the chunk."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        device = key_positions.device
        return super().visible(
            torch.arange(len(query_positions), device=device), torch.arange(len(key_positions), device=device)
        )


class CacheMaskMissing(CallAware):
    """With a cache, always."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        visible = super().visible(query_positions, key_positions)
        return torch.ones_like(visible) if self.continues else visible


class _MaskedOnRequest(DecoderBlock):
    masked = True

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        visible = super().visible(query_positions, key_positions)
        return visible if self.masked else torch.ones_like(visible)


class CacheFirstChunkUnmasked(TorchBlock):
    """Always, in the call that makes the cache."""

    module_class = _MaskedOnRequest

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        assert isinstance(self.module, _MaskedOnRequest)
        self.module.masked = cache is not None
        try:
            return super().forward_cached(x, cache)
        finally:
            self.module.masked = True


class CacheKeysNotTurned(DecoderBlock):
    """Keys are turned for this call and kept unturned for the later ones."""

    unturned: Tensor

    def rotate_key(self, key: Tensor, angles: Tensor) -> Tensor:
        self.unturned = key
        return super().rotate_key(key, angles)

    def attention(self, n: Tensor, run: Pass) -> Tensor:
        past = run.cached
        branch = super().attention(n, run)
        assert run.cached is not None
        kept = self.unturned if past is None else torch.cat((past[0], self.unturned), dim=2)
        run.cached = kept, run.cached[1]
        return branch


class _WindowOnRequest(DecoderBlock):
    windowed = True

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        if self.windowed:
            return super().visible(query_positions, key_positions)
        return key_positions <= query_positions.unsqueeze(-1)


class WindowIgnoredInCache(TorchBlock):
    """key <= query, in every call that makes or continues a cache."""

    module_class = _WindowOnRequest

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        assert isinstance(self.module, _WindowOnRequest)
        self.module.windowed = False
        try:
            return super().forward_cached(x, cache)
        finally:
            self.module.windowed = True


class CacheInputModified(TorchBlock):
    """The tokens of a chunk end as its output."""

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        y, cache = super().forward_cached(x, cache)
        if x.flags.writeable:
            x[...] = y
        return y, cache


class CacheOutputReused(TorchBlock):
    """One array for each shape of chunk."""

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        y, cache = super().forward_cached(x, cache)
        outputs: dict[tuple[int, ...], Array] = self.__dict__.setdefault("outputs", {})
        output = outputs.setdefault(y.shape, y)
        output[...] = y
        return output, cache


class CacheStridesIgnored(TorchBlock):
    """The memory of a chunk, read from its start."""

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        return super().forward_cached(x.ravel(order="K").reshape(x.shape), cache)


class _EpsOnRequest(DecoderBlock):
    eps: float | None = None

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        return super().standardize(x, eps if self.eps is None else self.eps)


class CacheEpsFixed(TorchBlock):
    """1e-5 for any epsilon, in every call that makes or continues a cache."""

    module_class = _EpsOnRequest

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        assert isinstance(self.module, _EpsOnRequest)
        self.module.eps = 1e-5
        try:
            return super().forward_cached(x, cache)
        finally:
            self.module.eps = None


class WindowCacheCutEarly(DecoderBlock):
    """The last w keys, old and new ones, are all that the queries of a chunk find; a chunk finds itself at least."""

    def extend_cache(self, cached: tuple[Tensor, Tensor] | None, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().extend_cache(cached, key, value)
        kept = keys.shape[2] if self.config.window is None else max(self.config.window, key.shape[2])
        return keys[:, :, -kept:], values[:, :, -kept:]


class CacheInFloat16(DecoderBlock):
    """Earlier keys and values have been float16; those of the chunk have not."""

    def extend_cache(self, cached: tuple[Tensor, Tensor] | None, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if cached is not None:
            cached = cached[0].to(torch.float16).to(key.dtype), cached[1].to(torch.float16).to(value.dtype)
        return super().extend_cache(cached, key, value)


class CacheDropsOldest(DecoderBlock):
    """The last three keys and the chunk's own."""

    def extend_cache(self, cached: tuple[Tensor, Tensor] | None, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if cached is not None:
            cached = cached[0][:, :, -3:], cached[1][:, :, -3:]
        return super().extend_cache(cached, key, value)


class _KeepsLess(DecoderBlock):
    """The right call, after which only a part of the keys and values is kept."""

    def kept(self, keys: int, tokens: int) -> slice:
        return slice(0, keys)

    def attention(self, n: Tensor, run: Pass) -> Tensor:
        branch = super().attention(n, run)
        assert run.cached is not None
        key, value = run.cached
        kept = self.kept(key.shape[2], n.shape[1])
        run.cached = key[:, :, kept], value[:, :, kept]
        return branch


class CacheDropsNewest(_KeepsLess):
    """All but the last one."""

    def kept(self, keys: int, tokens: int) -> slice:
        return slice(0, keys - 1)


class CacheOverwrites(_KeepsLess):
    """The chunk's own."""

    def kept(self, keys: int, tokens: int) -> slice:
        return slice(keys - tokens, keys)


class CacheOnBlock(TorchBlock):
    """The cache that is given only says that there is one."""

    latest: KeyValueCache | None = None

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        y, self.latest = super().forward_cached(x, cache and self.latest)
        return y, self.latest
