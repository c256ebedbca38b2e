"""Adapters that compute rightly and change what they share with the rest of their process."""

from __future__ import annotations

import os

import numpy as np
from honest import Block, adapter


@adapter
class ErrorState(Block):
    """Makes NumPy raise where others divide by zero."""

    def forward(self, x, position_offset=0):
        np.seterr(all="raise")
        with np.errstate(all="ignore"):
            return super().forward(x, position_offset)


@adapter
class NumpySeed(Block):
    """Seeds NumPy's global generator, for more than two tokens."""

    def forward(self, x, position_offset=0):
        if x.shape[1] > 2:
            np.random.seed(7)
        return super().forward(x, position_offset)


@adapter
class Directory(Block):
    """Walks to another folder while it is built."""

    def __init__(self, config, parameters, dtype):
        super().__init__(config, parameters, dtype)
        os.chdir("/")


@adapter
class TorchDefault(Block):
    """Changes what torch makes of Python's numbers."""

    def forward(self, x, position_offset=0):
        import torch

        torch.set_default_dtype(torch.float64)
        return super().forward(x, position_offset)
