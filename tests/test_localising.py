"""Where a traced failure is told to begin, in blocks whose passes differ in more than their arrays.

Must hold: the stages of a pass are compared in the order of its own config, and the config that is printed has the
numbers of the pass that failed; two stages that are one array by the equations are told as such.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocklaws
from blocklaws.canonical import STAGES, one_array, stage_order
from blocklaws.discovery import find_subjects
from blocklaws.failure_text import changed_text, failure_text
from blocklaws.html.failures import shown_failures
from blocklaws.report import CaseResult, Report
from blocklaws.spec_reading import built_in_spec
from blocklaws.tracing import trace, trace_text
from blocklaws.worlds import Recipe, make_world

NUMPY = find_subjects("numpy")[0]
SPEC = built_in_spec()


class WrongWhere:
    """A backend whose blocks have a fault where a field of their config has some value, and are right elsewhere."""

    name = "wrong-where"
    dtypes = ("float64",)

    def __init__(self, fault: str, **where: Any) -> None:
        self._wrong, self._where = NUMPY.with_fault(fault).backend, where

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Return the block."""
        wrong = all(getattr(config, name) == value for name, value in self._where.items())
        return (self._wrong if wrong else NUMPY.backend).build(config, parameters, dtype)


def run(backend: Any, block: str, invariant: str) -> Report:
    """Return the report of one invariant on one kind of block."""
    return blocklaws.verify(backend, blocks=[block], dtypes=["float64"], invariants=[invariant], profile="quick")


def violated(backend: Any, block: str, invariant: str) -> CaseResult:
    """Return the first failure of that report, which has one for each part of the invariant."""
    return run(backend, block, invariant).failures[0]


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        ("heads-not-transposed", "query"),
        ("rotary-key-not-turned", "key"),
        ("value-from-key", "value"),
        ("scale-missing", "attention_weights"),
        ("output-matrix-transposed", "attention_branch"),
        ("eps-outside-root", "attention_norm"),
        ("residual-dropped", "attention_norm"),
        ("activation-missing", "feed_forward_branch"),
        ("eps-default-in-second-norm", "feed_forward_norm"),
        ("feed-forward-residual-dropped", "feed_forward_norm"),
    ],
)
def test_a_pass_of_another_placement_is_looked_at_in_its_own_order(fault: str, stage: str) -> None:
    """Fails when a post-norm pass is read as the pre-norm block it was made from: its norms would come first."""
    result = violated(WrongWhere(fault, placement="post"), "llama", "placement-matters")
    assert result.stage == stage
    assert "in the pass 'after'" in result.divergence


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        ("norm-bias-missing", "attention_norm"),
        ("scale-missing", "attention_weights"),
        ("residual-dropped", "after_attention"),
        ("eps-default-in-second-norm", "feed_forward_norm"),
        ("relu-leaky", "feed_forward_branch"),
        ("feed-forward-residual-dropped", "output"),
    ],
)
def test_so_is_a_pre_norm_pass_of_a_post_norm_kind(fault: str, stage: str) -> None:
    """Fails when the stages of a pre-norm pass are compared in the order of post-norm."""
    assert violated(WrongWhere(fault, placement="pre"), "original", "placement-matters").stage == stage


@pytest.mark.parametrize(
    ("fault", "block", "stage"),
    [
        ("residual-dropped", "llama", "after_attention"),
        ("feed-forward-residual-dropped", "llama", "output"),
        ("eps-missing", "llama", "attention_norm"),
        ("feed-forward-residual-dropped", "original", "feed_forward_norm"),
    ],
)
def test_of_passes_that_go_wrong_in_one_place_the_first_is_told(fault: str, block: str, stage: str) -> None:
    """Fails when the other pass's name of the same place is taken, though the block's own pass is wrong there."""
    result = violated(NUMPY.with_fault(fault).backend, block, "placement-matters")
    assert result.stage == stage
    assert "in the pass" not in result.divergence


def test_the_config_of_the_failing_pass_is_told() -> None:
    """Fails when a reader of a failure sees the numbers of another pass than that which failed."""
    result = violated(WrongWhere("scale-missing", placement="post"), "llama", "placement-matters")
    assert result.config["placement"] == "pre"
    assert result.config_changes == {"after": {"placement": "post"}}
    (line,) = [line for line in failure_text(result).splitlines() if line.startswith("  config")]
    assert "pre placement" in line
    assert line.endswith("; in the pass 'after': placement post")


