"""Shape checking is on: while the tests run, every array that the NumPy backend's functions take or give is checked.

Without this a hook that came too late, or a package that was renamed, would leave the annotations as mere comments.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest


def checked_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of the NumPy backend, by qualified name, that annotate an array with its axes."""
    package = importlib.import_module("blocklaws.backends.on_numpy")
    for entry in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(entry.name)
        for _, value in inspect.getmembers(module):
            if getattr(value, "__module__", None) != entry.name:
                continue
            members = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else [("", value)]
            for _, function in members:
                annotations = getattr(inspect.unwrap(function), "__annotations__", {}) if callable(function) else {}
                if any("jaxtyping" in type(note).__module__ for note in annotations.values()):
                    yield f"{entry.name}.{function.__qualname__}", function


def test_the_reference_annotates_its_arrays() -> None:
    """Fails when annotations with axes have gone, or have become strings that no checker reads."""
    assert len(dict(checked_functions())) >= 10


def test_every_annotated_function_is_wrapped() -> None:
    """Fails when the import hook came after the import."""
    unchecked = [name for name, function in checked_functions() if not hasattr(function, "__wrapped__")]
    assert unchecked == []


def test_a_wrong_shape_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fails when the checker is there and lets a wrong shape through: one planted module, one good and one bad call."""
    package = importlib.import_module("blocklaws.backends.on_numpy")
    (tmp_path / "planted.py").write_text(
        "import numpy as np\n"
        "from jaxtyping import Float\n\n"
        'def dot(a: Float[np.ndarray, "token feature"], b: Float[np.ndarray, "feature"]) -> Float[np.ndarray, "token"]:'
        "\n    return a @ b\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    planted = importlib.import_module(f"{package.__name__}.planted")
    monkeypatch.delitem(sys.modules, planted.__name__)
    assert planted.dot(np.ones((2, 3)), np.ones(3)).shape == (2,)
    for a, b in [((2, 3), (3, 1)), ((3,), (3,))]:
        with pytest.raises(jaxtyping.TypeCheckError, match="dot"):
            planted.dot(np.ones(a), np.ones(b))


def test_the_reference_itself_is_checked() -> None:
    """Fails when a function of the reference takes an array of another kind than it says."""
    from blocklaws.backends.on_numpy import NumpyBackend
    from blocklaws.backends.on_numpy.norms import NormSteps

    assert NumpyBackend.name == "numpy"
    steps = object.__new__(NormSteps)
    with pytest.raises(jaxtyping.TypeCheckError, match="standardize"):
        steps.standardize(np.ones(3), 1e-5)
