"""The float64 reference: that it is the mathematics, that its reverse pass is the derivative, and what it refuses."""

from __future__ import annotations

import math
import warnings
from importlib import resources
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import yaml

from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.backends.on_numpy.activations import ACTIVATIONS, erf, erfc, sigmoid
from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.canonical import STAGES, parameter_count, parameter_shapes, stage_shapes
from blocklaws.config import BlockConfig

BLOCKS: dict[str, dict[str, Any]] = yaml.safe_load(
    resources.files("blocklaws.spec").joinpath("blocks.yaml").read_text(encoding="utf-8")
)
LABELS = ("says", "source", "by_default", "heads")
SIZES: dict[str, int] = {"d_model": 6, "n_heads": 4, "d_head": 2, "d_ff": 5}
LOW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def config_of(block: str, **changes: Any) -> BlockConfig:
    """Return a small config of that kind of block, every size different from the others."""
    choices = {key: value for key, value in BLOCKS[block].items() if key not in LABELS}
    n_kv_heads = 2 if BLOCKS[block]["heads"] == "grouped" else 4
    return BlockConfig(**{"block": block, **choices, **SIZES, "n_kv_heads": n_kv_heads, **changes})


def parameters_of(config: BlockConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random parameters at 1/sqrt(fan_in), gains around one."""
    random = np.random.default_rng(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        values = random.normal(size=shape)
        parameters[name] = values / math.sqrt(shape[0]) if len(shape) == 2 else 0.3 * values + name.endswith("gain")
    return parameters


def input_of(config: BlockConfig, batch: int = 2, tokens: int = 3, seed: int = 1) -> np.ndarray:
    """Return a random input."""
    return np.random.default_rng(seed).normal(size=(batch, tokens, config.d_model))


def block_of(config: BlockConfig, dtype: str = "float64") -> NumpyBlock:
    """Return the correct block with random parameters."""
    return NumpyBackend().build(config, parameters_of(config), dtype)


# --- the worked example -----------------------------------------------------------------------------------------------

CHAPTER = BlockConfig(
    block="chapter", d_model=4, n_heads=2, n_kv_heads=2, d_head=2, d_ff=4, norm="rms", norm_eps=0.0, placement="pre",
    feed_forward="swiglu", rotary="interleaved", rotary_base=10000.0, bias=False, max_positions=16,
)  # fmt: skip
CHAPTER_INPUT = np.array([[[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]]])
CHAPTER_STAGES: dict[str, list[Any]] = {
    "input": [[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]],
    "attention_norm": [[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]],
    "attention_weights": [
        [[1, 0, 0], [0.005440, 0.994560, 0], [0.333333, 0.333333, 0.333333]],
        [[1, 0, 0], [0.5, 0.5, 0], [0.052857, 0.052857, 0.894285]],
    ],
    "attention_branch": [[2, 0, 0, 0], [0.010881, 1.989119, 0, 0], [0.666667, 0.666667, 1.788570, 0]],
    "after_attention": [[4, 0, 0, 0], [0.010881, 3.989119, 0, 0], [0.666667, 0.666667, 3.788570, 0]],
    "feed_forward_norm": [[2, 0, 0, 0], [0.005455, 1.999993, 0, 0], [0.341520, 0.341520, 1.940806, 0]],
    "feed_forward_branch": [[3.523188, 0, 0, 0], [0.000015, 3.523159, 0, 0], [0.068180, 0.068180, 3.293781, 0]],
    "output": [[7.523188, 0, 0, 0], [0.010896, 7.512278, 0, 0], [0.734847, 0.734847, 7.082351, 0]],
}  # fmt: skip


def chapter_block(config: BlockConfig = CHAPTER) -> NumpyBlock:
    """Return the block of the chapter: matrices are identities, gains are ones, biases are zeros."""
    parameters = {
        name: np.eye(*shape) if len(shape) == 2 else np.full(shape, float(name.endswith("gain")))
        for name, shape in parameter_shapes(config).items()
    }
    return NumpyBackend().build(config, parameters, "float64")


@pytest.mark.parametrize("stage", CHAPTER_STAGES)
def test_chapter_stage(stage: str) -> None:
    """Fails if a stage of the worked example differs in a printed digit."""
    got = chapter_block().trace(CHAPTER_INPUT)[stage]
    np.testing.assert_allclose(got[0], CHAPTER_STAGES[stage], rtol=0, atol=5.1e-7)


def test_chapter_probe_and_future_weights() -> None:
    """Fails if the probe logits differ or a future weight is not exactly zero."""
    trace = chapter_block().trace(CHAPTER_INPUT)
    probe = np.array([[1.0, 0, -1], [0, 1, -1], [1, 1, 0], [0, 0, 0]])
    logits = [[7.523188, 0, -7.523188], [0.010896, 7.512278, -7.523174], [7.817198, 7.817198, -1.469694]]
    np.testing.assert_allclose(trace["output"][0] @ probe, logits, rtol=0, atol=5.1e-7)
    assert not np.triu(trace["attention_weights"], 1).any()


def test_chapter_post_norm_first_stage() -> None:
    """Fails if the layer norm of the chapter's input plus branch, the first stage of a post-norm block, differs."""
    config = CHAPTER.replace(norm="layer", norm_eps=1e-5, placement="post")
    core, _ = chapter_block(config).attention_norm(chapter_block().trace(CHAPTER_INPUT)["after_attention"])
    np.testing.assert_allclose(core[0, 1], [-0.573144, 1.732042, -0.579449, -0.579449], rtol=0, atol=5.1e-7)


def test_layer_norm_row() -> None:
    """Fails if the layer norm of the numerics chapter's row differs in a printed digit."""
    config = CHAPTER.replace(norm="layer", norm_eps=1e-5)
    core, _ = chapter_block(config).standardize(np.array([[[1.0, 3, 5, 7]]]), 1e-5)
    np.testing.assert_allclose(core[0, 0], [-1.341639, -0.447213, 0.447213, 1.341639], rtol=0, atol=5.1e-7)
    flat, _ = chapter_block(config).standardize(np.full((1, 1, 4), 3.0), 1e-5)
    assert not flat.any()


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (CHAPTER, 120),
        (CHAPTER.replace(d_model=12, n_heads=3, n_kv_heads=3, d_head=4, d_ff=32), 1752),
        (config_of("gpt", d_model=8, n_heads=2, n_kv_heads=2, d_head=4, d_ff=32), 872),
    ],
)
def test_parameter_counts(config: BlockConfig, count: int) -> None:
    """Fails if a block has other parameters than the documents count."""
    block = block_of(config)
    assert sum(array.size for array in block.parameters().values()) == count == parameter_count(config)


