"""One call for many blocks: each sequence under parameters of its own gives what a block of those parameters gives.

Central differences take hundreds of blocks that differ in one number. Must hold: the call agrees with the blocks it
stands for, on every built-in backend and kind of block, and a block that cannot make it is built one by one instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocklaws
from blocklaws.discovery import find_subjects
from blocklaws.spec_reading import load_spec
from blocklaws.worlds import Recipe, make_world

SPEC = load_spec()


@pytest.mark.parametrize("block", SPEC.blocks)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_each_sequence_has_the_output_of_its_own_block(name: str, block: str) -> None:
    """Fails when parameters reach the wrong sequence, a matrix is taken transposed, or the offset is lost."""
    kind = SPEC.blocks[block]
    first, other = (
        make_world(kind, Recipe(SPEC.menus[kind.heads][3], "normal", seed, 5), "float64") for seed in (1, 2)
    )
    backend = find_subjects(name)[0].backend
    one, two = (backend.build(each.config, each.parameters, "float64") for each in (first, other))
    both = {key: np.stack([value, other.parameters[key]]) for key, value in first.parameters.items()}
    x = first.input[:2]
    got = np.asarray(one.forward_each(x, both, 5))
    np.testing.assert_allclose(got[:1], one.forward(x[:1], 5), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(got[1:], two.forward(x[1:], 5), rtol=1e-11, atol=1e-12)
    assert np.abs(got[1] - one.forward(x, 5)[1]).max() > 1e-3


class OneByOne:
    """The torch block where `torch.vmap` cannot follow it."""

    name = "one-by-one"
    dtypes = ("float64",)

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Return a block whose call for many gives nothing."""
        built = find_subjects("torch")[0].backend.build(config, parameters, dtype)
        built.forward_each = lambda *given, **offset: None
        return built


def test_a_block_that_cannot_is_built_one_by_one() -> None:
    """Fails when a call that gives nothing is taken for an output, or costs the check."""
    report = blocklaws.verify(
        OneByOne(), blocks=["plain"], invariants=["gradients-match-central-differences"], profile="quick"
    )
    assert [case.verdict for case in report.cases] == ["holds"]


def test_a_step_that_decides_by_values_gives_nothing() -> None:
    """Fails when what `torch.vmap` cannot follow ends in an error of the block."""
    kind = SPEC.blocks["plain"]
    world = make_world(kind, Recipe(SPEC.menus["equal"][2], "normal", 1, 0), "float64")
    built = find_subjects("torch")[0].backend.build(world.config, world.parameters, "float64")
    ahead = type(built.module).forward

    class Deciding(type(built.module)):  # type: ignore[misc]
        def forward(self, x: Any, run: Any = None) -> Any:
            return ahead(self, x, run) if x.sum() > -1e9 else x

    built.module.__class__ = Deciding
    each = {name: np.stack([value] * len(world.input)) for name, value in world.parameters.items()}
    assert built.forward_each(world.input, each) is None
