"""The adapter: names, dtypes, and building a block from a config and its parameters.

Must hold: this backend is the reference. In float64 it is what other backends are compared with; in bfloat16 and
float16, which it builds but does not offer for verification, it is the recipe that tolerances are calibrated by.
"""

from collections.abc import Mapping

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.precision import precision_of
from blocklaws.backends.on_numpy.shapes import AnyArray
from blocklaws.config import BlockConfig

__all__ = ["NumpyBackend"]


class NumpyBackend:
    """The NumPy adapter."""

    name = "numpy"
    dtypes = ("float64", "float32")
    #: Refusals are as docs/architecture.md says, so they can be verified.
    validates = True

    def supports(self, config: BlockConfig) -> str | None:
        """Return None: every config that exists can be built."""
        return None

    def build(self, config: BlockConfig, parameters: Mapping[str, AnyArray], dtype: str) -> NumpyBlock:
        """Return a block of that config with copies of those parameters.

        Args:
            config: the sizes and choices.
            parameters: exactly the parameters of the config, name -> array.
            dtype: ``"float64"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.

        Raises:
            ValueError: the dtype is unknown, or a parameter is missing, unknown or of the wrong shape.
        """
        return NumpyBlock(config, parameters, precision_of(dtype))
