"""Blocks whose feed-forward branch is wrong: the activation, the gate, the biases, which features enter."""

from functools import partial

import numpy as np

from blocklaws.backends.on_numpy.activations import ACTIVATIONS, Activated, gelu, gelu_tanh, sigmoid
from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.shapes import Inner, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, chain

# --- the activation ---------------------------------------------------------------------------------------------------


class _Activated(NumpyBlock):
    """Another activation in place of the config's."""

    def activation(self, a: Inner) -> Activated:
        """Return the value and the slope."""
        raise NotImplementedError

    def activate(self, a: Inner) -> tuple[Inner, Pullback]:
        value, slope = self.activation(a)
        return self.rounded(value, partial(self.pull_activate, slope))


@fault("gelu-tanh-for-erf")
class _GeluTanhForErf(_Activated):
    def activation(self, a: Inner) -> Activated:
        return gelu_tanh(a)


@fault("gelu-tanh-as-erf")
class _GeluTanhAsErf(_Activated):
    def activation(self, a: Inner) -> Activated:
        # The block is right but for that one word of the config.
        return (gelu if self.config.feed_forward == "gelu_tanh" else ACTIVATIONS[self.config.feed_forward])(a)


@fault("activation-overflows")
class _ActivationOverflows(_Activated):
    def activation(self, a: Inner) -> Activated:
        with np.errstate(over="ignore", invalid="ignore"):
            power = np.exp(a)
            s = power / (1 + power)
        return a * s, lambda: s * (1 + a * (1 - s))


@fault("gelu-quick")
class _GeluQuick(_Activated):
    def activation(self, a: Inner) -> Activated:
        s = sigmoid(1.702 * a)
        return a * s, lambda: s + 1.702 * a * s * (1 - s)


@fault("gate-sigmoid")
class _GateSigmoid(_Activated):
    def activation(self, a: Inner) -> Activated:
        s = sigmoid(a)
        return s, lambda: s * (1 - s)


@fault("activation-missing")
class _ActivationMissing(_Activated):
    def activation(self, a: Inner) -> Activated:
        return a, lambda: np.ones_like(a)


@fault("relu-leaky")
class _ReluLeaky(_Activated):
    def activation(self, a: Inner) -> Activated:
        slope = np.where(a > 0, 1, 0.01).astype(a.dtype)
        return a * slope, lambda: slope


# --- the gate ---------------------------------------------------------------------------------------------------------


@fault("gate-and-up-swapped")
class _GateAndUpSwapped(NumpyBlock):
    def project_gate(self, n: Stream) -> tuple[Inner, Pullback]:
        return self.linear(n, "feed_forward.up")

    def project_up(self, n: Stream) -> tuple[Inner, Pullback]:
        return self.linear(n, "feed_forward.gate")


@fault("activation-on-product")
class _ActivationOnProduct(NumpyBlock):
    def activate(self, a: Inner) -> tuple[Inner, Pullback]:
        return a, chain()

    def multiply_gate(self, gate: Inner, up: Inner) -> tuple[Inner, PullbackOfTwo]:
        product, pull_product = super().multiply_gate(gate, up)
        value, pull_activate = super().activate(product)
        return value, lambda cotangent, gradients: pull_product(pull_activate(cotangent, gradients), gradients)


@fault("gate-ignored")
class _GateIgnored(NumpyBlock):
    def multiply_gate(self, gate: Inner, up: Inner) -> tuple[Inner, PullbackOfTwo]:
        return gate, lambda cotangent, _: (cotangent, np.zeros_like(cotangent))


# --- biases and features ----------------------------------------------------------------------------------------------


@fault("up-bias-missing")
class _UpBiasMissing(NumpyBlock):
    def has(self, name: str) -> bool:
        return super().has(name) and name != "feed_forward.up_bias"


@fault("down-bias-missing")
class _DownBiasMissing(NumpyBlock):
    def has(self, name: str) -> bool:
        return super().has(name) and name != "feed_forward.down_bias"


@fault("feed-forward-token-shift")
class _FeedForwardTokenShift(NumpyBlock):
    def feed_forward(self, n: Stream) -> tuple[Stream, Pullback]:
        half = (self.config.d_model + 1) // 2
        # Before the first token of a call there is nothing.
        shifted = n.copy()
        shifted[:, 1:, :half] = n[:, :-1, :half]
        shifted[:, :1, :half] = 0

        def pull_shift(cotangent: np.ndarray, _: Gradients) -> np.ndarray:
            result = cotangent.copy()
            result[:, :-1, :half] = cotangent[:, 1:, :half]
            result[:, -1:, :half] = 0
            return result

        branch, pullback = super().feed_forward(shifted)
        return branch, chain(pull_shift, pullback)


@fault("feed-forward-width-cut")
class _FeedForwardWidthCut(NumpyBlock):
    def project_down(self, inner: Inner) -> tuple[Stream, Pullback]:
        kept = np.arange(inner.shape[-1]) < inner.shape[-1] - 1
        branch, pullback = super().project_down(np.where(kept, inner, 0))
        return branch, lambda cotangent, gradients: pullback(cotangent, gradients) * kept
