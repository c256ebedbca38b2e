"""Faults of the residual wiring: what is added to what, and in which order.

Must hold: each class overrides an addition, a half of the block, or the order of the halves, and nothing else.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.fault_tools import rounded
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages, add, wide
from blocklaws.backends.on_jax.steps import Steps


@fault("residual-from-norm")
class ResidualFromNorm(Steps):
    def attention_half(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None
    ) -> tuple[Stages, KeyValues | None]:
        stages, cache = super().attention_half(parameters, x, offset, cache)
        after = self.add_attention(stages["attention_norm"], stages["attention_branch"])
        return {**stages, "after_attention": after}, cache


@fault("feed-forward-residual-from-norm")
class FeedForwardResidualFromNorm(Steps):
    def feed_forward_half(self, parameters: Parameters, x: jax.Array, source: jax.Array) -> Stages:
        stages = super().feed_forward_half(parameters, x, source)
        output = self.add_feed_forward(stages["feed_forward_norm"], stages["feed_forward_branch"])
        return {**stages, "output": output}


@fault("residual-dropped")
class ResidualDropped(Steps):
    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return branch


@fault("feed-forward-residual-dropped")
class FeedForwardResidualDropped(Steps):
    def add_feed_forward(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return branch


@fault("feed-forward-residual-from-input")
class FeedForwardResidualFromInput(Steps):
    def block(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None = None
    ) -> tuple[Stages, KeyValues | None]:
        first, cache = self.attention_half(parameters, x, offset, cache)
        source = self.feed_forward_source(x, first["after_attention"])
        return {"input": x, **first, **self.feed_forward_half(parameters, x, source)}, cache


@fault("second-norm-reads-input")
class SecondNormReadsInput(Steps):
    def feed_forward_source(self, x: jax.Array, after: jax.Array) -> jax.Array:
        return x


@fault("stream-overwritten")
class StreamOverwritten(Steps):
    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return super().add_attention(branch, branch)


@fault("residual-scaled")
class ResidualScaled(Steps):
    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return super().add_attention(x, branch) * 2**-0.5


@fault("branch-scaled")
class BranchScaled(Steps):
    def add_feed_forward(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return super().add_feed_forward(x, branch * 0.5)


@fault("placement-swapped")
class PlacementSwapped(Steps):
    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        return "post" if self.config.placement == "pre" else "pre"


@fault("placement-ignored")
class PlacementIgnored(Steps):
    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        return "pre"


@fault("post-norm-on-branch")
class PostNormOnBranch(Steps):
    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        return "inside"


@fault("residual-rounded")
class ResidualRounded(Steps):
    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return rounded(super().add_attention(x, branch), jnp.bfloat16)


@fault("stream-in-float16")
class StreamInFloat16(Steps):
    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        end = float(jnp.finfo(jnp.float16).max)
        total = jnp.clip(wide(super().add_attention(x, branch)), -end, end)
        return rounded(total, jnp.float16).astype(x.dtype)


@fault("branch-order-swapped")
class BranchOrderSwapped(Steps):
    def block(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None = None
    ) -> tuple[Stages, KeyValues | None]:
        first = self.feed_forward_half(parameters, x, x)
        second, cache = self.attention_half(parameters, first["output"], offset, cache)
        return {"input": x, **first, **second, "output": second["after_attention"]}, cache


@fault("inside-as-pre")
class InsideAsPre(Steps):
    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        return "pre"


@fault("inside-as-post")
class InsideAsPost(Steps):
    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        return "post"


@fault("parallel-as-sequential")
class ParallelAsSequential(Steps):
    def feed_forward_source(self, x: jax.Array, after: jax.Array) -> jax.Array:
        return after


@fault("parallel-shared-norm")
class ParallelSharedNorm(Steps):
    def feed_forward_norm(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        return self.attention_norm(parameters, x)


@fault("parallel-input-twice")
class ParallelInputTwice(Steps):
    def block(
        self, parameters: Parameters, x: jax.Array, offset: jax.Array, cache: KeyValues | None = None
    ) -> tuple[Stages, KeyValues | None]:
        stages, cache = super().block(parameters, x, offset, cache)
        return {**stages, "output": stages["output"] + x}, cache


@fault("residual-scale-ignored")
class ResidualScaleIgnored(Steps):
    def scale_branch(self, branch: jax.Array) -> jax.Array:
        return branch


@fault("residual-scale-on-attention-only")
class ResidualScaleOnAttentionOnly(Steps):
    def add_feed_forward(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return add(x, branch)


@fault("residual-scale-on-sum")
class ResidualScaleOnSum(Steps):
    def add_attention(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return self.scale_branch(add(x, branch))

    def add_feed_forward(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        return self.scale_branch(add(x, branch))
