"""Every parameter is reached by a gradient: known names, right shapes and dtypes, finite numbers, not all zero.

Must hold: a gradient may be left out (that is unchecked, not wrong), but one that is given is judged. A gradient must
not be zero where the float64 reference's plainly is not: that of a key bias without rotary positions is zero by the
mathematics (a softmax does not see what is added to a whole row), and that of a dead ReLU by chance.
"""

from __future__ import annotations

import numpy as np

from blocklaws.checking import Case, Examination
from blocklaws.errors import did_you_mean
from blocklaws.expressions import finite
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.examining import PythonProperty, refuted, require, require_dtype
from blocklaws.worlds import World

__all__ = ["GradientReachProperty"]

# A gradient below this share of the largest one may vanish in low precision.
_PLAINLY_NOT_ZERO = 1e-3


class GradientReachProperty(PythonProperty):
    """``gradients`` reaches the input and every parameter that matters."""

    name = "gradient-reach"
    capabilities = frozenset({"gradients"})

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Judge each gradient that is given."""
        shapes = {"input": world.input.shape, **{name: value.shape for name, value in world.parameters.items()}}
        gradients = base.gradients()
        for name in gradients:
            if name not in shapes:
                hint = did_you_mean(name, shapes)
                raise refuted(
                    "the names of gradients", f"{name!r} is neither 'input' nor a parameter of this block{hint}"
                )
        given = {name: gradients[name] for name in shapes if name in gradients}
        if not given:
            raise Unavailable("gradients gives neither the input's nor any parameter's")
        expected = {name: float(np.abs(value).max(initial=0.0)) for name, value in base.reference().gradients().items()}
        floor = _PLAINLY_NOT_ZERO * max(expected.values())
        reached = 0
        for name, gradient in given.items():
            claim = f"gradient.{name}"
            if gradient.shape != shapes[name]:
                raise refuted(claim, f"has shape {gradient.shape} where {shapes[name]} was expected")
            require_dtype(claim, gradient, world.input)
            require(finite(gradient, claim), claim)
            if expected[name] <= floor:
                continue
            reached += 1
            if not gradient.astype(np.float64).any():
                raise refuted(
                    claim, f"{claim} is zero everywhere; the reference's is as large as {expected[name]:.3g}",
                    got=0.0, want=expected[name], wrong=gradient.size, total=gradient.size,
                )  # fmt: skip
        return Examination(informative=2 * reached > len(given))
