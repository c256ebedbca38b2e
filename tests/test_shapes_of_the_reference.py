"""The reference's arrays have the axes that its annotations say: its tests run once with every call checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_reference_keeps_its_annotations(root: Path) -> None:
    """Fails when a function of the NumPy backend takes or gives an array of other axes than it says."""
    environment = {**os.environ, "BLOCKLAWS_CHECK_SHAPES": "1"}
    files = ["tests/test_shape_checking.py", "tests/test_on_numpy.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *files]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"([0-9]+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 50
