"""The properties that judge gradients: what they refute, what they accept, what they leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from property_support import Altered, check, faulty

from blocklaws import SpecError

GENTLE = {"worlds": ["gentle"], "where": "T <= 5"}
BLOCKS = ("llama", "llama-gqa", "plain", "gpt", "original")


# --- central-differences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS)
def test_right_gradients_are_their_slopes(tmp_path: Path, block: str) -> None:
    """Fails if a right block's gradients are refuted, or most coordinates are left out."""
    result = check(tmp_path, "central-differences", block=block, **GENTLE)
    assert (result.verdict, result.informative) == ("holds", result.examples), result.reason
    assert result.max_error is not None
    assert 0 < result.max_error < 2e-5


@pytest.mark.parametrize(
    ("fault", "block"),
    [
        ("gain-gradient-missing", "llama"),
        ("norm-detached", "gpt"),
        ("statistics-detached", "original"),
        ("gate-up-gradients-swapped", "plain"),
        ("residual-gradient-dropped", "llama-gqa"),
        ("softmax-gradient-truncated", "llama"),
        ("kv-gradient-wrong-group", "llama-gqa"),
        ("gradient-averaged-over-batch", "plain"),
    ],
)
def test_a_gradient_that_is_not_the_slope_is_refuted(tmp_path: Path, fault: str, block: str) -> None:
    """Fails if a known mistake of a backward pass goes unseen."""
    result = check(tmp_path, "central-differences", faulty(fault), block=block, **GENTLE)
    assert result.verdict == "violated", result.reason
    assert "gradient." in result.reason


def test_a_forward_pass_that_is_wrong_has_right_gradients_of_its_own(tmp_path: Path) -> None:
    """Fails if the differences are those of an oracle and not of the block under test."""
    result = check(tmp_path, "central-differences", faulty("scale-missing"), **GENTLE)
    assert result.verdict == "holds", result.reason


def _off_by(amount: float, name: str, index: int) -> Any:
    def gradients(block: Any, x: Any, cotangent: Any, position_offset: int = 0) -> Any:
        found = dict(block.gradients(x, cotangent, position_offset))
        found[name] = found[name].copy()
        found[name].flat[index] += amount * max(1.0, float(np.abs(found[name]).max()))
        return found

    return gradients


@pytest.mark.parametrize("name", ["input", "attention.key", "feed_forward.down", "feed_forward_norm.gain"])
def test_one_wrong_coordinate_is_seen(tmp_path: Path, name: str) -> None:
    """Fails if a coordinate takes part in no difference, or ten times the tolerance in one place passes."""
    result = check(tmp_path, "central-differences", Altered(gradients=_off_by(2e-4, name, -1)), **GENTLE)
    assert result.verdict == "violated", result.reason
    assert f"gradient.{name}" in result.reason


def test_a_wrong_coordinate_of_a_larger_block_is_seen_along_random_directions(tmp_path: Path) -> None:
    """Fails if the directions of a larger block leave a coordinate out."""
    altered = Altered(gradients=_off_by(0.1, "attention.value", 7))
    result = check(
        tmp_path, "central-differences", altered, arguments={"coordinates": 0}, worlds=["normal"], where="T == 5"
    )
    assert result.verdict == "violated", result.reason
    assert "attention.value along random directions" in result.reason


def test_a_nan_and_a_wrong_shape_are_refuted(tmp_path: Path) -> None:
    """Fails if NaN passes a comparison, or a transposed gradient an element-wise one."""

    def broken(block: Any, x: Any, cotangent: Any, position_offset: int = 0) -> Any:
        found = dict(block.gradients(x, cotangent, position_offset))
        return {"attention_norm.gain": found["attention_norm.gain"] * np.nan}

    def turned(block: Any, x: Any, cotangent: Any, position_offset: int = 0) -> Any:
        return {"feed_forward.up": block.gradients(x, cotangent, position_offset)["feed_forward.up"].T}

    assert check(tmp_path, "central-differences", Altered(gradients=broken), **GENTLE).verdict == "violated"
    result = check(tmp_path, "central-differences", Altered(gradients=turned), **GENTLE)
    assert result.verdict == "violated"
    assert "has shape (3, 4) where (4, 3) was expected" in result.reason


