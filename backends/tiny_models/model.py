"""A decoder of two layers in named steps, as small as it can be and still show every mistake of `faults`.

Must hold: a row depends on the tokens up to its own that are no padding, on their order, and on nothing else. Must not:
be what anything but the invariants of models is judged by.

B is the batch, T the number of tokens, K that of all tokens so far; heads are [B, heads, T, d_head].
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["TinyModel"]

Array = np.ndarray[Any, Any]

D_MODEL, N_HEADS, D_HEAD, D_FF, LAYERS = 12, 2, 6, 16, 2


class TinyModel:
    """Token embeddings, learned absolute positions, two blocks with a norm before each branch, and a last norm."""

    vocabulary, reserved, padding, max_tokens = 19, 3, 0, 24

    def __init__(self, dtype: str) -> None:
        random = np.random.default_rng(0)

        def matrix(rows: int, columns: int) -> Array:
            made: Array = (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(dtype)
            return made

        self.embedding = random.standard_normal((self.vocabulary, D_MODEL)).astype(dtype)
        self.position_embedding = random.standard_normal((self.max_tokens, D_MODEL)).astype(dtype)
        width = N_HEADS * D_HEAD
        self.layers = [
            {
                **{name: matrix(D_MODEL, width) for name in ("query", "key", "value")},
                "output": matrix(width, D_MODEL),
                "up": matrix(D_MODEL, D_FF),
                "down": matrix(D_FF, D_MODEL),
            }
            for _ in range(LAYERS)
        ]
        self.head = matrix(D_MODEL, self.vocabulary)

    def logits(self, ids: Array, attention_mask: Array | None = None) -> Array:
        """Return the logits [B, T, vocabulary] of ids [B, T]; the mask [B, T] is 0 at padding."""
        real = np.ones(ids.shape, bool) if attention_mask is None else attention_mask.astype(bool)
        return self.run(ids, real, [None] * LAYERS)[0]

    def logits_cached(self, ids: Array, cache: Any) -> tuple[Array, Any]:
        """Return the logits of the next tokens, and the cache: keys and values of each layer."""
        past = cache or [None] * LAYERS
        before = 0 if past[0] is None else past[0][0].shape[2]
        real = np.ones((len(ids), before + ids.shape[1]), bool)
        return self.run(ids, real, past)

    def run(self, ids: Array, real: Array, past: list[Any]) -> tuple[Array, list[Any]]:
        """Return the logits and every layer's keys and values; ``real`` [B, K] tells tokens from padding."""
        x = self.embed(ids) + self.position_embedding[self.positions(real, ids.shape[1])]
        grown = []
        visible = self.visible(real, ids.shape[1])
        for layer, kept in zip(self.layers, past, strict=True):
            branch, kept = self.attention(self.norm(x), layer, kept, visible)
            grown.append(kept)
            x = self.add(x, branch)
            x = self.add(x, self.feed_forward(self.norm(x), layer))
        return self.last(self.norm(x) @ self.head), grown

    def embed(self, ids: Array) -> Array:
        """Return a vector for each id."""
        found: Array = self.embedding[ids]
        return found

    def positions(self, real: Array, tokens: int) -> Array:
        """Return the positions [B, T] of the last tokens: each counts the tokens before it that are no padding."""
        counted: Array = np.maximum(np.cumsum(real, axis=1) - 1, 0)[:, -tokens:]
        return counted

    def visible(self, real: Array, tokens: int) -> Array:
        """Return whether a query may look at a key, [B, 1, T, K]; padding looks at itself, for want of anything."""
        keys = real.shape[1]
        column, row = np.arange(keys), np.arange(keys)[-tokens:, None]
        seen: Array = self.causal(column, row) & (real[:, None, None, :] | (column == row))
        return seen

    def causal(self, column: Array, row: Array) -> Array:
        """Return whether the token of a row may look at that of a column."""
        before: Array = column <= row
        return before

    def norm(self, x: Array) -> Array:
        """Return x with its features standardised, token by token."""
        core: Array = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + x.dtype.type(1e-5))
        return core

    def attention(self, x: Array, layer: dict[str, Array], kept: Any, visible: Array) -> tuple[Array, Any]:
        """Return the attention branch, and the keys and values so far."""
        query, key, value = (
            (x @ layer[name]).reshape(*x.shape[:2], N_HEADS, D_HEAD).swapaxes(1, 2)
            for name in ("query", "key", "value")
        )
        if kept is not None:
            key, value = (np.concatenate(pair, axis=2) for pair in zip(kept, (key, value), strict=True))
        scores = np.where(visible, query @ key.swapaxes(2, 3) / np.sqrt(D_HEAD).astype(x.dtype), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        mixed = (weights @ value).swapaxes(1, 2).reshape(*x.shape[:2], N_HEADS * D_HEAD)
        return mixed @ layer["output"], (key, value)

    def feed_forward(self, x: Array, layer: dict[str, Array]) -> Array:
        """Return the feed-forward branch."""
        down: Array = np.maximum(x @ layer["up"], 0) @ layer["down"]
        return down

    def add(self, x: Array, branch: Array) -> Array:
        """Return the residual stream after a branch."""
        return x + branch

    def last(self, logits: Array) -> Array:
        """Return what the caller gets."""
        return logits
