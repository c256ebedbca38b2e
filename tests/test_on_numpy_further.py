"""The further choices in the NumPy block, against one written number by number, and by hand where that is short.

Must hold: what is expected here is computed by loops over Python numbers, from docs/mathematics.md, and shares no line
with the block.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.canonical import STAGES, parameter_shapes, stage_order, stage_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import ConfigError

Row = list[float]

#: A block that makes no further choice; each test changes a word or two.
PLAIN = BlockConfig(
    block="plain", d_model=5, n_heads=4, n_kv_heads=2, d_head=6, d_ff=7, norm="rms", norm_eps=0.01, placement="pre",
    feed_forward="swiglu", rotary="half", rotary_base=50.0, bias=False, max_positions=64,
)  # fmt: skip

#: One choice at a time, then together: every pair of choices that meets in one step stands here.
CHOICES: dict[str, dict[str, Any]] = {
    "none": {},
    "parallel": {"residual": "parallel"},
    "parallel layer": {"residual": "parallel", "norm": "layer", "bias": True, "feed_forward": "gelu"},
    "parallel scaled": {"residual": "parallel", "residual_scale": 0.3},
    "inside": {"placement": "inside"},
    "inside layer scaled": {"placement": "inside", "norm": "layer", "residual_scale": 2.5, "bias": "qkv"},
    "post scaled": {"placement": "post", "residual_scale": 0.5, "norm": "layer", "bias": True, "feed_forward": "relu"},
    "geglu": {"feed_forward": "geglu"},
    "geglu_tanh": {"feed_forward": "geglu_tanh", "bias": True},
    "qkv biases": {"bias": "qkv", "feed_forward": "gelu_tanh"},
    "part of a head, half": {"rotary_fraction": 0.7},
    "part of a head, interleaved": {"rotary_fraction": 0.7, "rotary": "interleaved"},
    "one pair at least": {"rotary_fraction": 0.01},
    "normed heads": {"qk_norm": "head"},
    "normed heads, layer": {"qk_norm": "head", "norm": "layer", "bias": True, "rotary": "interleaved"},
    "normed width": {"qk_norm": "width", "bias": "qkv"},
    "normed width, layer, no rotary": {"qk_norm": "width", "norm": "layer", "rotary": None},
    "window": {"window": 2},
    "window of one": {"window": 1},
    "window wider than all": {"window": 40},
    "capped": {"softcap": 0.5},
    "capped window": {"softcap": 0.5, "window": 3, "qk_norm": "head", "rotary_fraction": 0.4},
}


def config_of(name: str, **changes: Any) -> BlockConfig:
    """Return the config of that name."""
    return PLAIN.replace(**CHOICES[name], **changes)


def parameters_of(config: BlockConfig) -> dict[str, np.ndarray]:
    """Return random parameters, no two alike."""
    random = np.random.default_rng(7)
    return {
        name: random.normal(size=shape) / math.sqrt(shape[0]) if len(shape) == 2 else random.uniform(-1.5, 1.5, shape)
        for name, shape in parameter_shapes(config).items()
    }


def input_of(config: BlockConfig, tokens: int = 6) -> np.ndarray:
    """Return a random input of two sequences."""
    return np.random.default_rng(8).normal(size=(2, tokens, config.d_model))


def built(config: BlockConfig, dtype: str = "float64") -> NumpyBlock:
    """Return the block."""
    return NumpyBackend().build(config, parameters_of(config), dtype)


# --- the block, one number at a time ----------------------------------------------------------------------------------


class ByHand:
    """A decoder block over lists of Python floats: one sequence, one token after the other."""

    def __init__(self, config: BlockConfig, parameters: dict[str, np.ndarray]) -> None:
        self.config = config
        self.given = {name: array.tolist() for name, array in parameters.items()}

    def project(self, row: Row, name: str) -> Row:
        matrix, width = self.given[name], len(self.given[name][0])
        bias = self.given.get(f"{name}_bias", [0.0] * width)
        return [math.fsum(x * line[j] for x, line in zip(row, matrix, strict=True)) + bias[j] for j in range(width)]

    def norm(self, row: Row, name: str) -> Row:
        mean = math.fsum(row) / len(row) if self.config.norm == "layer" else 0.0
        spread = math.fsum((x - mean) ** 2 for x in row) / len(row)
        gain, bias = self.given[f"{name}.gain"], self.given.get(f"{name}.bias", [0.0] * len(row))
        return [(x - mean) / math.sqrt(spread + self.config.norm_eps) * g + b
                for x, g, b in zip(row, gain, bias, strict=True)]  # fmt: skip

    def turn(self, head: Row, position: int) -> Row:
        turned = list(head)
        width = self.config.d_rotary
        for pair in range(width // 2 if self.config.rotary else 0):
            angle = position * self.config.rotary_base ** (-2 * pair / width)
            first, second = (
                (2 * pair, 2 * pair + 1) if self.config.rotary == "interleaved" else (pair, pair + width // 2)
            )
            turned[first] = head[first] * math.cos(angle) - head[second] * math.sin(angle)
            turned[second] = head[first] * math.sin(angle) + head[second] * math.cos(angle)
        return turned

    def heads(self, row: Row, name: str, position: int) -> list[Row]:
        """Return a token's queries or keys, head by head."""
        width, features = self.config.d_head, self.project(row, f"attention.{name}")
        if self.config.qk_norm == "width":
            features = self.norm(features, f"attention.{name}_norm")
        heads = [features[start : start + width] for start in range(0, len(features), width)]
        if self.config.qk_norm == "head":
            heads = [self.norm(head, f"attention.{name}_norm") for head in heads]
        return [self.turn(head, position) for head in heads]

    def attend(self, rows: list[Row], offset: int) -> list[Row]:
        config, branch = self.config, []
        width, group = config.d_head, config.n_heads // config.n_kv_heads
        keys = [self.heads(row, "key", offset + t) for t, row in enumerate(rows)]
        values = [self.project(row, "attention.value") for row in rows]
        for t, row in enumerate(rows):
            joined: Row = []
            for i, query in enumerate(self.heads(row, "query", offset + t)):
                first = 0 if config.window is None else max(0, t - config.window + 1)
                scores = [math.fsum(a * b for a, b in zip(query, keys[s][i // group], strict=True)) / math.sqrt(width)
                          for s in range(first, t + 1)]  # fmt: skip
                if config.softcap is not None:
                    scores = [config.softcap * math.tanh(score / config.softcap) for score in scores]
                shares = [math.exp(score - max(scores)) for score in scores]
                start = i // group * width
                joined += [
                    math.fsum(share * values[first + s][start + j] for s, share in enumerate(shares))
                    / math.fsum(shares)
                    for j in range(width)
                ]
            branch.append(self.project(joined, "attention.output"))
        return branch

    def feed(self, row: Row) -> Row:
        def gelu(z: float) -> float:
            return z * (1 + math.erf(z / math.sqrt(2))) / 2

        def gelu_tanh(z: float) -> float:
            return z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2

        act = {
            "swiglu": lambda z: z / (1 + math.exp(-z)), "geglu": gelu, "geglu_tanh": gelu_tanh, "gelu": gelu,
            "gelu_tanh": gelu_tanh, "relu": lambda z: max(z, 0.0),
        }[self.config.feed_forward]  # fmt: skip
        inner = self.project(row, "feed_forward.up")
        if self.config.feed_forward in ("swiglu", "geglu", "geglu_tanh"):
            inner = [act(z) * up for z, up in zip(self.project(row, "feed_forward.gate"), inner, strict=True)]
        else:
            inner = [act(z) for z in inner]
        return self.project(inner, "feed_forward.down")

    def added(self, row: Row, branch: Row) -> Row:
        return [x + self.config.residual_scale * b for x, b in zip(row, branch, strict=True)]

    def forward(self, rows: list[Row], offset: int = 0) -> list[Row]:
        config = self.config
        if config.placement == "pre":
            branch = self.attend([self.norm(row, "attention_norm") for row in rows], offset)
            after = [self.added(row, b) for row, b in zip(rows, branch, strict=True)]
            read = rows if config.residual == "parallel" else after
            fed = [self.feed(self.norm(row, "feed_forward_norm")) for row in read]
            return [self.added(row, b) for row, b in zip(after, fed, strict=True)]
        branch = self.attend(rows, offset)
        if config.placement == "inside":
            normed = [self.norm(row, "attention_norm") for row in branch]
            after = [self.added(row, b) for row, b in zip(rows, normed, strict=True)]
            return [self.added(row, self.norm(self.feed(row), "feed_forward_norm")) for row in after]
        after = [self.norm(self.added(row, b), "attention_norm") for row, b in zip(rows, branch, strict=True)]
        return [self.norm(self.added(row, self.feed(row)), "feed_forward_norm") for row in after]


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("offset", [0, 3])
def test_the_block_is_the_mathematics(name: str, offset: int) -> None:
    """Fails when a choice, or two that meet, compute something else than docs/mathematics.md says."""
    config = config_of(name)
    x = input_of(config)
    expected = [ByHand(config, parameters_of(config)).forward(rows, offset) for rows in x.tolist()]
    np.testing.assert_allclose(built(config).forward(x, offset), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CHOICES if name not in ("none", "window wider than all")])
def test_each_choice_matters(name: str) -> None:
    """Fails when the comparison above could not tell the choice from its absence."""
    config = config_of(name)
    without = {choice: BlockConfig.__dataclass_fields__[choice].default for choice in config.further}
    words = {"placement": "pre", "feed_forward": "swiglu", "bias": False} if not without else {}
    other = config.replace(**without, **words)
    kept = {key: value for key, value in parameters_of(config).items() if key in parameters_of(other)}
    kept = {key: kept.get(key, value) for key, value in parameters_of(other).items()}
    x = input_of(config)
    assert np.abs(built(config).forward(x) - NumpyBackend().build(other, kept, "float64").forward(x)).max() > 1e-3


@pytest.mark.parametrize("name", CHOICES)
def test_the_reverse_pass_is_the_derivative(name: str) -> None:
    """Fails when a pullback of a choice is not the derivative of its step, in the input or in some parameter."""
    config = config_of(name)
    parameters, x = parameters_of(config), input_of(config)
    cotangent, random, step = np.random.default_rng(9).normal(size=x.shape), np.random.default_rng(10), 1e-6
    gradients = built(config).gradients(x, cotangent, 2)
    assert list(gradients) == ["input", *parameters]
    for key, array in {"input": x, **parameters}.items():
        direction, sides = random.normal(size=array.shape), []
        for sign in (1, -1):
            moved = {"input": x, **parameters, key: array + sign * step * direction}
            moved_x = moved.pop("input")
            sides.append(np.sum(cotangent * NumpyBackend().build(config, moved, "float64").forward(moved_x, 2)))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert np.sum(gradients[key] * direction) == pytest.approx(slope, rel=1e-6, abs=1e-7), key


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1, 1), (2, 3, 1), (4, 2)])
def test_the_cache_gives_the_rows_of_one_pass(name: str, chunks: tuple[int, ...]) -> None:
    """Fails when a choice is lost, or cut too early, between one chunk of tokens and the next."""
    config = config_of(name)
    x, rows, cache, start = input_of(config), [], None, 0
    for length in chunks:
        y, cache = built(config).forward_cached(x[:, start : start + length], cache)
        rows.append(y)
        start += length
    np.testing.assert_allclose(np.concatenate(rows, axis=1), built(config).forward(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CHOICES)
def test_stages_and_the_other_way(name: str) -> None:
    """Fails when a stage is missing or of another shape, or parameters for each sequence give another output."""
    config = config_of(name)
    x = input_of(config)
    stages = built(config).trace(x, 1)
    assert tuple(stages) == STAGES
    assert sorted(stage_order(config)) == sorted(STAGES)
    assert {stage: array.shape for stage, array in stages.items()} == stage_shapes(config, *x.shape[:2])
    np.testing.assert_allclose(built(config).forward_by("each", x, 1), built(config).forward(x, 1), rtol=1e-12)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.3), ("float16", 0.05)])
