"""Where in a layer's code an exception came from.

Must hold: the line that is told is the layer's or its library's, never ours; a line of the framework below (a matrix
product that refuses two shapes) only where there is no other. Must not import a framework.
"""

from __future__ import annotations

import itertools
import os
import traceback
from pathlib import Path

from blocklaws.built import PLACE, plain_text
from blocklaws.located_yaml import Place

__all__ = ["failed_at", "in_words", "mark"]

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


def _of_framework(path: str) -> bool:
    parts = Path(path).parts
    return any(
        part in ("site-packages", "dist-packages") and after in _FRAMEWORKS for part, after in itertools.pairwise(parts)
    )
