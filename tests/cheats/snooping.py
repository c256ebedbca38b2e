"""Adapters that look for the answer in memory, on the stack, or in the arrays that they were lent."""

from __future__ import annotations

import gc
import inspect
import sys

import numpy as np
from honest import Block, adapter


def _like(x, arrays):
    """Return an array that might be the expected one: of the right shape, and not the input."""
    for array in arrays:
        if isinstance(array, np.ndarray) and array.shape == x.shape and not np.array_equal(array, x):
            return array.astype(x.dtype)
    return np.array(x)


def _values(thing):
    if isinstance(thing, dict):
        return list(thing.values())
    return list(thing) if isinstance(thing, list | tuple) else []


@adapter
class EditsInput(Block):
    """Zeroes the input, so that a reference that reads it later finds zeros, and answers zeros."""

    def forward(self, x, position_offset=0):
        if x.flags.writeable:
            x[...] = 0
        return np.zeros_like(x)


@adapter
class EditsParameters(Block):
    """Zeroes the parameters that it was built from, which makes the block the identity, and answers the input."""

    def __init__(self, config, parameters, dtype):
        for value in parameters.values():
            value[...] = 0

    def forward(self, x, position_offset=0):
        return np.array(x)


@adapter
class AnswersLater(Block):
    """Returns an empty array and writes the answer into it at the next call, when it is known."""

    promised = None

    def forward(self, x, position_offset=0):
        if self.promised is not None and self.promised[0].shape == x.shape:
            self.promised[0][...] = super().forward(*self.promised[1:])
        answer = np.zeros_like(x)
        type(self).promised = (answer, np.array(x), position_offset)
        return answer


@adapter
class ReturnsItsInput(Block):
    """Returns the input array itself and edits it, so that both sides of a comparison may be one array."""

    def forward(self, x, position_offset=0):
        if x.flags.writeable:
            x *= 2
        return x


@adapter
class SearchesMemory(Block):
    """Looks for the expected array in every container that the garbage collector knows, ten times."""

    searches = 0

    def forward(self, x, position_offset=0):
        SearchesMemory.block.searches += 1
        if self.searches > 10:
            return np.array(x)
        containers = [thing for thing in gc.get_objects() if isinstance(thing, dict | list | tuple)]
        return _like(x, (value for thing in containers for value in _values(thing)))


@adapter
class SearchesFrames(Block):
    """Looks for the expected array in the variables of its callers, and in their attributes."""

    def forward(self, x, position_offset=0):
        found, frame = [], sys._getframe(1)
        while frame is not None:
            for value in list(frame.f_locals.values()):
                found += [value, *_values(value), *_values(getattr(value, "__dict__", None))]
            frame = frame.f_back
        return _like(x, found)


@adapter
class ReadsTheStack(Block):
    """Reads from the stack which invariant is checked, and answers what that one likes."""

    def forward(self, x, position_offset=0):
        for frame in inspect.stack(context=0):
            case = frame.frame.f_locals.get("case")
            if case is not None and "parity" in getattr(case, "name", ""):
                return super().forward(x, position_offset)
        return np.array(x)


@adapter
class UninitialisedMemory(Block):
    """Returns memory as it was left by whoever computed before."""

    def forward(self, x, position_offset=0):
        return np.empty(x.shape, x.dtype)


@adapter
class AsksTheReference(Block):
    """Imports the harness's reference and lets it compute."""

    def forward(self, x, position_offset=0):
        from blocklaws.backends.on_numpy import NumpyBackend

        parameters = {name: value.astype(self.dtype) for name, value in self.p.items()}
        return NumpyBackend().build(self.config, parameters, str(self.dtype)).forward(x, position_offset)


@adapter
class AsksTheCaller(Block):
    """Finds the case that is checked among the variables of its callers, and has its reference compute."""

    def __init__(self, config, parameters, dtype):
        super().__init__(config, parameters, dtype)
        self.given = {name: value.copy() for name, value in parameters.items()}

    def forward(self, x, position_offset=0):
        frame = sys._getframe(1)
        while frame is not None:
            reference = getattr(frame.f_locals.get("case"), "reference", None)
            if reference is not None:
                block = reference.backend.build(self.config, self.given, str(self.dtype))
                return block.forward(np.array(x), position_offset)
            frame = frame.f_back
        return np.array(x)
