"""Guards of the built-in spec: nothing in it is unproven, nothing is unchecked, and nothing shrinks silently.

Must hold: each guard reads what is there and knows no entry by heart but those that the founding documents ask for; a
number that may only grow is recorded (``record_cases.py``) and not repeated here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from record_cases import BACKENDS, planned, recorded

from blocklaws.discovery import find_subjects
from blocklaws.expressions import calibrated, close
from blocklaws.passes import Pass
from blocklaws.planning import reference_subject
from blocklaws.replaying import examine
from blocklaws.running import prepare
from blocklaws.spec_reading import load_spec
from blocklaws.worlds import Recipe, make_world

#: What the founding documents ask for by name.
FOUNDING = ("shape-preservation", "prefix-invariance", "zero-branch-identity", "parameter-count", "norm-axis-locality")

SPEC = load_spec()
DTYPES = tuple(SPEC.tolerances)


def faults_of(backend: str) -> set[str]:
    """Return the faults that can be planted in a backend."""
    return set(find_subjects(backend)[0].faults)


# --- power ----------------------------------------------------------------------------------------------------------


def test_no_invariant_of_ours_is_unproven() -> None:
    """Fails when an invariant of the built-in spec names no fault that it refutes."""
    assert [one.id for one in SPEC.invariants.values() if one.unproven] == []


def test_every_fault_is_claimed_by_an_invariant() -> None:
    """Fails when a fault is listed that no invariant promises to refute."""
    claimed = {fault for one in SPEC.invariants.values() for fault in one.refuted_by}
    assert [id for id in SPEC.faults if id not in claimed] == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("invariant", FOUNDING)
def test_a_founding_invariant_refutes_two_faults_on_each_backend(invariant: str, backend: str) -> None:
    """Fails when a founding invariant is gone, is advisory, or names fewer than two faults that can be planted."""
    one = SPEC.invariants[invariant]
    assert not one.advisory
    assert len(set(one.refuted_by) & faults_of(backend)) >= 2


def test_a_claim_can_come_true_somewhere() -> None:
    """Fails when an invariant names a fault that no block and dtype can show to it."""
    apart = [
        (one.id, id)
        for one in SPEC.invariants.values()
        for id in one.refuted_by
        if not any(SPEC.faults[id].can_show(block, dtype, backend) and dtype in find_subjects(backend)[0].dtypes
                   for backend in BACKENDS for block in one.blocks for dtype in one.dtypes or DTYPES)
    ]  # fmt: skip
    assert apart == []


def test_every_public_report_is_told_by_a_fault_or_has_its_reason() -> None:
    """Fails when a kind of mistake that one block can show has no fault, or a fault is modelled on no known report."""
    known = yaml.safe_load(Path(__file__).with_name("bug_report_kinds.yaml").read_text(encoding="utf-8"))
    # A mistake in a choice that few blocks make may be in no report that we know.
    modelled = {fault.modelled_on for fault in SPEC.faults.values()} - {""}
    assert all(
        fault.modelled_on for fault in SPEC.faults.values() if any(SPEC.blocks[b].by_default for b in fault.blocks)
    )
    reports = {report for reports in known["kinds"].values() for report in reports}
    assert modelled <= reports
    assert set(known["same_mistake"].values()) <= set(SPEC.faults)
    assert modelled | set(known["same_mistake"]) | set(known["not_told"]) == reports
    assert modelled & set(known["not_told"]) == set()
    told = modelled | set(known["same_mistake"])
    assert [kind for kind, its in known["kinds"].items() if not told & set(its)] == []


# --- nothing shrinks silently, nothing is unchecked -----------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_case_is_lost(backend: str) -> None:
    """Fails when a run checks less than it did: an invariant, a block, a dtype or a case is gone."""
    lost = [
        f"{backend} {block}: {count} {name} recorded, {planned(backend).get(block, {}).get(name, 0)} planned"
        for block, counts in recorded()[backend].items()
        for name, count in counts.items()
        if planned(backend).get(block, {}).get(name, 0) < count
    ]
    assert lost == [], "\n".join([*lost, "if this is meant, record it: python tests/record_cases.py"])


def test_every_backend_and_block_is_recorded() -> None:
    """Fails when the record has a hole through which cases could be lost."""
    assert list(recorded()) == list(BACKENDS)
    assert all(list(blocks) == list(SPEC.blocks) for blocks in recorded().values())


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_unchecked_on_a_built_in_backend(backend: str) -> None:
    """Fails when a built-in block cannot show what an invariant asks for, or no size of the menu fits it."""
    from blocklaws.properties.worlds import admissible_sizes

    unchecked = [
        f"{part.id}: {reason or 'no size fits'}"
        for case in prepare([backend]).cases
        for part, reason in case.split()
        if reason or not admissible_sizes(part)
    ]
    assert unchecked == []


@pytest.mark.slow
def test_a_run_on_the_reference_checks_every_case(tmp_path: Path, blocklaws: Callable[..., Any]) -> None:
    """Fails when a planned case does not run to a verdict: one that is planned and then void is lost all the same."""
    done = blocklaws("verify", "numpy", "--profile", "quick", "--json", tmp_path / "report.json", timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    usual = {block: counts for block, counts in planned("numpy").items() if SPEC.blocks[block].by_default}
    total = sum(count for block in usual.values() for name, count in block.items() if name != "invariants")
    assert report["summary"] == {"holds": total, "violated": 0, "unchecked": 0, "error": 0}
    assert min(case["examples"] for case in report["cases"]) >= 1


# --- tolerances -----------------------------------------------------------------------------------------------------


def a_pass(dtype: str) -> Pass:
    """Return one world through the reference recipe of a dtype."""
    kind = SPEC.blocks["llama"]
    world = make_world(kind, Recipe(SPEC.menus[kind.heads][3], "normal", 11), dtype)
    return Pass(reference_subject(), world, reference_subject())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tolerance_has_a_reason(dtype: str) -> None:
    """Fails when a number stands in the table without its reason."""
    tolerance = SPEC.tolerances[dtype]
    numbers = {field.name for field in dataclasses.fields(tolerance)} - {"dtype", "reasons"}
    assert set(tolerance.reasons) == numbers
    assert all(len(reason) > 10 for reason in tolerance.reasons.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_ten_times_the_tolerance_of_close_is_refuted(dtype: str) -> None:
    """Fails when a right output with one element ten times too far away is still close to itself."""
    tolerance = SPEC.tolerances[dtype]
    output = a_pass(dtype).recipe().output().astype(np.float64)
    allowed = tolerance.atol + tolerance.rtol * np.abs(output).max(axis=-1)
    near, far = output.copy(), output.copy()
    near[0, 1, 2] += 0.5 * allowed[0, 1]
    far[0, 1, 2] += 10 * allowed[0, 1]
    assert close(near, output, tolerance)
    judgement = close(far, output, tolerance)
    assert not judgement
    assert (judgement.worst, judgement.wrong) == ((0, 1, 2), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ten_times_the_calibrated_bound_is_refuted(dtype: str) -> None:
    """Fails when an output ten times farther from the reference than its recipe may be still counts as right."""
    tolerance = SPEC.tolerances[dtype]
    one = a_pass(dtype)
    exact, recipe = one.reference().output(), one.resolve(("recipe", "output")).astype(np.float64)
    assert calibrated(recipe, exact, recipe, tolerance)
    scale = np.abs(exact).max(axis=-1, keepdims=True) + 0 * exact
    allowed = tolerance.c * np.abs(recipe - exact).max() + tolerance.floor * scale
    far = exact.copy()
    far[1, 0, 3] += 10 * allowed[1, 0, 3]
    judgement = calibrated(far, exact, recipe, tolerance)
    assert not judgement
    assert (judgement.worst, judgement.wrong) == ((1, 0, 3), 1)
    assert judgement.allowed == pytest.approx(allowed[1, 0, 3], rel=1e-6)


# --- tolerances of sums ---------------------------------------------------------------------------------------------


def test_a_claim_of_sums_allows_for_those_that_cancel() -> None:
    """Fails when a sum of products is judged by what is left of it: of whole numbers it may be rounding noise alone."""
    careless = [
        one.id
        for one in SPEC.invariants.values()
        # Of other patterns no whole row cancels to nothing.
        if {"integers", "zero-rows"} & set(one.worlds)
        for clause in one.clauses
        if "close(" in clause.expression.text and "matmul(" in clause.expression.text
        # A softmax brings whatever it is given to the scale of one.
        if "softmax(" not in clause.expression.text
        if clause.expression.text.count("terms=") < clause.expression.text.count("close(")
    ]
    assert careless == []


def test_a_row_that_cancels_to_rounding_noise_is_no_mistake() -> None:
    """Fails when a right block is accused of a head whose two features are sums of whole numbers that cancel."""
    pytest.importorskip("jax")
    sizes = {"B": 4, "T": 1, "n_heads": 10, "n_kv_heads": 2, "d_head": 2, "d_ff": 7, "d_model": 20}
    example = {"sizes": sizes, "pattern": "integers", "seed": 809643, "position_offset": 0, "picks": {}}
    claimed = {"invariant": "first-position-is-not-turned", "block": "llama-gqa", "dtype": "float32"}
    result = examine("jax", example=example, **claimed)
    assert result.verdict == "holds", result.reason


def test_what_is_split_is_continued() -> None:
    """Fails when a split of more than two units is one part, which no cache continues, or no later part is a chunk."""
    from blocklaws.properties.worlds import partitions

    for units, step in [(1, 1), (2, 1), (2, 4), (3, 1), (4, 1), (5, 1), (8, 1), (64, 1), (67, 1), (4, 16)]:
        splits = partitions(units * step, step)
        assert all(sum(split) == units * step and min(split) > 0 for split in splits)
        assert all(part % step == 0 for split in splits for part in split)
        if units > 2:
            assert all(len(split) > 1 for split in splits)
            assert any(part > step for split in splits for part in split[1:])
