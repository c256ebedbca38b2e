"""The norms of a block: of the stream, and of queries and keys.

Must hold: statistics are those of one token, or of one head of it, and are taken wide; a row never depends on another
row. Must not: hold arrays, because the object is a static argument of the compiled functions.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.numerics import Parameters, wide
from blocklaws.config import BlockConfig

__all__ = ["NormSteps"]


@dataclasses.dataclass(frozen=True)
class NormSteps:
    """The norms of one config."""

    config: BlockConfig

    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return what is subtracted and what is divided by the root of, each [..., 1], of a wide x [..., features].

        RMS norm (Zhang and Sennrich 2019, eq. 4): zero and the mean square. Layer norm (Ba et al. 2016, eq. 3): the
        mean and the population variance.
        """
        if self.config.norm == "rms":
            square = jnp.mean(x * x, axis=-1, keepdims=True)
            return jnp.zeros_like(square), square
        mean = jnp.mean(x, axis=-1, keepdims=True)
        return mean, jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)

    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        """Return the core of a norm, wide: statistics over the last axis, no gain."""
        x = wide(x)
        center, spread = self.statistics(x)
        return (x - center) / jnp.sqrt(spread + eps)

    def normalize(self, x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        """Return a whole norm, in the dtype of x."""
        scaled = self.standardize(x, eps) * wide(gain)
        return (scaled if bias is None else scaled + wide(bias)).astype(x.dtype)

    def attention_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """Return the first norm of x [B, T, d_model]."""
        gain, bias = parameters["attention_norm.gain"], parameters.get("attention_norm.bias")
        return self.normalize(x, gain, bias, self.config.norm_eps)

    def feed_forward_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """Return the second norm of x [B, T, d_model]."""
        gain, bias = parameters["feed_forward_norm.gain"], parameters.get("feed_forward_norm.bias")
        return self.normalize(x, gain, bias, self.config.norm_eps)

    def norm_query(self, parameters: Parameters, query: jax.Array) -> jax.Array:
        """Return projected queries [B, T, n_heads d_head], normed where the block norms queries and keys."""
        return self.norm_heads(parameters, "attention.query_norm", query)

    def norm_key(self, parameters: Parameters, key: jax.Array) -> jax.Array:
        """Return projected keys [B, T, n_kv_heads d_head], normed likewise."""
        return self.norm_heads(parameters, "attention.key_norm", key)

    def norm_heads(self, parameters: Parameters, name: str, a: jax.Array) -> jax.Array:
        """Return a [B, T, heads d_head] under the norm of a name: each head alone, all together, or not at all."""
        if self.config.qk_norm is None:
            return a
        gain, bias = parameters[f"{name}.gain"], parameters.get(f"{name}.bias")
        width = self.config.d_head if self.config.qk_norm == "head" else a.shape[-1]
        parts = a.reshape(*a.shape[:-1], a.shape[-1] // width, width)
        return self.normalize(parts, gain, bias, self.config.norm_eps).reshape(a.shape)
