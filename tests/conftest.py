"""What all tests share: subprocesses run as a user would, the checkout's root, shape checking where it is asked for.

Must hold: where ``BLOCKLAWS_CHECK_SHAPES`` is set, jaxtyping's import hook is there before the checked package is
imported, or nothing is checked (``test_shape_checking.py`` proves that it is on). Checking every array makes the
reference thirty times slower, so it is done in a session of its own, which ``test_shapes_of_the_reference.py`` starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

#: The package whose array annotations are checked, argument by argument, while the tests run.
CHECKED_PACKAGE = "blocklaws.backends.on_numpy"

#: Whether this session checks shapes, and the tests that only such a session can run.
CHECKS_SHAPES = os.environ.get("BLOCKLAWS_CHECK_SHAPES") == "1"
collect_ignore = [] if CHECKS_SHAPES else ["test_shape_checking.py"]

if CHECKS_SHAPES:
    if CHECKED_PACKAGE in sys.modules:
        raise RuntimeError(f"{CHECKED_PACKAGE} was imported before its shapes could be checked; import it in a test")
    install_import_hook(CHECKED_PACKAGE, "beartype.beartype")

ROOT = Path(__file__).resolve().parent.parent

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs a command as a user would, from any folder, without what this test run set up."""

    def run_command(
        *command: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 300,
        typed: str = "",
    ) -> subprocess.CompletedProcess[str]:
        # Settings of the surrounding pytest run would change what a pytest run inside a test does and prints.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        clean.pop("PYTHONPATH", None)
        clean |= {"COLUMNS": "120", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **(env or {})}
        return subprocess.run(
            [str(part) for part in command],
            cwd=cwd or ROOT,
            env=clean,
            timeout=timeout,
            text=True,
            capture_output=True,
            input=typed,
            check=False,
        )

    return run_command


@pytest.fixture(scope="session")
def python(run: Run) -> Run:
    """Return a function that runs this interpreter with the given arguments."""
    return lambda *arguments, **options: run(sys.executable, *arguments, **options)


@pytest.fixture(scope="session")
def blocklaws(run: Run) -> Run:
    """Return a function that runs the installed ``blocklaws`` command with the given arguments."""
    command = Path(sys.executable).with_name("blocklaws")
    return lambda *arguments, **options: run(command, *arguments, **options)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a mapping file, a text with some of its parts replaced; each part must be there once."""

    def write(text: str, *changes: tuple[str, str]) -> Path:
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
            text = text.replace(old, new)
        path = tmp_path / "layer.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
