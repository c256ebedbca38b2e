"""What a framework has to offer so that a mapping can drive its layers: the seam between mappings and frameworks.

Must hold: everything a mapping means is decided outside of drivers; a driver only moves arrays, builds, fills, watches
and differentiates. A driver is imported when a block is built. Adding a framework is one module with one class and one
line in `DRIVERS`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.parts import Missing, array_of, part_of

__all__ = ["DRIVERS", "Driver", "Tap", "load_driver"]

#: What each call gave of a stage, in order: an array, nothing, or the part that it did not have.
Seen: TypeAlias = Mapping[str, list["Array | Missing | None"]]

#: framework -> the class of its driver.
DRIVERS: Mapping[str, str] = {
    "torch": "blocklaws.backends.mapped.torch_driver:TorchDriver",
    "flax": "blocklaws.backends.mapped.flax_driver:FlaxDriver",
    "equinox": "blocklaws.backends.mapped.equinox_driver:EquinoxDriver",
    "keras": "blocklaws.backends.mapped.keras_driver:KerasDriver",
    "mlx": "blocklaws.backends.mapped.mlx_driver:MlxDriver",
}


@dataclasses.dataclass(frozen=True)
class Tap:
    """A place in a layer where a stage is captured.

    Attributes:
        stage: the stage.
        module: the path of the sub-module.
        of_input: whether its input is meant, not its output.
        take: which part: an index or key of a structured output; a position or the name of an argument.
        arrays: the types of the framework's arrays.
    """

    stage: str
    module: str
    of_input: bool
    take: int | str | None
    arrays: type | tuple[type, ...]

    def pick(self, arguments: Sequence[Any], keywords: Mapping[str, Any], output: Any) -> Any:
        """Return the part of a call that is the stage, or `Missing` where there is none, or no array."""
        if not self.of_input:
            return array_of(part_of(output, self.take), self.arrays)
        take = 0 if self.take is None else self.take
        return array_of(part_of(keywords if isinstance(take, str) else tuple(arguments), take), self.arrays)


class Driver(Protocol):
    """One framework, one dtype, one device. ``layer`` is whatever the framework calls a layer."""

    def __init__(self, dtype: str, device: str | None) -> None: ...

    @property
    def layer_type(self) -> type:
        """The framework's class of layers."""

    @property
    def array_type(self) -> type:
        """The framework's class of arrays."""

    @property
    def dtype(self) -> Any:
        """The framework's own object for the dtype, ``$dtype`` in a mapping."""

    def building(self) -> AbstractContextManager[None]:
        """Within it objects are built on the device, and the framework's random state is left as it was."""

    def array(self, array: Array) -> Any:
        """Return a copy of a NumPy array as the framework's, its dtype kept."""

    def numpy(self, array: Any) -> Array:
        """Return a copy of the framework's array as NumPy's (low precision: `ml_dtypes`)."""

    def prepare(self, layer: Any) -> Any:
        """Return the layer in the driver's dtype and ready for inference (no dropout)."""

    def modules(self, layer: Any) -> Sequence[str]:
        """Return the paths of the layer's sub-modules."""

    def shapes(self, layer: Any) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of each trainable parameter, in the layer's order."""

    def assign(self, layer: Any, arrays: Mapping[str, Array]) -> Any:
        """Return the layer with these values in these parameters, rounded once to the driver's dtype."""

    def read(self, layer: Any) -> Mapping[str, Array]:
        """Return the values of the parameters."""

    def inference(self) -> AbstractContextManager[None]:
        """Within it no gradients are recorded."""

    def training(self, layer: Any) -> AbstractContextManager[Any]:
        """Within it what is yielded computes as in training, when it is called; then the layer is as it was."""

    def watch(self, layer: Any, taps: Sequence[Tap]) -> AbstractContextManager[Seen]:
        """Within it calls of the layer's sub-modules are recorded: stage -> what each call gave."""

    def gradients(
        self, function: Callable[[Any, Any], Any], layer: Any, x: Array, cotangent: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return the gradient of ``sum(function(layer, x) * cotangent)`` by the input, and by each parameter."""


def load_driver(framework: str, dtype: str, device: str | None) -> Driver:
    """Import the driver of a framework and return it for a dtype and a device (None: the framework's default)."""
    module, _, name = DRIVERS[framework].partition(":")
    driver: Driver = getattr(importlib.import_module(module), name)(dtype, device)
    return driver
