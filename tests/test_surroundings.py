"""What a backend changes for everybody costs its own cases, and is as it was for the next ones."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blocklaws
from blocklaws.discovery import find_subjects

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


class Leaving:
    """Our NumPy blocks, of which one call moves the working directory, or the question whether they are supported."""

    name = "leaving"
    dtypes = ("float32",)

    def __init__(self, call: str) -> None:
        self._call = call

    def _leave(self, call: str) -> None:
        if call == self._call:
            os.chdir("/")

    def supports(self, config: Any) -> str | None:
        self._leave("supports")
        return None

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        block = find_subjects("numpy")[0].backend.build(config, parameters, dtype)
        trace = block.trace

        def leaving(x: Any, position_offset: int = 0) -> Any:
            self._leave("trace")
            return trace(x, position_offset)

        block.trace = leaving
        return block


@pytest.mark.parametrize("first", ["prefix-invariance", "trace-agrees"])
@pytest.mark.parametrize(
    ("call", "in_error"), [("trace", {"trace-agrees"}), ("supports", {"trace-agrees", "prefix-invariance"})]
)
def test_what_is_left_is_told_of_the_cases_that_make_the_call(call: str, in_error: set[str], first: str) -> None:
    """Fails when what a block can do is asked in the name of whichever case comes first, and the order decides."""
    chosen = {"blocks": ["llama"], "profile": "quick"}
    both = sorted(("prefix-invariance", "trace-agrees"), key=lambda id: id != first)
    one_by_one = [blocklaws.verify(Leaving(call), invariants=[id], **chosen).cases[0] for id in both]
    together = blocklaws.verify(Leaving(call), invariants=both, **chosen).cases
    for cases in (one_by_one, together):
        assert {case.invariant for case in cases if case.verdict == "error"} == in_error
        assert all("the working directory" in case.reason for case in cases if case.verdict == "error")
