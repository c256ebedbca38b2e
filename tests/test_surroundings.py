"""What a backend changes for everybody costs its own cases, and is as it was for the next ones."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

import blocklaws

LEAVING = Path(__file__).parent / "cheats" / "leaving.py"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ErrorState", "NumPy's error state"),
        ("NumpySeed", "NumPy's global random state"),
        ("Directory", "the working directory"),
        ("TorchDefault", "torch's default dtype from torch.float32 to torch.float64"),
    ],
)
def test_what_is_left_changed_is_told_and_put_back(name: str, what: str) -> None:
    """Fails when a change goes unnoticed, or reaches the cases of another backend."""
    import torch

    def state() -> tuple:
        shown = np.random.get_state()[1].tobytes()
        return np.geterr(), shown, random.getstate(), os.getcwd(), torch.get_default_dtype()

    # What is imported for the first time may draw random numbers; that is not what is tested.
    blocklaws.verify("numpy", blocks=["llama"], profile="quick", invariants=["output-parity"])
    before = state()
    report = blocklaws.verify(
        f"{LEAVING}:{name}", "numpy", blocks=["llama"], dtypes=["float32"], profile="quick",
        invariants=["shape-preservation", "output-parity"],
    )  # fmt: skip
    assert state() == before
    by_backend: dict[str, list] = {}
    for case in report.cases:
        by_backend.setdefault(case.backend, []).append(case)
    for case in by_backend[name]:
        assert case.verdict == "error", case.reason
        assert case.reason.startswith(f"the backend changed {what}")
    assert [case.verdict for case in by_backend["numpy"]] == ["holds", "holds"]


def test_the_input_that_did_it_is_told() -> None:
    """Fails when the smallest input is not found: the seed is set for more than two tokens."""
    report = blocklaws.verify(
        f"{LEAVING}:NumpySeed", blocks=["llama"], dtypes=["float32"], profile="quick", invariants=["output-parity"]
    )
    (case,) = report.cases
    assert case.counterexample is not None
    assert case.counterexample["sizes"]["T"] == 3


def test_random_numbers_of_the_backend_are_its_own() -> None:
    """Fails when the built-in backends leave something changed."""
    report = blocklaws.verify("numpy", "torch", "jax", blocks=["plain"], profile="quick", invariants=["output-parity"])
    assert report.exit_status == 0
