"""The frozen examples: every check holds for right blocks, fails for wrong ones, and a bad file is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from property_support import Altered, check, faulty

import blocklaws
from blocklaws import SpecError
from blocklaws.errors import BlocklawsError
from blocklaws.fixture_reading import fixture_names, load_fixture, read_fixture
from blocklaws.spec_reading import load_spec

CHECKS = [(name, check) for name in fixture_names() for check in load_fixture(name).checks]


def _arguments(fixture: str, name: str) -> dict[str, Any]:
    return {"arguments": {"fixture": fixture, "check": name}, "examples": 0.1}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("fixture", "name"), CHECKS)
def test_right_blocks_give_the_printed_numbers(tmp_path: Path, fixture: str, name: str, dtype: str) -> None:
    """Fails if the reference does not reproduce a printed digit."""
    for block in load_fixture(fixture).blocks:
        result = check(tmp_path, "fixtures", block=block, dtype=dtype, **_arguments(fixture, name))
        expected = "unchecked" if (name, dtype, fixture) == ("gradients", "float32", "identity-block") else "holds"
        assert result.verdict == expected, result.reason


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends_give_the_printed_numbers(tmp_path: Path, backend: str) -> None:
    """Fails if another backend is off in a printed digit."""
    pytest.importorskip(backend)
    for fixture, name in CHECKS:
        block = load_fixture(fixture).blocks[0]
        result = check(tmp_path, "fixtures", backend, block=block, **_arguments(fixture, name))
        assert result.verdict == "holds", (fixture, name, result.reason)


@pytest.mark.parametrize(
    ("fixture", "name", "fault"),
    [
        ("identity-block", "stages", "scale-missing"),
        ("identity-block", "output", "gate-sigmoid"),
        ("identity-block", "logits", "activation-missing"),
        ("identity-block", "order", "placement-swapped"),
        ("identity-block", "causality", "mask-off-by-one"),
        ("identity-block", "counts", "parameter-not-registered"),
        ("identity-block", "gradients", "softmax-gradient-truncated"),
        ("post-norm-order", "order", "variance-unbiased"),
        ("wider-block", "counts", "bias-left-on"),
        ("wider-block", "shape", "last-token-dropped"),
        ("norm-row", "norm-row", "eps-outside-root"),
        ("gelu-values", "gelu", "gelu-tanh-for-erf"),
        ("residual-sum", "sum", "residual-scaled"),
        ("residual-sum", "stages", "output-bias-missing"),
        ("residual-path", "plain", "norm-detached"),
        ("residual-path", "residual", "residual-gradient-dropped"),
        ("residual-path", "cancelled", "norm-detached"),
        ("biased-block", "counts", "bias-not-listed"),
        ("biased-block", "future-change", "norm-over-tokens-and-features"),
        ("biased-block", "zero-branches", "residual-dropped"),
        ("biased-block", "zero-branch-gradient", "residual-gradient-dropped"),
        ("biased-block", "gradients", "gain-gradient-missing"),
        ("lab-block", "scale", "gelu-tanh-for-erf"),
        ("lab-block", "future-change", "norm-over-tokens-and-features"),
        ("compact-block", "shape", "last-token-dropped"),
        ("compact-block", "gradient", "gain-gradient-missing"),
        ("compact-block", "counts", "parameter-not-registered"),
    ],
)
def test_a_wrong_block_does_not_give_the_printed_numbers(tmp_path: Path, fixture: str, name: str, fault: str) -> None:
    """Fails if a check of a fixture could not fail."""
    block = load_fixture(fixture).blocks[0]
    result = check(tmp_path, "fixtures", faulty(fault), block=block, **_arguments(fixture, name))
    assert result.verdict == "violated", result.reason


def test_every_check_is_shown_to_refute_something() -> None:
    """Fails if a check is added to a fixture without a fault that it refutes."""
    (mark,) = (
        mark
        for mark in test_a_wrong_block_does_not_give_the_printed_numbers.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    assert {(fixture, name) for fixture, name, _ in mark.args[1]} == set(CHECKS)


@pytest.mark.parametrize("stage", ["attention_branch", "output"])
def test_one_unit_of_the_last_printed_digit_is_seen(tmp_path: Path, stage: str) -> None:
    """Fails if the comparison allows more than rounding to the printed digits does."""

    def trace(block: Any, x: Any, position_offset: int = 0) -> Any:
        stages = dict(block.trace(x, position_offset))
        stages[stage] = stages[stage] + 1.1e-6 * (np.arange(stages[stage].size) == 4).reshape(stages[stage].shape)
        return stages

    result = check(tmp_path, "fixtures", Altered(trace=trace), **_arguments("identity-block", "stages"))
    assert result.verdict == "violated"
    assert "batch=0, token=1, feature=0" in result.worst


def test_the_wrong_norm_of_the_numerics_chapter_moves_earlier_rows_by_more_than_a_tenth() -> None:
    """Fails if the negative control of the chapter, a norm over tokens and features, leaks less than was printed."""
    fixture, kind = load_fixture("biased-block"), load_spec().blocks["gpt"]
    world = fixture.world(kind, "float64")
    block = faulty("norm-over-tokens-and-features").build(world.config, dict(world.parameters), "float64")
    before, after = (block.forward(each.input) for each in (world, fixture.changed_world(world)))
    assert np.abs(after - before)[:, :3].max() > 0.1


def test_the_drawn_block_is_the_one_of_the_printed_seed() -> None:
    """Fails if a number of lab-block is not what PyTorch draws for the seed that the lab prints."""
    torch = pytest.importorskip("torch")
    fixture, kind = load_fixture("lab-block"), load_spec().blocks["gpt"]

    def drawn() -> dict[str, Any]:
        layers = [torch.nn.Linear(*sizes) for sizes in ((8, 24), (8, 8), (8, 32), (32, 8))]
        (joined, joined_bias), *others = ((layer.weight.T, layer.bias) for layer in layers)
        found = {}
        for name, columns in (("query", slice(0, 8)), ("key", slice(8, 16)), ("value", slice(16, 24))):
            found |= {f"attention.{name}": joined[:, columns], f"attention.{name}_bias": joined_bias[columns]}
        for name, (weight, bias) in zip(
            ("attention.output", "feed_forward.up", "feed_forward.down"), others, strict=True
        ):
            found |= {name: weight, f"{name}_bias": bias}
        return {name: value.detach().numpy() for name, value in found.items()}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        first, x = drawn(), torch.randn(2, 4, 8, dtype=torch.float64).numpy()
        drawn()  # the block that the lab compares its own with
        second = drawn()
    for layer, weights in enumerate((first, second)):
        world = fixture.world(kind, "float64", layer=layer)
        assert np.abs(world.input - x).max() < 1e-10
        assert {name for name in world.parameters if "norm" not in name} == set(weights)
        assert all(np.array_equal(world.parameters[name].astype(np.float32), value) for name, value in weights.items())


def test_the_fixture_of_another_kind_of_block_is_unchecked(tmp_path: Path) -> None:
    """Fails if a fixture is run on a block that it does not speak of."""
    result = check(tmp_path, "fixtures", block="gpt", **_arguments("identity-block", "output"))
    assert result.verdict == "unchecked"
    assert "llama and llama-gqa" in result.reason


def test_a_kind_that_a_spec_changed_is_not_judged_by_what_was_printed_of_ours(tmp_path: Path) -> None:
    """Fails if a block is told wrong because a kind of its name had other choices when a chapter was printed."""
    spec = tmp_path / "own.yaml"
    llama = load_spec().blocks["llama"]
    blocks = {"llama": {"says": "ours", "source": "here", "heads": llama.heads, **llama.choices, "norm": "layer"}}
    spec.write_text(yaml.safe_dump({"extends": "blocklaws", "blocks": blocks}), encoding="utf-8")
    results = {
        invariant: blocklaws.verify(
            "numpy", spec=spec, blocks=["llama"], dtypes=["float64"], invariants=[invariant], profile="quick"
        ).cases[0]
        for invariant in ("printed-wider-block-counts", "shape-preservation")
    }
    told = results["printed-wider-block-counts"]
    assert told.verdict == "unchecked"
    assert told.reason == "the fixture wider-block was computed with norm rms, and the spec's llama has norm layer"
    assert results["shape-preservation"].verdict == "holds"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"fixture": "identity-blok", "check": "stages"}, SpecError, "'identity-blok' is not one of"),
        ({"check": "stages"}, SpecError, "'fixture' is a required property"),
        ({"fixture": "identity-block", "check": "stage"}, BlocklawsError, "did you mean 'stages'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    """Fails if a mistyped fixture or check is ignored."""
    with pytest.raises(error) as raised:
        check(tmp_path, "fixtures", arguments=arguments)
    assert said in str(raised.value)


GOOD = """\
says: An example.
source: somewhere
blocks: [llama]
sizes: {B: 1, T: 1, n_heads: 1, d_head: 2, d_ff: 3}
checks:
  shape:
    claims: ["output.shape == (1, 1, 2)"]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("says:", "sais:", ":1:1: fixture 'x' has an unknown key 'sais' (did you mean 'says'?)"),
        ("d_ff: 3", "d_f: 3", "unknown key 'd_f'"),
        ("checks:", "input: [[[1, 2, 3]]]\nchecks:", "input: has shape (1, 1, 3) where the sizes ask for (1, 1, 2)"),
        ("checks:", "input: [[[1, 2], [3]]]\nchecks:", "nested lists of numbers, all rows of one length"),
        ("checks:", "config: {norm: mean}\nchecks:", "'mean' is not one of"),
        ("checks:", "parameters: {attention.querry: 1}\nchecks:", "did you mean 'attention.query'"),
        ("checks:", "parameters: {attention.query: unit}\nchecks:", "a number, an array or 'identity'"),
        ("checks:", "above: {attention.query: 1}\nchecks:", "above must be a list, but here is a mapping"),
        ("checks:", "above: [{attention.querry: 1}]\nchecks:", "above: attention.querry: no parameter has such a name"),
        ("claims:", "claim:", "unknown key 'claim'"),
        ("output.shape ==", "outputt.shape ==", "outputt"),
        ('    claims: ["output.shape == (1, 1, 2)"]', "    digits: 6", "says nothing"),
        ('    claims: ["output.shape == (1, 1, 2)"]', '    counts: {"*": many}', "must be a whole number"),
    ],
)
def test_a_fixture_that_cannot_be_meant_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    """Fails if a mistake in a fixture's file is told without its line, or not at all."""
    path = tmp_path / "x.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert read_fixture("x", path).checks["shape"].needs == frozenset()
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(SpecError, match=r"x\.yaml:\d+:\d+: ") as raised:
        read_fixture("x", path)
    assert said in str(raised.value)
