"""The wrong models of ``spec/models.yaml``: each overrides one step of the right one."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklaws.backends.tiny_models.model import Array, TinyModel

__all__ = ["FAULTS"]


class LastRowOnly(TinyModel):
    def last(self, logits: Array) -> Array:
        return logits[:, -1:]


class SeesNextToken(TinyModel):
    def causal(self, column: Array, row: Array) -> Array:
        seen: Array = column <= row + 1
        return seen


class SeesAllTokens(TinyModel):
    def causal(self, column: Array, row: Array) -> Array:
        return np.full(np.broadcast_shapes(column.shape, row.shape), True)


class NormOverTokens(TinyModel):
    def norm(self, x: Array) -> Array:
        core: Array = (x - x.mean(axis=(1, 2), keepdims=True)) / np.sqrt(x.var(axis=(1, 2), keepdims=True) + 1e-5)
        narrow: Array = core.astype(x.dtype)
        return narrow


class ScaledByLength(TinyModel):
    def add(self, x: Array, branch: Array) -> Array:
        scaled: Array = x + branch / np.sqrt(x.shape[1]).astype(x.dtype)
        return scaled


class BatchMixed(TinyModel):
    def add(self, x: Array, branch: Array) -> Array:
        mixed: Array = x + branch - branch.mean(axis=0, keepdims=True) / 2
        return mixed


class CapacityShared(TinyModel):
    def feed_forward(self, x: Array, layer: dict[str, Array]) -> Array:
        branch = super().feed_forward(x, layer)
        branch[2:] = 0
        return branch


class PositionsRestart(TinyModel):
    def positions(self, real: Array, tokens: int) -> Array:
        return super().positions(real[:, -tokens:], tokens)


class ChunkUnmasked(TinyModel):
    def visible(self, real: Array, tokens: int) -> Array:
        seen = super().visible(real, tokens)
        return seen if real.shape[1] == tokens else seen | True


class PaddingAttended(TinyModel):
    def visible(self, real: Array, tokens: int) -> Array:
        return super().visible(np.ones_like(real), tokens)


class PositionsByColumn(TinyModel):
    def positions(self, real: Array, tokens: int) -> Array:
        return super().positions(np.ones_like(real), tokens)


class DropoutLeftOn(TinyModel):
    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.random = np.random.default_rng(1)

    def feed_forward(self, x: Array, layer: dict[str, Array]) -> Array:
        branch = super().feed_forward(x, layer)
        kept: Array = np.where(self.random.random(branch.shape) > 0.1, branch, x.dtype.type(0))
        return kept


class RemembersLastCall(TinyModel):
    mean: Any = 0.0

    def feed_forward(self, x: Array, layer: dict[str, Array]) -> Array:
        self.mean = (self.mean + x.mean(axis=(0, 1))) / 2
        return super().feed_forward((x - self.mean).astype(x.dtype), layer)


class IdsIgnored(TinyModel):
    def embed(self, ids: Array) -> Array:
        return super().embed(np.full_like(ids, self.reserved))


class SeesPreviousTokenOnly(TinyModel):
    def embed(self, ids: Array) -> Array:
        before = super().embed(ids)
        return np.concatenate([np.zeros_like(before[:, :1]), before[:, :-1]], axis=1)


FAULTS: dict[str, type[TinyModel]] = {
    "last-row-only": LastRowOnly,
    "sees-next-token": SeesNextToken,
    "sees-all-tokens": SeesAllTokens,
    "statistics-over-tokens": NormOverTokens,
    "scaled-by-length": ScaledByLength,
    "batch-mean-removed": BatchMixed,
    "capacity-shared": CapacityShared,
    "positions-restart": PositionsRestart,
    "chunk-unmasked": ChunkUnmasked,
    "padding-attended": PaddingAttended,
    "positions-by-column": PositionsByColumn,
    "dropout-left-on": DropoutLeftOn,
    "remembers-last-call": RemembersLastCall,
    "ids-ignored": IdsIgnored,
    "sees-previous-token-only": SeesPreviousTokenOnly,
}
