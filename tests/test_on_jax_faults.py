"""Every fault of the JAX backend shows where ``spec/faults.yaml`` says that it shows, and nowhere before.

One small shape in float32 (or the first dtype in which a fault is said to be seen), in the first kind of block that it
is said of: what costs here is compiling.
"""

from __future__ import annotations

import functools
import importlib.resources
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name bfloat16)
import numpy as np
import pytest
import yaml

from blocklaws.backends.on_jax import JaxBackend
from blocklaws.backends.on_jax.faults import FAULTS
from blocklaws.canonical import parameter_shapes, stage_order
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError
from blocklaws.spec_reading import built_in_spec

Array = np.ndarray[Any, np.dtype[Any]]
BACKEND = JaxBackend()

LISTED: dict[str, dict[str, Any]] = {
    entry["id"]: entry
    for entry in yaml.safe_load((importlib.resources.files("blocklaws.spec") / "faults.yaml").read_text("utf-8"))
    if "jax" in entry.get("backends", ["jax"])
}
LLAMA = BlockConfig(
    block="llama",
    d_model=12,
    n_heads=4,
    n_kv_heads=4,
    d_head=6,
    d_ff=10,
    norm="rms",
    norm_eps=1e-5,
    placement="pre",
    feed_forward="swiglu",
    rotary="interleaved",
    rotary_base=10000.0,
    bias=False,
    max_positions=4096,
)
GQA = LLAMA.replace(n_kv_heads=2, rotary="half")
# Kinds with the placement "pre" come first: with "post", a norm shows what was added before it.
CONFIGS = {
    "llama": LLAMA,
    "llama-gqa": LLAMA.replace(block="llama-gqa", n_kv_heads=2, rotary="half", rotary_base=500000.0),
    "plain": LLAMA.replace(block="plain", rotary=None, norm_eps=1e-6),
    "gpt": LLAMA.replace(block="gpt", norm="layer", feed_forward="gelu", rotary=None, bias=True),
    "original": LLAMA.replace(
        block="original", norm="layer", placement="post", feed_forward="relu", rotary=None, bias=True
    ),
    # The further kinds, with two pairs that turn where a part of a head does: one alone has no exponent.
    "mistral": GQA.replace(block="mistral", window=3),
    "qwen2": GQA.replace(block="qwen2", bias="qkv"),
    "qwen3": GQA.replace(block="qwen3", qk_norm="head"),
    "neox": LLAMA.replace(
        **{"block": "neox", "norm": "layer", "feed_forward": "gelu", "rotary": "half", "bias": True},
        **{"residual": "parallel", "rotary_fraction": 0.5, "d_head": 8},
    ),
    "gemma": GQA.replace(block="gemma", feed_forward="geglu_tanh"),
    "olmo2": LLAMA.replace(block="olmo2", rotary="half", placement="inside", qk_norm="width"),
    "granite": GQA.replace(block="granite", residual_scale=0.25),
    "softcapped": LLAMA.replace(block="softcapped", rotary="half", feed_forward="geglu", softcap=2.0),
}
#: More than sixteen tokens, not a multiple of four; positions past 31.
BATCH, TOKENS, OFFSET = 2, 18, 40
#: The smallest difference that counts, relative to the largest entry: two compiled programs differ by rounding.
NOISE = {"float64": 1e-12, "float32": 3e-6, "bfloat16": 2e-3, "float16": 5e-4}
#: What a config says instead, for a fault that is about a word that no kind of block has.
CHOICES = {"gelu-tanh-as-erf": {"feed_forward": "gelu_tanh"}}
#: What a number of it is instead, where the listed config has the fault's own.
NUMBERS: dict[str, dict[str, Any]] = {
    "eps-clamped": {"norm_eps": 0.0},
    "eps-in-half": {"norm_eps": 1e-8},
    "gradient-eps-fixed": {"norm_eps": 0.25},
    "cache-eps-fixed": {"norm_eps": 0.25},
    "window-fixed": {"window": 2},
    "rotary-fraction-fixed": {"rotary_fraction": 0.25},
}
#: Faults that need extreme scores to show, a gate that is driven hard, values past float16, large entries, or far ones.
PARAMETER_SCALE = {
    "mask-too-small": ("attention.query", 1e5),
    "softmax-without-maximum": ("attention.query", 1e3),
    "mask-fill-zero-point": ("attention.query", 30.0),
    "activation-overflows": ("feed_forward.gate", 1000.0),
    "cache-in-float16": ("attention.value", 1e6),
    "weights-through-float16": ("attention.value", 1e6),
    "inside-norm-in-half": ("attention.output", 1000.0),
}
INPUT_SCALE = {
    "square-overflows": 300.0,
    "squares-summed-in-half": 30.0,
    "stream-in-float16": 1e6,
    "variance-in-one-pass": 16.0,
}
INPUT_SHIFT = {"variance-in-one-pass": 30000.0}


