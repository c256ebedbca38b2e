"""Where in a layer's code an exception came from, and what it had been given.

Must hold: the line that is told is the layer's or its library's, never ours; a line of the framework below (a matrix
product that refuses two shapes) only where there is no other. Must not import a framework.
"""

from __future__ import annotations

import inspect
import itertools
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blocklaws.built import PLACE, plain_text
from blocklaws.located_yaml import Place

__all__ = ["failed_at", "given", "in_words", "mark"]

_OURS = str(Path(__file__).resolve().parent) + os.sep
_FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "equinox", "keras", "mlx", "numpy", "jaxtyping", "beartype")


def failed_at(error: BaseException) -> str:
    """Return the innermost line outside of blocklaws, as ``modeling_opt.py:123``; nothing where there is none."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((_OURS, "<"))
    ]
    beyond = [frame for frame in frames if not _of_framework(frame.filename)] or frames
    return f"{Path(beyond[-1].filename).name}:{beyond[-1].lineno}" if beyond else ""


def in_words(error: BaseException) -> str:
    """Return an exception as ``TypeError: its message (modeling_opt.py:123)``, on one line."""
    message, where = plain_text(error), failed_at(error)
    return f"{type(error).__name__}{f': {message}' if message else ''}{f' ({where})' if where else ''}"


def mark(error: BaseException, place: Place) -> None:
    """Note on an exception of a layer where it came from and which call of the mapping it was, for who reports it."""
    if getattr(error, PLACE, None) is None:
        where = failed_at(error)
        called = f"called by {Path(place.file).name}:{place.line}"
        setattr(error, PLACE, f"{where}, {called}" if where else called)


def given(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """Return the shapes of the arrays of a call by the names that they have there, as ``x [1, 2, 8], mask [2, 2]``."""
    named = [*zip(_names(function, len(arguments)), arguments, strict=False), *keywords.items()]
    return ", ".join(f"{name} {shapes}" for name, value in named if (shapes := _shapes(value)))


def _shapes(value: Any) -> str:
    """Return the shape of an array, or those of a list of arrays; nothing of anything else."""
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_shapes, value)))
    shape = getattr(value, "shape", None)
    return str([int(length) for length in shape]) if isinstance(shape, list | tuple) else ""


def _names(function: Any, count: int) -> Iterator[str]:
    """Yield the names of as many arguments; a layer of a framework has them at the method that it is written as."""
    for method in (getattr(function, "forward", None), getattr(function, "call", None), function):
        try:
            found = inspect.signature(method).parameters.values() if callable(method) else ()
        except (TypeError, ValueError):
            continue
        names = [one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        if len(names) >= count:
            return iter(names)
    return (f"argument {number}" for number in range(count))


def _of_framework(path: str) -> bool:
    parts = Path(path).parts
    return any(
        part in ("site-packages", "dist-packages") and after in _FRAMEWORKS for part, after in itertools.pairwise(parts)
    )
