"""Drive PyTorch modules.

Must hold: nothing global is changed but for the time of a call (random state while building is put back); arrays cross
by copy, so that a layer can edit neither the caller's input nor its own recorded stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import torch

from blocklaws.backends.mapped.driver import Seen, Tap
from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.parts import Missing
from blocklaws.errors import BackendError

__all__ = ["TorchDriver"]

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class TorchDriver:
    """PyTorch in one dtype on one device (see `driver.Driver`)."""

    layer_type: type = torch.nn.Module
    array_type: type = torch.Tensor

    def __init__(self, dtype: str, device: str | None) -> None:
        self.dtype = _DTYPES[dtype]
        self._numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        try:
            self._device = torch.device(device or "cpu")
            torch.empty(0, device=self._device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise BackendError(f"device {device!r}: PyTorch cannot use it here: {reason}") from None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Build on the device; the layer's random initial values must not move the caller's random stream."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices), self._device:
            yield

    def array(self, array: Array) -> torch.Tensor:
        """Return a copy as a tensor; `ml_dtypes.bfloat16` crosses by its bits, which PyTorch cannot take as such."""
        array = np.array(array)  # a copy that is writable and contiguous
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(self._device)
        return torch.from_numpy(array).to(self._device)

    def numpy(self, array: torch.Tensor) -> Array:
        """Return a copy as a NumPy array."""
        tensor = array.detach().to("cpu", copy=True).contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    def prepare(self, layer: torch.nn.Module) -> torch.nn.Module:
        """Cast parameters and buffers as a user would, with ``to``, and switch dropout off."""
        return layer.to(device=self._device, dtype=self.dtype).eval().requires_grad_()

    def modules(self, layer: torch.nn.Module) -> Sequence[str]:
        """Return the paths of the sub-modules."""
        return [name for name, _ in layer.named_modules() if name]

    def shapes(self, layer: torch.nn.Module) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of each parameter; a shared one appears once."""
        return {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}

    def assign(self, layer: torch.nn.Module, arrays: Mapping[str, Array]) -> torch.nn.Module:
        """Fill the parameters in place."""
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.copy_(self.array(arrays[name].astype(self._numpy_dtype)))
        return layer

    def read(self, layer: torch.nn.Module) -> Mapping[str, Array]:
        """Return the values of the parameters."""
        return {name: self.numpy(parameter) for name, parameter in layer.named_parameters()}

    def inference(self) -> AbstractContextManager[None]:
        """Record no gradients."""
        return torch.no_grad()

    @contextmanager
    def training(self, layer: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """Switch the layer to training mode, and back."""
        try:
            yield layer.train()
        finally:
            layer.eval()

    @contextmanager
    def watch(self, layer: torch.nn.Module, taps: Sequence[Tap]) -> Iterator[Seen]:
        """Record with forward hooks: a pre-hook for an input, since a module may edit it in place."""
        seen: dict[str, list[Array | Missing | None]] = {tap.stage: [] for tap in taps}

        def record(tap: Tap, arguments: Any, keywords: Any, output: Any) -> None:
            picked = tap.pick(arguments, keywords, output)
            seen[tap.stage].append(picked if picked is None or isinstance(picked, Missing) else self.numpy(picked))

        handles = []
        try:
            for tap in taps:
                module = layer.get_submodule(tap.module)
                if tap.of_input:
                    handles.append(module.register_forward_pre_hook(_before(tap, record), with_kwargs=True))
                else:
                    handles.append(module.register_forward_hook(_after(tap, record), with_kwargs=True))
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def gradients(
        self, function: Callable[[Any, Any], Any], layer: torch.nn.Module, x: Array, cotangent: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return gradients by autograd; a parameter that the output does not depend on has gradient zero."""
        leaf = self.array(x).requires_grad_()
        names, parameters = zip(*layer.named_parameters(), strict=True)
        with torch.enable_grad():
            output = function(layer, leaf)
        found = torch.autograd.grad(
            output,
            (leaf, *parameters),
            self.array(cotangent).to(output.dtype),
            allow_unused=True,
            materialize_grads=True,
        )
        by_input, *by_parameter = (self.numpy(gradient) for gradient in found)
        return by_input, dict(zip(names, by_parameter, strict=True))


_Record = Callable[[Tap, Any, Any, Any], None]


def _before(tap: Tap, record: _Record) -> Callable[..., None]:
    return lambda _module, arguments, keywords: record(tap, arguments, keywords, None)


def _after(tap: Tap, record: _Record) -> Callable[..., None]:
    return lambda _module, arguments, keywords, output: record(tap, arguments, keywords, output)