def config_of(identifier: str) -> BlockConfig:
    """Return the first config of which a fault is said."""
    blocks = built_in_spec().faults[identifier].blocks
    changes: dict[str, Any] = {**CHOICES.get(identifier, {}), **NUMBERS.get(identifier, {})}
    return next(CONFIGS[name] for name in CONFIGS if name in blocks).replace(**changes)


def dtype_of(identifier: str) -> str:
    """Return float32, or the first dtype in which a fault is said to be seen."""
    dtypes = LISTED[identifier].get("dtypes", ["float32"])
    return "float32" if "float32" in dtypes else dtypes[0]


@functools.cache
def drawn_parameters(config: BlockConfig, dtype: str, scaled: tuple[str, float] = ("", 1.0)) -> dict[str, Array]:
    """Draw weights of standard deviation 1 / sqrt(fan_in), and gains and biases that are all different."""
    generator = np.random.default_rng(0)
    drawn = {}
    for name, shape in parameter_shapes(config).items():
        fan_in = shape[0] if len(shape) == 2 else 1
        scale = scaled[1] if name == scaled[0] else 1
        drawn[name] = (scale * generator.normal(size=shape) / np.sqrt(fan_in)).astype(dtype)
    return drawn


def drawn_input(dtype: str, scale: float = 1.0, shift: float = 0.0) -> Array:
    """Draw x, one row of which is so small that an epsilon matters."""
    x = scale * np.random.default_rng(1).normal(size=(BATCH, TOKENS, LLAMA.d_model))
    x[1, 2] *= 1e-3
    return (x + shift).astype(dtype)


def pair(identifier: str) -> tuple[Any, Any, Array]:
    """Return a right block, a block with the fault, and an input."""
    config, dtype = config_of(identifier), dtype_of(identifier)
    parameters = drawn_parameters(config, dtype, PARAMETER_SCALE.get(identifier, ("", 1.0)))
    right = BACKEND.build(config, parameters, dtype)
    wrong = BACKEND.with_fault(identifier).build(config, parameters, dtype)
    return right, wrong, drawn_input(dtype, INPUT_SCALE.get(identifier, 1.0), INPUT_SHIFT.get(identifier, 0.0))


