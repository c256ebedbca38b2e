"""What rounding may do to a right block is told by the recipe on worlds off by their last bits, on many where it fails.

Must hold: a right block that rounds after every step of its own is not accused on a world where noise decides; a wrong
one is refuted on that world all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from property_support import faulty

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.precision import precision_of
from blocklaws.expressions import EvaluationError, Judgement
from blocklaws.jitter import FEW, FLOAT64_BY_FLOAT32, MANY, closely, furthest, jittered
from blocklaws.replaying import examine
from blocklaws.spec_reading import built_in_spec
from blocklaws.specification import Sizes
from blocklaws.worlds import Recipe, World, make_world

SMALL = {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4}
GROUPED = {"B": 1, "T": 2, "n_heads": 4, "n_kv_heads": 2, "d_head": 4, "d_ff": 6, "d_model": 16}

#: Where the feed-forward branch is a sum that cancels to its noise, and the norm behind it makes an output of the sign.
CANCELS = {"sizes": SMALL, "pattern": "integers", "seed": 0, "position_offset": 0, "picks": {}}
#: Where the recipe's loss through four blocks happens to be right, of one number.
LUCKY = {"sizes": GROUPED, "pattern": "normal", "seed": 112, "position_offset": 0, "picks": {}}


class _StepByStep(NumpyBlock):
    """A right block that rounds after every operation, as eager code on an accelerator does."""

    gradients: Any = None

    def activate(self, a: np.ndarray) -> Any:
        """Return the activation, rounded on the way."""
        r, half = self.precision.round, np.float32(0.5)
        if self.config.feed_forward == "swiglu":
            return r(a * r(1 / (1 + np.exp(-a)))), None
        inner = r(np.float32(0.7978845608) * r(a + r(np.float32(0.044715) * r(a * r(a * a)))))
        return r(r(a * half) * r(1 + r(np.tanh(inner)))), None

    def scores(self, query: np.ndarray, key: np.ndarray) -> Any:
        """Return the scores: products, rounded, and then scaled."""
        products = self.precision.round(np.matmul(query, np.swapaxes(key, -1, -2)))
        return self.precision.round(products / np.sqrt(np.float32(self.config.d_head))), None

    def softmax(self, scores: np.ndarray, visible: np.ndarray) -> Any:
        """Return the weights, each step of a softmax rounded."""
        r, seen = self.precision.round, np.where(visible, scores, -np.inf)
        powers = r(np.exp(r(seen - seen.max(-1, keepdims=True))))
        return r(powers * r(1 / r(powers.sum(-1, keepdims=True)))), None


class _WideNorm(_StepByStep):
    """The same, but for norms that are rounded behind their gain only, as Gemma's are."""

    def standardize(self, x: np.ndarray, eps: float) -> Any:
        """Return the core of a norm as it is computed, in float32."""
        return x / np.sqrt(self.average(x * x) + eps), None


class _Rounding:
    """A backend of such blocks."""

    name = "rounding"
    dtypes = ("bfloat16", "float16")

    def __init__(self, block: type[NumpyBlock]) -> None:
        self._block = block

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Return a block that computes no gradients."""
        return self._block(config, parameters, precision_of(dtype))


@pytest.mark.parametrize(
    ("written", "invariant", "block", "example", "few"),
    [
        (_StepByStep, "output-parity", "olmo2", CANCELS, 2),
        (_StepByStep, "stage-parity", "olmo2", CANCELS, 2),
        (_WideNorm, "stacked-four-loss", "gemma", LUCKY, 1),
    ],
)
def test_a_right_block_is_not_accused_where_noise_decides(
    written: type[NumpyBlock],
    invariant: str,
    block: str,
    example: dict[str, Any],
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if few runs of the recipe decide; where few of them do not accuse the block, the world shows nothing."""
    backend = _Rounding(written)

    def ask() -> str:
        return examine(backend, invariant=invariant, block=block, dtype="bfloat16", example=example).verdict

    assert ask() == "holds"
    for module in ("blocklaws.passes", "blocklaws.properties.stacks"):
        monkeypatch.setattr(f"{module}.furthest", lambda exact, runs, dtype: furthest(exact, runs[:few], dtype))
    assert ask() == "violated"


