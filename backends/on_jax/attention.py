"""The steps of the attention branch: projections, heads, rotary positions, mask, softmax.

Must hold: each step is a pure function of its arguments and of the config, and overriding one step changes that step
alone. Must hold bit for bit: an output row never depends on the values of tokens that it may not see. Must not: hold
arrays, because the object is a static argument of the compiled functions.

Shapes: B sequences, T tokens, K keys.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from blocklaws.backends.on_jax.norms import NormSteps
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages, contract, wide

__all__ = ["AttentionSteps"]


@dataclasses.dataclass(frozen=True)
class AttentionSteps(NormSteps):
    """The attention branch of one config."""

    # --- projections and heads ---

    def project(self, n: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
        """Return ``n matrix + bias`` over the last axis, in the dtype of ``n``; rounded once, after the bias."""
        product = contract("bti,io->bto", n, matrix)
        return (product if bias is None else product + wide(bias)).astype(n.dtype)

    def project_query(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        """Return [B, T, n_heads d_head]."""
        return self.project(n, parameters["attention.query"], parameters.get("attention.query_bias"))

    def project_key(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        """Return [B, T, n_kv_heads d_head]."""
        return self.project(n, parameters["attention.key"], parameters.get("attention.key_bias"))

    def project_value(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        """Return [B, T, n_kv_heads d_head]."""
        return self.project(n, parameters["attention.value"], parameters.get("attention.value_bias"))

    def split_heads(self, a: jax.Array, heads: int) -> jax.Array:
        """Return [B, heads, T, d_head]: head i owns the columns i d_head to (i + 1) d_head."""
        batch, tokens, _ = a.shape
        return a.reshape(batch, tokens, heads, self.config.d_head).swapaxes(1, 2)

    def repeat_heads(self, a: jax.Array) -> jax.Array:
        """Return a key or value head for each query head: query head i reads head i // group (Ainslie et al. 2023)."""
        return jnp.repeat(a, self.config.group, axis=1)

    def merge_heads(self, a: jax.Array) -> jax.Array:
        """Return [B, T, n_heads d_head], the heads in order."""
        batch, heads, tokens, d_head = a.shape
        return a.swapaxes(1, 2).reshape(batch, tokens, heads * d_head)

    def project_output(self, parameters: Parameters, a: jax.Array) -> jax.Array:
        """Return the attention branch, [B, T, d_model]."""
        return self.project(a, parameters["attention.output"], parameters.get("attention.output_bias"))

    # --- positions ---

    def positions(self, tokens: int, offset: jax.Array) -> jax.Array:
        """Return the positions of the tokens of this call, int32 [T]."""
        return offset + jnp.arange(tokens, dtype=jnp.int32)

    def positions_in_cache(self, tokens: int, offset: jax.Array) -> jax.Array:
        """Return the positions of a chunk that continues a cache of ``offset`` tokens, int32 [T]."""
        return self.positions(tokens, offset)

    @property
    def layout(self) -> Literal["interleaved", "half"] | None:
        """Which features make a pair."""
        return self.config.rotary

    def rotary_frequencies(self) -> jax.Array:
        """Return the radians a position of each pair, base^(-2 i / d_rotary), float64 [d_rotary / 2]."""
        pair = jnp.arange(self.config.d_rotary // 2, dtype=jnp.float64)
        return self.config.rotary_base ** (-2.0 * pair / self.config.d_rotary)

    def rotary_angles(self, positions: jax.Array) -> jax.Array:
        """Return the angles in radians, [T, d_rotary / 2] (Su et al. 2021, eq. 34).

        In float64 for every dtype of block: position 4000 times a float32 frequency is wrong by 2e-4 radians, and a
        table on the host would cost a transfer. What leaves `rotate` has the block's own dtype.
        """
        return positions[:, None].astype(jnp.float64) * self.rotary_frequencies()

    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        """Return queries or keys [B, heads, T, d_head] with their first d_rotary features turned."""
        turned = self.config.d_rotary
        if turned == a.shape[-1]:
            return self.rotate_pairs(a, angles)
        return jnp.concatenate([self.rotate_pairs(a[..., :turned], angles), a[..., turned:]], axis=-1)

    def rotate_pairs(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        """Return a [B, heads, T, d_rotary] with each pair of features turned by its angle [T, d_rotary / 2].

        Pairs are (2i, 2i + 1) for ``interleaved``, (i, i + d_rotary / 2) for ``half``.
        """
        cosine, sine = jnp.cos(angles).astype(wide(a).dtype), jnp.sin(angles).astype(wide(a).dtype)
        first, second = self.split_pairs(wide(a))
        return self.join_pairs(first * cosine - second * sine, first * sine + second * cosine).astype(a.dtype)

    def split_pairs(self, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the first and the second features of the pairs, each [..., d_rotary / 2]."""
        half = a.shape[-1] // 2
        if self.layout == "interleaved":
            pairs = a.reshape(*a.shape[:-1], half, 2)
            return pairs[..., 0], pairs[..., 1]
        return a[..., :half], a[..., half:]

    def join_pairs(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """Undo `split_pairs`."""
        if self.layout == "interleaved":
            return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], 2 * first.shape[-1])
        return jnp.concatenate([first, second], axis=-1)

    def turn(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return queries and keys turned, where the block has a rotary embedding, and values as they are."""
        if self.config.rotary is None:
            return query, key, value
        angles = self.rotary_angles(positions)
        return self.rotate(query, angles), self.rotate(key, angles), value

    def turn_in_cache(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return `turn` of a chunk on its way into the cache."""
        return self.turn(query, key, value, positions)

    # --- attention ---

    def extend_cache(self, cache: KeyValues, key: jax.Array, value: jax.Array) -> KeyValues:
        """Return the cache with the keys and values of a chunk behind those that it holds."""
        return KeyValues(
            lax.dynamic_update_slice_in_dim(cache.key, key, cache.length, axis=2),
            lax.dynamic_update_slice_in_dim(cache.value, value, cache.length, axis=2),
            cache.length + jnp.int32(key.shape[2]),
        )

    def score_scale(self) -> float:
        """Return what scores are multiplied by (Vaswani et al. 2017, eq. 1)."""
        return float(self.config.d_head**-0.5)

    def scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        """Return wide scores [B, n_heads, T, K], capped where the block caps them."""
        return self.cap_scores(contract("bhqd,bhkd->bhqk", query, key) * self.score_scale())

    def cap_scores(self, scores: jax.Array) -> jax.Array:
        """Return wide scores squeezed into (-softcap, softcap), before any of them is hidden."""
        bound = self.config.softcap
        return scores if bound is None else bound * jnp.tanh(scores / bound)

    def visible(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        """Return [T, K], True where a query may look at a key.

        Slots count the keys of this call or of the cache from zero. They are not positions: an offset moves queries and
        keys alike and hides nothing. With a window a query looks at the last keys only, its own among them.
        """
        seen = key_slots[None, :] <= query_slots[:, None]
        if self.config.window is None:
            return seen
        return seen & (query_slots[:, None] - key_slots[None, :] < self.config.window)

    def visible_in_cache(self, query_slots: jax.Array, key_slots: jax.Array, cache: KeyValues) -> jax.Array:
        """Return `visible` for a chunk whose first slot is ``cache.length``, before the chunk enters the cache."""
        return self.visible(query_slots, key_slots)

    def softmax(self, scores: jax.Array, visible: jax.Array) -> jax.Array:
        """Return wide attention weights [B, n_heads, T, K], exactly zero where hidden.

        Hidden scores are replaced before anything is computed from them and again after the exponential: an infinite or
        huge hidden score reaches neither a weight nor, as zero times infinity, a gradient.
        """
        scores = jnp.where(visible, scores, -jnp.inf)
        maximum = lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
        exponentials = jnp.where(visible, jnp.exp(scores - maximum), 0)
        return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)

    def mix(self, weights: jax.Array, value: jax.Array) -> jax.Array:
        """Return the values weighed, [B, n_heads, T, d_head]."""
        return contract("bhqk,bhkd->bhqd", weights, value).astype(value.dtype)

    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array
    ) -> tuple[jax.Array | None, jax.Array]:
        """Return attention weights [B, n_heads, T, K] and mixed values [B, n_heads, T, d_head]."""
        weights = self.softmax(self.scores(query, self.repeat_heads(key)), visible).astype(query.dtype)
        return weights, self.mix(weights, self.repeat_heads(value))

    def attention(
        self, parameters: Parameters, n: jax.Array, offset: jax.Array, cache: KeyValues | None
    ) -> tuple[Stages, KeyValues | None]:
        """Return the stages of the attention branch of n [B, T, d_model], and the cache with this chunk in it.

        ``offset`` is the position of the first token, with a cache too.
        """
        config, tokens = self.config, n.shape[1]
        query = self.split_heads(self.norm_query(parameters, self.project_query(parameters, n)), config.n_heads)
        key = self.split_heads(self.norm_key(parameters, self.project_key(parameters, n)), config.n_kv_heads)
        value = self.split_heads(self.project_value(parameters, n), config.n_kv_heads)
        slots = jnp.arange(tokens, dtype=jnp.int32)
        if cache is None:
            query, key, value = self.turn(query, key, value, self.positions(tokens, offset))
            weights, mixed = self.attend(query, key, value, self.visible(slots, slots))
        else:
            query, key, value = self.turn_in_cache(query, key, value, self.positions_in_cache(tokens, offset))
            extended = self.extend_cache(cache, key, value)
            key_slots = jnp.arange(extended.key.shape[2], dtype=jnp.int32)
            visible = self.visible_in_cache(cache.length + slots, key_slots, cache)
            filled = key_slots < extended.length
            weights, mixed = self.attend(query, extended.key, extended.value, visible & filled)
            cache = extended
        stages = {"query": query, "key": key, "value": value}
        if weights is not None:
            stages["attention_weights"] = weights
        stages["attention_branch"] = self.project_output(parameters, self.merge_heads(mixed))
        return stages, cache
