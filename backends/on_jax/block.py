"""A built block: NumPy in, NumPy out, around the compiled functions.

Must hold: parameters go to the device once, when the block is built (on the CPU they stay where they are); a call sends
its input and fetches its result, no more. Must hold: what the caller gave is never modified, and what it gets shares
memory with nothing (JAX may hand out views of its own buffers, or of its inputs, on a CPU).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np

from blocklaws.backends.on_jax import compiled, refusals
from blocklaws.backends.on_jax.numerics import KeyValues
from blocklaws.backends.on_jax.refusals import Array
from blocklaws.backends.on_jax.steps import Steps
from blocklaws.canonical import STAGES, parameter_shapes
from blocklaws.config import BlockConfig

__all__ = ["Cache", "JaxBlock"]

Placed = TypeVar("Placed")

#: The slots of the smallest cache: enough that short generations never grow theirs, which would compile anew.
SMALLEST_CACHE = 128


class Cache:
    """Keys and values of the tokens so far, good for one call.

    Attributes:
        owner: the block that made it.
        batch: how many sequences it holds.
        length: how many tokens it holds, the position of the next one.
    """

    __slots__ = ("_key_values", "batch", "length", "owner")

    def __init__(self, owner: JaxBlock, batch: int, length: int, key_values: KeyValues) -> None:
        self.owner = owner
        self.batch = batch
        self.length = length
        self._key_values: KeyValues | None = key_values

    def take(self, owner: JaxBlock, batch: int) -> KeyValues:
        """Return the buffers and release the cache.

        Raises:
            ValueError: ``released cache:``, it was used before, is another block's, or holds another batch.
        """
        if self.owner is not owner:
            raise ValueError("released cache: this cache was made by another block; start this block's with cache=None")
        if self._key_values is None:
            raise ValueError("released cache: this cache was used by an earlier call; pass the cache that it returned")
        if self.batch != batch:
            raise ValueError(
                f"released cache: the cache holds {self.batch} sequences, but x has {batch}; "
                "continue the same batch, or start with cache=None"
            )
        key_values, self._key_values = self._key_values, None
        return key_values


class JaxBlock:
    """One decoder block on one device, with every capability."""

    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32", "bfloat16", "float16")
    #: Other ways to the same output, for `forward_by`: here operation by operation, without `jax.jit`.
    ways: ClassVar[tuple[str, ...]] = ("eager",)
    #: The mathematics; a block with a fault has other ones.
    steps_class: ClassVar[type[Steps]] = Steps

    def __init__(
        self, config: BlockConfig, parameters: Mapping[str, Any], dtype: str, device: jax.Device | None
    ) -> None:
        """Check the parameters and send them to the device (None: JAX's default one).

        Raises:
            ValueError: see `refusals.checked_dtype` and `refusals.checked_parameters`.
        """
        # The name of the kind of block changes no step: without it, equal choices share their compilations.
        self.steps = self.steps_class(config.replace(block=""))
        self.config = config
        self.dtype = refusals.checked_dtype(dtype, self.dtypes)
        self.device = device
        self.operands: dict[str, Any] = self.placed(refusals.checked_parameters(config, parameters, self.dtype))

    def forward(self, x: Any, position_offset: int = 0) -> Array:
        """Return the output [B, T, d_model] of x [B, T, d_model].

        Raises:
            ValueError: see `refusals.checked_input` and `refusals.checked_offset`.
        """
        x, offset = self.arguments(x, position_offset)
        with compiled.precise():
            return np.array(compiled.forward(self.steps, self.operands, x, offset))

    def trace(self, x: Any, position_offset: int = 0) -> dict[str, Array]:
        """Return stage -> array, in the order of the computation; refusals as for `forward`."""
        x, offset = self.arguments(x, position_offset)
        with compiled.precise():
            stages = compiled.trace(self.steps, self.operands, x, offset)
            return {stage: np.array(stages[stage]) for stage in STAGES if stage in stages}

    def gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        """Return the gradients of sum(output * cotangent): "input", then the parameters in order.

        Raises:
            ValueError: as for `forward`, or the cotangent does not have the shape of x.
        """
        x, offset = self.arguments(x, position_offset)
        cotangent = refusals.checked_cotangent(x, cotangent)
        with compiled.precise():
            of_parameters, of_input = compiled.gradients(self.steps, self.operands, x, cotangent, offset)
            return {"input": np.array(of_input)} | {name: np.array(of_parameters[name]) for name in self.names()}

    def parameters(self) -> dict[str, Array]:
        """Return name -> array in canonical order, each with storage of its own."""
        return {name: np.array(self.operands[name]) for name in self.names()}

    def forward_cached(self, x: Any, cache: Cache | None) -> tuple[Array, Cache]:
        """Return the output of a chunk that continues a cache, and the cache for the next chunk.

        The cache is None at the start. The one given is released: it cannot be used again.

        Raises:
            ValueError: as for `forward`, or ``released cache:``, see `Cache.take`.
        """
        if not isinstance(cache, Cache | None):
            raise ValueError(f"released cache: {cache!r} is no cache; give None or what the call before returned")
        length = 0 if cache is None else cache.length
        x, offset = self.arguments(x, length)
        batch, tokens, _ = x.shape
        capacity = self.capacity(length + tokens)
        with compiled.precise():
            key_values = self.empty_cache(batch, capacity) if cache is None else cache.take(self, batch)
            capacity = max(capacity, key_values.key.shape[2])
            y, extended = compiled.forward_cached(self.steps, capacity, self.operands, x, key_values, offset)
            return np.array(y), Cache(self, batch, length + tokens, extended)

    def forward_by(self, way: str, x: Any, position_offset: int = 0) -> Array:
        """Return the output as the one of `ways` computes it; refusals as for `forward`."""
        if way not in self.ways:
            raise ValueError(f"configuration: way={way!r} must be one of {list(self.ways)}")
        x, offset = self.arguments(x, position_offset)
        with compiled.precise(), jax.disable_jit():
            stages, _ = self.steps.block(self.operands, jax.numpy.asarray(x), jax.numpy.asarray(offset))
            return np.array(stages["output"])

    def forward_each(self, x: Any, parameters: Mapping[str, Any], position_offset: int = 0) -> Array:
        """Return the output of each sequence under parameters of its own: ``parameters`` has name -> [batch, *shape].

        What is not named is this block's. One call stands for many blocks, of which central differences take hundreds.
        Refusals as for `forward`.
        """
        x, offset = self.arguments(x, position_offset)
        each: dict[str, Any] = {
            name: np.asarray(parameters[name], self.dtype)
            if name in parameters
            else np.broadcast_to(np.asarray(value), (len(x), *value.shape))
            for name, value in self.operands.items()
        }
        with compiled.precise():
            return np.array(compiled.forward_each(self.steps, self.placed(each), x, offset))

    def names(self) -> tuple[str, ...]:
        """Return the parameters' names, in canonical order."""
        return tuple(parameter_shapes(self.config))

    def arguments(self, x: Any, position_offset: int) -> tuple[Array, Any]:
        """Return the input and the offset as the compiled functions take them."""
        x = refusals.checked_input(self.config, x, self.dtype)
        # A typed scalar: a Python int would be another signature, and could be constant-folded.
        return x, np.int32(refusals.checked_offset(self.config, position_offset, x.shape[1]))

    def empty_cache(self, batch: int, capacity: int) -> KeyValues:
        """Return buffers with nothing in them, on the device of the block: of the kind that every later chunk finds."""
        empty: Any = np.zeros((batch, self.config.n_kv_heads, capacity, self.config.d_head), self.dtype)
        length: Any = np.int32(0)
        return self.placed(KeyValues(empty, empty, length))

    def placed(self, arrays: Placed) -> Placed:
        """Return arrays on the device of the block; the same ones where that is the CPU on which JAX runs anyway.

        There a compiled function reads NumPy's memory where it is, and to send it costs more than a call.
        """
        if self.device is None and jax.default_backend() == "cpu":
            return arrays
        with compiled.precise():
            sent: Placed = jax.device_put(arrays, self.device)
        return sent

    def capacity(self, tokens: int) -> int:
        """Return the slots of a cache for so many tokens: a power of two, to have few shapes to compile."""
        return max(SMALLEST_CACHE, 1 << (tokens - 1).bit_length())
