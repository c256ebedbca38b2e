"""The PyTorch adapter: right numbers, exact locality, refusals in words, and no trace left in the process."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml

from blocklaws import spec
from blocklaws.backends.on_torch import TorchBackend
from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.canonical import STAGES, parameter_shapes, stage_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError

Array = npt.NDArray[Any]

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
#: How far two orders of the same sums may lie apart, for values near one: a few units in the last place.
CLOSE = {"float64": 1e-13, "float32": 1e-5, "bfloat16": 6e-2, "float16": 1e-2}
#: Two blocks that make every further choice between them, each by way of another kind and what it says otherwise.
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "beside": (
        "neox",
        {
            **{"residual_scale": 0.3, "qk_norm": "head", "window": 4, "softcap": 2.0, "bias": "qkv"},
            **{"feed_forward": "geglu", "heads": "grouped", "d_head": 8},
        },
    ),
    "inside": ("olmo2", {"feed_forward": "geglu_tanh", "rotary": "interleaved", "rotary_fraction": 0.5, "window": 2}),
}
BLOCKS = ("llama", "llama-gqa", "plain", "gpt", "original", *FURTHER)
BACKEND = TorchBackend()


def config_of(block: str, **changes: Any) -> BlockConfig:
    """Return a small config of one kind of block; its sizes are all different."""
    kind, words = FURTHER.get(block, (block, {}))
    entry = {**BLOCK_ENTRIES[kind], **words}
    heads = {"n_heads": 6, "n_kv_heads": 2 if entry.pop("heads") == "grouped" else 6}
    fields = {name: value for name, value in entry.items() if name not in ("says", "source", "by_default")}
    return BlockConfig(**{"block": block, "d_model": 10, "d_head": 4, "d_ff": 14, **heads, **fields, **changes})


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Array:
    """Return normal values of a standard deviation of ``scale``."""
    return (rng.standard_normal(shape) * scale).astype(DTYPES[dtype])


def parameters_of(config: BlockConfig, dtype: str, rng: np.random.Generator) -> dict[str, Array]:
    """Return weights at 1/sqrt(fan_in), gains around one and biases, all distinct."""
    return {
        name: (
            draw(rng, shape, dtype, shape[0] ** -0.5)
            if len(shape) == 2
            else (rng.standard_normal(shape) * 0.3 + name.endswith("gain")).astype(DTYPES[dtype])
        )
        for name, shape in parameter_shapes(config).items()
    }


def built(block: str, dtype: str = "float64", seed: int = 0, **changes: Any) -> tuple[TorchBlock, np.random.Generator]:
    """Return a small block of one kind with random parameters, and the generator that drew them."""
    rng = np.random.default_rng(seed)
    config = config_of(block, **changes)
    return BACKEND.build(config, parameters_of(config, dtype, rng), dtype), rng


BLOCK_ENTRIES: dict[str, dict[str, Any]] = yaml.safe_load(files(spec).joinpath("blocks.yaml").read_text("utf-8"))
each_block = pytest.mark.parametrize("block", BLOCKS)
each_dtype = pytest.mark.parametrize("dtype", list(DTYPES))


# Right numbers.


def test_the_worked_example_of_the_chapter() -> None:
    """Fails if a stage departs from the hand-worked block whose matrices are identities and whose gains are ones."""
    config = config_of("llama", d_model=4, n_heads=2, n_kv_heads=2, d_head=2, d_ff=4, norm_eps=0.0)
    parameters = {n: np.eye(4) if len(s) == 2 else np.ones(s) for n, s in parameter_shapes(config).items()}
    x = np.zeros((1, 3, 4))
    x[0, [0, 1, 2], [0, 1, 2]] = 2.0
    trace = BACKEND.build(config, parameters, "float64").trace(x)
    third = 1 / 3
    expected = {
        "attention_norm": x[0],
        "attention_weights": [
            [[1, 0, 0], [0.005440, 0.994560, 0], [third, third, third]],
            [[1, 0, 0], [0.5, 0.5, 0], [0.052857, 0.052857, 0.894285]],
        ],
        "attention_branch": [[2, 0, 0, 0], [0.010881, 1.989119, 0, 0], [0.666667, 0.666667, 1.788570, 0]],
        "after_attention": [[4, 0, 0, 0], [0.010881, 3.989119, 0, 0], [0.666667, 0.666667, 3.788570, 0]],
        "feed_forward_norm": [[2, 0, 0, 0], [0.005455, 1.999993, 0, 0], [0.341520, 0.341520, 1.940806, 0]],
        "feed_forward_branch": [[3.523188, 0, 0, 0], [0.000015, 3.523159, 0, 0], [0.068180, 0.068180, 3.293781, 0]],
        "output": [[7.523188, 0, 0, 0], [0.010896, 7.512278, 0, 0], [0.734847, 0.734847, 7.082351, 0]],
    }
    for stage, values in expected.items():
        np.testing.assert_allclose(trace[stage][0], values, rtol=0, atol=6e-7, err_msg=stage)


def test_layer_norm_reproduces_the_worked_row() -> None:
    """Fails if the variance is not the population variance, or eps is outside the root."""
    block, _ = built("gpt", d_model=4)
    row = torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    standard = block.module.standardize(row, 1e-5)
    np.testing.assert_allclose(standard, [-1.341639, -0.447213, 0.447213, 1.341639], rtol=0, atol=6e-7)
    assert not block.module.standardize(torch.full((4,), 5.0, dtype=torch.float64), 1e-5).any()


@each_block
def test_gradients_agree_with_central_differences(block: str) -> None:
    """Fails if a parameter is detached, transposed or listed under another's name."""
    torch_block, rng = built(block, seed=5)
    config, parameters = torch_block.config, torch_block.parameters()
    x, cotangent = draw(rng, (2, 3, 10), "float64"), draw(rng, (2, 3, 10), "float64")
    gradients = torch_block.gradients(x, cotangent, 7)
    assert list(gradients) == ["input", *parameter_shapes(config)]
    step = 1e-6

    def loss(name: str, index: tuple[int, ...], change: float) -> float:
        arrays = {"input": x.copy(), **{key: value.copy() for key, value in parameters.items()}}
        arrays[name][index] += change
        moved = arrays.pop("input")
        return float((BACKEND.build(config, arrays, "float64").forward(moved, 7) * cotangent).sum())

    for name, gradient in gradients.items():
        for flat in rng.choice(gradient.size, size=min(4, gradient.size), replace=False):
            index = tuple(int(i) for i in np.unravel_index(flat, gradient.shape))
            difference = (loss(name, index, step) - loss(name, index, -step)) / (2 * step)
            assert abs(difference - gradient[index]) < 2e-7 * max(1.0, abs(difference)), (name, index)


