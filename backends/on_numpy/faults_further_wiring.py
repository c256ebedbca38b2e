"""Blocks that get a further choice of their wiring or of their feed-forward wrong: branches beside each other, scaled
branches, norms between branch and addition, gates of GELU.

Must hold: a fault shows in the kinds of block that make its choice; what it computes is right in every other way.
"""

from collections.abc import Mapping

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.cache import Call
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, chain
from blocklaws.config import BlockConfig


class _OtherConfig(NumpyBlock):
    """The right block of another config that has the same parameters."""

    #: The choice, and the word that is taken for it.
    instead: tuple[str, str]

    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        choice, word = self.instead
        super().__init__(config.replace(**{choice: word}), parameters, precision)


# --- branches beside each other ---------------------------------------------------------------------------------------


@fault("parallel-as-sequential")
class _ParallelAsSequential(_OtherConfig):
    instead = ("residual", "sequential")


@fault("parallel-shared-norm")
class _ParallelSharedNorm(NumpyBlock):
    def feed_forward_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        return self.norm(x, "attention_norm")


@fault("parallel-input-twice")
class _ParallelInputTwice(NumpyBlock):
    def beside(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        output, pullback = super().beside(x, call)
        twice, pull_twice = self.rounded(x + output, lambda cotangent, _: (cotangent, cotangent))
        call.stages.update(output=twice)
        return twice, self.residual(pullback, pull_twice)


# --- scaled branches --------------------------------------------------------------------------------------------------


@fault("residual-scale-ignored")
class _ResidualScaleIgnored(NumpyBlock):
    def scale_branch(self, branch: Stream) -> tuple[Stream, Pullback]:
        return branch, chain()


@fault("residual-scale-on-attention-only")
class _ResidualScaleOnAttentionOnly(_ResidualScaleIgnored):
    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        scaled, pull_scale = NumpyBlock.scale_branch(self, branch)
        value, pullback = super().add_attention(x, scaled)

        def pull_both(cotangent: Stream, gradients: Gradients) -> tuple[Stream, Stream]:
            to_x, to_scaled = pullback(cotangent, gradients)
            return to_x, pull_scale(to_scaled, gradients)

        return value, pull_both


@fault("residual-scale-on-sum")
class _ResidualScaleOnSum(_ResidualScaleIgnored):
    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        return self._scaled(x, branch)

    def add_feed_forward(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        return self._scaled(x, branch)

    def _scaled(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        scale = self.config.residual_scale
        return self.rounded(scale * (x + branch), lambda cotangent, _: (scale * cotangent, scale * cotangent))


# --- norms between branch and addition --------------------------------------------------------------------------------


@fault("inside-as-pre")
class _InsideAsPre(_OtherConfig):
    instead = ("placement", "pre")


@fault("inside-as-post")
class _InsideAsPost(_OtherConfig):
    instead = ("placement", "post")


# --- gates of GELU ----------------------------------------------------------------------------------------------------


@fault("geglu-as-swiglu")
class _GegluAsSwiglu(_OtherConfig):
    instead = ("feed_forward", "swiglu")


@fault("geglu-tanh-as-erf")
class _GegluTanhAsErf(_OtherConfig):
    instead = ("feed_forward", "geglu")


@fault("geglu-erf-as-tanh")
class _GegluErfAsTanh(_OtherConfig):
    instead = ("feed_forward", "geglu_tanh")
