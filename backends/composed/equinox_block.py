"""A decoder block of Equinox's own attention, norms and linear maps.

Must hold: y = x' + F(norm_f(x')), x' = x + MHA(norm_a(x)) with ``norm_first``; x' = norm_a(x + MHA(x)),
y = norm_f(x' + F(x')) without. The attention is `equinox.nn.MultiheadAttention` as it stands. Equinox's layers know one
token (the norms, the maps) or one sequence (the attention); `jax.vmap` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

__all__ = ["Block"]


class FeedForward(eqx.Module):
    """act(x W_up) W_down, or (act(x W_gate) * (x W_up)) W_down, of one token."""

    gate: eqx.nn.Linear | None
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    activation: Callable[[Any], Any] = eqx.field(static=True)

    def __init__(
        self, width: int, inner: int, activation: Callable[[Any], Any], gated: bool, use_bias: bool, dtype: Any
    ) -> None:
        options: dict[str, Any] = {"use_bias": use_bias, "dtype": dtype, "key": jax.random.key(0)}
        self.gate = eqx.nn.Linear(width, inner, **options) if gated else None
        self.up = eqx.nn.Linear(width, inner, **options)
        self.down = eqx.nn.Linear(inner, width, **options)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(eqx.Module):
    """One decoder block.

    Args:
        width: features of a token.
        num_heads, head_dim: heads, and features of one.
        inner: inner width of the feed-forward.
        norm: makes a norm of a width, such as `equinox.nn.RMSNorm`.
        norm_first: norms before each branch, or after each addition.
        activation: of the feed-forward.
        gated: whether the feed-forward has a gate.
        attention_bias, feed_forward_bias: whether the projections have biases.
        dtype: of the parameters.
    """

    attention_norm: eqx.Module
    attention: eqx.nn.MultiheadAttention
    feed_forward_norm: eqx.Module
    feed_forward: FeedForward
    norm_first: bool = eqx.field(static=True)

    def __init__(
        self,
        *,
        width: int,
        num_heads: int,
        head_dim: int,
        inner: int,
        norm: Callable[[int], eqx.Module],
        norm_first: bool,
        activation: Callable[[Any], Any],
        gated: bool,
        attention_bias: bool,
        feed_forward_bias: bool,
        dtype: Any,
    ) -> None:
        self.attention_norm, self.feed_forward_norm = norm(width), norm(width)
        self.attention = eqx.nn.MultiheadAttention(
            num_heads=num_heads,
            query_size=width,
            qk_size=head_dim,
            vo_size=head_dim,
            output_size=width,
            use_query_bias=attention_bias,
            use_key_bias=attention_bias,
            use_value_bias=attention_bias,
            use_output_bias=attention_bias,
            dtype=dtype,
            key=jax.random.key(0),
        )
        self.feed_forward = FeedForward(width, inner, activation, gated, feed_forward_bias, dtype)
        self.norm_first = norm_first

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Return the output [batch, token, width]; ``mask`` [query, key] is true where a query may look at a key."""
        return jax.vmap(lambda sequence: self._of_a_sequence(sequence, mask))(x)

    def _of_a_sequence(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        attention_norm, feed_forward_norm = _of_each(self.attention_norm), _of_each(self.feed_forward_norm)
        feed_forward = _of_each(self.feed_forward)
        if self.norm_first:
            normed = attention_norm(x)
            x = x + self.attention(normed, normed, normed, mask=mask)
            return x + feed_forward(feed_forward_norm(x))
        x = attention_norm(x + self.attention(x, x, x, mask=mask))
        return feed_forward_norm(x + feed_forward(x))


def _of_each(layer: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    # JAX names a transformed function by its repr, and that of a module writes out all of its parameters.
    return jax.vmap(lambda token: layer(token))
