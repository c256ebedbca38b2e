"""Faults of one way to compute the forward: right as `forward` runs it, wrong compiled or in training mode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock


class AnglesInHalfByOneWay(DecoderBlock):
    """Angles rounded to bfloat16 when compiled."""

    def rotary_angles(self, positions: Tensor) -> Tensor:
        angles = super().rotary_angles(positions)
        return angles.to(torch.bfloat16).to(angles.dtype) if torch.compiler.is_compiling() else angles


class NormInHalfByOneWay(DecoderBlock):
    """The core of both norms rounded to bfloat16 when compiled."""

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        core = super().standardize(x, eps)
        return core.to(torch.bfloat16).to(core.dtype) if torch.compiler.is_compiling() else core


class TrainingGeluTanh(DecoderBlock):
    """The tanh form of GELU in training mode."""

    def activate(self, a: Tensor) -> Tensor:
        return F.gelu(a, approximate="tanh") if self.training else super().activate(a)
