"""Drive modules of Flax's NNX.

Must hold: a layer is split into its graph and its parameters for gradients, and merged again, so that the caller's
module is never traced; the parameters are its `flax.nnx.Param` variables and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from flax import nnx

from blocklaws.backends.mapped.driver import Seen, Tap
from blocklaws.backends.mapped.jax_arrays import JaxArrays
from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.recording import recorded_calls

__all__ = ["FlaxDriver"]


class FlaxDriver(JaxArrays):
    """Flax in one dtype on one device (see `driver.Driver`)."""

    layer_type: type = nnx.Module

    def prepare(self, layer: nnx.Module) -> nnx.Module:
        """Switch dropout off. The parameters take the driver's dtype when they are assigned."""
        layer.eval()
        return layer

    def modules(self, layer: nnx.Module) -> Sequence[str]:
        """Return the paths of the sub-modules, as in ``attention.query`` and ``layers.0``."""
        return list(_modules(layer))

    def shapes(self, layer: nnx.Module) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of each parameter."""
        return {name: tuple(variable.shape) for name, variable in _parameters(layer).items()}

    def assign(self, layer: nnx.Module, arrays: Mapping[str, Array]) -> nnx.Module:
        """Fill the parameters in place."""
        with self.settings():
            for name, variable in _parameters(layer).items():
                variable[...] = self.array(arrays[name].astype(self.dtype))
        return layer

    def read(self, layer: nnx.Module) -> Mapping[str, Array]:
        """Return the values of the parameters."""
        return {name: self.numpy(variable[...]) for name, variable in _parameters(layer).items()}

    @contextmanager
    def training(self, layer: nnx.Module) -> Iterator[nnx.Module]:
        """Switch the layer to training mode, and back."""
        try:
            layer.train()
            yield layer
        finally:
            layer.eval()

    def watch(self, layer: nnx.Module, taps: Sequence[Tap]) -> AbstractContextManager[Seen]:
        """Record calls of sub-modules."""
        return recorded_calls(_modules(layer), taps, self.record)

    def gradients(
        self, function: Callable[[Any, Any], Any], layer: nnx.Module, x: Array, cotangent: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return gradients by `jax.vjp` over the state of the parameters."""
        graph, parameters, rest = nnx.split(layer, nnx.Param, ...)

        def output(parameters: Any, x: Any) -> Any:
            return function(nnx.merge(graph, parameters, rest), x)

        by_parameter, by_input = self.vjp(output, parameters, x, cotangent)
        flat = nnx.to_flat_state(by_parameter)
        return self.numpy(by_input), {_name(path): self.numpy(variable[...]) for path, variable in flat}


def _name(path: Sequence[Any]) -> str:
    return ".".join(str(part) for part in path)


def _modules(layer: nnx.Module) -> dict[str, nnx.Module]:
    return {_name(path): module for path, module in nnx.iter_modules(layer) if path}


def _parameters(layer: nnx.Module) -> dict[str, Any]:
    """Return the variables themselves, which are shared with the layer."""
    return {_name(path): variable for path, variable in nnx.to_flat_state(nnx.state(layer, nnx.Param))}
