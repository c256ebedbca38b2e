"""The mathematics of one decoder block as named pure functions, the steps of docs/architecture.md.

Must hold: each step is a pure function of its arguments and of the config, so that one compilation serves every world
of a config; overriding one step changes that step alone. A choice at its default adds nothing to a program. Must not:
hold arrays, because the object is a static argument of the compiled functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax

from blocklaws.backends.on_jax.attention import AttentionSteps
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages, add, wide

__all__ = ["ACTIVATIONS", "Steps"]

#: Feed-forward word -> activation of a wide array. `jax.nn.relu` has the gradient zero at zero, `jnp.maximum` a half.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "swiglu": jax.nn.silu,
    "geglu": lambda a: jax.nn.gelu(a, approximate=False),
    "geglu_tanh": lambda a: jax.nn.gelu(a, approximate=True),
    "gelu": lambda a: jax.nn.gelu(a, approximate=False),
    "gelu_tanh": lambda a: jax.nn.gelu(a, approximate=True),
    "relu": jax.nn.relu,
}


@dataclasses.dataclass(frozen=True)
class Steps(AttentionSteps):
    """The steps of a whole block. Equal configs and equal classes share their compilations."""

    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        """Where the norms are: on what a branch reads, on the sum with it, or on what it gives."""
        return self.config.placement

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

    def scale_branch(self, branch: jax.Array) -> jax.Array:
        """Return what a residual sum adds for a branch, in the dtype of the branch.

        Scaled wide: a Python number would take the dtype of the branch, and 0.1 is no bfloat16.
        """
        scale = self.config.residual_scale
        return branch if scale == 1 else (wide(branch) * scale).astype(branch.dtype)

    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        """Return the first residual sum."""
        return add(x, self.scale_branch(branch))

    def add_feed_forward(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        """Return the second residual sum."""
        return add(x, self.scale_branch(branch))

    def attention_half(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None
    ) -> tuple[Stages, KeyValues | None]:
        """Return the stages up to ``after_attention``, and the cache with this chunk in it."""
        if self.placement == "pre":
            norm = self.attention_norm(parameters, x)
            stages, cache = self.attention(parameters, norm, offset, cache)
            after = self.add_attention(x, stages["attention_branch"])
        elif self.placement == "inside":
            stages, cache = self.attention(parameters, x, offset, cache)
            norm = self.attention_norm(parameters, stages["attention_branch"])
            after = self.add_attention(x, norm)
        else:
            stages, cache = self.attention(parameters, x, offset, cache)
            norm = self.attention_norm(parameters, self.add_attention(x, stages["attention_branch"]))
            after = norm
        return {"attention_norm": norm, **stages, "after_attention": after}, cache

    def feed_forward_source(self, x: jax.Array, after: jax.Array) -> jax.Array:
        """Return what the feed-forward branch reads: the stream after attention, or x itself if they are parallel."""
        return after if self.config.residual == "sequential" else x

    def feed_forward_half(self, parameters: Parameters, x: jax.Array, source: jax.Array) -> Stages:
        """Return the stages from ``feed_forward_norm`` to ``output``: x with the branch of the source added."""
        if self.placement == "pre":
            norm = self.feed_forward_norm(parameters, source)
            branch = self.feed_forward(parameters, norm)
            output = self.add_feed_forward(x, branch)
        elif self.placement == "inside":
            branch = self.feed_forward(parameters, source)
            norm = self.feed_forward_norm(parameters, branch)
            output = self.add_feed_forward(x, norm)
        else:
            branch = self.feed_forward(parameters, source)
            output = norm = self.feed_forward_norm(parameters, self.add_feed_forward(x, branch))
        return {"feed_forward_norm": norm, "feed_forward_branch": branch, "output": output}

    def block(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None = None
    ) -> tuple[Stages, KeyValues | None]:
        """Return every stage of x [B, T, d_model], and the cache with this chunk in it.

        What a caller does not use of the stages, XLA does not compute.
        """
        first, cache = self.attention_half(parameters, x, offset, cache)
        after = first["after_attention"]
        second = self.feed_forward_half(parameters, after, self.feed_forward_source(x, after))
        return {"input": x, **first, **second}, cache
