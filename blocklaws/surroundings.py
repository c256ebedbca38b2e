"""What a block shares with everything else in its process, looked at before and after it is called.

Must hold: a change that a backend leaves behind (NumPy's error state and global random state, the working
directory, the default dtype of a framework that it has loaded) is put back, so that it spoils no other case, and is
told. Python's own random state is put back too, and not told: run-time type checkers draw from it. A worker process
looks at its own, and what it found is told here (`left_elsewhere`). Must not: mind what a backend changes and puts back
itself, or threads that it keeps.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

__all__ = ["Surroundings", "left_elsewhere"]


# The state of NumPy's global generator, 624 words and a position. `numpy.random.get_state` takes twenty times as long,
# and this is read before and after every example.
_MERSENNE_BYTES = 625 * 4


def _numpy_random() -> tuple[Any, bytes]:
    generator = get_bit_generator()
    if not isinstance(generator, np.random.MT19937):
        return generator, b""  # somebody's own: only that it is the same one
    return generator, ctypes.string_at(generator.ctypes.state_address, _MERSENNE_BYTES)


def _set_numpy_random(state: tuple[Any, bytes]) -> None:
    generator, words = state
    set_bit_generator(generator)
    if words:
        ctypes.memmove(generator.ctypes.state_address, words, len(words))


_TORCH_BEGINS = "torch.float32"


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _set_working_directory(folder: str) -> None:
    if folder:
        os.chdir(folder)


def _torch_default() -> str:
    # Read where a backend has loaded it; nothing is imported for this, and until then it is what torch begins with.
    torch = sys.modules.get("torch")
    return (
        str(torch.get_default_dtype()) if torch is not None and hasattr(torch, "get_default_dtype") else _TORCH_BEGINS
    )


def _set_torch_default(dtype: str) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_default_dtype(getattr(torch, dtype.removeprefix("torch.")))


#: What -> how it is read, and how it is put back.
_SHARED: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "NumPy's error state": (np.geterr, lambda state: np.seterr(**state)),
    "NumPy's global random state": (_numpy_random, _set_numpy_random),
    "the working directory": (_working_directory, _set_working_directory),
    "torch's default dtype": (_torch_default, _set_torch_default),
}

# Some libraries draw a random number when they are imported, which is nobody's fault; it is put back and not told.
_DRAWN_BY_IMPORTS = "NumPy's global random state"

# States of thousands of bits say nothing to a reader.
_TOO_LONG = 120


# What worker processes found since the last look.
_ELSEWHERE: dict[str, None] = {}


def left_elsewhere(sentence: str) -> None:
    """Note what a backend changed in a process of its own; the next `Surroundings.restored` tells it."""
    _ELSEWHERE[sentence] = None


class Surroundings:
    """The shared state as it is when this is made."""

    def __init__(self) -> None:
        _ELSEWHERE.clear()
        self._was = {name: read() for name, (read, _) in _SHARED.items()}
        self._modules = len(sys.modules)
        self._random = random.getstate()

    def restored(self) -> str:
        """Put back what has changed, and return a sentence about it; empty when nothing has."""
        changed = []
        random.setstate(self._random)
        for name, (read, put_back) in _SHARED.items():
            was, now = self._was[name], read()
            if now == was:
                continue
            put_back(was)
            if name == _DRAWN_BY_IMPORTS and len(sys.modules) > self._modules:
                continue
            values = f" from {was} to {now}"
            changed.append(name + (values if len(values) <= _TOO_LONG else ""))
        here = [f"the backend changed {', '.join(changed)}, and left it so"] if changed else []
        told = "; ".join([*here, *_ELSEWHERE])
        _ELSEWHERE.clear()
        return told