@pytest.mark.parametrize("block", ["llama", "llama-gqa"])
def test_far_positions_are_turned_by_accurate_angles(block: str) -> None:
    """Fails if angles are rounded to float32 before the cosine: 2e-4 off at position 4000."""
    torch_block, _ = built(block, "float32", d_head=8)
    config = torch_block.config
    turned = torch_block.module.rotate(
        torch.ones(1, 1, 1, 8), torch_block.module.rotary_angles(torch.tensor([4000]))
    ).numpy()[0, 0, 0]
    angles = 4000.0 * config.rotary_base ** (-2.0 * np.arange(4) / 8)
    first, second = np.cos(angles) - np.sin(angles), np.sin(angles) + np.cos(angles)
    pairs = (turned[0::2], turned[1::2]) if config.rotary == "interleaved" else (turned[:4], turned[4:])
    np.testing.assert_allclose(pairs, (first, second), rtol=0, atol=1e-6)


@each_dtype
@each_block
def test_cached_calls_of_any_length_equal_the_full_one(block: str, dtype: str) -> None:
    """Fails if positions restart in a chunk, or keys are cached before they are turned."""
    torch_block, rng = built(block, dtype, seed=2)
    x = draw(rng, (2, 9, 10), dtype)
    cache, rows = None, []
    for start, stop in ((0, 1), (1, 4), (4, 5), (5, 9)):
        y, cache = torch_block.forward_cached(x[:, start:stop], cache)
        rows.append(y)
    difference = np.concatenate(rows, axis=1).astype(np.float64) - torch_block.forward(x).astype(np.float64)
    assert np.abs(difference).max() < CLOSE[dtype]


