"""Drive layers of Keras, on its JAX backend.

Must hold: the layer's variables are replaced within a `keras.StatelessScope` for gradients, and assigned only once,
when the block is filled. A process has one backend of Keras, chosen when it is imported first: this driver chooses JAX,
and refuses another one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from blocklaws.backends.mapped.driver import Seen, Tap
from blocklaws.backends.mapped.jax_arrays import JaxArrays
from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.recording import recorded_calls
from blocklaws.errors import BackendError

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras  # the backend is chosen by then

__all__ = ["KerasDriver"]


class KerasDriver(JaxArrays):
    """Keras in one dtype on one device (see `driver.Driver`)."""

    layer_type: type = keras.Layer

    def __init__(self, dtype: str, device: str | None) -> None:
        if keras.backend.backend() != "jax":
            raise BackendError(
                f"Keras runs on {keras.backend.backend()} in this process; this driver differentiates with JAX: "
                "set KERAS_BACKEND=jax before Keras is imported"
            )
        super().__init__(dtype, device)

    def prepare(self, layer: keras.Layer) -> keras.Layer:
        """Return the layer as it is: Keras is told of training call by call."""
        return layer

    def modules(self, layer: keras.Layer) -> Sequence[str]:
        """Return the paths of the sub-layers, made of attributes: Keras numbers the names of unnamed layers."""
        return list(_layers(layer))

    def shapes(self, layer: keras.Layer) -> Mapping[str, tuple[int, ...]]:
        """Return the path and shape of each trainable variable, without the layer's own name in front."""
        return {name: tuple(variable.shape) for name, variable in _variables(layer).items()}

    def assign(self, layer: keras.Layer, arrays: Mapping[str, Array]) -> keras.Layer:
        """Fill the variables in place."""
        with self.settings():
            for name, variable in _variables(layer).items():
                variable.assign(self.array(arrays[name].astype(self.dtype)))
        return layer

    def read(self, layer: keras.Layer) -> Mapping[str, Array]:
        """Return the values of the variables."""
        return {name: self.numpy(variable.value) for name, variable in _variables(layer).items()}

    @contextmanager
    def training(self, layer: keras.Layer) -> Iterator[Callable[..., Any]]:
        """Yield the layer with ``training=True`` in each of its calls."""
        yield functools.partial(layer, training=True)

    def watch(self, layer: keras.Layer, taps: Sequence[Tap]) -> AbstractContextManager[Seen]:
        """Record calls of sub-layers."""
        return recorded_calls(_layers(layer), taps, self.record)

    def gradients(
        self, function: Callable[[Any, Any], Any], layer: keras.Layer, x: Array, cotangent: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return gradients by `jax.vjp`, with the variables as arguments."""
        variables = _variables(layer)

        def output(values: Mapping[str, Any], x: Any) -> Any:
            with keras.StatelessScope(state_mapping=[(variables[name], value) for name, value in values.items()]):
                return function(layer, x)

        values = {name: variable.value for name, variable in variables.items()}
        by_parameter, by_input = self.vjp(output, values, x, cotangent)
        return self.numpy(by_input), {name: self.numpy(gradient) for name, gradient in by_parameter.items()}


def _layers(layer: keras.Layer) -> dict[str, keras.Layer]:
    """Return path -> sub-layer, of those that a layer holds as attributes."""
    found: dict[str, keras.Layer] = {}
    for name, value in vars(layer).items():
        if isinstance(value, keras.Layer):
            found[name] = value
            found |= {f"{name}.{path}": inner for path, inner in _layers(value).items()}
    return found


def _variables(layer: keras.Layer) -> dict[str, Any]:
    return {variable.path.partition("/")[2]: variable for variable in layer.trainable_variables}
