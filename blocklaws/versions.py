"""Which versions a run was made with: of Python, of what searches and computes here, and of what a backend names.

Must hold: nothing is imported to learn a version; a package that is not installed is left out. Must not: know a
framework: a backend says by its ``packages`` what it stands on.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["versions_of"]

_ALWAYS = ("numpy", "hypothesis")


def versions_of(backends: Iterable[Any]) -> dict[str, str]:
    """Return name -> version: ``python``, then NumPy and Hypothesis, then what the backends' ``packages`` name."""
    found = {"python": platform.python_version()}
    for name in (*_ALWAYS, *(name for backend in backends for name in _packages(backend))):
        try:
            found.setdefault(name, importlib.metadata.version(name))
        except (importlib.metadata.PackageNotFoundError, ValueError):  # an empty name is a ValueError
            continue
    return found


def _packages(backend: Any) -> Iterator[str]:
    packages = getattr(backend, "packages", ())
    if isinstance(packages, tuple | list):
        yield from (name for name in packages if isinstance(name, str))