@each_dtype
@each_block
def test_a_trace_is_of_the_computation_itself(block: str, dtype: str) -> None:
    """Fails if the traced output is another one, or the shown weights are not those that were mixed."""
    torch_block, rng = built(block, dtype, seed=3)
    config = torch_block.config
    x = draw(rng, (2, 5, 10), dtype)
    trace = torch_block.trace(x, 11)
    assert tuple(trace) == STAGES
    assert {stage: array.shape for stage, array in trace.items()} == stage_shapes(config, 2, 5)
    assert {array.dtype for array in trace.values()} == {DTYPES[dtype]}
    np.testing.assert_array_equal(trace["output"], torch_block.forward(x, 11))
    np.testing.assert_array_equal(trace["attention_weights"] * ~np.tri(5, dtype=bool), np.zeros((2, 6, 5, 5)))
    values = trace["value"].astype(np.float64).repeat(config.group, axis=1)
    mixed = (trace["attention_weights"].astype(np.float64) @ values).transpose(0, 2, 1, 3).reshape(2, 5, -1)
    parameters = {name: array.astype(np.float64) for name, array in torch_block.parameters().items()}
    branch = mixed @ parameters["attention.output"] + parameters.get("attention.output_bias", 0.0)
    assert np.abs(branch - trace["attention_branch"].astype(np.float64)).max() < CLOSE[dtype]


# Exact locality.


@each_dtype
@each_block
@pytest.mark.parametrize("tokens", [2, 7, 33, 65])
def test_a_changed_suffix_leaves_the_prefix_bit_for_bit(block: str, dtype: str, tokens: int) -> None:
    """Fails if a kernel lets a hidden key touch the sums of an earlier row, however large that key is."""
    scales = (1.0, 1e2, 1e4) if dtype == "float16" else (1.0, 1e3, 1e18)
    for seed in range(3):
        torch_block, rng = built(block, dtype, seed)
        x = draw(rng, (2, tokens, 10), dtype)
        start = int(rng.integers(1, tokens))
        y = torch_block.forward(x)
        assert np.isfinite(y.astype(np.float64)).all()
        for scale in scales:
            changed = x.copy()
            changed[:, start:] = draw(rng, (2, tokens - start, 10), dtype, scale)
            np.testing.assert_array_equal(torch_block.forward(changed)[:, :start], y[:, :start])
        changed = x.copy()
        changed[1] = draw(rng, (tokens, 10), dtype, scales[-1])
        np.testing.assert_array_equal(torch_block.forward(changed)[0], y[0])


@each_dtype
@pytest.mark.parametrize("block", ["llama", "llama-gqa", "plain", "gpt", *FURTHER])
def test_zero_branches_give_exactly_the_input(block: str, dtype: str) -> None:
    """Fails if the residual path is rounded, scaled or normed, forward or backward."""
    torch_block, rng = built(block, dtype)
    zeroed = ("attention.output", "feed_forward.down")
    parameters = {n: a * 0 if n.startswith(zeroed) else a for n, a in torch_block.parameters().items()}
    identity = BACKEND.build(torch_block.config, parameters, dtype)
    x, cotangent = draw(rng, (2, 5, 10), dtype), draw(rng, (2, 5, 10), dtype)
    np.testing.assert_array_equal(identity.forward(x), x)
    np.testing.assert_array_equal(identity.gradients(x, cotangent)["input"], cotangent)


# The boundary between NumPy and torch.


@each_dtype
def test_arguments_are_left_alone_and_results_are_free(dtype: str) -> None:
    """Fails if an argument is changed or aliased, or has to be writable or contiguous."""
    rng = np.random.default_rng(0)
    config = config_of("gpt")
    parameters = parameters_of(config, dtype, rng)
    kept = {name: array.copy() for name, array in parameters.items()}
    block = BACKEND.build(config, parameters, dtype)
    for array in parameters.values():
        array[...] = 0
    for name, array in block.parameters().items():
        np.testing.assert_array_equal(array, kept[name])
        array[...] = 0
    x = draw(rng, (10, 5, 2), dtype).transpose(2, 1, 0)[:, ::-1]
    x.flags.writeable = False
    y = block.forward(x)
    y_again, cache = block.forward_cached(x, None)
    np.testing.assert_array_equal(y, block.forward(x.copy()))
    np.testing.assert_array_equal(y, y_again)
    assert y.dtype == DTYPES[dtype]
    y[...] = 0
    trace = block.trace(x)
    np.testing.assert_array_equal(trace["input"], x)
    for array in trace.values():
        array[...] = 0
    np.testing.assert_array_equal(block.forward(x), y_again)
    assert cache.tokens == 5


