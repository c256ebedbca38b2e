"""Adapters that are right and unusual: none of them may be refuted, in one process or isolated."""

from __future__ import annotations

import concurrent.futures
import hashlib

import numpy as np
from honest import Block, adapter


@adapter
class NestedLists(Block):
    """Returns Python lists of NumPy scalars."""

    def forward(self, x, position_offset=0):
        return [[list(token) for token in sequence] for sequence in super().forward(x, position_offset)]


@adapter
class FortranOrdered(Block):
    """Returns arrays in Fortran order."""

    def forward(self, x, position_offset=0):
        return np.asfortranarray(super().forward(x, position_offset))


@adapter
class ReadOnly(Block):
    """Returns arrays that cannot be written to."""

    def forward(self, x, position_offset=0):
        y = super().forward(x, position_offset)
        y.flags.writeable = False
        return y


@adapter
class Window(Block):
    """Returns a view in the middle of a larger array, with strides of its own."""

    def forward(self, x, position_offset=0):
        y = super().forward(x, position_offset)
        larger = np.full([2 * length + 3 for length in y.shape], 7, y.dtype)
        window = larger[tuple(slice(1, 1 + 2 * length, 2) for length in y.shape)]
        window[...] = y
        return window


@adapter
class Backwards(Block):
    """Returns a view with negative strides."""

    def forward(self, x, position_offset=0):
        return super().forward(x, position_offset)[:, ::-1].copy()[:, ::-1]


class _Tensor:
    """Somebody's array: it has ``__array__`` and nothing else."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array if dtype is None else self._array.astype(dtype)


@adapter
class OwnArrays(Block):
    """Returns objects that NumPy can read and that are no arrays."""

    def forward(self, x, position_offset=0):
        return _Tensor(super().forward(x, position_offset))


class _Strict(np.ndarray):
    """An array that has no truth, and no equality but that of its values."""

    def __bool__(self):
        raise TypeError("an array has no truth")

    def __eq__(self, other):
        raise TypeError("compare values")


@adapter
class ASubclass(Block):
    """Returns arrays of a class of its own."""

    def forward(self, x, position_offset=0):
        return super().forward(x, position_offset).view(_Strict)


@adapter
class CachedByContent(Block):
    """Keeps answers of all blocks in one table, under all that they depend on: a common shift is not of it."""

    table = {}  # noqa: RUF012

    def __init__(self, config, parameters, dtype):
        super().__init__(config, parameters, dtype)
        digest = hashlib.sha256(repr((config, dtype)).encode())
        for value in parameters.values():
            digest.update(value.tobytes())
        self.identity = digest.digest()

    def forward(self, x, position_offset=0):
        key = self.identity, x.shape, x.tobytes()
        if key not in self.table:
            self.table[key] = super().forward(x, position_offset)
        return self.table[key].copy()


@adapter
class BuiltLate(Block):
    """Prepares itself at the first call of each shape, as what compiles does."""

    def __init__(self, config, parameters, dtype):
        self.given, self.made = (config, {name: value.copy() for name, value in parameters.items()}, dtype), {}

    def forward(self, x, position_offset=0):
        if x.shape not in self.made:
            self.made[x.shape] = Block(*self.given)
        return self.made[x.shape].forward(x, position_offset)


@adapter
class ReversedSums(Block):
    """Adds the terms of every matrix product in the opposite order, in float32."""

    def linear(self, x, name):
        x32, weights = x.astype(np.float32), self.p[name].astype(np.float32)
        return (x32[..., ::-1] @ weights[::-1]).astype(np.float64) + self.p.get(f"{name}_bias", 0.0)


@adapter
class OnlineSoftmax(Block):
    """Walks over the keys in chunks of two and keeps a running maximum, as fused attention does."""

    def mix(self, query, key, value):
        tokens = query.shape[2]
        highest = np.full((*query.shape[:3], 1), -np.inf)
        total, mixed = np.zeros_like(highest), np.zeros(query.shape)
        for start in range(0, tokens, 2):
            keys = slice(start, start + 2)
            scores = query @ key[:, :, keys].swapaxes(-1, -2)
            visible = np.arange(tokens)[:, None] >= np.arange(tokens)[keys]
            scores = np.where(visible, scores, -np.inf)
            new = np.maximum(highest, scores.max(-1, keepdims=True))
            shift = np.where(np.isfinite(new), new, 0)
            kept, weights = np.exp(highest - shift), np.exp(scores - shift)
            total = total * kept + weights.sum(-1, keepdims=True)
            mixed = mixed * kept + weights @ value[:, :, keys]
            highest = new
        return mixed / total


@adapter
class OneSequenceAtATime(Block):
    """Loops over the batch in Python."""

    def forward(self, x, position_offset=0):
        rows = [super(type(self), self).forward(x[b : b + 1], position_offset) for b in range(len(x))]
        return np.concatenate(rows) if rows else np.zeros_like(x)


@adapter
class OneTokenAtATime(Block):
    """Computes each output row from the tokens up to it alone."""

    def forward(self, x, position_offset=0):
        forward = super().forward
        return np.concatenate([forward(x[:, : t + 1], position_offset)[:, t:] for t in range(x.shape[1])], axis=1)


@adapter
class Threads(Block):
    """Computes in a pool of threads that stays."""

    pool = concurrent.futures.ThreadPoolExecutor(2)

    def forward(self, x, position_offset=0):
        return self.pool.submit(super().forward, x, position_offset).result()


@adapter
class Chatty(Block):
    """Prints a line a call."""

    def forward(self, x, position_offset=0):
        print("forward", x.shape, flush=True)
        return super().forward(x, position_offset)