@pytest.mark.parametrize("fault", ["residual-dropped", "norms-swapped", "gate-ignored", "value-from-key"])
def test_a_wrong_block_is_refuted_where_noise_does_not_decide(fault: str) -> None:
    """Fails if a closer look lets mistakes of such a block through on an ordinary world."""
    example = {**CANCELS, "pattern": "normal", "sizes": GROUPED}
    wrong = examine(faulty(fault, "torch"), invariant="output-parity", block="olmo2", dtype="bfloat16", example=example)
    assert wrong.verdict == "violated"


class _Counting:
    """What is asked to look closer, and how often."""

    def __init__(self) -> None:
        self.asked, self._worlds = 0, FEW

    @property
    def jittered_worlds(self) -> int:
        return self._worlds

    @jittered_worlds.setter
    def jittered_worlds(self, worlds: int) -> None:
        self.asked += worlds == MANY
        self._worlds = worlds


@pytest.mark.parametrize(
    ("verdicts", "looks", "asked"),
    [([True], 1, 0), ([False, True], 1, 1), ([False, False], 2, 1), ([False], 0, 0)],
)
def test_only_what_fails_is_looked_at_again(verdicts: list[bool], looks: int, asked: int) -> None:
    """Fails if what holds costs a second look, if a failure stands without one, or if there is a third."""
    passes, given = [_Counting() for _ in range(looks)], iter([Judgement(holds, "claim", "") for holds in verdicts])
    judge: Callable[[], Judgement] = given.__next__
    assert closely(passes, judge).holds is verdicts[-1]
    assert [each.asked for each in passes] == [asked] * looks
    assert [each.jittered_worlds for each in passes] == [FEW] * looks, "the next judgement begins with few again"
    assert next(given, None) is None


def test_a_closer_look_ends_with_its_judgement() -> None:
    """Fails if the judgement is made with few worlds, or if one that raises leaves a shared pass widened."""
    passed, seen = _Counting(), []

    def judge() -> Judgement:
        seen.append(passed.jittered_worlds)
        if len(seen) == 2:
            raise EvaluationError("no bound")
        return Judgement(False, "claim", "")

    with pytest.raises(EvaluationError, match="no bound"):
        closely([passed], judge)
    assert (seen, passed.jittered_worlds) == ([FEW, MANY], FEW)


def test_more_runs_count_only_where_they_are_out_of_proportion() -> None:
    """Fails if the noise of many draws widens what is allowed where it grows in proportion."""
    exact, few = np.zeros(1), [np.array([1.0]), np.array([2.0])]
    for more, expected in ((31.0, 2.0), (33.0, 33.0), (np.inf, 2.0)):
        assert furthest(exact, [*few, np.array([more]), np.array([0.0])], "float32") == expected


def _world(dtype: str) -> World:
    """Return a world with rotary positions, in a dtype."""
    kind = built_in_spec().blocks["llama-gqa"]
    return make_world(kind, Recipe(Sizes(**GROUPED), "normal", 3), dtype)


@pytest.mark.parametrize(("dtype", "eps"), [("float64", 2.0**-52), ("float32", 2.0**-23), ("bfloat16", 2.0**-7)])
def test_data_are_off_by_their_last_bit(dtype: str, eps: float) -> None:
    """Fails if what is jittered is off by more or not at all, or not what the world's seed says."""
    world = _world(dtype)
    first, second = jittered(world, 0), jittered(world, 1)
    assert np.array_equal(first.input, jittered(world, 0).input)
    assert not np.array_equal(first.input, second.input)
    assert all(first.parameters[name] is array for name, array in world.parameters.items())
    assert 0 < first.config.rotary_base / world.config.rotary_base - 1 < 1e-6
    given = [(array, second.parameters[name]) for name, array in world.parameters.items()]
    for before, after in [(world.input, first.input), *given]:
        assert after.dtype == before.dtype
        off = np.abs(after.astype(np.float64) / before.astype(np.float64) - 1)
        assert 0 < off.max() <= 2 * eps


def test_the_furthest_run_stands_for_the_recipe() -> None:
    """Fails if a run that is right by luck is taken, or one that is not finite, or float64's is not scaled down."""
    exact, runs = np.zeros(3), [np.array([0, 0, 0.5]), np.array([-2, 0, 0.0]), np.array([np.nan, 99, 9])]
    assert np.array_equal(furthest(exact, runs, "float32"), [-2, 0, 0])
    assert np.array_equal(furthest(exact, runs, "float64"), [-2 * FLOAT64_BY_FLOAT32, 0, 0])
    assert np.isnan(furthest(exact, runs[::-1], "float32")).any(), "a recipe that is not finite bounds nothing"