@each_block
def test_an_empty_batch_gives_empty_results(block: str) -> None:
    """Fails if a batch of no sequences is refused or loses its shape."""
    torch_block, _ = built(block, "float32")
    x = np.zeros((0, 4, 10), dtype=np.float32)
    assert torch_block.forward(x).shape == (0, 4, 10)
    assert torch_block.trace(x)["attention_weights"].shape == (0, 6, 4, 4)
    assert not torch_block.gradients(x, x)["attention.query"].any()
    y, cache = torch_block.forward_cached(x, None)
    assert torch_block.forward_cached(x, cache)[0].shape == y.shape == (0, 4, 10)


def test_nothing_global_is_changed_and_no_global_is_needed() -> None:
    """Fails if building or running draws a random number, or trusts the caller's grad mode or default dtype."""
    block, rng = built("llama")
    x = draw(rng, (2, 3, 10), "float64")
    expected, gradients = block.forward(x), block.gradients(x, x)

    def state() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_rng_state().numpy().tobytes(),
        )

    before = state()
    with torch.inference_mode():
        torch.set_default_dtype(torch.float16)
        try:
            inside, _ = built("llama")
            np.testing.assert_array_equal(inside.forward(x), expected)
            np.testing.assert_array_equal(inside.gradients(x, x)["feed_forward.up"], gradients["feed_forward.up"])
        finally:
            torch.set_default_dtype(torch.float32)
    assert state() == before


# Refusals.


def test_parameters_that_do_not_fit_are_refused() -> None:
    """Fails if a block is built from parameters of another config."""
    config = config_of("llama")
    parameters = parameters_of(config, "float32", np.random.default_rng(0))
    without = {name: array for name, array in parameters.items() if name != "feed_forward.gate"}
    with pytest.raises(ValueError, match=r"^configuration: missing parameters \['feed_forward.gate'\]"):
        BACKEND.build(config, without, "float32")
    with pytest.raises(
        ValueError, match=r"^configuration: parameter 'attention.qery' .*did you mean 'attention.query'"
    ):
        BACKEND.build(config, {**parameters, "attention.qery": np.zeros(3)}, "float32")
    with pytest.raises(ValueError, match=r"^component width: attention.query has shape \(24, 10\).* needs \(10, 24\)$"):
        BACKEND.build(config, {**parameters, "attention.query": parameters["attention.query"].T}, "float32")
    with pytest.raises(ValueError, match=r"^configuration: dtype='float8' .*did you mean 'float"):
        BACKEND.build(config, parameters, "float8")


@pytest.mark.parametrize(
    ("shape", "dtype", "offset", "message"),
    [
        ((3, 10), "float32", 0, r"^input rank: got shape \(3, 10\); give \[batch, token, feature\]$"),
        ((1, 3, 9), "float32", 0, r"^input width: got 9 features in shape \(1, 3, 9\); d_model=10$"),
        ((1, 3, 10), "float64", 0, r"^input dtype: the input is float64, the block computes in float32; "),
        ((1, 0, 10), "float32", 0, r"^empty tokens: got shape \(1, 0, 10\)"),
        ((1, 3, 10), "float32", -1, r"^position range: 3 tokens from position_offset=-1 need positions -1 to 1; "),
        ((1, 3, 10), "float32", 4094, r"^position range: .* need positions 4094 to 4096; .* allows 0 to 4095$"),
        ((1, 3, 10), "float32", 0.5, r"^position range: position_offset=0.5 must be an integer$"),
    ],
)
def test_inputs_outside_the_boundary_are_refused(shape: tuple[int, ...], dtype: str, offset: Any, message: str) -> None:
    """Fails if a wrong input is computed with, by any of the methods that take one."""
    block, _ = built("llama", "float32")
    x = np.zeros(shape, dtype=DTYPES[dtype])
    for call in (block.forward, block.trace, lambda x, offset: block.gradients(x, x, offset)):
        with pytest.raises(ValueError, match=message):
            call(x, offset)
    if offset == 0:
        with pytest.raises(ValueError, match=message):
            block.forward_cached(x, None)


