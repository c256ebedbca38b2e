"""The mathematics of one decoder block as named pure functions, the steps of docs/architecture.md.

Must hold: each step is a pure function of its arguments and of the config, so that one compilation serves every world
of a config; overriding one step changes that step alone. Statistics are those of one token: a row never depends on
another row but through attention. Must not: hold arrays, because the object is a static argument of the compiled
functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.attention import AttentionSteps
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages, add, wide

__all__ = ["ACTIVATIONS", "Steps"]

#: Feed-forward word -> activation of a wide array. `jax.nn.relu` has the gradient zero at zero, `jnp.maximum` a half.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "swiglu": jax.nn.silu,
    "gelu": lambda a: jax.nn.gelu(a, approximate=False),
    "gelu_tanh": lambda a: jax.nn.gelu(a, approximate=True),
    "relu": jax.nn.relu,
}


@dataclasses.dataclass(frozen=True)
class Steps(AttentionSteps):
    """The steps of a whole block. Equal configs and equal classes share their compilations."""

    @property
    def placement(self) -> Literal["pre", "post"]:
        """Where the norms are (Xiong et al. 2020, figure 1)."""
        return self.config.placement

    # --- norms ---

    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return what is subtracted and what is divided by the root of, each [B, T, 1], of a wide x [B, T, d_model].

        RMS norm (Zhang and Sennrich 2019, eq. 4): zero and the mean square. Layer norm (Ba et al. 2016, eq. 3): the
        mean and the population variance.
        """
        if self.config.norm == "rms":
            square = jnp.mean(x * x, axis=-1, keepdims=True)
            return jnp.zeros_like(square), square
        mean = jnp.mean(x, axis=-1, keepdims=True)
        return mean, jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)

    def standardize(self, x: jax.Array, eps: float) -> jax.Array:
        """Return the core of a norm, wide: statistics over the features of each token, no gain."""
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

    # --- feed-forward ---

    def activate(self, a: jax.Array) -> jax.Array:
        """Return silu, gelu or relu of a, computed wide."""
        return ACTIVATIONS[self.config.feed_forward](wide(a)).astype(a.dtype)

    def feed_forward(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        """Return the feed-forward branch of n [B, T, d_model] (gated: Shazeer 2020, eq. 6)."""
        up = self.project(n, parameters["feed_forward.up"], parameters.get("feed_forward.up_bias"))
        if self.config.gated:
            inner = self.activate(self.project(n, parameters["feed_forward.gate"], None)) * up
        else:
            inner = self.activate(up)
        return self.project_down(parameters, inner)

    def project_down(self, parameters: Parameters, inner: jax.Array) -> jax.Array:
        """Return [B, T, d_model] of the inner features [B, T, d_ff]."""
        return self.project(inner, parameters["feed_forward.down"], parameters.get("feed_forward.down_bias"))

    # --- the block ---

    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        """Return the first residual sum."""
        return add(x, branch)

    def add_feed_forward(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        """Return the second residual sum."""
        return add(x, branch)

    def attention_half(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None
    ) -> tuple[Stages, KeyValues | None]:
        """Return the stages up to ``after_attention``, and the cache with this chunk in it."""
        if self.placement == "pre":
            norm = self.attention_norm(parameters, x)
            stages, cache = self.attention(parameters, norm, offset, cache)
            after = self.add_attention(x, stages["attention_branch"])
        else:
            stages, cache = self.attention(parameters, x, offset, cache)
            norm = self.attention_norm(parameters, self.add_attention(x, stages["attention_branch"]))
            after = norm
        return {"attention_norm": norm, **stages, "after_attention": after}, cache

    def feed_forward_half(self, parameters: Parameters, x: jax.Array) -> Stages:
        """Return the stages from ``feed_forward_norm`` to ``output``, of the stream after attention."""
        if self.placement == "pre":
            norm = self.feed_forward_norm(parameters, x)
            branch = self.feed_forward(parameters, norm)
            output = self.add_feed_forward(x, branch)
        else:
            branch = self.feed_forward(parameters, x)
            output = norm = self.feed_forward_norm(parameters, self.add_feed_forward(x, branch))
        return {"feed_forward_norm": norm, "feed_forward_branch": branch, "output": output}

    def block(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None = None
    ) -> tuple[Stages, KeyValues | None]:
        """Return every stage of x [B, T, d_model], and the cache with this chunk in it.

        What a caller does not use of the stages, XLA does not compute.
        """
        first, cache = self.attention_half(parameters, x, offset, cache)
        return {"input": x, **first, **self.feed_forward_half(parameters, first["after_attention"])}, cache