# --- activations ------------------------------------------------------------------------------------------------------


def test_error_functions_known_values() -> None:
    """Fails if erf or erfc is off by more than two units in the last place at tabulated points."""
    table = {
        0.0: (0.0, 1.0),
        0.5: (0.5204998778130465377, 0.4795001221869534623),
        1.0: (0.8427007929497148693, 0.1572992070502851307),
        2.0: (0.9953222650189527342, 0.0046777349810472658),
        4.0: (0.9999999845827420998, 1.541725790028001885e-8),
    }
    points = np.array(list(table))
    np.testing.assert_allclose(erf(points), [pair[0] for pair in table.values()], rtol=5e-16)
    np.testing.assert_allclose(erfc(points), [pair[1] for pair in table.values()], rtol=5e-16)
    np.testing.assert_array_equal(erf(-points), -erf(points))


def test_error_functions_keep_shape_and_dtype() -> None:
    """Fails if the element-wise loop loses the shape, the dtype, an empty array or a value."""
    points = np.linspace(-6, 6, 60).reshape(3, 4, 5)
    np.testing.assert_allclose(erf(points), np.vectorize(math.erf)(points), rtol=1e-15)
    assert erf(points.astype(np.float32)).dtype == np.float32
    assert erf(points.transpose(2, 0, 1)[:0]).shape == (0, 3, 4)
    np.testing.assert_array_equal(erf(points.transpose(2, 0, 1)), erf(points).transpose(2, 0, 1))


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_stay_finite(name: str, dtype: type) -> None:
    """Fails if a huge finite element gives a warning, a NaN or an infinity, in the value or in the slope."""
    top = float(np.finfo(dtype).max)
    a: np.ndarray = np.array([-top, -1e30, -800, -40, -1e-30, 0, 1e-30, 40, 800, 1e30, top], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, slope = ACTIVATIONS[name](a)
        derivative = slope()
    assert value.dtype == derivative.dtype == dtype
    assert np.isfinite(value).all()
    assert np.isfinite(derivative).all()
    np.testing.assert_array_equal(value[-3:], a[-3:])
    np.testing.assert_array_equal(derivative[-3:], 1)
    np.testing.assert_array_equal(value[:2], 0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_slopes(name: str) -> None:
    """Fails if a slope is not the derivative."""
    a, step = np.linspace(-5.03, 5, 50), 1e-6
    central = (ACTIVATIONS[name](a + step)[0] - ACTIVATIONS[name](a - step)[0]) / (2 * step)
    np.testing.assert_allclose(ACTIVATIONS[name](a)[1](), central, rtol=0, atol=1e-9)


def test_gelu_and_sigmoid_values() -> None:
    """Fails if gelu is not the exact one, loses its tail to cancellation, or sigmoid is not symmetric."""
    np.testing.assert_allclose(ACTIVATIONS["gelu"](np.array([-1.0, 0, 1]))[0], [-0.158655, 0, 0.841345], atol=5e-7)
    np.testing.assert_allclose(ACTIVATIONS["gelu"](np.array([-10.0]))[0], -10 * 7.61985302416052e-24, rtol=1e-13)
    points = np.linspace(-30, 30, 61)
    np.testing.assert_allclose(sigmoid(points) + sigmoid(-points), 1, rtol=1e-15)


# --- gradients --------------------------------------------------------------------------------------------------------


def central_differences(config: BlockConfig, x: np.ndarray, cotangent: np.ndarray, offset: int) -> dict[str, Any]:
    """Return what ``gradients`` returns, from two forward passes a coordinate.

    The pre-activations of a relu at a kink would make this wrong; the seeds keep them further away than the step.
    """
    step = 1e-5
    arrays = {"input": x, **parameters_of(config)}
    result: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        result[name] = np.empty_like(array)
        for index in np.ndindex(array.shape):
            sides = []
            for sign in (1, -1):
                moved = dict(arrays, **{name: array.copy()})
                moved[name][index] += sign * step
                block = NumpyBackend().build(config, {key: moved[key] for key in parameter_shapes(config)}, "float64")
                sides.append(np.sum(cotangent * block.forward(moved["input"], offset)))
            result[name][index] = (sides[0] - sides[1]) / (2 * step)
    return result


@pytest.mark.parametrize(
    ("block", "changes"),
    [
        *((block, {}) for block in BLOCKS),
        ("gpt", {"feed_forward": "gelu_tanh"}),
        ("original", {"feed_forward": "swiglu", "norm": "rms", "rotary": "half", "n_kv_heads": 1}),
    ],
)
def test_gradients_are_central_differences(block: str, changes: dict[str, Any]) -> None:
    """Fails if any coordinate of any gradient is not the derivative of the weighted sum of the output."""
    config = config_of(block, **changes)
    x, cotangent = input_of(config), input_of(config, seed=2)
    got = block_of(config).gradients(x, cotangent, 7)
    expected = central_differences(config, x, cotangent, 7)
    assert list(got) == ["input", *parameter_shapes(config)]
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-7, atol=2e-8, err_msg=name)


# --- laws that hold to the bit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [{}, {"d_model": 48, "d_head": 16, "d_ff": 80}])
def test_earlier_rows_and_other_sequences_are_untouched(block: str, dtype: str, sizes: dict[str, int]) -> None:
    """Fails if a later token or another sequence of the batch changes a row by as much as a bit, forward or reverse."""
    config = config_of(block, **sizes)
    built = block_of(config, dtype)
    crossing = built.precision.crossing
    x = input_of(config, batch=3, tokens=9).astype(crossing)
    other = input_of(config, batch=3, tokens=9, seed=5).astype(crossing)
    for token in (1, 4, 8):
        changed = x.copy()
        changed[:, token:] = other[:, token:] * 100
        np.testing.assert_array_equal(built.forward(changed)[:, :token], built.forward(x)[:, :token])
        cotangent = other.copy()
        cotangent[:, token:] = 0
        assert not built.gradients(x, cotangent)["input"][:, token:].any()
    changed = x.copy()
    changed[1] = other[1]
    np.testing.assert_array_equal(built.forward(changed)[::2], built.forward(x)[::2])
    np.testing.assert_array_equal(built.forward(x[[2, 0, 1]]), built.forward(x)[[2, 0, 1]])


@pytest.mark.parametrize("block", ["llama", "llama-gqa", "plain", "gpt"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_zero_branches_are_the_identity(block: str, dtype: str) -> None:
    """Fails if adding two zero branches changes the input, or their gradient the cotangent."""
    config = config_of(block)
    zeroed = ("attention.output", "feed_forward.down")
    parameters = {n: a * (not n.startswith(zeroed)) for n, a in parameters_of(config).items()}
    built = NumpyBackend().build(config, parameters, dtype)
    x = input_of(config).astype(built.precision.crossing)
    np.testing.assert_array_equal(built.forward(x), x)
    np.testing.assert_array_equal(built.gradients(x, x)["input"], x)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1), (3, 2), (5,), (1, 4)])
