"""Faults of what a block lists as its parameters: a name too many or too few, their order, storage and shape.

Must hold: the block computes rightly with the parameters that it was given (but for a tied pair, which is one matrix).
"""

from __future__ import annotations

import numpy as np

from blocklaws.backends.on_jax.block import JaxBlock
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.faults_heads import ValueFromKey
from blocklaws.backends.on_jax.refusals import Array

_PROJECTIONS = ("attention.query", "attention.key", "attention.value", "attention.output")


@fault("bias-left-on")
class BiasLeftOn(JaxBlock):
    def parameters(self) -> dict[str, Array]:
        shown = {}
        for name, value in super().parameters().items():
            shown[name] = value
            if name in _PROJECTIONS:
                shown[f"{name}_bias"] = np.zeros(value.shape[1], self.dtype)
        return shown


@fault("bias-not-listed")
class BiasNotListed(JaxBlock):
    def parameters(self) -> dict[str, Array]:
        return {name: value for name, value in super().parameters().items() if not name.endswith("_bias")}


@fault("parameters-out-of-order")
class ParametersOutOfOrder(JaxBlock):
    def parameters(self) -> dict[str, Array]:
        shown = super().parameters()
        order = list(shown)
        key, query = order.index("attention.key"), order.index("attention.query")
        order[key], order[query] = order[query], order[key]
        return {name: shown[name] for name in order}


@fault("key-value-tied")
class KeyValueTied(JaxBlock):
    steps_class = ValueFromKey

    def parameters(self) -> dict[str, Array]:
        return _tied(super().parameters())

    def gradients(self, x: object, cotangent: object, position_offset: int = 0) -> dict[str, Array]:
        return _tied(super().gradients(x, cotangent, position_offset))


def _tied(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the arrays with those of the key, the same objects, in place of the value's."""
    return {name: arrays[name.replace("attention.value", "attention.key")] for name in arrays}


@fault("parameter-not-registered")
class ParameterNotRegistered(JaxBlock):
    def parameters(self) -> dict[str, Array]:
        return {name: value for name, value in super().parameters().items() if name != "feed_forward.down"}


@fault("parameters-transposed")
class ParametersTransposed(JaxBlock):
    def parameters(self) -> dict[str, Array]:
        return {name: value.T.copy() for name, value in super().parameters().items()}
