"""The property of stacked blocks: every law, at both depths, with blocks that it must refute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from property_support import Altered, check, faulty

from blocklaws import SpecError
from blocklaws.passes import Unavailable
from blocklaws.properties.stacks import LAWS, _Model

GENTLE = {"worlds": ["gentle"], "where": "T >= 2"}


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("block", ["llama", "llama-gqa", "gpt"])
def test_right_blocks_compose(tmp_path: Path, block: str, law: str, depth: int) -> None:
    """Fails if a right stack is refuted."""
    result = check(tmp_path, "stacks", block=block, arguments={"depth": depth, "law": law}, **GENTLE)
    assert (result.verdict, result.informative) == ("holds", result.examples), result.reason


@pytest.mark.parametrize("law", ["prefix", "truncation", "parameter-count", "loss"])
def test_post_norm_blocks_compose_too(tmp_path: Path, law: str) -> None:
    """Fails if a law other than the identity depends on the placement of the norms."""
    result = check(tmp_path, "stacks", block="original", arguments={"depth": 2, "law": law}, **GENTLE)
    assert result.verdict == "holds", result.reason


def test_post_norm_blocks_without_branches_are_no_identity(tmp_path: Path) -> None:
    """Fails if the identity is asked of a block that normalizes its stream."""
    result = check(tmp_path, "stacks", block="original", arguments={"depth": 2, "law": "zero-branches"}, **GENTLE)
    assert result.verdict == "unchecked"
    assert "no identity" in result.reason


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends_compose(tmp_path: Path, backend: str) -> None:
    """Fails if a stack of another framework's blocks is judged otherwise."""
    pytest.importorskip(backend)
    for law in LAWS:
        result = check(tmp_path, "stacks", backend, arguments={"depth": 2, "law": law}, dtype="float32", **GENTLE)
        assert result.verdict == "holds", (law, result.reason)


@pytest.mark.parametrize(
    ("law", "fault"),
    [
        ("prefix", "mask-off-by-one"),
        ("prefix", "norm-over-tokens"),
        ("truncation", "mask-missing"),
        ("truncation", "norm-divided-by-tokens"),
        ("zero-branches", "residual-from-norm"),
        ("zero-branches", "residual-gradient-dropped"),
        ("parameter-count", "parameter-not-registered"),
        ("parameter-count", "bias-left-on"),
        ("loss", "gain-missing"),
        ("loss", "mask-off-by-one"),
        ("loss", "heads-interleaved"),
    ],
)
def test_a_stack_of_wrong_blocks_is_refuted(tmp_path: Path, law: str, fault: str) -> None:
    """Fails if a law could not fail."""
    where = "T >= 3 and n_heads >= 2" if fault == "heads-interleaved" else "T >= 2"
    arguments = {"depth": 2, "law": law}
    result = check(tmp_path, "stacks", faulty(fault), arguments=arguments, worlds=["gentle"], where=where)
    assert result.verdict == "violated", result.reason


def _nan_in_company(block: Any, x: Any, position_offset: int = 0) -> Any:
    """Give a first row that is not a number, where it is not alone."""
    output = block.forward(x, position_offset)
    return np.where(np.arange(x.shape[1])[:, None] == 0, np.nan, output) if x.shape[1] > 1 else output


@pytest.mark.parametrize("law", ["prefix", "truncation", "loss"])
def test_a_block_that_is_not_finite_is_refuted_and_not_the_reference(tmp_path: Path, law: str) -> None:
    """Fails if a NaN of the block, which its other runs are held against, is an error that blames the reference."""
    arguments = {"depth": 2, "law": law}
    result = check(tmp_path, "stacks", Altered(forward=_nan_in_company), arguments=arguments, **GENTLE)
    assert result.verdict == "violated", result.reason
    if law != "loss":
        assert result.reason.startswith("the reference blocks are finite here: ")
        assert "are not finite" in result.reason


@pytest.mark.parametrize("law", ["prefix", "truncation"])
def test_where_the_reference_is_not_finite_nothing_is_said(
    tmp_path: Path, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if blocks are refuted for an overflow that the reference blocks have too."""

    def overflows(*_: Any) -> Any:
        raise Unavailable("the reference recipe is not finite")

    monkeypatch.setattr("blocklaws.properties.stacks._Oracle.noise", overflows)
    arguments = {"depth": 2, "law": law}
    result = check(tmp_path, "stacks", Altered(forward=_nan_in_company), arguments=arguments, **GENTLE)
    assert (result.verdict, result.examples - result.informative) == ("unchecked", result.examples)
    assert "the reference recipe is not finite" in result.reason


def test_blocks_that_share_a_parameter_are_refuted(tmp_path: Path) -> None:
    """Fails if two blocks of a stack may list the same storage."""
    shared: dict[str, Any] = {}

    def parameters(block: Any) -> Any:
        listed = dict(block.parameters())
        key = f"{listed['attention.query'].shape}"
        listed["attention.query"] = shared.setdefault(key, listed["attention.query"])
        return listed

    altered = Altered(parameters=parameters)
    result = check(tmp_path, "stacks", altered, arguments={"depth": 2, "law": "parameter-count"}, **GENTLE)
    assert result.verdict == "violated"
    assert "share memory" in result.reason


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_shifted_loss_is_its_definition(norm: str) -> None:
    """Fails if the two ways to write the loss differ, or the shift goes the other way."""
    random = np.random.default_rng(0)
    model = _Model(random.normal(size=(11, 6)), random.uniform(0.5, 1.5, 6), norm, 1e-5)
    stream, ids = random.normal(size=(3, 5, 6)), random.integers(0, 11, (3, 5))
    shifted, defined = model.shifted_loss(stream, ids), model.defined_loss(stream, ids)
    assert shifted.shape == (3, 4)
    assert np.allclose(shifted, defined, rtol=0, atol=1e-12)
    other = ids.copy()
    other[:, 0] = (ids[:, 0] + 1) % 11
    assert np.array_equal(model.shifted_loss(stream, other), shifted), "the first token is no target"
    assert not np.allclose(model.shifted_loss(stream, ids[:, ::-1]), shifted)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"law": "loss"}, "'depth' is a required property"),
        ({"depth": 1, "law": "loss"}, "with.depth"),
        ({"depth": 2, "law": "los"}, "'los' is not one of"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_place(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    """Fails if a mistyped argument is ignored."""
    with pytest.raises(SpecError, match=r"spec\.yaml:\d+:\d+: invariant 'under-test': with") as raised:
        check(tmp_path, "stacks", arguments=arguments)
    assert said in str(raised.value)