@pytest.mark.parametrize(
    ("fault", "where", "block", "invariant", "told"),
    [
        (
            "scale-missing",
            {"rotary_base": 50.0},
            "llama",
            "rotary-base-honoured",
            "in the pass 'after': rotary_base 50",
        ),
        ("scale-missing", {"norm_eps": 0.25}, "llama", "norm-eps-honoured", "set by the invariant: norm_eps 0.25"),
    ],
)
def test_so_is_any_other_field(fault: str, where: Any, block: str, invariant: str, told: str) -> None:
    """Fails when a number that an invariant changes is left out, as an epsilon is where it is the kind's own."""
    assert told in failure_text(violated(WrongWhere(fault, **where), block, invariant))


def test_so_is_that_of_a_pass_that_raises() -> None:
    """Fails when a block is told to raise on a config that it takes, since it raised on another."""

    class Refuses(WrongWhere):
        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            if config.placement == "post":
                raise ValueError("no such placement here")
            return super().build(config, parameters, dtype)

    result = violated(Refuses("scale-missing", placement="post"), "llama", "placement-matters")
    assert (result.verdict, result.stage) == ("error", None)
    assert "no such placement here" in result.reason
    assert "in the pass 'after': placement post" in failure_text(result)


def test_what_is_changed_in_words() -> None:
    """Fails when a choice, a number or what stands for none is told wrongly."""
    assert changed_text({}) == ""
    told = changed_text({"": {"norm_eps": 0.0, "window": None}, "after": {"bias": True, "softcap": 2.5}})
    assert told == "; set by the invariant: norm_eps 0, window None; in the pass 'after': bias True, softcap 2.5"


def test_the_page_draws_the_pass_that_failed() -> None:
    """Fails when the diagram shows the norms of a pre-norm block around the stages of a post-norm pass."""
    report = run(WrongWhere("scale-missing", placement="post"), "llama", "placement-matters")
    (failure,) = shown_failures(report).full
    assert "norms after the additions" in failure.diagram
    assert failure.config.endswith("; in the pass 'after': placement post")


# --- stages that are one array ---


def test_what_ends_a_half_of_a_post_norm_block_is_told_by_its_norm() -> None:
    """Fails when a wrong norm is told as the stream after it, which is the same array, or one of the two is hidden."""
    result = violated(NUMPY.with_fault("norm-bias-missing").backend, "original", "output-parity")
    assert result.stage == "attention_norm"
    assert result.divergence.startswith("attention_norm (= after_attention)")
    second = violated(NUMPY.with_fault("eps-default-in-second-norm").backend, "original", "output-parity")
    assert second.divergence.startswith("feed_forward_norm (= output)")
    pre = violated(NUMPY.with_fault("eps-missing").backend, "llama", "output-parity")
    assert " (= " not in pre.divergence


@pytest.mark.parametrize("block", sorted(SPEC.blocks))
def test_the_stages_that_are_one_array(block: str) -> None:
    """Fails when two stages are called one array that are not, or are and are not called so, or stand apart."""
    config = SPEC.blocks[block].config(SPEC.menus[SPEC.blocks[block].heads][-1])
    world = make_world(SPEC.blocks[block], Recipe(SPEC.menus[SPEC.blocks[block].heads][-1], "normal", 1), "float64")
    shown = NUMPY.build(world).trace(world.input, 0)
    pairs = one_array(config.placement)
    alike = {a: b for a in STAGES for b in STAGES if a < b and np.array_equal(shown[a], shown[b])}
    assert {frozenset(pair) for pair in alike.items()} == {frozenset(pair) for pair in pairs.items()}
    order = stage_order(config)
    assert all(order.index(b) == order.index(a) + 1 for a, b in pairs.items())


def test_a_trace_is_shown_in_the_order_of_its_block() -> None:
    """Fails when `trace` names the norm of a post-norm block, which comes after the stage at fault."""
    data = trace(NUMPY.with_fault("scale-missing"), SPEC, "original")
    assert data["first_outside"] == "attention_weights"
    config = SPEC.blocks["original"].config(SPEC.menus["equal"][0])
    assert [row["stage"] for row in data["stages"]] == list(stage_order(config)[1:])
    assert trace_text(data).endswith("is attention_weights")
