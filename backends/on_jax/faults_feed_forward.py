"""Faults of the feed-forward branch: its activation, its gate, its biases, its width.

Must hold: each class overrides `activate`, `feed_forward` or `project_down`, and nothing else.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.fault_tools import without
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import Parameters, wide
from blocklaws.backends.on_jax.steps import Steps


@fault("gelu-tanh-for-erf")
class GeluTanhForErf(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return jax.nn.gelu(wide(a), approximate=True).astype(a.dtype)


@fault("gelu-tanh-as-erf")
class GeluTanhAsErf(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        if not self.config.feed_forward.endswith("_tanh"):
            return super().activate(a)
        return jax.nn.gelu(wide(a), approximate=False).astype(a.dtype)


@fault("activation-overflows")
class ActivationOverflows(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        power = jnp.exp(wide(a))
        return (wide(a) * (power / (1 + power))).astype(a.dtype)


@fault("gelu-quick")
class GeluQuick(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return (wide(a) * jax.nn.sigmoid(1.702 * wide(a))).astype(a.dtype)


class _Gated(Steps):
    """A gated feed-forward whose gate and up meet in another way."""

    def meet(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        raise NotImplementedError

    def feed_forward(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        gate = self.project(n, parameters["feed_forward.gate"], None)
        up = self.project(n, parameters["feed_forward.up"], None)
        return self.project_down(parameters, self.meet(gate, up))


@fault("gate-and-up-swapped")
class GateAndUpSwapped(_Gated):
    def meet(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        return gate * self.activate(up)


@fault("activation-on-product")
class ActivationOnProduct(_Gated):
    def meet(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        return self.activate(gate * up)


@fault("gate-ignored")
class GateIgnored(_Gated):
    def meet(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        return self.activate(gate)


@fault("gate-sigmoid")
class GateSigmoid(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(wide(a)).astype(a.dtype)


@fault("activation-missing")
class ActivationMissing(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return a


@fault("relu-leaky")
class ReluLeaky(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return jnp.where(a > 0, a, a * 0.01)


@fault("up-bias-missing")
class UpBiasMissing(Steps):
    def feed_forward(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().feed_forward(without(parameters, "feed_forward.up_bias"), n)


@fault("down-bias-missing")
class DownBiasMissing(Steps):
    def feed_forward(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().feed_forward(without(parameters, "feed_forward.down_bias"), n)


@fault("feed-forward-token-shift")
class FeedForwardTokenShift(Steps):
    def feed_forward(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        half = (n.shape[-1] + 1) // 2
        # Nothing comes before the first token of a call.
        before = jnp.pad(n[:, :-1, :half], ((0, 0), (1, 0), (0, 0)))
        return super().feed_forward(parameters, jnp.concatenate([before, n[..., half:]], axis=-1))


@fault("feed-forward-width-cut")
class FeedForwardWidthCut(Steps):
    def project_down(self, parameters: Parameters, inner: jax.Array) -> jax.Array:
        return super().project_down(parameters, inner.at[..., -1].set(0))


@fault("geglu-as-swiglu")
class GegluAsSwiglu(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return jax.nn.silu(wide(a)).astype(a.dtype)


@fault("geglu-tanh-as-erf")
class GegluTanhAsErf(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return jax.nn.gelu(wide(a), approximate=False).astype(a.dtype)


@fault("geglu-erf-as-tanh")
class GegluErfAsTanh(Steps):
    def activate(self, a: jax.Array) -> jax.Array:
        return jax.nn.gelu(wide(a), approximate=True).astype(a.dtype)