def test_a_subset_of_gradients_is_checked_and_none_is_unchecked(tmp_path: Path) -> None:
    """Fails if a partial answer is refuted, or an empty one passes."""

    def some(block: Any, x: Any, cotangent: Any, position_offset: int = 0) -> Any:
        return {"input": block.gradients(x, cotangent, position_offset)["input"]}

    assert check(tmp_path, "central-differences", Altered(gradients=some), **GENTLE).verdict == "holds"
    result = check(tmp_path, "central-differences", Altered(gradients=lambda *_: {}), **GENTLE)
    assert result.verdict == "unchecked"
    assert "gives neither" in result.reason


def test_low_precision_is_unchecked(tmp_path: Path) -> None:
    """Fails if differences over 1e-6 are taken where they are rounding noise."""
    result = check(tmp_path, "central-differences", dtype="float32", **GENTLE)
    assert result.verdict == "unchecked"
    assert "only float64" in result.reason


def test_coordinates_across_a_kink_are_left_out_and_counted(tmp_path: Path) -> None:
    """Fails if a ReLU at exactly zero refutes a right block, or its coordinates count as compared."""
    # All inner features sit at zero: every difference that moves them crosses the kink.
    flat = {"feed_forward.up": 0, "feed_forward.up_bias": 0}
    result = check(tmp_path, "central-differences", block="original", set=flat, min_informative=0, **GENTLE)
    assert result.verdict == "holds", result.reason
    swapped = Altered(gradients=_off_by(1.0, "attention.output", 0))
    result = check(tmp_path, "central-differences", swapped, block="original", set=flat, min_informative=0, **GENTLE)
    assert result.verdict == "violated"


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends_pass(tmp_path: Path, backend: str) -> None:
    """Fails if what holds in NumPy is judged otherwise elsewhere."""
    pytest.importorskip(backend)
    result = check(tmp_path, "central-differences", backend, worlds=["gentle"], where="T <= 2")
    assert result.verdict == "holds", result.reason


# --- gradient-reach --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("block", BLOCKS)
def test_every_parameter_of_a_right_block_is_reached(tmp_path: Path, block: str, dtype: str) -> None:
    """Fails if a gradient that is zero by the mathematics (a key bias, a dead ReLU) is refuted."""
    result = check(tmp_path, "gradient-reach", block=block, dtype=dtype, worlds=["gentle"], where="T >= 2")
    assert result.verdict == "holds", result.reason


def test_a_parameter_that_is_cut_off_is_named(tmp_path: Path) -> None:
    """Fails if a gradient of zeros counts as a gradient."""
    result = check(tmp_path, "gradient-reach", faulty("gain-gradient-missing"), where="T >= 2", worlds=["gentle"])
    assert result.verdict == "violated"
    assert "gradient.attention_norm.gain is zero everywhere" in result.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: {**found, "attention.querry": found["attention.query"]}, "did you mean 'attention.query'"),
        (lambda found: {**found, "feed_forward.up": found["feed_forward.up"].T}, "has shape (3, 4)"),
        (lambda found: {**found, "attention.key": found["attention.key"] * np.inf}, "not finite"),
        (
            lambda found: {**found, "attention.key": found["attention.key"].astype(np.float32)},
            "gradient.attention.key is float32, the input is float64",
        ),
    ],
)
def test_wrong_names_shapes_and_infinities_are_refuted(tmp_path: Path, change: Any, said: str) -> None:
    """Fails if a gradient is accepted that no optimizer could use."""

    def gradients(block: Any, x: Any, cotangent: Any, position_offset: int = 0) -> Any:
        return change(dict(block.gradients(x, cotangent, position_offset)))

    result = check(tmp_path, "gradient-reach", Altered(gradients=gradients), where="T >= 2", worlds=["gentle"])
    assert result.verdict == "violated", result.reason
    assert said in result.reason


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("property", "arguments", "said"),
    [
        ("central-differences", {"step": 0}, "with.step"),
        ("central-differences", {"stepp": 1e-6}, "'stepp'"),
        ("central-differences", {"directions": 0}, "with.directions"),
        ("gradient-reach", {"step": 1e-6}, "'step'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_place(
    tmp_path: Path, property: str, arguments: dict[str, Any], said: str
) -> None:
    """Fails if a mistyped argument is ignored."""
    with pytest.raises(SpecError, match=r"spec\.yaml:\d+:\d+: invariant 'under-test': with") as raised:
        check(tmp_path, property, arguments=arguments)
    assert said in str(raised.value)
