"""The feed-forward branch: each token on its own, wide in the middle.

Must hold: a row of the branch depends on that row of its input alone.

Sources: ``swiglu`` and ``geglu``, Shazeer 2020, equation 6; one matrix in and one out, Vaswani et al. 2017, equation 2.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from blocklaws.backends.on_numpy.activations import ACTIVATIONS
from blocklaws.backends.on_numpy.shapes import Inner, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, Steps, chain

__all__ = ["FeedForwardSteps"]


class FeedForwardSteps(Steps):
    """The steps of the feed-forward branch, each with its pullback."""

    def project_gate(self, n: Stream) -> tuple[Inner, Pullback]:
        """Return ``n W_gate``, before its activation."""
        return self.linear(n, "feed_forward.gate")

    def project_up(self, n: Stream) -> tuple[Inner, Pullback]:
        """Return ``n W_up + b``."""
        return self.linear(n, "feed_forward.up")

    def project_down(self, inner: Inner) -> tuple[Stream, Pullback]:
        """Return ``inner W_down + b``."""
        return self.linear(inner, "feed_forward.down")

    def activate(self, a: Inner) -> tuple[Inner, Pullback]:
        """Return the activation that the config names: silu, gelu, its tanh form, or relu."""
        value, slope = ACTIVATIONS[self.config.feed_forward](a)
        return self.rounded(value, partial(self.pull_activate, slope))

    def pull_activate(self, slope: Callable[[], np.ndarray], cotangent: Inner, _: Gradients) -> Inner:
        """Return the cotangent of ``a``."""
        result: np.ndarray = cotangent * slope()
        return result

    def multiply_gate(self, gate: Inner, up: Inner) -> tuple[Inner, PullbackOfTwo]:
        """Return the activated gate times the up projection."""
        return self.rounded(gate * up, partial(self.pull_multiply_gate, gate, up))

    def pull_multiply_gate(self, gate: Inner, up: Inner, cotangent: Inner, _: Gradients) -> tuple[Inner, Inner]:
        """Return the cotangents of the gate and of the up projection."""
        return cotangent * up, cotangent * gate

    def feed_forward(self, n: Stream) -> tuple[Stream, Pullback]:
        """Return the branch: ``(act(n W_gate) * (n W_up)) W_down``, or ``act(n W_up + b) W_down + b``."""
        return self._gated(n) if self.config.gated else self._one_gate(n)

    def _gated(self, n: Stream) -> tuple[Stream, Pullback]:
        gate, pull_gate = self.project_gate(n)
        activated, pull_activate = self.activate(gate)
        up, pull_up = self.project_up(n)
        inner, pull_multiply = self.multiply_gate(activated, up)
        branch, pull_down = self.project_down(inner)
        pull_fork = partial(_pull_gated, chain(pull_gate, pull_activate), pull_up, pull_multiply)
        return self.rounded(branch, chain(pull_fork, pull_down))

    def _one_gate(self, n: Stream) -> tuple[Stream, Pullback]:
        up, pull_up = self.project_up(n)
        inner, pull_activate = self.activate(up)
        branch, pull_down = self.project_down(inner)
        return branch, chain(pull_up, pull_activate, pull_down)


def _pull_gated(
    pull_gate: Pullback, pull_up: Pullback, pull_multiply: PullbackOfTwo, cotangent: Inner, gradients: Gradients
) -> Stream:
    to_gate, to_up = pull_multiply(cotangent, gradients)
    return pull_gate(to_gate, gradients) + pull_up(to_up, gradients)
