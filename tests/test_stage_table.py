"""The stages that a failure keeps beside the reference's: right numbers, bounded, never the cause of a lost verdict.

Must hold: what the table calls outside its bound is what the failure names first; every number of a plane is that of
the block or of the reference at the index it is said to stand at.
"""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from html_support import faulty

import blocklaws
from blocklaws import report as reports
from blocklaws import stage_table as tables
from blocklaws.discovery import find_subjects
from blocklaws.passes import Pass
from blocklaws.planning import reference_subject
from blocklaws.report import CaseResult
from blocklaws.spec_reading import built_in_spec
from blocklaws.specification import Sizes
from blocklaws.stage_table import MOST_COLUMNS, MOST_NUMBERS, MOST_ROWS, stage_table, table_of_failure
from blocklaws.subjects import Subject
from blocklaws.worlds import Recipe, make_world

SMALL = {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4}
LONG = SMALL | {"B": 2, "T": 67, "n_heads": 2, "n_kv_heads": 2, "d_head": 8, "d_model": 16}


def passed(backend: Any, block: str = "llama", sizes: dict[str, int] | None = None, dtype: str = "float32") -> Pass:
    """Return the pass of one ordinary world through a backend."""
    kind = built_in_spec().blocks[block]
    world = make_world(kind, Recipe(Sizes(**(sizes or SMALL)), "normal", 3), dtype)
    return Pass(Subject(backend, "<backend>"), world, reference_subject())


def table(backend: Any, block: str = "llama", sizes: dict[str, int] | None = None, dtype: str = "float32") -> Any:
    """Return the table of one ordinary world."""
    found = stage_table({"": passed(backend, block, sizes, dtype)}, "", built_in_spec().tolerances[dtype])
    json.dumps(found, allow_nan=False)  # whatever it holds can be written
    return found


class Wrapped:
    """A backend whose blocks answer as ``change`` says; without ``change`` they show no stages."""

    name = "wrapped"

    def __init__(self, change: Any = None) -> None:
        self._change = change

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Return the block."""
        right, change = find_subjects("numpy")[0].backend.build(config, parameters, dtype), self._change

        class Block:
            def forward(self, x: Any, position_offset: int = 0) -> Any:
                return right.forward(x, position_offset)

        class Traced(Block):
            def trace(self, x: Any, position_offset: int = 0) -> Any:
                return change(dict(right.trace(x, position_offset)))

        return Block() if change is None else Traced()


def violated(backend: Any, **choice: Any) -> CaseResult:
    """Return the one failure of a run."""
    (result,) = blocklaws.verify(backend, blocks=["llama"], dtypes=["float32"], profile="quick", **choice).failures
    return result


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        ("norm-over-tokens", "attention_norm"),
        ("mask-off-by-one", "attention_weights"),
        ("residual-dropped", "after_attention"),
    ],
)
def test_the_first_row_outside_is_the_stage_that_the_failure_names(fault: str, stage: str) -> None:
    """Fails when the table and the line `diverges` tell of different stages."""
    result = violated(faulty(fault), invariants=["output-parity"])
    assert result.stages is not None
    outside = [row["stage"] for row in result.stages["rows"] if row["within"] is False]
    assert result.stage == outside[0] == stage
    assert "output" in outside


def test_the_numbers_are_those_of_block_and_reference() -> None:
    """Fails when a plane shows another batch, head or window than it says, or the two sides are swapped."""
    backend = faulty("norm-over-tokens")
    one = passed(backend, sizes=LONG)
    found = stage_table({"": one}, "", built_in_spec().tolerances["float32"])
    assert found is not None
    seen = 0
    for row in found["rows"]:
        shown, exact = one.stages()[row["stage"]].astype(np.float64), one.reference().stages()[row["stage"]]
        assert row["max"] == pytest.approx(np.abs(shown).max(), rel=1e-5)
        assert row["reference_max"] == pytest.approx(np.abs(exact).max(), rel=1e-5)
        at = tuple(row["at"])
        assert row["difference"] == pytest.approx(abs(shown[at] - exact[at]), rel=1e-4)
        if "plane" not in row:
            continue
        plane = row["plane"]
        outer, (top, left) = tuple(plane["at"]), plane["from"]
        got, want = np.array(plane["got"]), np.array(plane["want"])
        window = (slice(top, top + got.shape[0]), slice(left, left + got.shape[1]))
        np.testing.assert_allclose(got, shown[outer][window], rtol=1e-5)
        np.testing.assert_allclose(want, exact[outer][window], rtol=1e-5)
        # The element that is furthest off is in the window.
        far = np.abs(shown - exact)
        assert np.abs(got - want).max() == pytest.approx(far.max(), rel=1e-3)
        assert plane["of"] == list(shown.shape[-2:])
        seen += 1
    assert seen >= 3


def test_a_table_is_bounded_and_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when one failure of a large world fills a report, or numbers vanish without a word."""
    backend = faulty("norm-over-tokens")

    def counted(found: Any) -> int:
        planes = [row["plane"] for row in found["rows"] if "plane" in row]
        assert all(len(p["got"]) <= MOST_ROWS and len(p["got"][0]) <= MOST_COLUMNS for p in planes)
        return sum(2 * len(line) for plane in planes for line in plane["got"])

    assert 0 < counted(table(backend, sizes=LONG)) <= MOST_NUMBERS
    monkeypatch.setattr(tables, "MOST_NUMBERS", 2500)
    found = table(backend, sizes=LONG)
    assert counted(found) <= 2500
    rows = {row["stage"]: row for row in found["rows"]}
    assert "plane" in rows["attention_norm"]
    assert "plane" in rows["output"]
    left_out = [stage for stage, row in rows.items() if row.get("plane_left_out")]
    assert left_out
    assert all("plane" not in rows[stage] for stage in left_out)


