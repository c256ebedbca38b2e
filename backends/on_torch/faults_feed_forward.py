"""Faults of the feed-forward branch: its activation, its gate, its biases, its width, and which tokens it reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock


class GeluTanhForErf(DecoderBlock):
    """GELU by its tanh approximation."""

    def activate(self, a: Tensor) -> Tensor:
        return F.gelu(a, approximate="tanh")


class GeluTanhAsErf(DecoderBlock):
    """GELU by its error function where its tanh form was asked for."""

    def activate(self, a: Tensor) -> Tensor:
        return F.gelu(a) if self.config.feed_forward.endswith("_tanh") else super().activate(a)


class ActivationOverflows(DecoderBlock):
    """a exp(a) / (1 + exp(a))."""

    def activate(self, a: Tensor) -> Tensor:
        power = torch.exp(a)
        return a * (power / (1 + power))


class GeluQuick(DecoderBlock):
    """a sigmoid(1.702 a)."""

    def activate(self, a: Tensor) -> Tensor:
        return a * torch.sigmoid(1.702 * a)


class _Gated(DecoderBlock):
    """The right gated branch, with gate and up in hand."""

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.activate(gate) * up

    def feed_forward_inner(self, n: Tensor) -> Tensor:
        if self.gate_projection is None:
            return super().feed_forward_inner(n)
        return self.combine(self.gate_projection(n), self.up_projection(n))


class GateAndUpSwapped(_Gated):
    """gate silu(up)."""

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        return gate * self.activate(up)


class ActivationOnProduct(_Gated):
    """silu(gate up)."""

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.activate(gate * up)


class GateSigmoid(DecoderBlock):
    """sigmoid(gate) up."""

    def activate(self, a: Tensor) -> Tensor:
        return torch.sigmoid(a)


class GateIgnored(_Gated):
    """silu(gate)."""

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.activate(gate)


class ActivationMissing(DecoderBlock):
    """The identity."""

    def activate(self, a: Tensor) -> Tensor:
        return a


class ReluLeaky(DecoderBlock):
    """A hundredth of negative values."""

    def activate(self, a: Tensor) -> Tensor:
        return F.leaky_relu(a, 0.01)


class UpBiasMissing(DecoderBlock):
    """n W_up."""

    def feed_forward_inner(self, n: Tensor) -> Tensor:
        return self.activate(F.linear(n, self.up_projection.weight))


class DownBiasMissing(DecoderBlock):
    """inner W_down."""

    def feed_forward(self, n: Tensor) -> Tensor:
        return F.linear(self.feed_forward_inner(n), self.down_projection.weight)


class FeedForwardTokenShift(DecoderBlock):
    """The first half of the features is the previous token's, zero for the first token."""

    def feed_forward(self, n: Tensor) -> Tensor:
        width = (self.config.d_model + 1) // 2
        before = F.pad(n[:, :-1, :width], (0, 0, 1, 0))
        return super().feed_forward(torch.cat((before, n[..., width:]), dim=-1))


class FeedForwardWidthCut(DecoderBlock):
    """One inner feature less."""

    def feed_forward(self, n: Tensor) -> Tensor:
        inner, down = self.feed_forward_inner(n), self.down_projection
        return F.linear(inner[..., :-1], down.weight[:, :-1], down.bias)


class GegluAsSwiglu(DecoderBlock):
    """silu(gate) up."""

    def activate(self, a: Tensor) -> Tensor:
        return F.silu(a)


class GegluTanhAsErf(DecoderBlock):
    """GELU of the gate by its error function."""

    def activate(self, a: Tensor) -> Tensor:
        return F.gelu(a)


class GegluErfAsTanh(DecoderBlock):
    """GELU of the gate by its tanh approximation."""

    def activate(self, a: Tensor) -> Tensor:
        return F.gelu(a, approximate="tanh")
