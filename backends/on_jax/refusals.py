"""What a block refuses, before any of it reaches JAX: each refusal is a ValueError that begins with its boundary.

Must hold: a message says what was given, the rule and what to do. Must not: import JAX, or change what it checks.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name bfloat16)
import numpy as np

from blocklaws.canonical import parameter_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import did_you_mean

__all__ = ["checked_cotangent", "checked_dtype", "checked_input", "checked_offset", "checked_parameters"]

Array = np.ndarray[Any, np.dtype[Any]]


def checked_dtype(name: str, known: tuple[str, ...]) -> np.dtype[Any]:
    """Return the NumPy dtype of a name.

    Raises:
        ValueError: ``configuration:``, the name is not one of ``known``.
    """
    if name not in known:
        raise ValueError(f"configuration: dtype={name!r} must be one of {list(known)}{did_you_mean(str(name), known)}")
    return np.dtype(name)


def checked_parameters(config: BlockConfig, parameters: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Array]:
    """Return copies of the parameters in a dtype, in canonical order.

    Raises:
        ValueError: ``configuration:``, a name is missing or the config has no such parameter; ``component width:``, a
            parameter has the wrong shape.
    """
    shapes = parameter_shapes(config)
    for name in parameters:
        if name not in shapes:
            raise ValueError(
                f"configuration: this config has no parameter {name!r}{did_you_mean(name, shapes)}; "
                f"it has {', '.join(shapes)}"
            )
    missing = [name for name in shapes if name not in parameters]
    if missing:
        raise ValueError(f"configuration: parameters are missing: {', '.join(missing)}; give every one of the config")
    copies = {}
    for name, shape in shapes.items():
        given = np.asarray(parameters[name])
        if given.shape != shape:
            raise ValueError(
                f"component width: parameter {name!r} has shape {list(given.shape)}, this config needs {list(shape)}; "
                "matrices are [in, out]"
            )
        with np.errstate(over="ignore"):
            copies[name] = np.array(given, dtype=dtype, order="C")
    return copies


def checked_input(config: BlockConfig, x: Any, dtype: np.dtype[Any]) -> Array:
    """Return x [B, T, d_model] as a contiguous NumPy array, the caller's own where it is one.

    Raises:
        ValueError: ``input rank:``, ``input width:``, ``input dtype:`` or ``empty tokens:``.
    """
    array = np.asarray(x)
    if array.ndim != 3:
        raise ValueError(
            f"input rank: x has shape {list(array.shape)} ({array.ndim} axes), but a block takes "
            "[batch, token, feature] (3 axes); add the missing axis or merge the extra ones"
        )
    if array.shape[2] != config.d_model:
        raise ValueError(
            f"input width: x has shape {list(array.shape)}, whose last axis must be d_model={config.d_model}; "
            "the order is [batch, token, feature]"
        )
    if array.dtype != dtype:
        raise ValueError(f"input dtype: x is {array.dtype}, but this block was built in {dtype}; convert x first")
    if array.shape[1] == 0:
        raise ValueError(f"empty tokens: x has shape {list(array.shape)}; a block needs at least one token")
    return np.ascontiguousarray(array)


def checked_cotangent(x: Array, cotangent: Any) -> Array:
    """Return the cotangent in the dtype of x.

    Raises:
        ValueError: ``input width:``, its shape is not that of x.
    """
    array = np.asarray(cotangent)
    if array.shape != x.shape:
        raise ValueError(
            f"input width: the cotangent has shape {list(array.shape)}, but x has {list(x.shape)}; give equal"
        )
    return np.ascontiguousarray(array, dtype=x.dtype)


def checked_offset(config: BlockConfig, position_offset: Any, tokens: int) -> int:
    """Return the position of the first token.

    Raises:
        ValueError: ``position range:``, a position is not an integer, is negative, or is at or past ``max_positions``.
    """
    try:
        offset = operator.index(position_offset)
    except TypeError:
        raise ValueError(f"position range: position_offset={position_offset!r} must be an integer") from None
    if offset < 0 or offset + tokens > config.max_positions:
        raise ValueError(
            f"position range: {tokens} tokens from position {offset} are positions {offset} to {offset + tokens - 1}, "
            f"but positions run from 0 to {config.max_positions - 1}; give fewer tokens or another offset"
        )
    return offset
