"""Failures by cause: one mistake is told once, two are told apart, and the smallest world is the one that is shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from faces_support import write_broken, write_spec, write_wrong

from blocklaws.causes import causes
from blocklaws.report import CaseResult
from blocklaws.running import verify


@pytest.fixture
def violated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaseResult:
    """Return a real violation."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    report = verify(write_broken(tmp_path), spec="spec.yaml", blocks=["llama"], dtypes=["float32"])
    (failure,) = report.failures
    return failure


def sized(result: CaseResult, invariant: str, **sizes: int) -> CaseResult:
    """Return the failure of another invariant in a world of other sizes."""
    assert result.counterexample is not None
    example = {**result.counterexample, "sizes": {**result.counterexample["sizes"], **sizes}}
    return dataclasses.replace(result, invariant=invariant, counterexample=example)


def grouped(*failures: CaseResult) -> list[list[str]]:
    """Return the invariants of each cause, the one that is told in full first."""
    return [[cause.smallest.invariant, *(other.invariant for other in cause.others)] for cause in causes(failures)]


def named(result: CaseResult, invariant: str, **changes: Any) -> CaseResult:
    """Return the failure of another invariant, otherwise changed."""
    return dataclasses.replace(result, invariant=invariant, **changes)


def test_one_stage_is_one_cause(violated: CaseResult) -> None:
    """Fails when a wrong mask is told once for each invariant that it violates."""
    assert violated.stage == "attention_weights"
    assert grouped(named(violated, "a"), named(violated, "b", dtype="float64"), named(violated, "c", block="gpt")) == [
        ["a", "b", "c"]
    ]
    (cause,) = causes([violated])
    assert cause.what == "with the same first diverging stage, attention_weights"


def test_what_differs_is_told_apart(violated: CaseResult) -> None:
    """Fails when two mistakes, or those of two backends, are told as one."""
    assert grouped(
        named(violated, "a"), named(violated, "b", stage="value"), named(violated, "c", backend="other"),
        named(violated, "d", stage=None), named(violated, "e", stage=None),
        named(violated, "d", stage=None, block="gpt"),
    ) == [["a"], ["b"], ["c"], ["d", "d"], ["e"]]  # fmt: skip


def test_the_smallest_world_is_told_in_full(violated: CaseResult) -> None:
    """Fails when the reader gets the large world and the small one is an id below it."""
    large, small, wide = sized(violated, "large", T=5), sized(violated, "small", T=1), sized(violated, "wide", d_ff=9)
    assert grouped(large, violated, small, wide) == [["small", "large", violated.invariant, "wide"]]
    assert grouped(wide, violated)[0][0] == violated.invariant
    assert grouped(named(violated, "first"), named(violated, "second"))[0][0] == "first", "the order of the run decides"


def raised(result: CaseResult, invariant: str, reason: str, **changes: Any) -> CaseResult:
    """Return an error of another invariant."""
    return named(result, invariant, verdict="error", reason=reason, stage=None, **changes)


def test_one_exception_is_one_cause(violated: CaseResult) -> None:
    """Fails when the sizes in a message make each example a cause, or another line is taken for the same."""
    sizes = [raised(violated, name, f"forward raised ValueError: {name} tokens (mine.py:7)") for name in ("1", "2")]
    elsewhere = raised(violated, "3", "forward raised ValueError: 1 tokens (mine.py:8)")
    other = raised(violated, "4", "forward raised TypeError: 1 tokens (mine.py:7)")
    build = raised(violated, "5", "build raised OSError: no compiler", counterexample=None, examples=0)
    assert grouped(*sizes, elsewhere, other, build, dataclasses.replace(build, invariant="6")) == [
        ["1", "2"], ["3"], ["4"], ["5", "6"]
    ]  # fmt: skip
    assert causes(sizes)[0].what == "with the same exception"


def test_too_few_informative_examples_are_each_invariants_own(violated: CaseResult) -> None:
    """Fails when two invariants that could not fail are told as one mistake."""
    reason = "only 3 of 8 examples could have failed, fewer than min_informative=0.9 asks for"
    few = [raised(violated, name, reason, counterexample=None, examples=8) for name in ("a", "b")]
    assert grouped(*few) == [["a"], ["b"]]


def test_every_failure_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a failure is lost between the groups."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    backends = (write_broken(tmp_path), write_wrong(tmp_path, "return None"))
    failures = verify(*backends, spec="spec.yaml", profile="quick").failures
    found = causes(failures)
    assert sorted(each.id for cause in found for each in (cause.smallest, *cause.others)) == sorted(
        failure.id for failure in failures
    )
    assert [(cause.smallest.backend, len(cause.others)) for cause in found] == [("broken", 9), ("wrong", 9)]


def test_a_written_claim_is_told_before_what_a_property_was_looking_for(violated: CaseResult) -> None:
    """Fails when a wrong norm is told as a wrong buffer because both fail in the smallest world."""
    buffer = dataclasses.replace(sized(violated, "refilled-buffer", T=1), clause_at="")
    assert violated.clause_at
    assert grouped(buffer, violated) == [[violated.invariant, "refilled-buffer"]]
