"""Drive modules of Equinox.

Must hold: a module is a frozen pytree, so filling one makes another; its parameters are its arrays of floating-point
numbers, named by their paths. A block maps its parts over tokens and sequences with `jax.vmap`, so a stage is recorded
within that transformation (see `jax_arrays.JaxArrays.record`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import equinox as eqx
import jax

from blocklaws.backends.mapped.driver import Seen, Tap
from blocklaws.backends.mapped.jax_arrays import JaxArrays
from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.recording import recorded_calls

__all__ = ["EquinoxDriver"]


class EquinoxDriver(JaxArrays):
    """Equinox in one dtype on one device (see `driver.Driver`)."""

    layer_type: type = eqx.Module

    def prepare(self, layer: eqx.Module) -> eqx.Module:
        """Return the layer without dropout. The parameters take the driver's dtype when they are assigned."""
        return eqx.nn.inference_mode(layer)

    def modules(self, layer: eqx.Module) -> Sequence[str]:
        """Return the paths of the sub-modules, as in ``attention.query_proj`` and ``layers.0``."""
        return list(_modules(layer))

    def shapes(self, layer: eqx.Module) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of each parameter."""
        return {name: tuple(parameter.shape) for name, parameter in _parameters(layer).items()}

    def assign(self, layer: eqx.Module, arrays: Mapping[str, Array]) -> eqx.Module:
        """Return the layer with other arrays in it."""
        own, rest = eqx.partition(layer, eqx.is_inexact_array)
        leaves = [self.array(arrays[name].astype(self.dtype)) for name in _parameters(layer)]
        return eqx.combine(jax.tree.unflatten(jax.tree.structure(own), leaves), rest)

    def read(self, layer: eqx.Module) -> Mapping[str, Array]:
        """Return the values of the parameters."""
        return {name: self.numpy(parameter) for name, parameter in _parameters(layer).items()}

    @contextmanager
    def training(self, layer: eqx.Module) -> Iterator[eqx.Module]:
        """Yield the layer with its dropout switched on; the layer itself stays as it is."""
        yield eqx.nn.inference_mode(layer, value=False)

    def watch(self, layer: eqx.Module, taps: Sequence[Tap]) -> AbstractContextManager[Seen]:
        """Record calls of sub-modules."""
        return recorded_calls(_modules(layer), taps, self.record)

    def gradients(
        self, function: Callable[[Any, Any], Any], layer: eqx.Module, x: Array, cotangent: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return gradients by `jax.vjp` over the parameters."""
        own, rest = eqx.partition(layer, eqx.is_inexact_array)

        def output(own: Any, x: Any) -> Any:
            return function(eqx.combine(own, rest), x)

        by_parameter, by_input = self.vjp(output, own, x, cotangent)
        return self.numpy(by_input), {name: self.numpy(part) for name, part in _parameters(by_parameter).items()}


def _parameters(layer: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(layer, eqx.is_inexact_array))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _modules(layer: Any) -> dict[str, eqx.Module]:
    """Return path -> sub-module, of those that a module holds as fields, alone or in lists and tuples."""
    found: dict[str, eqx.Module] = {}
    parts = enumerate(layer) if isinstance(layer, list | tuple) else vars(layer).items()
    for name, part in parts:
        if isinstance(part, eqx.Module):
            found[str(name)] = part
        if isinstance(part, eqx.Module | list | tuple):
            found |= {f"{name}.{path}": inner for path, inner in _modules(part).items()}
    return found
