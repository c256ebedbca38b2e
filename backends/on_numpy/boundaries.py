"""What a block refuses, and in which words.

Must hold: each refusal is a ``ValueError`` whose text begins with the name of the boundary and says the value, the rule
and what to do. Nothing is computed, kept or changed before all checks have passed.
"""

import operator
from collections.abc import Mapping
from typing import SupportsIndex

import numpy as np

from blocklaws.backends.on_numpy.precision import Precision
from blocklaws.backends.on_numpy.shapes import AnyArray, Numbers, Stream
from blocklaws.canonical import parameter_shapes
from blocklaws.config import BlockConfig

__all__ = ["admit_cotangent", "admit_input", "admit_offset", "admit_parameters"]

#: The letters of the NumPy kinds that hold real numbers. The low-precision dtypes of ml_dtypes are of kind "V".
_REAL_KINDS = "fiu"


def admit_parameters(
    config: BlockConfig, parameters: Mapping[str, AnyArray], precision: Precision
) -> dict[str, Numbers]:
    """Return name -> own copy of each parameter, in canonical order, in the dtype of the arithmetic.

    Raises:
        ValueError: a parameter is missing, unknown, of the wrong shape, or does not hold real numbers.
    """
    shapes = parameter_shapes(config)
    missing = [name for name in shapes if name not in parameters]
    unknown = [name for name in parameters if name not in shapes]
    if missing or unknown:
        raise ValueError(
            f"configuration: parameters missing {missing}, unknown {unknown}; "
            f"this {config.block!r} block has exactly {list(shapes)}"
        )
    arrays = {name: np.asarray(parameters[name]) for name in shapes}
    for name, expected in shapes.items():
        got = arrays[name]
        if got.shape != expected:
            raise ValueError(
                f"component width: parameter {name!r} has shape {got.shape}, expected {expected}; "
                "a matrix is [in, out], a gain or a bias is as wide as what it is applied to"
            )
        if got.dtype.kind not in _REAL_KINDS and got.dtype != precision.crossing:
            raise ValueError(
                f"configuration: parameter {name!r} is {got.dtype.name}, expected real numbers; "
                f"convert it to {precision.name}"
            )
    return {name: precision.enter(array) for name, array in arrays.items()}


def admit_offset(position_offset: SupportsIndex, tokens: int, config: BlockConfig) -> int:
    """Return the position of the first token as an ``int``.

    Raises:
        ValueError: it is no integer, or some token lies outside ``0 .. max_positions - 1``.
    """
    try:
        first = operator.index(position_offset)
    except TypeError:
        raise ValueError(f"position range: position_offset={position_offset!r} must be an integer") from None
    last = first + tokens - 1
    if first < 0 or last >= config.max_positions:
        raise ValueError(
            f"position range: the {tokens} tokens are at positions {first} to {last}, but positions run from 0 to "
            f"{config.max_positions - 1} (max_positions={config.max_positions}); use a smaller position_offset or "
            "fewer tokens"
        )
    return first


def admit_input(x: AnyArray, config: BlockConfig, precision: Precision) -> Stream:
    """Return an own copy of the input in the dtype of the arithmetic; a batch of 0 sequences is an input.

    Raises:
        ValueError: the rank, the width, the number of tokens or the dtype is wrong.
    """
    x = np.asarray(x)
    if x.ndim != 3:
        raise ValueError(
            f"input rank: the input has {x.ndim} axes (shape {x.shape}), expected 3: batch, token, feature; "
            "a single sequence needs a batch axis of 1"
        )
    if x.shape[2] != config.d_model:
        raise ValueError(
            f"input width: the input has {x.shape[2]} features a token (shape {x.shape}), "
            f"expected d_model={config.d_model}"
        )
    if x.shape[1] == 0:
        raise ValueError(f"empty tokens: the input has shape {x.shape} and no token; give at least one token")
    if x.dtype != precision.crossing:
        raise ValueError(
            f"input dtype: the input is {x.dtype.name}, but the block was built for {precision.name}; "
            "convert the input or build the block in its dtype"
        )
    return precision.enter(x)


def admit_cotangent(cotangent: AnyArray, x: Stream, precision: Precision) -> Stream:
    """Return an own copy of the output's cotangent in the dtype of the arithmetic.

    Raises:
        ValueError: its shape is not the input's, or its dtype is not the block's.
    """
    cotangent = np.asarray(cotangent)
    if cotangent.shape != x.shape:
        raise ValueError(
            f"cotangent shape: the cotangent has shape {cotangent.shape}, expected {x.shape}: "
            "the output has the shape of the input"
        )
    if cotangent.dtype != precision.crossing:
        raise ValueError(
            f"cotangent dtype: the cotangent is {cotangent.dtype.name}, but the block was built for {precision.name}; "
            "convert it"
        )
    return precision.enter(cotangent)
