"""What the drivers of all frameworks on JAX share: arrays, dtypes, devices and gradients.

Must hold: 64-bit types are allowed for float64 alone and only within a call, whatever ``jax_enable_x64`` says, so that
a float32 layer computes as it does for its users; nothing global is left changed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blocklaws.backends.mapped.operations import Array
from blocklaws.errors import BackendError

__all__ = ["JaxArrays"]

# The one entry point of JAX that moved: it was jax.experimental's until 0.8.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64


class JaxArrays:
    """The part of a driver that knows arrays and not layers.

    Args:
        dtype: the name of the dtype.
        device: a platform such as ``cpu``, ``cuda:1`` for the second one; None for JAX's default.
    """

    array_type: type = jax.Array

    def __init__(self, dtype: str, device: str | None) -> None:
        self.dtype = jnp.dtype(dtype)
        self._device = None if device is None else _find(device)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Within it JAX computes on the driver's device, with 64-bit types where the dtype is one."""
        with ExitStack() as stack:
            stack.enter_context(_enable_x64(self.dtype == jnp.float64))
            if self._device is not None:
                stack.enter_context(jax.default_device(self._device))
            yield

    building = inference = settings

    def array(self, array: Array) -> jax.Array:
        """Return a copy on the device, its dtype kept (64-bit integers only where 64-bit types are allowed)."""
        with self.settings():
            return jnp.array(array)

    def numpy(self, array: jax.Array) -> Array:
        """Return a copy as a NumPy array; bfloat16 is `ml_dtypes.bfloat16` on both sides."""
        return np.array(array)

    def record(self, array: jax.Array, keep: Callable[[Array], None]) -> None:
        """Hand a copy of an array to ``keep``; within a transformation such as vmap, that of the whole batch.

        A function with a batching rule of its own is what JAX offers to look into a call that vmap transforms: the rule
        has the array, with the axis that vmap took away in front, and is asked at once. (A callback is compiled for
        each look, and called from another thread, where float64 does not exist.) Within a compiled function no rule has
        a value to see, and the stage is refused as one that no pass goes through.
        """
        if not isinstance(array, jax.core.Tracer):
            keep(self.numpy(array))
            return

        @jax.custom_batching.custom_vmap
        def look(one: jax.Array) -> jax.Array:
            return one

        @look.def_vmap
        def look_at_all(size: int, batched: list[bool], every: jax.Array) -> tuple[jax.Array, bool]:
            self.record(every, keep)
            return every, batched[0]

        look(array)

    def vjp(self, function: Callable[[Any, Any], Any], parameters: Any, x: Array, cotangent: Array) -> tuple[Any, Any]:
        """Return the gradient of ``sum(function(parameters, x) * cotangent)`` by the parameters and by ``x``."""
        with self.settings():
            output, pull = jax.vjp(function, parameters, self.array(x))
            by_parameters, by_input = pull(self.array(cotangent).astype(output.dtype))
            return by_parameters, by_input


def _find(device: str) -> jax.Device:
    platform, _, index = device.partition(":")
    try:
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BackendError(f"device {device!r}: JAX cannot use it here: {reason}") from None
