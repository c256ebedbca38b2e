"""A decoder block of Flax NNX's own attention, norms and linear maps.

Must hold: y = x' + F(norm_f(x')), x' = x + MHA(norm_a(x)) with ``norm_first``; x' = norm_a(x + MHA(x)),
y = norm_f(x' + F(x')) without. The attention is `flax.nnx.MultiHeadAttention` as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

__all__ = ["Block"]


class FeedForward(nnx.Module):
    """act(x W_up) W_down, or (act(x W_gate) * (x W_up)) W_down."""

    def __init__(
        self, width: int, inner: int, activation: Callable[[Any], Any], gated: bool, use_bias: bool, options: Any
    ) -> None:
        self.activation = activation
        self.gate = nnx.Linear(width, inner, use_bias=use_bias, **options) if gated else nnx.data(None)
        self.up = nnx.Linear(width, inner, use_bias=use_bias, **options)
        self.down = nnx.Linear(inner, width, use_bias=use_bias, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One decoder block.

    Args:
        width: features of a token.
        num_heads, num_kv_heads, head_dim: heads of queries, heads of keys and values, features of a head.
        inner: inner width of the feed-forward.
        norm: the class of the norms, such as `flax.nnx.RMSNorm`.
        epsilon: of the norms.
        norm_first: norms before each branch, or after each addition.
        activation: of the feed-forward.
        gated: whether the feed-forward has a gate.
        attention_bias, feed_forward_bias: whether the projections have biases.
        dropout_rate: of the attention; with any, Flax computes the attention weights by themselves, outside of
            training too, and without it leaves them to JAX's fused attention.
        param_dtype: of the parameters.
    """

    def __init__(
        self,
        *,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        inner: int,
        norm: Callable[..., nnx.Module],
        epsilon: float,
        norm_first: bool,
        activation: Callable[[Any], Any],
        gated: bool,
        attention_bias: bool,
        feed_forward_bias: bool,
        dropout_rate: float,
        param_dtype: Any,
    ) -> None:
        options: dict[str, Any] = {"param_dtype": param_dtype, "rngs": nnx.Rngs(0)}
        self.norm_first = norm_first
        self.attention_norm = norm(width, epsilon=epsilon, **options)
        self.attention = nnx.MultiHeadAttention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            in_features=width,
            qkv_features=num_heads * head_dim,
            out_features=width,
            use_bias=attention_bias,
            dropout_rate=dropout_rate,
            decode=False,
            keep_rngs=False,
            **options,
        )
        self.feed_forward_norm = norm(width, epsilon=epsilon, **options)
        self.feed_forward = FeedForward(width, inner, activation, gated, feed_forward_bias, options)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Return the output [batch, token, width]; ``mask`` is true where a query may look at a key."""
        if self.norm_first:
            x = x + self.attention(self.attention_norm(x), mask=mask)
            return x + self.feed_forward(self.feed_forward_norm(x))
        x = self.attention_norm(x + self.attention(x, mask=mask))
        return self.feed_forward_norm(x + self.feed_forward(x))