def test_recipes_are_near(name: str, dtype: str, bound: float) -> None:
    """Fails when a choice is computed in less than float32, or overflows, where tolerances are calibrated."""
    config = config_of(name)
    x = input_of(config).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    got = built(config, dtype).forward(x)
    assert got.dtype == x.dtype
    exact = built(config).forward(x.astype(np.float64))
    assert np.abs(got.astype(np.float64) - exact).max() < bound * np.abs(exact).max()


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_window_of_two_by_hand() -> None:
    """Fails when a query sees another number of keys than two, itself included."""
    weights = built(config_of("window")).trace(input_of(PLAIN, 4))["attention_weights"]
    seen = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]], bool)
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen, weights.shape))


def test_capped_scores_by_hand() -> None:
    """Fails when two scores of 3 and 0 under a cap of 2 do not become 2 tanh(1.5) and 0."""
    config = PLAIN.replace(softcap=2.0)
    capped, pull = built(config).cap_scores(np.array([[[[3.0, 0.0, -1e9]]]]))
    np.testing.assert_allclose(capped, [[[[1.8102965072, 0.0, -2.0]]]], rtol=1e-9)
    np.testing.assert_allclose(pull(np.ones((1, 1, 1, 3)), {}), [[[[0.1807066389, 1.0, 0.0]]]], rtol=1e-8)