def differ(one: Array, other: Array) -> bool:
    """Return whether two arrays differ in shape, in dtype, or by more than rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    a, b = one.astype(np.float64), other.astype(np.float64)
    return not bool(np.all(np.abs(a - b) <= NOISE[str(one.dtype)] * max(1.0, float(np.max(np.abs(a))))))


def first_difference(right: dict[str, Array], wrong: dict[str, Array], names: tuple[str, ...]) -> str | None:
    """Return the first name whose arrays differ, or None; a name that the wrong one lacks is passed over."""
    return next((name for name in names if name in wrong and differ(right[name], wrong[name])), None)


def test_list() -> None:
    """Fails if a listed fault has no class, a class no listed fault, or a module defines another's fault."""
    assert sorted(BACKEND.faults) == sorted(LISTED)
    probe = (
        "import importlib, sys; from blocklaws.backends.on_jax import faults; "
        "home = 'blocklaws.backends.on_jax.'; "
        "[importlib.import_module(home + module) for module in sorted(set(faults.FAULTS.values()))]; "
        "wrong = [i for i, c in faults._defined.items() if not c.__module__.endswith('.' + faults.FAULTS[i])]; "
        "sys.exit(3 * bool(wrong or set(faults._defined) != set(faults.FAULTS)))"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_unknown_fault() -> None:
    """Fails if a misspelt id is found out only when a block is built, or without the nearest one."""
    with pytest.raises(BackendError, match=r"has no fault 'norm-over-token' \(did you mean 'norm-over-tokens'\?\)"):
        BACKEND.with_fault("norm-over-token")


def test_modules_are_lazy() -> None:
    """Fails if naming a fault imports JAX, or a module of faults that no block was built with."""
    probe = (
        "import sys; from blocklaws.backends.on_jax import JaxBackend; JaxBackend().with_fault('gain-missing'); "
        "sys.exit(3 * any(name == 'jax' or '.faults_' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


IN_TRACE = [i for i, entry in LISTED.items() if "stage" in entry and entry["family"] != "cache"]
IN_CACHE = [
    i for i, entry in LISTED.items() if entry["family"] == "cache" or (i.startswith("window-") and "stage" not in entry)
]


@pytest.mark.parametrize("identifier", IN_TRACE)
def test_stage(identifier: str) -> None:
    """Fails if a fault shows in another stage than the one it is listed with, or in none."""
    right, wrong, x = pair(identifier)
    if identifier in ("one-token-squeezed", "batch-of-one-squeezed"):
        x = x[:1, :1]
    for block in (right, wrong):
        block.trace(x, 3)  # what a fault keeps of an earlier call shows in this one
    stages = right.trace(x, OFFSET), wrong.trace(x, OFFSET)
    expected = LISTED[identifier]["stage"]
    if right.config.placement == "post":
        # Here a norm comes after the branch and the sum that it reads, but before them in the list of stages.
        assert first_difference(*stages, (expected,)) == expected
    else:
        assert first_difference(*stages, stage_order(right.config)) == expected


@pytest.mark.parametrize("identifier", IN_CACHE)
def test_cache(identifier: str) -> None:
    """Fails if a fault of the cache shows without a cache, or does not show in five chunks of different lengths."""
    right, wrong, x = pair(identifier)
    assert not differ(right.forward(x), wrong.forward(x))
    outputs, cache = [], None
    for chunk in np.split(x[:, :10], [3, 5, 8], axis=1):
        y, cache = wrong.forward_cached(chunk, cache)
        outputs.append(y)
    assert differ(np.concatenate(outputs, axis=1), right.forward(x)[:, :10])


@pytest.mark.parametrize("identifier", [i for i, entry in LISTED.items() if entry["family"] == "gradients"])
def test_gradients(identifier: str) -> None:
    """Fails if a fault of the gradients shows in the output, or shows neither in gradients nor in the cotangent."""
    right, wrong, x = pair(identifier)
    assert not differ(right.forward(x), wrong.forward(x))
    cotangent = np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    given = cotangent.copy()
    wrong.gradients(x, given.copy())
    found = right.gradients(x, cotangent), wrong.gradients(x, given)
    shows = first_difference(*found, tuple(found[0])) is not None
    assert shows != differ(given, cotangent)


@pytest.mark.parametrize("identifier", [i for i, entry in LISTED.items() if entry["family"] == "parameters"])
def test_parameters(identifier: str) -> None:
    """Fails if a fault of the parameters leaves the list of them as it should be."""
    right, wrong, _ = pair(identifier)
    expected, shown = right.parameters(), wrong.parameters()
    assert list(shown) != list(expected) or any(differ(expected[name], shown[name]) for name in expected)


def shared_gain(right: Any, wrong: Any, x: Array) -> None:
    """One storage for both gains."""
    shown = wrong.parameters()
    assert np.shares_memory(shown["attention_norm.gain"], shown["feed_forward_norm.gain"])


def tied(right: Any, wrong: Any, x: Array) -> None:
    """One storage for key and value, and one gradient."""
    shown, found = wrong.parameters(), wrong.gradients(x, x)
    assert np.shares_memory(shown["attention.key"], shown["attention.value"])
    np.testing.assert_array_equal(found["attention.key"], found["attention.value"])


def writes_input(right: Any, wrong: Any, x: Array) -> None:
    """The caller's array changes; a read-only one is left."""
    before = x.copy()
    wrong.forward(x)
    assert differ(x, before)
    x.setflags(write=False)
    wrong.forward(x)


def drifts(right: Any, wrong: Any, x: Array) -> None:
    """A second call gives something else, and the gain is another."""
    assert differ(wrong.forward(x), wrong.forward(x))
    assert differ(wrong.parameters()["attention_norm.gain"], right.parameters()["attention_norm.gain"])


def overwrites(right: Any, wrong: Any, x: Array) -> None:
    """An earlier result changes with a later call."""
    first = wrong.forward(x)
    kept = first.copy()
    wrong.forward(x[::-1])
    assert differ(first, kept)


def draws_afresh(right: Any, wrong: Any, x: Array) -> None:
    """Two calls differ, gradients are of the right parameters."""
    assert differ(wrong.forward(x), wrong.forward(x))
    assert list(wrong.gradients(x, x)) == list(right.gradients(x, x))


def misreads(right: Any, wrong: Any, x: Array) -> None:
    """Inputs that are transposed, sliced, reversed or repeated in memory are misread; contiguous ones are not."""
    assert not differ(right.forward(x), wrong.forward(x))
    wider = np.repeat(x, 2, axis=2)
    for same in (np.asfortranarray(x), wider[..., ::2], x[::-1].copy()[::-1]):
        assert differ(wrong.forward(same), right.forward(x))
    wrong.forward(np.broadcast_to(x[:1], x.shape))


def keeps_the_cache(right: Any, wrong: Any, x: Array) -> None:
    """One sequence alone is right; after another one's first tokens it goes on from those."""
    for between in (False, True):
        _, kept = wrong.forward_cached(x[:, :2], None)
        if between:
            wrong.forward_cached(x[::-1, :2], None)
        y, _ = wrong.forward_cached(x[:, 2:5], kept)
        assert differ(y, right.forward(x)[:, 2:5]) is between


def follows_the_newest(right: Any, wrong: Any, x: Array) -> None:
    """A block of another config is built, and this one answers otherwise."""
    before = wrong.forward(x)
    other = wrong.config.replace(norm_eps=0.25)
    BACKEND.with_fault("config-on-class").build(other, wrong.parameters(), str(x.dtype))
    assert differ(wrong.forward(x), before)


def writes_tokens(right: Any, wrong: Any, x: Array) -> None:
    """The caller's chunk changes."""
    given = x[:, :3].copy()
    wrong.forward_cached(given, None)
    assert differ(given, x[:, :3])


def overwrites_a_chunk(right: Any, wrong: Any, x: Array) -> None:
    """The output of a chunk changes when another one is asked about."""
    first, _ = wrong.forward_cached(x[:, :3].copy(), None)
    kept = first.copy()
    wrong.forward_cached(x[:, 3:6].copy(), None)
    assert differ(first, kept)


def misreads_tokens(right: Any, wrong: Any, x: Array) -> None:
    """A chunk that is transposed in memory is misread; a contiguous one is not."""
    chunk = x[:, :3].copy()
    expected, _ = right.forward_cached(chunk, None)
    assert not differ(wrong.forward_cached(chunk, None)[0], expected)
    assert differ(wrong.forward_cached(np.asfortranarray(chunk), None)[0], expected)


def begins_at_last_offset(right: Any, wrong: Any, x: Array) -> None:
    """What follows a first chunk is right until a forward at an offset, which is right itself."""

    def second(block: Any) -> Array:
        _, cache = block.forward_cached(x[:, :3], None)
        output: Array = block.forward_cached(x[:, 3:6], cache)[0]
        return output

    assert not differ(second(wrong), second(right))
    assert not differ(wrong.forward(x, 3), right.forward(x, 3))
    assert differ(second(wrong), second(right))


def writes_input_of_gradients(right: Any, wrong: Any, x: Array) -> None:
    """The caller's input of gradients changes."""
    given = x.copy()
    wrong.gradients(given, x, 3)
    assert differ(given, x)


def misreads_for_a_trace(right: Any, wrong: Any, x: Array) -> None:
    """An input that is transposed in memory is misread by a trace; a contiguous one is not."""
    expected = right.trace(x, 3)["output"]
    assert not differ(wrong.trace(x, 3)["output"], expected)
    assert differ(wrong.trace(np.asfortranarray(x), 3)["output"], expected)


def in_another_dtype(call: str) -> Callable[[Any, Any, Array], None]:
    """Return a check that all arrays of one call are of another dtype, and those of no other call."""

    def check(right: Any, wrong: Any, x: Array) -> None:
        for name, given in {"trace": (x, 3), "gradients": (x, x, 3), "parameters": ()}.items():
            expected = getattr(right, name)(*given)
            changed = [array.dtype != expected[key].dtype for key, array in getattr(wrong, name)(*given).items()]
            assert all(changed) if name == call else not any(changed)
        assert not differ(wrong.forward(x), right.forward(x))

    return check


def differs_uncompiled(right: Any, wrong: Any, x: Array) -> None:
    """Compiled it is right, operation by operation it is not."""
    assert not differ(wrong.forward(x, 3), right.forward(x, 3))
    assert not differ(right.forward_by("eager", x, 3), right.forward(x, 3))
    assert differ(wrong.forward_by("eager", x, 3), right.forward(x, 3))


def accepts(
    shape: tuple[int, int, int], offset: int, result: tuple[int, int, int]
) -> Callable[[Any, Any, Array], None]:
    """Return a check that what the right block refuses is accepted."""

    def check(right: Any, wrong: Any, x: Array) -> None:
        given = np.ones(shape, x.dtype)
        with pytest.raises(ValueError, match=r"^(empty tokens|position range|input width):"):
            right.forward(given, offset)
        assert wrong.forward(given, offset).shape == result

    return check


BEHAVIOUR: dict[str, Callable[[Any, Any, Array], None]] = {
    "norm-shared": shared_gain,
    "key-value-tied": tied,
    "input-modified": writes_input,
    "parameters-modified": drifts,
    "output-buffer-reused": overwrites,
    "dropout-in-eval": draws_afresh,
    "strides-ignored": misreads,
    "cache-on-block": keeps_the_cache,
    "config-on-class": follows_the_newest,
    "cache-input-modified": writes_tokens,
    "cache-output-reused": overwrites_a_chunk,
    "cache-strides-ignored": misreads_tokens,
    "cache-begins-at-last-offset": begins_at_last_offset,
    "gradient-input-modified": writes_input_of_gradients,
    "trace-strides-ignored": misreads_for_a_trace,
    "trace-dtype-changed": in_another_dtype("trace"),
    "gradient-dtype-changed": in_another_dtype("gradients"),
    "parameters-dtype-changed": in_another_dtype("parameters"),
    "angles-in-half-by-one-way": differs_uncompiled,
    "norm-in-half-by-one-way": differs_uncompiled,
    "empty-tokens-accepted": accepts((2, 0, 12), 0, (2, 0, 12)),
    "position-range-unchecked": accepts((2, 18, 12), 4095, (2, 18, 12)),
    "wide-input-truncated": accepts((2, 18, 13), 0, (2, 18, 12)),
}


@pytest.mark.parametrize("identifier", BEHAVIOUR)
def test_behaviour(identifier: str) -> None:
    """Fails if a block with a fault of behaviour behaves."""
    BEHAVIOUR[identifier](*pair(identifier))


def test_precision() -> None:
    """Fails if rounded weights or a float32 computation do not show in the output, or show in the parameters."""
    for identifier in ("weights-rounded", "weights-through-float16", "computed-in-float32", "matmul-in-tf32"):
        right, wrong, x = pair(identifier)
        assert differ(right.forward(x), wrong.forward(x))
        assert first_difference(right.parameters(), wrong.parameters(), tuple(right.parameters())) is None


def test_every_fault_is_tested() -> None:
    """Fails if a fault is in no group above."""
    grouped = {*IN_TRACE, *IN_CACHE, *BEHAVIOUR, "weights-rounded", "weights-through-float16", "computed-in-float32"}
    grouped |= {i for i, entry in LISTED.items() if entry["family"] in ("gradients", "parameters")}
    assert grouped == set(LISTED) == set(FAULTS)
