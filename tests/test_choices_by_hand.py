"""Each further choice of a config against numbers that were worked by hand, and its faults against the same numbers.

Must hold: PyTorch and JAX are compared with the numbers, never with each other. Unless a choice says otherwise,
matrices are identities, gains one, biases zero and epsilon zero, so that a row (2, 0, 0, 0) is its own norm, in an RMS
pre-norm block of two heads of two features with a ReLU feed-forward and no rotary positions. Queries are zero where
only means of values are wanted: each visible key then weighs the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name bfloat16)
import numpy as np
import pytest

from blocklaws.backends.on_jax import JaxBackend
from blocklaws.backends.on_torch import TorchBackend
from blocklaws.canonical import parameter_shapes
from blocklaws.config import BlockConfig

BACKENDS = {"torch": TorchBackend(), "jax": JaxBackend()}

PLAIN = BlockConfig(
    block="by-hand",
    d_model=4,
    n_heads=2,
    n_kv_heads=2,
    d_head=2,
    d_ff=4,
    norm="rms",
    norm_eps=0.0,
    placement="pre",
    feed_forward="relu",
    rotary=None,
    rotary_base=100.0,
    bias=False,
    max_positions=16,
)
#: Rows (2, 0, 0, 0), (0, 2, 0, 0) ..., one a token.
TWOS = 2 * np.eye(4)[None]
NO_QUERIES: dict[str, Any] = {"attention.query": 0}
#: Query and value become (3, 4, 6, 8) for a row of ones; the query by way of its bias.
THREE_FOUR: dict[str, Any] = {
    "attention.query": np.diag([2.0, 2.0, 5.0, 7.0]),
    "attention.query_bias": [1.0, 2.0, 1.0, 1.0],
    "attention.value": np.diag([3.0, 4.0, 6.0, 8.0]),
}


@dataclasses.dataclass(frozen=True)
class Worked:
    """One worked example: what differs from the plain block, what must come out, and which faults must not give it."""

    choices: Mapping[str, Any]
    parameters: Mapping[str, Any]
    x: np.ndarray
    stages: Mapping[str, Any]
    faults: tuple[str, ...] = ()
    position: int = 0


def parameters_of(config: BlockConfig, changes: Mapping[str, Any], dtype: str) -> dict[str, np.ndarray]:
    """Return identities, ones and zeros, but for the changes; a number fills its parameter."""
    arrays = {}
    for name, shape in parameter_shapes(config).items():
        plain = np.eye(*shape) if len(shape) == 2 else np.full(shape, float(name.endswith("gain")))
        arrays[name] = np.broadcast_to(np.asarray(changes.get(name, plain), dtype), shape)
    unknown = set(changes) - set(arrays)
    assert not unknown, unknown
    return arrays


def build(backend: Any, worked: Worked, dtype: str = "float64") -> Any:
    """Return the block of a worked example."""
    config = PLAIN.replace(**worked.choices)
    return backend.build(config, parameters_of(config, worked.parameters, dtype), dtype)


def misses(block: Any, worked: Worked) -> list[str]:
    """Return the stages that are not the worked ones, to six digits after the point."""
    stages = block.trace(worked.x, worked.position)
    return [name for name, numbers in worked.stages.items() if not np.allclose(stages[name][0], numbers, 0, 1e-6)]


# A row (a, b, 0, 0) has the root mean square sqrt((a^2 + b^2) / 4).
WORKED = {
    "window": Worked(
        {"window": 2},
        {**NO_QUERIES, "feed_forward.down": 0},
        TWOS,
        {
            "attention_weights": [[[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]] * 2,
            "output": [[4, 0, 0, 0], [1, 3, 0, 0], [0, 1, 3, 0], [0, 0, 1, 3]],
        },
        ("window-ignored", "window-off-by-one", "window-short-by-one", "window-fixed"),
    ),
    "window of one": Worked({"window": 1}, {}, TWOS, {"attention_weights": [np.eye(4)] * 2}),
    # The second token's key scores 4 / sqrt(2) in the first head: 2 tanh(sqrt(2)) = 1.776771, and 1 / (1 + exp(-that)).
    "soft-cap": Worked(
        {"softcap": 2.0},
        {},
        TWOS[:, :2],
        {"attention_weights": [[[1, 0], [0.1447023, 0.8552977]], [[1, 0], [0.5, 0.5]]]},
        (
            *("softcap-missing", "softcap-after-mask", "softcap-before-scale", "softcap-multiplies-scores"),
            "softcap-not-multiplied-back",
        ),
    ),
    "parallel": Worked(
        {"residual": "parallel"},
        {**NO_QUERIES, "feed_forward_norm.gain": 3},
        TWOS[:, :2],
        {
            "after_attention": [[4, 0, 0, 0], [1, 3, 0, 0]],
            "feed_forward_norm": [[6, 0, 0, 0], [0, 6, 0, 0]],
            "output": [[10, 0, 0, 0], [1, 9, 0, 0]],
        },
        ("parallel-as-sequential", "parallel-shared-norm", "parallel-input-twice"),
    ),
    "parallel and scaled": Worked(
        {"residual": "parallel", "residual_scale": 0.25},
        {**NO_QUERIES, "feed_forward_norm.gain": 3},
        TWOS[:, :2],
        {"after_attention": [[2.5, 0, 0, 0], [0.25, 2.25, 0, 0]], "output": [[4, 0, 0, 0], [0.25, 3.75, 0, 0]]},
        ("residual-scale-ignored",),
    ),
    "scaled": Worked(
        {"residual_scale": 0.25},
        NO_QUERIES,
        TWOS[:, :2],
        {
            "attention_branch": [[2, 0, 0, 0], [1, 1, 0, 0]],
            "after_attention": [[2.5, 0, 0, 0], [0.25, 2.25, 0, 0]],
            "feed_forward_branch": [[2, 0, 0, 0], [0.2208631, 1.9877675, 0, 0]],
            "output": [[3, 0, 0, 0], [0.3052158, 2.7469419, 0, 0]],
        },
        ("residual-scale-ignored", "residual-scale-on-attention-only", "residual-scale-on-sum"),
    ),
    "scaled, norm after": Worked(
        {"residual_scale": 0.25, "placement": "post"},
        NO_QUERIES,
        TWOS[:, :2],
        {
            "attention_branch": [[2, 0, 0, 0], [1, 1, 0, 0]],
            "after_attention": [[2, 0, 0, 0], [0.2208631, 1.9877675, 0, 0]],
        },
    ),
    "inside": Worked(
        {"placement": "inside", "residual_scale": 0.5},
        {**NO_QUERIES, "attention_norm.gain": 2},
        TWOS[:, :2],
        {
            "attention_branch": [[2, 0, 0, 0], [1, 1, 0, 0]],
            "attention_norm": [[4, 0, 0, 0], [2.8284271, 2.8284271, 0, 0]],
            "after_attention": [[4, 0, 0, 0], [1.4142136, 3.4142136, 0, 0]],
            "feed_forward_branch": [[4, 0, 0, 0], [1.4142136, 3.4142136, 0, 0]],
            "feed_forward_norm": [[2, 0, 0, 0], [0.7653669, 1.8477591, 0, 0]],
            "output": [[5, 0, 0, 0], [1.796897, 4.3380931, 0, 0]],
        },
        ("inside-as-pre", "inside-as-post", "residual-scale-ignored"),
    ),
    # 2 gelu(2), and -2 gelu(-2): the gate and the other matrix give the same.
    "gate of GELU": Worked(
        {"feed_forward": "geglu"},
        {"attention.output": 0},
        np.array([[[2.0, 0, 0, 0], [0, -2, 0, 0]]]),
        {"feed_forward_branch": [[3.9089995, 0, 0, 0], [0, 0.0910005, 0, 0]]},
        ("geglu-as-swiglu", "geglu-erf-as-tanh"),
    ),
    "gate of GELU, its tanh form": Worked(
        {"feed_forward": "geglu_tanh"},
        {"attention.output": 0},
        np.array([[[2.0, 0, 0, 0], [0, -2, 0, 0]]]),
        {"feed_forward_branch": [[3.9091954, 0, 0, 0], [0, 0.0908046, 0, 0]]},
        ("geglu-as-swiglu", "geglu-tanh-as-erf"),
    ),
    "biases of query, key and value": Worked(
        {"bias": "qkv"},
        {
            "attention.query_bias": [1, 2, 3, 4],
            "attention.key_bias": [5, 6, 7, 8],
            "attention.value_bias": [9, 10, 11, 12],
            "feed_forward.down": 0,
        },
        TWOS[:, :1],
        {
            "query": [[[3, 2]], [[3, 4]]],
            "key": [[[7, 6]], [[7, 8]]],
            "value": [[[11, 10]], [[11, 12]]],
            "output": [[13, 10, 11, 12]],
        },
        ("qkv-bias-dropped",),
    ),
    # Position 1 turns by 1 radian and by 100^(-2/4) = 0.1: (1, 1) -> (cos t - sin t, cos t + sin t).
    "a half of each head turns": Worked(
        {"rotary": "half", "rotary_fraction": 0.5, "d_model": 8, "n_heads": 1, "n_kv_heads": 1, "d_head": 8},
        {},
        np.ones((1, 1, 8)),
        {
            "query": [[[-0.3011687, 0.8951707, 1.3817733, 1.0948376, 1, 1, 1, 1]]],
            "key": [[[-0.3011687, 0.8951707, 1.3817733, 1.0948376, 1, 1, 1, 1]]],
            "value": [[[1, 1, 1, 1, 1, 1, 1, 1]]],
        },
        (
            *("rotary-fraction-ignored", "rotary-fraction-exponent-by-d-head", "rotary-turns-last-features"),
            "rotary-fraction-pairs-across-head",
        ),
        position=1,
    ),
    "a quarter of each head turns": Worked(
        {"rotary": "half", "rotary_fraction": 0.25, "d_model": 8, "n_heads": 1, "n_kv_heads": 1, "d_head": 8},
        {},
        np.ones((1, 1, 8)),
        {"query": [[[-0.3011687, 1.3817733, 1, 1, 1, 1, 1, 1]]]},
        ("rotary-fraction-fixed",),
        position=1,
    ),
    "a half of each head turns, interleaved": Worked(
        {"rotary": "interleaved", "rotary_fraction": 0.6, "d_model": 8, "n_heads": 1, "n_kv_heads": 1, "d_head": 8},
        {},
        np.ones((1, 1, 8)),
        {"query": [[[-0.3011687, 1.3817733, 0.8951707, 1.0948376, 1, 1, 1, 1]]]},
        ("rotary-fraction-ignored", "rotary-fraction-exponent-by-d-head", "rotary-turns-last-features"),
        position=1,
    ),
    # (3, 4) and (6, 8) over their root mean squares, times (1, 2), turned by 1 radian; keys are (1, 1) times (2, 1).
    "each head normed": Worked(
        {"qk_norm": "head", "bias": "qkv", "rotary": "half"},
        {**THREE_FOUR, "attention.query_norm.gain": [1, 2], "attention.key_norm.gain": [2, 1]},
        np.ones((1, 1, 4)),
        {
            "query": [[[-1.4455698, 1.9365764]]] * 2,
            "key": [[[0.2391336, 2.2232443]]] * 2,
            "value": [[[3, 4]], [[6, 8]]],
        },
        ("qk-norm-missing", "qk-norm-after-rotary", "qk-norm-over-all-heads", "qk-norm-on-values", "qk-gain-shared"),
        position=1,
    ),
    # Less its mean, a head is (-1/2, 1/2) or (-1, 1): (-1, 1) once it is divided, times (1, 2), plus (1/2, -1/2).
    "each head normed, its mean too": Worked(
        {"qk_norm": "head", "bias": "qkv", "norm": "layer"},
        {
            **THREE_FOUR,
            "attention_norm.bias": 1,
            "attention.query_norm.gain": [1, 2],
            "attention.query_norm.bias": [0.5, -0.5],
            "attention.key_norm.bias": [3, 4],
            "attention.key": 0,
            "attention.key_bias": [1, 2, 5, 9],
            "attention_norm.gain": 0,
        },
        np.array([[[1.0, 2, 3, 4]]]),
        {"query": [[[-0.5, 1.5]]] * 2, "key": [[[2, 5]]] * 2},
        ("qk-norm-missing", "qk-gain-shared"),
    ),
    # (3, 4, 6, 8) over its root mean square, times (1, 2, 3, 4).
    "all heads normed together": Worked(
        {"qk_norm": "width", "bias": "qkv", "rotary": "half"},
        {**THREE_FOUR, "attention.query_norm.gain": [1, 2, 3, 4], "attention.key_norm.gain": [2, 1, 2, 1]},
        np.ones((1, 1, 4)),
        {
            "query": [[[-0.9142586, 1.2247984]], [[-3.0771211, 5.8023552]]],
            "key": [[[0.2391336, 2.2232443]]] * 2,
            "value": [[[3, 4]], [[6, 8]]],
        },
        ("qk-norm-missing", "qk-norm-after-rotary", "qk-norm-per-head", "qk-norm-on-values", "qk-gain-shared"),
        position=1,
    ),
}
#: Faults that a full pass does not show.
IN_THE_CACHE = ("window-ignored-in-cache", "window-cache-cut-early")

each_backend = pytest.mark.parametrize("backend", BACKENDS)


@each_backend
@pytest.mark.parametrize("choice", WORKED)
def test_the_worked_numbers(choice: str, backend: str) -> None:
    """Fails if a choice is computed otherwise than by its mathematics, in a stage or in the output."""
    block = build(BACKENDS[backend], WORKED[choice])
    assert not misses(block, WORKED[choice])
    assert list(block.parameters()) == list(parameter_shapes(block.config))


@each_backend
@pytest.mark.parametrize(("choice", "fault"), [(choice, fault) for choice in WORKED for fault in WORKED[choice].faults])
def test_a_fault_misses_the_worked_numbers(choice: str, fault: str, backend: str) -> None:
    """Fails if the numbers are so special that a wrong block gives them too."""
    faulty: Any = BACKENDS[backend].with_fault(fault)
    assert misses(build(faulty, WORKED[choice]), WORKED[choice])


def test_every_fault_of_a_further_choice_misses_some_numbers() -> None:
    """Fails if a fault of these choices is held against nothing here."""
    from importlib.resources import files

    import yaml

    entries = yaml.safe_load(files("blocklaws.spec").joinpath("faults.yaml").read_text("utf-8"))
    # What a cache does with a window is told with the caches.
    listed = {entry["id"] for entry in entries if entry["family"] == "further-choices" or entry["id"] in IN_THE_CACHE}
    assert {*IN_THE_CACHE, *(fault for worked in WORKED.values() for fault in worked.faults)} == listed


def through_the_cache(block: Any, x: np.ndarray) -> np.ndarray:
    """Return the output of the first token, and then of all others in one chunk."""
    first, cache = block.forward_cached(x[:, :1], None)
    return np.concatenate([first, block.forward_cached(x[:, 1:], cache)[0]], axis=1)


@each_backend
def test_a_window_counts_the_keys_of_a_cache(backend: str) -> None:
    """Fails if a query that continues a cache sees more than the window, or a chunk loses keys that it still needs."""
    worked = WORKED["window"]
    right = build(BACKENDS[backend], worked)
    np.testing.assert_allclose(through_the_cache(right, worked.x)[0], worked.stages["output"], rtol=0, atol=1e-12)
    for fault in IN_THE_CACHE:
        faulty: Any = BACKENDS[backend].with_fault(fault)
        assert not misses(build(faulty, worked), worked)
        got = through_the_cache(build(faulty, worked), worked.x)[0]
        assert not np.allclose(got, worked.stages["output"], 0, 1e-6), fault


@each_backend
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_capped_and_normed_wide(dtype: str, backend: str) -> None:
    """Fails if a score is capped after it overflowed, or the squares of a query are added up in half precision."""
    huge = {"attention_norm.gain": 300}
    # 600^2 / sqrt(2) is no float16; capped it is 2, and the weights are 1 / (1 + exp(2)) and the rest.
    capped = Worked({"softcap": 2.0}, huge, TWOS[:, :2], {})
    weights = build(BACKENDS[backend], capped, dtype).trace(capped.x.astype(dtype))["attention_weights"]
    np.testing.assert_allclose(weights[0, 0, 1].astype(float), [0.1192029, 0.8807971], rtol=0, atol=2**-8)
    normed = Worked({"qk_norm": "head"}, huge, np.ones((1, 1, 4)), {})
    query = build(BACKENDS[backend], normed, dtype).trace(normed.x.astype(dtype))["query"]
    np.testing.assert_array_equal(query.astype(float), np.ones((1, 2, 1, 2)))


@each_backend
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_residual_scale_is_not_rounded_before_it_multiplies(dtype: str, backend: str) -> None:
    """Fails if 0.3 becomes the nearest number of the block's dtype first: 101 times that rounds another way."""
    scaled = Worked(
        {"residual_scale": 0.3, "placement": "inside"},
        {"attention_norm.gain": 101},
        np.ones((1, 1, 4)),
        {},
    )
    after = build(BACKENDS[backend], scaled, dtype).trace(scaled.x.astype(dtype))["after_attention"]
    # A branch of ones, normed to 101: 1 + 30.3, where the product is rounded and then the sum.
    right, early = (
        float((1 + np.asarray(101 * factor).astype(dtype)).astype(dtype))
        for factor in (0.3, float(np.array(0.3).astype(dtype)))
    )
    assert right != early
    np.testing.assert_array_equal(after, np.full((1, 1, 4), right))
