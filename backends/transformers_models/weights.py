"""Weights at which a mistake shows: 1/sqrt(fan_in) for matrices, and gains and biases that all differ.

A library initialises with a standard deviation of 0.02, at which a model is nearly linear in its embeddings and a leak
is lost in the rounding of float32. Must hold: what a model computes its recurrence from (decays, time steps) keeps its
own values, for others may not be stable.
"""

from __future__ import annotations

import re
from typing import Any

import torch

__all__ = ["fill"]

_KEPT = re.compile(r"A_log|dt_|\.D$|time_|decay|lambda|recurrent_param|sink|igate|fgate|ifgate|slope")


def fill(model: Any) -> None:
    """Fill the parameters of a model, and nothing that is kept."""
    with torch.no_grad():
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        for name, parameter in model.named_parameters():
            # What is not trained is no weight: a table of sines.
            if _KEPT.search(name) or not parameter.requires_grad or not parameter.is_floating_point():
                continue
            if id(parameter) in embeddings:
                parameter.normal_(0, 0.5)
            elif parameter.ndim >= 2:
                # [out, in] of a projection, [experts, in, out] of experts, [out, 1, width] of a convolution.
                parameter.normal_(0, max(parameter.shape[1:]) ** -0.5)
            else:
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter)).add_(0.1 * torch.randn_like(parameter))