def test_cached_equals_full(block: str, chunks: tuple[int, ...]) -> None:
    """Fails if decoding by chunks of any length differs from one pass."""
    config = config_of(block)
    built, x = block_of(config), input_of(config, tokens=5)
    cache, rows, start = None, [], 0
    for length in chunks:
        y, cache = built.forward_cached(x[:, start : start + length], cache)
        rows.append(y)
        start += length
    np.testing.assert_allclose(np.concatenate(rows, axis=1), built.forward(x), rtol=1e-12, atol=1e-13)


def test_far_positions_turn_exactly() -> None:
    """Fails if a common shift of all positions changes the attention weights beyond the rounding of an angle."""
    config = config_of("llama", d_head=8, max_positions=1 << 21)
    x = input_of(config, tokens=5)
    for dtype, shift, tolerance in (("float64", 1 << 20, 1e-9), ("float32", 64, 2e-5)):
        built = block_of(config, dtype)
        near, far = (built.trace(x.astype(dtype), offset)["attention_weights"] for offset in (0, shift))
        np.testing.assert_allclose(near, far, rtol=0, atol=tolerance)


# --- stages, storage and dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_shapes_and_dtypes(block: str, dtype: str, batch: int) -> None:
    """Fails if a stage, a gradient or a parameter is missing, misshapen, misplaced or of another dtype."""
    config = config_of(block)
    built = block_of(config, dtype)
    crossing = built.precision.crossing
    x = input_of(config, batch=batch, tokens=7).astype(crossing)
    trace, gradients, parameters = built.trace(x, 2), built.gradients(x, x, 2), built.parameters()
    assert {stage: array.shape for stage, array in trace.items()} == stage_shapes(config, batch, 7)
    assert tuple(trace) == STAGES
    assert {name: array.shape for name, array in parameters.items()} == parameter_shapes(config)
    assert list(gradients) == ["input", *parameters]
    for array in (
        *trace.values(),
        *gradients.values(),
        *parameters.values(),
        built.forward(x),
        built.forward_cached(x, None)[0],
    ):
        assert array.dtype == crossing
    np.testing.assert_array_equal(trace["output"], built.forward(x, 2))


