"""Blocks that are wired wrongly: what is added to what, in which order, and where the norms stand."""

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.cache import Call
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, chain
from blocklaws.config import BlockConfig


def _weighted(
    block: NumpyBlock, x: Stream, branch: Stream, of_x: float, of_branch: float
) -> tuple[Stream, PullbackOfTwo]:
    """Return ``of_x * x + of_branch * branch``; what has no weight is not read at all."""
    value = of_branch * branch if of_x == 0 else of_x * x + of_branch * branch
    return block.rounded(value, lambda cotangent, _: (of_x * cotangent, of_branch * cotangent))


# --- the two additions ------------------------------------------------------------------------------------------------


@fault("residual-from-norm")
class _ResidualFromNorm(NumpyBlock):
    def attention_half(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        normed, pull_norm = self.attention_norm(x)
        branch, pull_branch = self.attention(normed, call)
        scaled, pull_scale = self.scale_branch(branch)
        value, pull_add = self.add_attention(normed, scaled)
        call.stages.update(attention_norm=normed, after_attention=value)
        return value, chain(pull_norm, self.residual(chain(pull_branch, pull_scale), pull_add))


@fault("feed-forward-residual-from-norm")
class _FeedForwardResidualFromNorm(NumpyBlock):
    def feed_forward_half(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        normed, pull_norm = self.feed_forward_norm(x)
        branch, pull_branch = self.feed_forward(normed)
        scaled, pull_scale = self.scale_branch(branch)
        value, pull_add = self.add_feed_forward(normed, scaled)
        call.stages.update(feed_forward_norm=normed, feed_forward_branch=branch, output=value)
        return value, chain(pull_norm, self.residual(chain(pull_branch, pull_scale), pull_add))


@fault("residual-dropped")
class _ResidualDropped(NumpyBlock):
    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        return _weighted(self, x, branch, 0.0, 1.0)


@fault("feed-forward-residual-dropped")
class _FeedForwardResidualDropped(NumpyBlock):
    def add_feed_forward(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        return _weighted(self, x, branch, 0.0, 1.0)


@fault("stream-overwritten")
class _StreamOverwritten(NumpyBlock):
    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        return _weighted(self, x, branch, 0.0, 2.0)


@fault("residual-scaled")
class _ResidualScaled(NumpyBlock):
    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        return _weighted(self, x, branch, math.sqrt(0.5), math.sqrt(0.5))


@fault("branch-scaled")
class _BranchScaled(NumpyBlock):
    def add_feed_forward(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        return _weighted(self, x, branch, 1.0, 0.5)


@fault("residual-rounded")
class _ResidualRounded(NumpyBlock):
    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        value, pullback = super().add_attention(x, branch)
        return value.astype(ml_dtypes.bfloat16).astype(value.dtype), pullback


@fault("stream-in-float16")
class _StreamInFloat16(NumpyBlock):
    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        value, pullback = super().add_attention(x, branch)
        end = float(np.finfo(np.float16).max)
        return np.clip(value, -end, end).astype(np.float16).astype(value.dtype), pullback


# --- the second half reads or adds the block's input ------------------------------------------------------------------


@fault("feed-forward-residual-from-input")
class _FeedForwardResidualFromInput(NumpyBlock):
    def run(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        call.stages["input"] = x
        after, pull_attention = self.attention_half(x, call)
        pre = self.config.placement == "pre"
        normed, pull_norm = self.feed_forward_norm(after) if pre else (after, chain())
        branch, pull_branch = self.feed_forward(normed)
        scaled, pull_scale = self.scale_branch(branch)
        added, pull_add = self.add_feed_forward(x, scaled)
        value, pull_end = (added, chain()) if pre else self.feed_forward_norm(added)
        call.stages.update(feed_forward_norm=normed if pre else value, feed_forward_branch=branch, output=value)
        return value, chain(
            self.residual(chain(pull_attention, pull_norm, pull_branch, pull_scale), pull_add), pull_end
        )


@fault("second-norm-reads-input")
class _SecondNormReadsInput(NumpyBlock):
    def run(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        call.stages["input"] = x
        after, pull_attention = self.attention_half(x, call)
        normed, pull_norm = self.feed_forward_norm(x)
        branch, pull_branch = self.feed_forward(normed)
        scaled, pull_scale = self.scale_branch(branch)
        value, pull_add = self.add_feed_forward(after, scaled)
        call.stages.update(feed_forward_norm=normed, feed_forward_branch=branch, output=value)

        def pullback(cotangent: np.ndarray, gradients: Gradients) -> np.ndarray:
            to_after, to_branch = pull_add(cotangent, gradients)
            return pull_attention(to_after, gradients) + chain(pull_norm, pull_branch, pull_scale)(to_branch, gradients)

        return value, pullback


# --- where the norms and the halves stand -----------------------------------------------------------------------------


@fault("placement-swapped")
class _PlacementSwapped(NumpyBlock):
    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        other = "post" if config.placement == "pre" else "pre"
        super().__init__(config.replace(placement=other), parameters, precision)


@fault("placement-ignored")
class _PlacementIgnored(NumpyBlock):
    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config.replace(placement="pre"), parameters, precision)


@fault("post-norm-on-branch")
class _PostNormOnBranch(NumpyBlock):
    def attention_half(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        branch, pull_branch = self.attention(x, call)
        normed, pull_norm = self.attention_norm(branch)
        value, pull_add = self.add_attention(x, normed)
        call.stages.update(attention_norm=normed, after_attention=value)
        return value, self.residual(chain(pull_branch, pull_norm), pull_add)

    def feed_forward_half(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        branch, pull_branch = self.feed_forward(x)
        normed, pull_norm = self.feed_forward_norm(branch)
        value, pull_add = self.add_feed_forward(x, normed)
        call.stages.update(feed_forward_norm=normed, feed_forward_branch=branch, output=value)
        return value, self.residual(chain(pull_branch, pull_norm), pull_add)


@fault("branch-order-swapped")
class _BranchOrderSwapped(NumpyBlock):
    def run(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        call.stages["input"] = x
        after_feed_forward, pull_feed_forward = self.feed_forward_half(x, call)
        output, pull_attention = self.attention_half(after_feed_forward, call)
        call.stages["output"] = output
        return output, chain(pull_feed_forward, pull_attention)