def test_a_cotangent_must_fit_the_output() -> None:
    """Fails if a cotangent is broadcast or converted."""
    block, _ = built("llama", "float32")
    x = np.zeros((2, 3, 10), dtype=np.float32)
    with pytest.raises(ValueError, match=r"^cotangent shape: got \(1, 3, 10\), the output has \(2, 3, 10\)"):
        block.gradients(x, x[:1])
    with pytest.raises(ValueError, match=r"^input dtype: the cotangent is float64"):
        block.gradients(x, x.astype(np.float64))


def test_a_cache_is_used_once_and_by_its_own_batch() -> None:
    """Fails if two continuations can share a cache, or a refused call consumes one."""
    block, rng = built("llama", "float32", max_positions=6)
    x = draw(rng, (2, 3, 10), "float32")
    _, cache = block.forward_cached(x, None)
    with pytest.raises(
        ValueError, match=r"^released cache: this cache belongs to a batch of 2, the input has .* of 1; "
    ):
        block.forward_cached(x[:1], cache)
    with pytest.raises(ValueError, match=r"^empty tokens: "):
        block.forward_cached(x[:, :0], cache)
    _, full = block.forward_cached(x, cache)
    with pytest.raises(
        ValueError, match=r"^released cache: this cache of 3 tokens was already used by an earlier call; "
    ):
        block.forward_cached(x, cache)
    with pytest.raises(ValueError, match=r"^position range: 3 tokens from position_offset=6 "):
        block.forward_cached(x, full)
    with pytest.raises(ValueError, match=r"^released cache: got a tuple; give None or the cache of an earlier"):
        block.forward_cached(x, (1, 2))  # type: ignore[arg-type]


# Devices, faults by subclass, and the import.


def test_devices_are_named_or_refused() -> None:
    """Fails if a device that is not there is found out only by a traceback of torch."""
    assert BACKEND.with_device("cpu").device == "cpu"
    for name in ("cuda:99", "meta", "abacus"):
        with pytest.raises(BackendError, match=f"^torch has no device '{name}' here: .*; use 'cpu'"):
            BACKEND.with_device(name)


STEPS = {
    "llama-gqa": [
        *("standardize", "attention_norm", "feed_forward_norm", "project_query", "project_key", "project_value"),
        *("split_heads", "rotary_frequencies", "rotary_angles", "rotate", "repeat_heads", "score_scale", "visible"),
        *("attend", "merge_heads", "project_output", "add_attention", "activate", "feed_forward", "add_feed_forward"),
    ],
    "beside": [
        *("norm_query", "norm_key", "norm_heads", "rotate_pairs", "scores", "cap_scores", "softmax", "mix"),
        *("feed_forward_source", "scale_branch"),
    ],
}


@pytest.mark.parametrize(("block", "step"), [(block, step) for block in STEPS for step in STEPS[block]])
def test_one_step_can_be_overridden(block: str, step: str) -> None:
    """Fails if the computation goes past a step, so that a fault planted there would change nothing."""
    right, rng = built(block, seed=4)

    def changed(self: DecoderBlock, *arguments: Any) -> Any:
        result = getattr(DecoderBlock, step)(self, *arguments)
        return result.logical_not() if step == "visible" else result * 1.5

    faulty = type("FaultyBlock", (TorchBlock,), {"module_class": type("Faulty", (DecoderBlock,), {step: changed})})
    x = draw(rng, (2, 3, 10), "float64")
    got = faulty(right.config, right.parameters(), "float64", torch.device("cpu")).forward(x)
    assert not np.allclose(got, right.forward(x), rtol=0, atol=1e-6)


def test_torch_is_imported_by_a_build_and_not_before() -> None:
    """Fails if naming or making the backend imports torch; the twin shows that the probe can fail."""
    probe = (
        "import sys; {plant}"
        "import blocklaws.backends.on_torch as on_torch; backend = on_torch.TorchBackend(); "
        "(backend.name, backend.dtypes, backend.faults, repr(backend)); sys.exit(3 * ('torch' in sys.modules))"
    )
    for plant, status in (("", 0), ("import torch; ", 3)):
        finished = subprocess.run([sys.executable, "-c", probe.format(plant=plant)], check=False)
        assert finished.returncode == status
