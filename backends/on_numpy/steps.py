"""What every step of a block is made of: a value, its pullback, and the parameters that it reads.

Must hold: a differentiable step returns ``(value, pullback)``. The pullback takes the cotangent of the value and
returns the cotangent of each input of the step; the gradients of the parameters that the step read are added to the
dict that travels with it. So a step owns its reverse pass: to override the step is to override both, and a wrong
gradient is an override of the pullback alone. Steps keep no state and modify no argument. The pullback of ``step`` is
the method ``pull_step``, with what the reverse pass reads bound to it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import LinearInput, LinearOutput, Numbers
from blocklaws.config import BlockConfig

__all__ = ["Gradients", "Pullback", "PullbackOfTwo", "Steps", "accumulate", "chain"]

#: Parameter name -> gradient, filled while the pullbacks run.
Gradients = dict[str, np.ndarray]
#: The pullback of a step with one input.
Pullback = Callable[[np.ndarray, Gradients], np.ndarray]
#: The pullback of a step with two inputs.
PullbackOfTwo = Callable[[np.ndarray, Gradients], tuple[np.ndarray, np.ndarray]]

_AnyPullback = TypeVar("_AnyPullback", bound=Callable[..., Any])


def accumulate(gradients: Gradients, name: str, gradient: Numbers) -> None:
    """Add the gradient of one use of a parameter to those of its other uses."""
    gradients[name] = gradients[name] + gradient if name in gradients else gradient


def chain(*pullbacks: Pullback) -> Pullback:
    """Return the pullback of steps made one after the other; their pullbacks are given in the order of the steps."""
    return partial(_pull_chain, pullbacks[::-1])


def _pull_chain(backwards: tuple[Pullback, ...], cotangent: Numbers, gradients: Gradients) -> Numbers:
    for pullback in backwards:
        cotangent = pullback(cotangent, gradients)
    return cotangent


class Steps:
    """The ground of a block: its config, its parameters and the rounding after each step.

    Attributes:
        config: the sizes and choices.
        precision: the dtype.
    """

    def __init__(self, config: BlockConfig, parameters: Mapping[str, Numbers], precision: Precision) -> None:
        self.config = config
        self.precision = precision
        self._parameters = dict(parameters)

    def parameter(self, name: str) -> Numbers:
        """Return one parameter as the steps read it."""
        return self._parameters[name]

    def has(self, name: str) -> bool:
        """Return whether the block has that parameter."""
        return name in self._parameters

    def rounded(self, value: Numbers, pullback: _AnyPullback) -> tuple[Numbers, _AnyPullback]:
        """Return the result of a step, rounded to the block's dtype in both directions."""
        if not self.precision.low:
            return value, pullback
        return self.precision.round(value), partial(self._pull_rounded, pullback)  # type: ignore[return-value]

    def _pull_rounded(self, pullback: Callable[..., Any], cotangent: Numbers, gradients: Gradients) -> Any:
        result = pullback(cotangent, gradients)
        if isinstance(result, tuple):
            return tuple(self.precision.round(each) for each in result)
        return self.precision.round(result)

    def linear(self, x: LinearInput, name: str) -> tuple[LinearOutput, Pullback]:
        """Return ``x W + b`` for the matrix ``name`` [in, out] and its bias, where the block has one."""
        value = x @ self.parameter(name)
        bias_name = f"{name}_bias"
        if self.has(bias_name):
            value = value + self.parameter(bias_name)
        return self.rounded(value, partial(self.pull_linear, x, name))

    def pull_linear(self, x: LinearInput, name: str, cotangent: LinearOutput, gradients: Gradients) -> LinearInput:
        """Return the cotangent of ``x``; add the gradients of the matrix and of the bias."""
        rows_in, rows_out = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
        accumulate(gradients, name, rows_in.T @ rows_out)
        bias_name = f"{name}_bias"
        if self.has(bias_name):
            accumulate(gradients, bias_name, rows_out.sum(0))
        result: np.ndarray = cotangent @ self.parameter(name).T
        return result
