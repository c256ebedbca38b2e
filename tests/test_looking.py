"""What cases of a group share: worlds that are filled once, and the passes of invariants that only look."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from test_searching import NUMPY, SPEC

from blocklaws.checking import Case, Outcome
from blocklaws.planning import Choice, plan, properties_of
from blocklaws.properties import looking, searching
from blocklaws.subjects import Subject
from blocklaws.worlds import Recipe

# Two of each look at the same worlds and make the same calls; the third changes the world.
TRACED = ("future-weights-are-zero", "weights-are-a-distribution")
CHANGES = "prefix-invariance"


class Counting:
    """Our NumPy blocks, which count how often they are called, or do something beside it."""

    name = "counting"

    def __init__(self, beside: Any = lambda method: None, deterministic: bool = True) -> None:
        self.calls: Counter[str] = Counter()
        self.deterministic = deterministic
        self._beside = beside

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Build the block, and put a count before two of its methods."""
        block = NUMPY.backend.build(config, parameters, dtype)
        for method in ("forward", "trace"):
            setattr(block, method, self._counted(method, getattr(block, method)))
        return block

    def _counted(self, method: str, call: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[method] += 1
            returned = call(*arguments, **options)
            changed = self._beside(method)
            return returned if changed is None else changed(returned)

        return counted


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_group", None)


def cases(subject: Subject, *ids: str, block: str = "llama") -> list[Case]:
    """Return the cases of some invariants."""
    return plan(SPEC, [subject], Choice((block,), ("float32",), ids))


def searched(case: Case) -> Outcome:
    """Search a case."""
    return searching.search(case, properties_of([case.invariant])[case.invariant.property_name])


def calls_of(backend: Counting, label: str = "numpy", ids: tuple[str, ...] = TRACED) -> list[int]:
    """Return how often each of some cases calls trace."""
    found, subject = [], Subject(backend, label)
    for case in cases(subject, *ids):
        case.split()  # what a block can do is asked once a run
        before = backend.calls["trace"]
        assert searched(case).verdict == "holds"
        found.append(backend.calls["trace"] - before)
    return found


def test_one_traced_pass_serves_what_only_looks() -> None:
    """Fails when a second invariant calls the block for what a first one has seen, or the first one calls it twice."""
    assert calls_of(Counting()) == [SPEC.profiles["default"].examples, 0]


def test_the_reference_of_a_world_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when each invariant computes the reference of the same world anew."""
    reference = Counting()
    first, second = (
        dataclasses.replace(case, reference=Subject(reference, "reference"))
        for case in cases(NUMPY, "stage-parity", "norms-of-huge-rows")
    )
    # They are of different worlds in the spec; here one is asked twice.
    counts = []
    for case in (first, first, second):
        before = reference.calls["trace"]
        assert searched(case).verdict == "holds"
        counts.append(reference.calls["trace"] - before)
    assert counts[0] > 0
    assert counts[1] == 0
    assert counts[2] > 0


@pytest.mark.parametrize(
    ("backend", "label"), [(Counting(), "mine.py:Backend"), (Counting(deterministic=False), "numpy")]
)
def test_a_block_of_others_is_called_by_each_invariant(backend: Counting, label: str) -> None:
    """Fails when a reference is kept where a stranger's code runs, or a value of a block that gives another one each
    time.
    """
    examples = SPEC.profiles["default"].examples
    assert calls_of(backend, label) == [examples, examples]


def test_a_block_with_a_fault_is_called_by_each_invariant() -> None:
    """Fails when what a fault gave one invariant is what the next one sees: a kill matrix judges each by itself."""
    subject = NUMPY.with_fault("norm-over-tokens")
    for case in cases(subject, *TRACED):
        searched(case)
    assert not looking.group_of(cases(subject, *TRACED)[0])._passes


def test_passes_are_kept_for_one_group_at_a_time() -> None:
    """Fails when the expected values of a backend are in the memory while another one is asked for them."""
    (llama,) = cases(NUMPY, TRACED[0])
    (gpt,) = cases(NUMPY, TRACED[0], block="gpt")
    (other,) = cases(Subject(Counting(), "mine.py:Backend"), TRACED[0])
    for next in (gpt, other):
        searched(llama)
        kept = looking.group_of(llama)
        assert kept._passes
        searched(next)
        assert looking.group_of(next) is not kept
        assert not any(kept is one for one in vars(looking).values())


def test_what_only_one_invariant_may_know_is_not_shared() -> None:
    """Fails when an invariant that changes the world, or asks what a call leaves, is given the pass of another."""
    for id in (CHANGES, "repeatable", "arguments-unchanged", "parameters-as-given"):
        for case in cases(NUMPY, id):
            assert looking._calls(case) is None, id
    for id in TRACED:
        (case,) = cases(NUMPY, id)
        assert looking._calls(case) == {"trace"}


def test_a_pass_of_other_calls_is_another_one() -> None:
    """Fails when an invariant of the output sees one that was only traced, so that forward is never called."""
    backend = Counting()
    subject = Subject(backend, "numpy")
    for case in cases(subject, TRACED[0], "shape-preservation"):
        assert searched(case).verdict == "holds"
    assert backend.calls["forward"] >= SPEC.profiles["default"].examples


def test_an_example_that_fails_is_not_shared() -> None:
    """Fails when what a block gave once, wrongly, is what the next invariant sees, or what a second look sees."""
    at = iter(range(10_000))

    def plus_one(stages: Any) -> Any:
        return {**stages, "attention_weights": stages["attention_weights"] + 1}

    def wrong_at_the_fifth(method: str) -> Any:
        return plus_one if method == "trace" and next(at) == 5 else None

    subject = Subject(Counting(wrong_at_the_fifth), "numpy")
    (first, second) = cases(subject, *TRACED)
    outcome = searched(first)
    assert outcome.verdict == "violated"
    assert "deterministic" in outcome.reason
    assert searched(second).verdict == "holds"


def test_what_a_block_leaves_behind_is_told_of_each_invariant() -> None:
    """Fails when a call that changed what all share is not made again: one process and two would not tell the same."""

    def leave(method: str) -> None:
        np.seterr(over="raise" if np.geterr()["over"] != "raise" else "warn")

    subject = Subject(Counting(lambda method: leave(method) if method == "trace" else None), "numpy")
    for case in cases(subject, *TRACED):
        outcome = searched(case)
        assert outcome.verdict == "error"
        assert "NumPy's error state" in outcome.reason


def test_sharing_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an invariant that is given a pass counts, or judges, otherwise than one that makes it."""
    choice = Choice(("llama",), ("float32", "float64"), profile="quick")

    def told() -> list[tuple[Any, ...]]:
        outcomes = [(case.id, searched(case)) for case in plan(SPEC, [NUMPY], choice)]
        return [(id, one.verdict, one.examples, one.informative, one.max_error, one.nearest) for id, one in outcomes]

    shared = told()
    monkeypatch.setattr(looking, "_may_share", lambda subject: False)
    monkeypatch.setattr(looking, "_group", None)
    assert told() == shared


def test_a_world_is_filled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when invariants that are drawn from the same fill the same arrays again, or a memory grows without end."""
    filled: list[Recipe] = []
    world = Case.world
    monkeypatch.setattr(Case, "world", lambda case, recipe: filled.append(recipe) or world(case, recipe))
    for case in cases(NUMPY, *TRACED, "repeatable"):
        case.split()  # the world of which it is asked what a block can do
        filled.clear()
        searched(case)
        assert len(filled) == (SPEC.profiles["default"].examples if case.invariant.id == TRACED[0] else 0), case.id
    monkeypatch.setattr(looking, "_MOST", 3)
    monkeypatch.setattr(looking, "_group", None)
    (case,) = cases(NUMPY, TRACED[0])
    searched(case)
    group = looking.group_of(case)
    assert (len(group._worlds), len(group._passes)) == (3, 3)


def test_what_is_drawn_from_the_same_is_drawn_alike() -> None:
    """Fails when another name moves the worlds of an invariant, or another `where`, pick or pattern does not."""
    of = SPEC.invariants
    assert of[TRACED[0]].drawn_from == of[TRACED[1]].drawn_from
    assert dataclasses.replace(of[CHANGES], id="mine", says="").drawn_from == of[CHANGES].drawn_from
    others = [of[TRACED[0]], of["self-liveness"], of["norms-of-huge-rows"], of[CHANGES], of["batch-permutation"]]
    assert len({one.drawn_from for one in others}) == len(others)
    first, second = cases(NUMPY, *TRACED)
    assert first.search_seed == second.search_seed
    assert first.search_seed != dataclasses.replace(first, seed=1).search_seed
    (gpt,) = cases(NUMPY, TRACED[0], block="gpt")
    assert first.search_seed != gpt.search_seed
