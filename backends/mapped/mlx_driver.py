"""Drive modules of MLX.

Must hold: gradients are taken with the parameters as arguments, and the layer has its own ones back afterwards; the
random state is put back after building. MLX computes lazily: an array is computed when it is copied out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import ml_dtypes
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from blocklaws.backends.mapped.driver import Seen, Tap
from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.recording import recorded_calls
from blocklaws.errors import BackendError

__all__ = ["MlxDriver"]


class MlxDriver:
    """MLX in one dtype on one device (see `driver.Driver`)."""

    layer_type: type = nn.Module
    array_type: type = mx.array

    def __init__(self, dtype: str, device: str | None) -> None:
        self.dtype = getattr(mx, dtype)
        self._numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        if device not in (None, "cpu", "gpu") or (device == "gpu" and not mx.is_available(mx.gpu)):
            raise BackendError(f"device {device!r}: MLX cannot use it here; it knows cpu, and gpu where there is one")
        self._device = mx.default_device() if device is None else getattr(mx, device)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Build on the device; the layer's random initial values must not move the caller's random stream."""
        before = mx.array(mx.random.state[0])
        with mx.stream(self._device):
            yield
        mx.random.state[0][...] = before

    def array(self, array: Array) -> mx.array:
        """Return a copy; `ml_dtypes.bfloat16` crosses as float32, which has all of its values."""
        if array.dtype == ml_dtypes.bfloat16:
            return mx.array(array.astype(np.float32)).astype(mx.bfloat16)
        # MLX takes a float64 array for float32 unless it is told otherwise.
        return mx.array(array, dtype=mx.float64 if array.dtype == np.float64 else None)

    def numpy(self, array: mx.array) -> Array:
        """Return a copy as a NumPy array."""
        if array.dtype == mx.bfloat16:
            return np.array(array.astype(mx.float32)).astype(ml_dtypes.bfloat16)
        return np.array(array)

    def prepare(self, layer: nn.Module) -> nn.Module:
        """Cast the parameters as a user would, with ``set_dtype``, and switch dropout off."""
        layer.set_dtype(self.dtype)
        layer.eval()
        return layer

    def modules(self, layer: nn.Module) -> Sequence[str]:
        """Return the paths of the sub-modules."""
        return list(_modules(layer))

    def shapes(self, layer: nn.Module) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of each parameter."""
        return {name: tuple(parameter.shape) for name, parameter in _parameters(layer).items()}

    def assign(self, layer: nn.Module, arrays: Mapping[str, Array]) -> nn.Module:
        """Fill the parameters in place."""
        with mx.stream(self._device):
            filled = [(name, self.array(array.astype(self._numpy_dtype))) for name, array in arrays.items()]
            layer.update(tree_unflatten(filled))
        return layer

    def read(self, layer: nn.Module) -> Mapping[str, Array]:
        """Return the values of the parameters."""
        return {name: self.numpy(parameter) for name, parameter in _parameters(layer).items()}

    def inference(self) -> AbstractContextManager[Any]:
        """Compute on the device; MLX records gradients only where they are asked for."""
        computing: AbstractContextManager[Any] = mx.stream(self._device)
        return computing

    @contextmanager
    def training(self, layer: nn.Module) -> Iterator[nn.Module]:
        """Switch the layer to training mode, and back."""
        try:
            yield layer.train()
        finally:
            layer.eval()

    def watch(self, layer: nn.Module, taps: Sequence[Tap]) -> AbstractContextManager[Seen]:
        """Record calls of sub-modules."""
        return recorded_calls(_modules(layer), taps, lambda array, keep: keep(self.numpy(array)))

    def gradients(
        self, function: Callable[[Any, Any], Any], layer: nn.Module, x: Array, cotangent: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return gradients by `mlx.core.vjp`, with the parameters as arguments."""
        own = _parameters(layer)

        def output(x: mx.array, *values: mx.array) -> mx.array:
            layer.update(tree_unflatten(list(zip(own, values, strict=True))))
            return function(layer, x)

        try:
            with mx.stream(self._device):
                pulled = mx.vjp(output, [self.array(x), *own.values()], [self.array(cotangent).astype(self.dtype)])[1]
                by_input, *by_parameter = (self.numpy(gradient) for gradient in pulled)
        finally:
            layer.update(tree_unflatten(list(own.items())))
        return by_input, dict(zip(own, by_parameter, strict=True))


def _modules(layer: nn.Module) -> dict[str, nn.Module]:
    return {path: module for path, module in layer.named_modules() if path}


def _parameters(layer: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(layer.trainable_parameters()))