def test_post_norm_stages() -> None:
    """Fails if a post-norm block names something else than the result of a norm after it."""
    trace = block_of(config_of("original")).trace(input_of(config_of("original")))
    np.testing.assert_array_equal(trace["attention_norm"], trace["after_attention"])
    np.testing.assert_array_equal(trace["feed_forward_norm"], trace["output"])


@pytest.mark.parametrize("block", BLOCKS)
def test_nothing_is_modified_or_shared(block: str) -> None:
    """Fails if a call writes to what it was given, or returns memory that somebody else holds."""
    config = config_of(block)
    parameters = parameters_of(config)
    built = NumpyBackend().build(config, parameters, "float64")
    before = built.forward(input_of(config))
    for array in parameters.values():
        array[...] = 0
    for array in built.parameters().values():
        array[...] = 0
    wide = np.random.default_rng(1).normal(size=(2, 3, 2 * config.d_model))
    wide[..., ::2] = input_of(config)
    x = wide[..., ::2]
    x.flags.writeable = False
    results = [built.forward(x), *built.trace(x).values(), *built.gradients(x, x).values()]
    np.testing.assert_array_equal(results[0], before)
    np.testing.assert_array_equal(x, input_of(config))
    for i, array in enumerate(results):
        assert array.flags.writeable
        assert not np.shares_memory(array, wide)
        assert not any(np.shares_memory(array, other) for other in results[i + 1 :])


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 3e-6), ("float16", 2e-2), ("bfloat16", 0.15)])
def test_recipes_are_near_the_reference(block: str, dtype: str, bound: float) -> None:
    """Fails if a recipe is further from float64 than its rounding explains, or does not round at all."""
    config = config_of(block)
    low, reference = (
        block_of(config, dtype),
        NumpyBackend().build(config, rounded(parameters_of(config), dtype), "float64"),
    )
    x = rounded({"x": input_of(config)}, dtype)["x"]
    got, expected = low.trace(x.astype(low.precision.crossing)), reference.trace(x)
    for stage in STAGES:
        np.testing.assert_allclose(
            got[stage].astype(np.float64), expected[stage], rtol=bound, atol=bound, err_msg=stage
        )
    assert not np.array_equal(got["output"].astype(np.float64), expected["output"])
    gradient, exact = low.gradients(*(x.astype(low.precision.crossing),) * 2), reference.gradients(x, x)
    # Not the largest of each array: the gradient of a key bias is zero where positions do not turn the keys.
    largest = max(np.abs(array).max() for array in exact.values())
    for name, array in exact.items():
        np.testing.assert_allclose(gradient[name].astype(float), array, rtol=0, atol=bound * largest, err_msg=name)