def test_stages_within_their_bound_keep_no_numbers_but_the_weights_do() -> None:
    """Fails when a report grows with stages that nobody looks at, or nobody can see which keys were masked."""
    found = table(find_subjects("numpy")[0].backend)
    assert [row["stage"] for row in found["rows"] if "plane" in row] == ["attention_weights"]
    assert all(row["within"] for row in found["rows"])


def test_a_block_without_trace_shows_its_output_and_says_so() -> None:
    """Fails when a reader takes stages that were never seen for right ones."""
    found = table(Wrapped())
    assert found["note"] == "the block shows no stages (it has no trace), so its output alone is compared"
    assert [row["stage"] for row in found["rows"] if row["shape"] is not None] == ["output"]


def test_a_partial_trace_has_rows_without_a_shape() -> None:
    """Fails when a stage that is not shown looks as if it were within its bound."""
    found = table(Wrapped(lambda stages: {"query": stages["query"]}))
    assert found["note"] == ""
    assert [row["stage"] for row in found["rows"] if row["shape"] is not None] == ["query", "output"]
    assert all("within" not in row for row in found["rows"] if row["shape"] is None)


def test_a_wrong_shape_and_nan_are_outside() -> None:
    """Fails when what cannot be compared is taken for equal, or cannot be written as JSON."""

    def change(stages: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        stages["query"] = stages["query"][..., :2]
        stages["output"] = stages["output"] * np.where(np.arange(4) == 1, np.nan, 1)
        return stages

    rows = {row["stage"]: row for row in table(Wrapped(change))["rows"]}
    assert (rows["query"]["within"], rows["query"]["expected_shape"]) == (False, [1, 1, 2, 4])
    assert rows["output"]["within"] is False
    assert rows["output"]["difference"] == "nan"
    assert rows["output"]["plane"]["got"][0][1] == "nan"


def test_low_precision_and_post_norm_blocks_have_tables() -> None:
    """Fails when a dtype that NumPy does not know, or another order of stages, breaks the table."""
    found = table(faulty("mask-off-by-one"), "original", dtype="bfloat16")
    assert [row["stage"] for row in found["rows"]][-3:] == ["feed_forward_branch", "feed_forward_norm", "output"]
    weight = next(row["plane"]["got"][0][0] for row in found["rows"] if row["stage"] == "attention_weights")
    assert weight == pytest.approx(float(ml_dtypes.bfloat16(weight)), rel=1e-5)


def test_the_pass_that_is_wrong_is_shown() -> None:
    """Fails when the table is of a pass in which nothing is wrong, while another one is."""
    tolerance = built_in_spec().tolerances["float32"]
    right, wrong = passed(find_subjects("numpy")[0].backend), passed(faulty("norm-over-tokens"))
    found = table_of_failure({"": right, "after": wrong}, "", tolerance)
    assert found is not None
    assert found["pass"] == "after"
    found = table_of_failure({"": right, "after": right}, "", tolerance)
    assert found is not None
    assert found["pass"] == ""
    assert stage_table({}, "", tolerance) is None


def test_what_explains_a_failure_cannot_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a mistake in the table turns a violation into an error of the harness."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(reports, "table_of_failure", broken)
    result = violated(faulty("norm-over-tokens"), invariants=["output-parity"])
    assert (result.verdict, result.stage, result.stages) == ("violated", "attention_norm", None)


def test_an_expected_failure_has_no_table(tmp_path: Any) -> None:
    """Fails when failures that nobody looks into make a report large."""
    known = tmp_path / "known.yaml"
    known.write_text("- {invariant: output-parity, reason: r}\n", encoding="utf-8")
    report = blocklaws.verify(
        faulty("norm-over-tokens"), blocks=["llama"], dtypes=["float32"], invariants=["output-parity"],
        known_failures=known, profile="quick",
    )  # fmt: skip
    (case,) = report.cases
    assert (case.verdict, case.known, case.stages) == ("violated", "r", None)


# --- what a case used of its bound ---


def test_a_case_says_how_near_it_came() -> None:
    """Fails when the part of the tolerance that was used is not that of the largest error, or an exact law has one."""
    report = blocklaws.verify(
        "numpy", blocks=["llama"], dtypes=["float32"], invariants=["output-parity", "prefix-invariance", "liveness"],
        profile="quick",
    )  # fmt: skip
    cases = {case.invariant: case for case in report.cases}
    assert cases["output-parity"].nearest is not None
    difference, allowed = cases["output-parity"].nearest
    assert 0 < difference <= allowed
    assert cases["output-parity"].max_error is not None
    assert difference <= cases["output-parity"].max_error
    assert cases["prefix-invariance"].nearest == (0.0, 0.0)
    # A claim that something differs has no bound to come near to.
    assert cases["liveness"].nearest is None


def test_a_violation_says_how_far_it_went() -> None:
    """Fails when the element of a failure and its line of text tell different numbers."""
    result = violated(faulty("norm-over-tokens"), invariants=["output-parity"])
    assert result.element is not None
    assert result.nearest is not None
    assert result.element["axes"] == ["batch", "token", "feature"]
    assert result.nearest == (result.element["difference"], result.element["allowed"])
    assert f"got {result.element['got']:.9g}, expected {result.element['want']:.9g}" in result.worst
    assert result.nearest[0] > result.nearest[1] > 0


def test_a_run_says_how_to_repeat_it() -> None:
    """Fails when the command of a report runs something else, or names what no command can name."""
    choice = {"blocks": ["llama"], "dtypes": ["float32"], "invariants": ["shape-preservation"], "profile": "quick"}
    assert blocklaws.verify("numpy", seed=7, **choice).command == (
        "blocklaws verify numpy --block llama --dtype float32 --invariant shape-preservation --profile quick --seed 7"
    )
    assert blocklaws.verify(find_subjects("numpy")[0].backend, **choice).command == ""
    report = blocklaws.verify("numpy", **choice)
    assert set(report.versions) >= {"python", "numpy", "hypothesis"}
    assert "jax" in blocklaws.verify("numpy", "jax", **choice).versions
    (told,) = report.as_dict()["meanings"]
    assert told.keys() == {"invariant", "family", "why", "means"}
