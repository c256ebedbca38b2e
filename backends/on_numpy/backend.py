"""The adapter: names, dtypes, faults, and building a block from a config and its parameters.

Must hold: this backend is the reference. In float64 it is what other backends are compared with; in bfloat16 and
float16, which it builds but does not offer for verification, it is the recipe that tolerances are calibrated by.
"""

from collections.abc import Mapping

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.faults import FAULTS
from blocklaws.backends.on_numpy.precision import precision_of
from blocklaws.backends.on_numpy.shapes import AnyArray
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError, did_you_mean

__all__ = ["NumpyBackend"]


class NumpyBackend:
    """The NumPy adapter, right unless a fault is named.

    Args:
        fault: the id of a fault that the blocks have, or None; ``with_fault`` checks it.

    Attributes:
        name: shown in test ids.
        dtypes: what it offers for verification.
        faults: the ids of ``spec/faults.yaml`` that it can express.
        fault: the id of the fault that its blocks have.
    """

    name = "numpy"
    dtypes = ("float64", "float32")
    #: Refusals are as docs/architecture.md says, so they can be verified.
    validates = True
    faults = tuple(FAULTS)

    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault

    def with_fault(self, identity: str) -> "NumpyBackend":
        """Return a backend whose blocks have that fault.

        Raises:
            BackendError: the fault is unknown here.
        """
        if identity not in FAULTS:
            raise BackendError(
                f"the numpy backend has no fault {identity!r}{did_you_mean(identity, FAULTS)}; "
                f"it has {len(FAULTS)}, named in its 'faults'"
            )
        return type(self)(identity)

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
        block = NumpyBlock if self.fault is None else FAULTS[self.fault]
        return block(config, parameters, precision_of(dtype))