def rounded(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Return the same arrays after a visit to a dtype."""
    return {name: array.astype(LOW.get(dtype, dtype)).astype(np.float64) for name, array in arrays.items()}


# --- refusals ---------------------------------------------------------------------------------------------------------

_REFUSED_INPUTS: list[tuple[np.ndarray, int, str]] = [
    (
        np.zeros((3, 6)),
        0,
        "input rank: the input has 2 axes (shape (3, 6)), expected 3: batch, token, feature; "
        "a single sequence needs a batch axis of 1",
    ),
    (np.zeros((2, 3, 5)), 0, "input width: the input has 5 features a token (shape (2, 3, 5)), expected d_model=6"),
    (np.zeros((2, 0, 6)), 0, "empty tokens: the input has shape (2, 0, 6) and no token; give at least one token"),
    (
        np.zeros((2, 3, 6), np.float32),
        0,
        "input dtype: the input is float32, but the block was built for float64; "
        "convert the input or build the block in its dtype",
    ),
    (
        np.zeros((2, 3, 6)),
        4094,
        "position range: the 3 tokens are at positions 4094 to 4096, but positions run from 0 to 4095 "
        "(max_positions=4096); use a smaller position_offset or fewer tokens",
    ),
    (
        np.zeros((2, 3, 6)),
        -1,
        "position range: the 3 tokens are at positions -1 to 1, but positions run from 0 to 4095 "
        "(max_positions=4096); use a smaller position_offset or fewer tokens",
    ),
]


def refusal(call: Any, *args: Any) -> str:
    """Return the text of the ``ValueError`` that a call raises."""
    with pytest.raises(ValueError, match=r".") as caught:
        call(*args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("x", "offset", "message"), _REFUSED_INPUTS, ids=[m.split(":")[0] for *_, m in _REFUSED_INPUTS]
)
def test_refused_inputs(x: np.ndarray, offset: int, message: str) -> None:
    """Fails if a bad input is computed with, or refused in other words, by any capability."""
    built = block_of(config_of("llama"))
    assert refusal(built.forward, x, offset) == message
    assert refusal(built.trace, x, offset) == message
    assert refusal(built.gradients, x, x, offset) == message


def test_broken_offset() -> None:
    """Fails if an offset that is no integer is rounded. The shape checker refuses it first where it is switched on."""
    with pytest.raises((ValueError, TypeError), match="position_offset"):
        block_of(config_of("llama")).forward(np.zeros((2, 3, 6)), 1.5)  # type: ignore[arg-type]


def test_last_position_is_allowed() -> None:
    """Fails if the range of positions is off by one."""
    config = config_of("llama", max_positions=8)
    built = block_of(config)
    assert built.forward(input_of(config), 5).shape == (2, 3, 6)
    assert refusal(built.forward, input_of(config), 6).startswith("position range: ")


def test_refused_parameters() -> None:
    """Fails if a block is built from missing, unknown, misshapen or non-numeric parameters, or in an unknown dtype."""
    config = config_of("plain")
    good, build = parameters_of(config), NumpyBackend().build
    lacking = {name: array for name, array in good.items() if name != "attention.query"}
    assert refusal(build, config, {**lacking, "attention.q": good["attention.query"]}, "float64") == (
        "configuration: parameters missing ['attention.query'], unknown ['attention.q']; "
        f"this 'plain' block has exactly {list(good)}"
    )
    assert refusal(build, config, {**good, "attention.query": good["attention.query"].T}, "float64") == (
        "component width: parameter 'attention.query' has shape (8, 6), expected (6, 8); "
        "a matrix is [in, out], a gain or a bias is as wide as what it is applied to"
    )
    assert refusal(build, config, {**good, "attention.query": np.zeros((6, 8), complex)}, "float64") == (
        "configuration: parameter 'attention.query' is complex128, expected real numbers; convert it to float64"
    )
    assert refusal(build, config, good, "bfloat15") == (
        "configuration: dtype 'bfloat15' must be one of ['float64', 'float32', 'bfloat16', 'float16'] "
        "(did you mean 'bfloat16'?)"
    )


def test_refused_cotangents() -> None:
    """Fails if a cotangent of another shape or dtype is broadcast or converted."""
    config = config_of("plain")
    built, x = block_of(config), input_of(config)
    assert refusal(built.gradients, x, x[:, :1]) == (
        "cotangent shape: the cotangent has shape (2, 1, 6), expected (2, 3, 6): the output has the shape of the input"
    )
    assert refusal(built.gradients, x, x.astype(np.float32)) == (
        "cotangent dtype: the cotangent is float32, but the block was built for float64; convert it"
    )


def test_released_cache() -> None:
    """Fails if a cache can be used twice, with another batch, or is lost to a call that was refused."""
    config = config_of("llama")
    built, x = block_of(config), input_of(config)
    _, cache = built.forward_cached(x, None)
    assert refusal(built.forward_cached, x[:1], cache) == (
        "released cache: the cache holds 2 sequences and the input has 1; "
        "continue a cache with the batch that it was made from"
    )
    assert refusal(built.forward_cached, x[0], cache).startswith("input rank: ")
    built.forward_cached(x, cache)
    assert refusal(built.forward_cached, x, cache) == (
        "released cache: this cache of 3 tokens was consumed by an earlier call, and a cache is used once; "
        "continue from the cache which that call returned"
    )