def test_normed_heads_by_hand() -> None:
    """Fails when a head's 3 and 4 are not divided by the root of 12.5, or two heads share their statistics."""
    config = PLAIN.replace(n_heads=2, n_kv_heads=2, d_head=2, qk_norm="head", norm_eps=0.0)
    gains = {"attention.query_norm.gain": np.array([1.0, 10.0])}
    block = NumpyBackend().build(config, {**parameters_of(config), **gains}, "float64")
    row = np.array([[[3.0, 4.0, 1.0, -1.0]]])
    np.testing.assert_allclose(block.norm_query(row)[0], [[[0.8485281374, 11.313708499, 1.0, -10.0]]], rtol=1e-9)
    wide = PLAIN.replace(n_heads=2, n_kv_heads=2, d_head=2, qk_norm="width", norm_eps=0.0)
    block = NumpyBackend().build(wide, {**parameters_of(wide), "attention.query_norm.gain": np.ones(4)}, "float64")
    np.testing.assert_allclose(block.norm_query(row)[0], row / math.sqrt(27 / 4), rtol=1e-12)


def test_half_of_a_head_by_hand() -> None:
    """Fails when other features than the first two of four turn, or by another angle than their position."""
    block = built(PLAIN.replace(d_head=4, rotary_fraction=0.5))
    turned, _ = block.place(np.array([[[[1.0, 0.0, 5.0, 6.0], [1.0, 0.0, 5.0, 6.0]]]]), np.array([0, 2]))
    np.testing.assert_allclose(turned[0, 0], [[1, 0, 5, 6], [-0.4161468365, 0.9092974268, 5, 6]], atol=1e-9)


