"""NumPy arrays to torch tensors and back, bit for bit.

Must hold: every crossing is a copy, so no result aliases an argument and no argument has to be writable or contiguous;
and each tensor lies in memory that torch allocated, because its alignment can decide which loop a matrix product takes.
Must not: pass through another dtype. NumPy has no bfloat16 of its own, so those bits cross as 16-bit integers.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

__all__ = ["NUMPY_DTYPES", "TORCH_DTYPES", "Array", "to_numpy", "to_tensor"]

Array = npt.NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}

TORCH_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def to_tensor(array: Array, device: torch.device) -> torch.Tensor:
    """Return a tensor on ``device`` with the shape, the dtype and the bits of ``array``."""
    bits = array.view(np.int16) if array.dtype == NUMPY_DTYPES["bfloat16"] else array
    # Not torch.from_numpy: it shares the memory, and it warns of an array that is read-only.
    buffer = torch.empty(bits.shape, dtype=_TORCH_OF_NUMPY[bits.dtype], device="cpu")
    buffer.numpy()[...] = bits
    return (buffer.view(torch.bfloat16) if bits is not array else buffer).to(device)


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return a C-ordered array of its own with the shape, the dtype and the bits of ``tensor``."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(tensor.numpy())


_TORCH_OF_NUMPY: dict[np.dtype[Any], torch.dtype] = {
    **{NUMPY_DTYPES[name]: dtype for name, dtype in TORCH_DTYPES.items() if name != "bfloat16"},
    np.dtype(np.int16): torch.int16,
}
