"""A failure names the known fault that gives what the block gave, and no other.

The blocks are torch's with a fault, so that nothing they share with the reference can make the two agree.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from mapped_support import needs_torch

import blocklaws
from blocklaws.discovery import find_subjects
from blocklaws.failure_text import failure_text
from blocklaws.report import CaseResult

NUMPY = find_subjects("numpy")[0].backend


def violated(backend: Any, block: str, invariant: str, dtype: str = "float32") -> CaseResult:
    """Return the failing case of an invariant."""
    report = blocklaws.verify(backend, blocks=[block], dtypes=[dtype], invariants=[invariant], profile="quick")
    (result,) = [case for case in report.cases if case.verdict == "violated"]
    return result


@needs_torch
@pytest.mark.parametrize(
    ("fault", "block", "invariant", "dtype"),
    [
        ("norm-over-tokens", "llama", "prefix-invariance", "float32"),
        ("gate-and-up-swapped", "llama", "output-parity", "float32"),
        ("gelu-tanh-for-erf", "gpt", "output-parity", "float64"),
        ("query-key-swapped", "llama", "output-parity", "float32"),
        ("rotary-layout-swapped", "llama-gqa", "output-parity", "float32"),
        ("rotary-exponent-by-d-model", "llama-gqa", "stage-parity", "float32"),
        ("kv-heads-tiled", "llama-gqa", "output-parity", "bfloat16"),
        ("second-norm-reads-input", "llama", "output-parity", "float32"),
        ("cache-position-restarts", "llama", "cache-parity", "float32"),
        ("gain-gradient-missing", "llama", "gradient-parity", "float32"),
        ("geglu-as-swiglu", "softcapped", "output-parity", "float32"),  # and no mistake of those that SwiGLU has
    ],
)
def test_a_known_mistake_is_named(fault: str, block: str, invariant: str, dtype: str) -> None:
    """Fails when a failure is not recognised, or is taken for another mistake as well."""
    (torch,) = find_subjects("torch")
    result = violated(torch.backend.with_fault(fault), block, invariant, dtype)
    assert list(result.acts_like) == [fault]
    says = result.acts_like[fault]
    assert f"  acts as  {fault}: {says}" in failure_text(result)
    assert result.as_dict()["acts_like"] == {fault: says}


class Odd:
    """The right block, but for one thing that no fault of the spec does."""

    name = "odd"
    dtypes = ("float32",)

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        right = NUMPY.build(config, parameters, dtype)

        class Block:
            def forward(self, x: np.ndarray, position_offset: int = 0) -> Any:
                return right.forward(x, position_offset) * np.float32(1.25)

        return Block()


def test_an_unknown_mistake_is_not_taken_for_a_known_one() -> None:
    """Fails when the nearest fault is named though it does not give what the block gave."""
    result = violated(Odd(), "llama", "output-parity")
    assert result.acts_like == {}
    assert "acts as" not in failure_text(result)


class Sometimes(Odd):
    """Wrong as a known fault is on a single sequence, and right on several."""

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        right, wrong = (
            each.build(config, parameters, dtype) for each in (NUMPY, NUMPY.with_fault("gate-and-up-swapped"))
        )

        class Block:
            def forward(self, x: np.ndarray, position_offset: int = 0) -> Any:
                return (wrong if len(x) == 1 else right).forward(x, position_offset)

        return Block()


def test_a_likeness_on_the_smallest_world_is_not_enough() -> None:
    """Fails when no larger world is asked about, where the block is right and the fault is not."""
    result = violated(Sometimes(), "llama", "output-parity")
    assert result.counterexample is not None
    assert result.counterexample["sizes"]["B"] == 1
    assert result.acts_like == {}


def test_many_faults_that_are_alike_are_named_without_their_sentences() -> None:
    """Fails when a failure that says little fills the terminal with guesses."""
    result = violated(NUMPY.with_fault("gate-and-up-swapped"), "llama", "output-parity")
    many = dataclasses.replace(result, acts_like={f"fault-{number}": "It is wrong." for number in range(5)})
    assert "acts as  fault-0, fault-1, fault-2 and 2 other known faults, which are alike here" in failure_text(many)


class Shown(Odd):
    """The right block, of which a stage is shown three times as large, or queries and keys at other positions."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        right, stage = NUMPY.build(config, parameters, dtype), self._stage

        class Block:
            def forward(self, x: np.ndarray, position_offset: int = 0) -> Any:
                return right.forward(x, position_offset)

            def trace(self, x: np.ndarray, position_offset: int = 0) -> Any:
                shown = right.trace(x, position_offset)
                if stage == "query":
                    return shown | {name: right.trace(x, position_offset + 3)[name] for name in ("query", "key")}
                return shown | {stage: 3 * shown[stage]}

        return Block()


@pytest.mark.parametrize(
    ("stage", "hint"),
    [
        ("value", "the output is right, so look at what shows the stage too"),
        ("query", "the output is right, so look at what shows the stage too, or turns both alike"),
    ],
)
def test_a_wrong_stage_of_a_right_output_may_be_shown_wrongly(stage: str, hint: str) -> None:
    """Fails when a reader looks for the mistake in a block that computes what it should."""
    result = violated(Shown(stage), "llama", "stage-parity")
    assert (result.stage, result.acts_like) == (stage, {})
    assert result.divergence.endswith(hint)


def test_what_acts_as_a_known_mistake_is_not_said_to_be_right() -> None:
    """Fails when a failure names the mistake and sends the reader elsewhere in the same breath."""
    result = violated(NUMPY.with_fault("positions-from-one"), "llama", "stage-parity")
    assert (result.stage, list(result.acts_like)) == ("query", ["positions-from-one"])
    assert "the output is right" not in failure_text(result)