@pytest.mark.parametrize(
    ("d_head", "fraction", "width"), [(8, 1.0, 8), (8, 0.5, 4), (8, 0.4, 2), (6, 0.5, 2), (6, 0.99, 4), (2, 0.1, 2)]
)
def test_how_much_of_a_head_turns(d_head: int, fraction: float, width: int) -> None:
    """Fails when the share is rounded up, to an odd number, or to nothing."""
    assert PLAIN.replace(d_head=d_head, rotary_fraction=fraction).d_rotary == width


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "configuration: window=0 must be a positive integer, or null for no window"),
        ({"window": 2.0}, "configuration: window=2.0 must be a positive integer, or null for no window"),
        ({"softcap": 0.0}, "configuration: softcap=0.0 must be positive and finite"),
        ({"softcap": math.nan}, "configuration: softcap=nan must be positive and finite"),
        ({"residual_scale": math.inf}, "configuration: residual_scale=inf must be positive and finite"),
        ({"rotary_fraction": 1.5}, "configuration: rotary_fraction=1.5 must be in (0, 1]"),
        ({"qk_norm": True}, "configuration: qk_norm=True must be one of [None, 'head', 'width']"),
        (
            {"residual": "parallel", "placement": "inside"},
            "configuration: placement='inside' with residual='parallel'; branches beside each other are normed before "
            "(placement 'pre')",
        ),
    ],
)
def test_a_config_that_cannot_be_meant(changes: dict[str, Any], message: str) -> None:
    """Fails when a config that no block can have exists, or its error does not say the value and the rule."""
    with pytest.raises(ConfigError) as caught:
        PLAIN.replace(**changes)
    assert str(caught.value) == message
