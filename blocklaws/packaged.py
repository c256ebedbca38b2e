"""The YAML files of one kind that the built-in spec has a folder of.

Must hold: a file is found wherever the package is installed, in an archive too. Must not: read one.
"""

from __future__ import annotations

import importlib.resources
from contextlib import AbstractContextManager
from pathlib import Path

__all__ = ["packaged_file", "packaged_names"]


def packaged_names(folder: str) -> tuple[str, ...]:
    """Return the names of the files in a folder of the spec, without their suffix."""
    files = (importlib.resources.files("blocklaws.spec") / folder).iterdir()
    return tuple(sorted(each.name.removesuffix(".yaml") for each in files if each.name.endswith(".yaml")))


def packaged_file(folder: str, name: str) -> AbstractContextManager[Path]:
    """Return the path of one of them, which is good within a ``with``."""
    return importlib.resources.as_file(importlib.resources.files("blocklaws.spec") / folder / f"{name}.yaml")
