"""The block: two halves, each a branch with its norm and its residual addition, and what a caller may ask of them.

Must hold: a call keeps nothing and modifies nothing it was given; what it returns shares no memory with what it was
given. Arithmetic is IEEE 754's: what overflows is an infinity in the result, not a warning. A refused call leaves no
trace. The capabilities and their arrays are those of the adapter contract.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import ParamSpec, SupportsIndex, TypeVar

import numpy as np

from blocklaws.backends.on_numpy.attention import AttentionSteps
from blocklaws.backends.on_numpy.boundaries import admit_cotangent, admit_input, admit_offset, admit_parameters
from blocklaws.backends.on_numpy.cache import Call, KeyValueCache
from blocklaws.backends.on_numpy.feed_forward import FeedForwardSteps
from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Numbers, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, chain
from blocklaws.canonical import STAGES
from blocklaws.config import BlockConfig

__all__ = ["NumpyBlock", "ieee"]

#: A step with one input, and one with two.
Step = Callable[[Stream], tuple[Stream, Pullback]]
Join = Callable[[Stream, Stream], tuple[Stream, PullbackOfTwo]]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def ieee(capability: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Return the capability with overflows and invalid operations as infinities and NaNs, without warnings."""

    @wraps(capability)
    def quiet(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with np.errstate(all="ignore"):
            return capability(*args, **kwargs)

    return quiet


class NumpyBlock(AttentionSteps, FeedForwardSteps):
    """One decoder block in NumPy.

    Args:
        config: the sizes and choices.
        parameters: name -> array, [in, out] for a matrix; copied.
        precision: the dtype.

    Raises:
        ValueError: a parameter is missing, unknown or of the wrong shape.
    """

    #: Other ways to the same output, for ``forward_by``: here with parameters of its own for each sequence.
    ways = ("each",)

    def __init__(self, config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision) -> None:
        super().__init__(config, admit_parameters(config, parameters, precision), precision)

    # --- the two halves; Xiong et al. 2020, figure 1: post-norm on its left, pre-norm on its right ---

    def scale_branch(self, branch: Stream) -> tuple[Stream, Pullback]:
        """Return a branch as it is added to the stream: times ``residual_scale``."""
        scale = self.config.residual_scale
        if scale == 1:
            return branch, chain()
        return self.rounded(branch * scale, partial(self.pull_scale_branch, scale))

    def pull_scale_branch(self, scale: float, cotangent: Stream, _: Gradients) -> Stream:
        """Return the cotangent of the branch."""
        return cotangent * scale

    def add_attention(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        """Return the first residual addition."""
        return self.rounded(x + branch, self.pull_add_attention)

    def pull_add_attention(self, cotangent: Stream, _: Gradients) -> tuple[Stream, Stream]:
        """Return the cotangents of the residual stream and of the attention branch."""
        return cotangent, cotangent

    def add_feed_forward(self, x: Stream, branch: Stream) -> tuple[Stream, PullbackOfTwo]:
        """Return the second residual addition."""
        return self.rounded(x + branch, self.pull_add_feed_forward)

    def pull_add_feed_forward(self, cotangent: Stream, _: Gradients) -> tuple[Stream, Stream]:
        """Return the cotangents of the residual stream and of the feed-forward branch."""
        return cotangent, cotangent

    def attention_half(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        """Return ``x + MHA(norm(x))`` (pre), ``norm(x + MHA(x))`` (post) or ``x + norm(MHA(x))`` (inside)."""
        value, normed, pullback = self.half(
            x, self.attention_norm, lambda n: self.attention(n, call), self.add_attention
        )
        call.stages.update(attention_norm=normed, after_attention=value)
        return value, pullback

    def feed_forward_half(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        """Return ``x + FFN(norm(x))`` (pre), ``norm(x + FFN(x))`` (post) or ``x + norm(FFN(x))`` (inside)."""
        value, normed, pullback = self.half(
            x, self.feed_forward_norm, lambda n: self.feed_forward_seen(n, call), self.add_feed_forward
        )
        call.stages.update(feed_forward_norm=normed, output=value)
        return value, pullback

    def half(self, x: Stream, norm: Step, branch: Step, add: Join) -> tuple[Stream, Stream, Pullback]:
        """Return one half of the block, what its norm gave, and the pullback, in the order of the placement."""
        if self.config.placement == "pre":
            normed, pull_norm = norm(x)
            given, pull_given = branch(normed)
            scaled, pull_scale = self.scale_branch(given)
            value, pull_add = add(x, scaled)
            return value, normed, self.residual(chain(pull_norm, pull_given, pull_scale), pull_add)
        given, pull_given = branch(x)
        if self.config.placement == "inside":
            normed, pull_norm = norm(given)
            scaled, pull_scale = self.scale_branch(normed)
            value, pull_add = add(x, scaled)
            return value, normed, self.residual(chain(pull_given, pull_norm, pull_scale), pull_add)
        scaled, pull_scale = self.scale_branch(given)
        added, pull_add = add(x, scaled)
        value, pull_norm = norm(added)
        return value, value, chain(self.residual(chain(pull_given, pull_scale), pull_add), pull_norm)

    def feed_forward_seen(self, n: Stream, call: Call) -> tuple[Stream, Pullback]:
        """Return the feed-forward branch and leave it in ``call``."""
        branch, pullback = self.feed_forward(n)
        call.stages.update(feed_forward_branch=branch)
        return branch, pullback

    def residual(self, pull_branch: Pullback, pull_add: PullbackOfTwo) -> Pullback:
        """Return the pullback of ``x + branch(x)``."""
        return partial(self._pull_residual, pull_branch, pull_add)

    def _pull_residual(
        self, pull_branch: Pullback, pull_add: PullbackOfTwo, cotangent: Stream, gradients: Gradients
    ) -> Stream:
        to_x, to_branch = pull_add(cotangent, gradients)
        return self.precision.round(to_x + pull_branch(to_branch, gradients))

    def run(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        """Return the output of the block; every stage is left in ``call``."""
        call.stages["input"] = x
        if self.config.residual == "parallel":
            return self.beside(x, call)
        after_attention, pull_attention = self.attention_half(x, call)
        output, pull_feed_forward = self.feed_forward_half(after_attention, call)
        return output, chain(pull_attention, pull_feed_forward)

    def beside(self, x: Stream, call: Call) -> tuple[Stream, Pullback]:
        """Return ``x + MHA(norm(x)) + FFN(norm(x))``, each with its own norm: neither branch reads the other's."""
        after_attention, pull_attention = self.attention_half(x, call)
        normed, pull_norm = self.feed_forward_norm(x)
        branch, pull_branch = self.feed_forward_seen(normed, call)
        scaled, pull_scale = self.scale_branch(branch)
        output, pull_add = self.add_feed_forward(after_attention, scaled)
        call.stages.update(feed_forward_norm=normed, output=output)
        return output, partial(self._pull_beside, pull_attention, chain(pull_norm, pull_branch, pull_scale), pull_add)

    def _pull_beside(
        self,
        pull_attention: Pullback,
        pull_feed_forward: Pullback,
        pull_add: PullbackOfTwo,
        cotangent: Stream,
        gradients: Gradients,
    ) -> Stream:
        to_stream, to_branch = pull_add(cotangent, gradients)
        return self.precision.round(pull_attention(to_stream, gradients) + pull_feed_forward(to_branch, gradients))

    # --- the capabilities --------------------------------------------------------------------------------------------

    def begin(self, x: AnyArray, position_offset: SupportsIndex) -> tuple[Stream, Call]:
        """Return an own copy of the input and the state of a call, once nothing is refused."""
        own = admit_input(x, self.config, self.precision)
        tokens = own.shape[1]
        return own, Call(self.positions(tokens, admit_offset(position_offset, tokens, self.config)))

    @ieee
    def forward(self, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        """Return the output, shaped as ``x``: [batch, token, d_model].

        Raises:
            ValueError: rank, width, number of tokens, dtype or position is refused.
        """
        output, _ = self.run(*self.begin(x, position_offset))
        return self.precision.leave(output)

    @ieee
    def forward_each(
        self, x: AnyArray, parameters: Mapping[str, AnyArray], position_offset: SupportsIndex = 0
    ) -> Stream:
        """Return the output of each sequence under parameters of its own: ``parameters`` has name -> [batch, *shape].

        What is not named is this block's. One call stands for many blocks, of which central differences take hundreds.
        Raises as ``forward`` does.
        """
        own, call = self.begin(x, position_offset)
        each = copy.copy(self)
        each._parameters = dict(self._parameters)
        for name, array in parameters.items():
            entered = self.precision.enter(np.asarray(array))
            # A matrix [batch, in, out] meets [batch, token, in] in one product a sequence; a vector needs a token axis.
            each._parameters[name] = entered if entered.ndim == 3 else entered[:, None]
        output, _ = each.run(own, call)
        return self.precision.leave(output)

    def forward_by(self, way: str, x: AnyArray, position_offset: SupportsIndex = 0) -> Stream:
        """Return the output as the one of ``ways`` computes it; raises as ``forward`` does."""
        if way not in self.ways:
            raise ValueError(f"configuration: way={way!r} must be one of {list(self.ways)}")
        batch = np.asarray(x).shape[:1]
        each = {name: np.broadcast_to(array, (*batch, *array.shape)) for name, array in self.parameters().items()}
        return self.forward_each(x, each, position_offset)

    @ieee
    def trace(self, x: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        """Return stage -> array for every stage, in the order of the computation.

        With the norms after the additions, ``attention_norm`` is ``after_attention`` and ``feed_forward_norm`` is
        ``output``: a norm's stage is what the norm gives. Raises as ``forward`` does.
        """
        own, call = self.begin(x, position_offset)
        self.run(own, call)
        return {stage: self.precision.leave(call.stages[stage]) for stage in STAGES if stage in call.stages}

    @ieee
    def gradients(self, x: AnyArray, cotangent: AnyArray, position_offset: SupportsIndex = 0) -> dict[str, Numbers]:
        """Return the gradient of ``sum(cotangent * output)`` by ``"input"`` and by every parameter name.

        Raises:
            ValueError: as ``forward``, or the cotangent is not shaped as the output.
        """
        own, call = self.begin(x, position_offset)
        own_cotangent = admit_cotangent(cotangent, own, self.precision)
        _, pullback = self.run(own, call)
        by_parameter: Gradients = {}
        gradients = {"input": pullback(own_cotangent, by_parameter)}
        for name, array in self._parameters.items():
            # No step has read a parameter that no pullback speaks of.
            gradients[name] = by_parameter[name] if name in by_parameter else np.zeros_like(array)
        return {name: self.precision.leave(gradient) for name, gradient in gradients.items()}

    def parameters(self) -> dict[str, Numbers]:
        """Return name -> copy of each parameter, in canonical order."""
        return {name: self.precision.leave(array) for name, array in self._parameters.items()}

    @ieee
    def forward_cached(self, x: AnyArray, cache: KeyValueCache | None) -> tuple[Stream, KeyValueCache]:
        """Return the output of the next tokens and the cache to continue from; ``cache`` is None at the start.

        Positions continue where the cache ends. The cache given is released.

        Raises:
            ValueError: as ``forward``, or the cache was released before or holds another batch.
        """
        own, call = self.begin(x, self.next_position(cache))
        if cache is not None:
            call.past = cache.look(len(own))
            cache.release()
        output, _ = self.run(own, call)
        return self.precision.leave(output), self.make_cache(call)

    def next_position(self, cache: KeyValueCache | None) -> int:
        """Return the position of the first token after those of the cache."""
        return 0 if cache is None else cache.length

    def make_cache(self, call: Call) -> KeyValueCache:
        """Return the cache that the next call continues from."""
        assert call.present is not None
        return KeyValueCache(call.present, int(call.positions[-1]) + 1)
