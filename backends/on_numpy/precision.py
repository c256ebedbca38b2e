"""How a block stores and computes its numbers in one dtype.

Must hold: float64 and float32 compute in themselves. bfloat16 and float16 are the reference recipe of a low-precision
block: arrays are stored in the low dtype, every matrix product, norm statistic and softmax is computed in float32, and
the result of each named step is rounded to the low dtype. Rotary angles are computed
in the same dtype. Stored values live
in float32 arrays, because NumPy has no arithmetic of its own in the low dtypes; each is a value of the low dtype.
"""

import dataclasses
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from blocklaws.errors import did_you_mean

__all__ = ["PRECISIONS", "Precision", "precision_of"]


@dataclasses.dataclass(frozen=True)
class Precision:
    """One dtype: what crosses the adapter, what is computed in, and the rounding between them.

    Attributes:
        name: the name of the dtype in a case, such as ``"bfloat16"``.
        crossing: the dtype of arrays that enter and leave a block.
        computing: the dtype of the arithmetic, float32 at least.
    """

    name: str
    crossing: np.dtype
    computing: np.dtype

    @property
    def low(self) -> bool:
        """Whether results are rounded to less than the dtype of the arithmetic."""
        return self.crossing != self.computing

    def round(self, values: np.ndarray) -> np.ndarray:
        """Return the values of this dtype nearest to ``values``, any shape, in the dtype of the arithmetic."""
        if not self.low:
            return values
        return values.astype(self.crossing).astype(self.computing)

    def enter(self, values: np.ndarray) -> np.ndarray:
        """Return a fresh, contiguous copy of an array from outside, any shape, rounded, ready for arithmetic."""
        rounded = values if values.dtype == self.crossing else values.astype(self.crossing)
        return np.array(rounded, dtype=self.computing, order="C")

    def leave(self, values: np.ndarray) -> np.ndarray:
        """Return a fresh, contiguous copy, any shape, in the dtype that crosses the adapter."""
        return np.array(values, dtype=self.crossing, order="C")


def _precision(crossing: type, computing: type) -> Precision:
    return Precision(np.dtype(crossing).name, np.dtype(crossing), np.dtype(computing))


#: Every dtype that a block can be built in, by name.
PRECISIONS: Mapping[str, Precision] = {
    precision.name: precision
    for precision in (
        _precision(np.float64, np.float64),
        _precision(np.float32, np.float32),
        _precision(ml_dtypes.bfloat16, np.float32),
        _precision(np.float16, np.float32),
    )
}


def precision_of(dtype: str) -> Precision:
    """Return the precision of a dtype name.

    Raises:
        ValueError: no block can be built in that dtype.
    """
    if dtype not in PRECISIONS:
        raise ValueError(
            f"configuration: dtype {dtype!r} must be one of {list(PRECISIONS)}{did_you_mean(dtype, PRECISIONS)}"
        )
    return PRECISIONS[dtype]
