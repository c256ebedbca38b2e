"""What is not shrunk is drawn once: the same examples, counts and verdicts as those of a search that shrinks."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from blocklaws.checking import Case, Outcome
from blocklaws.discovery import find_subjects
from blocklaws.planning import Choice, plan, properties_of
from blocklaws.properties import searching
from blocklaws.properties.searching import _too_few
from blocklaws.spec_reading import load_spec
from blocklaws.specification import Specification
from blocklaws.subjects import Subject

SPEC = load_spec(None)
NUMPY = find_subjects("numpy")[0]


def case_of(invariant: str, fault: str | None = None, spec: Specification = SPEC, **changes: Any) -> Case:
    """Return the case of an invariant on a llama block of the NumPy backend."""
    subject = NUMPY if fault is None else NUMPY.with_fault(fault)
    (case, *_) = plan(spec, [subject], Choice(("llama",), ("float32",), (invariant,)))
    return dataclasses.replace(case, **changes)


def searched(case: Case) -> Outcome:
    """Search a case."""
    return searching.search(case, properties_of([case.invariant])[case.invariant.property_name])


@pytest.mark.parametrize(
    ("invariant", "fault"),
    [
        ("prefix-invariance", None),
        ("liveness", None),
        ("cache-parity", None),
        ("no-call-remembers-another", None),
        ("prefix-invariance", "mask-off-by-one"),
        ("liveness", "window-never-asked"),
        ("liveness", "first-token-hidden"),
        ("cache-parity", "cache-drops-oldest"),
        ("batch-permutation", "later-batches-zero"),
        ("stacked-two-truncation", "norm-divided-by-tokens"),
        ("output-parity", "softmax-without-maximum"),
        ("repeatable", "dropout-in-eval"),
    ],
)
def test_what_is_drawn_once_is_what_a_shrinking_search_sees(invariant: str, fault: str | None) -> None:
    """Fails when a kill matrix looks at other examples than a run, or counts them otherwise."""
    shrunk, drawn = (searched(case_of(invariant, fault, seed=3, shrink=shrink)) for shrink in (True, False))
    assert (shrunk.verdict, shrunk.examples, shrunk.informative) == (drawn.verdict, drawn.examples, drawn.informative)
    if shrunk.failure is None:
        assert drawn.failure is None
        assert shrunk.max_error == drawn.max_error
    else:
        assert drawn.failure is not None
        assert shrunk.failure.examples_to_fail == drawn.failure.examples_to_fail


def test_a_case_is_drawn_once_for_all_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when each fault draws its examples anew, or another seed or kind is given those of the first."""
    drawn: list[int] = []
    draw = searching._draw
    monkeypatch.setattr(searching, "_draw", lambda case, *rest, **more: drawn.append(1) or draw(case, *rest, **more))
    monkeypatch.setattr(searching, "_DRAWN", {})
    for fault in (None, "mask-off-by-one", "norm-over-tokens"):
        searched(case_of("prefix-invariance", fault, shrink=False))
    assert len(drawn) == 1
    searched(case_of("prefix-invariance", shrink=False, seed=1))
    # Kinds of another spec may have other choices under the same name.
    another = {name: dataclasses.replace(kind) for name, kind in SPEC.blocks.items()}
    searched(case_of("prefix-invariance", spec=dataclasses.replace(SPEC, blocks=another), shrink=False))
    searched(case_of("prefix-invariance", shrink=False, profile=SPEC.profiles["quick"]))
    assert len(drawn) == 4
    monkeypatch.setattr(searching, "_MOST_DRAWN", 4)
    searched(case_of("prefix-invariance", shrink=False, seed=2))
    assert len(searching._DRAWN) == 4
    # What is drawn from the same is drawn for all of them; a search that finds nothing draws no more than one.
    drawn.clear()
    searched(case_of("future-weights-are-zero"))
    searched(case_of("weights-are-a-distribution", shrink=False))
    assert len(drawn) == 1


def test_a_failure_that_does_not_repeat_is_told() -> None:
    """Fails when an example that failed is not looked at again, so that nobody learns that the block is to blame."""

    class Once:
        name = "once"
        calls = 0

        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            right = NUMPY.backend.build(config, parameters, dtype)
            forward = right.forward

            def wrong_once(x: Any, position_offset: int = 0) -> Any:
                Once.calls += 1
                return forward(x, position_offset) + (Once.calls == 2)

            right.forward = wrong_once
            return right

    outcome = searched(case_of("repeatable", shrink=False, subject=Subject(Once(), "once")))
    assert outcome.verdict == "violated"
    assert "deterministic" in outcome.reason


@pytest.mark.parametrize("shrink", [True, False])
def test_the_callers_generators_stay_as_they_are(shrink: bool) -> None:
    """Fails when a search moves the global random numbers of the process."""
    state, of_numpy = random.getstate(), np.random.get_state()
    searched(case_of("repeatable", shrink=shrink))
    assert random.getstate() == state
    assert all(np.array_equal(one, other) for one, other in zip(np.random.get_state(), of_numpy, strict=True))


@pytest.mark.parametrize(
    ("informative", "checked", "share", "expected"),
    [
        (4, 4, 0.9, False), (2, 4, 0.9, False), (1, 4, 0.9, False), (0, 4, 0.9, True), (0, 1, 0.9, True),
        (18, 24, 0.9, False), (14, 24, 0.9, True), (2, 21, 0.3, False), (0, 21, 0.3, True), (3, 24, 0.5, True),
        (23, 24, 1.0, True), (0, 8, 0.0, False), (240, 300, 0.9, True), (255, 300, 0.9, False),
    ],
)  # fmt: skip
def test_few_informative_examples_are_an_error_where_chance_cannot_explain_them(
    informative: int, checked: int, share: float, expected: bool
) -> None:
    """Fails if a right block is in error for two examples of four, or a check that can hardly fail passes."""
    assert _too_few(informative, checked, share) is expected
