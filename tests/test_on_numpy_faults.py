"""The faulty NumPy blocks: that each is wrong where the spec says it is, and right where it says nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import pytest
import yaml

from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.canonical import STAGES, parameter_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError
from blocklaws.spec_reading import built_in_spec


def read(name: str) -> Any:
    """Return a file of the spec as plain data."""
    return yaml.safe_load(resources.files("blocklaws.spec").joinpath(name).read_text(encoding="utf-8"))


BLOCKS: dict[str, dict[str, Any]] = read("blocks.yaml")
FAULTS: dict[str, dict[str, Any]] = {
    entry["id"]: entry for entry in read("faults.yaml") if "numpy" in entry.get("backends", ["numpy"])
}
LABELS = ("says", "source", "by_default", "heads")
SIZES: dict[str, int] = {"d_model": 10, "n_heads": 4, "d_head": 6, "d_ff": 7}

#: Where a listed block cannot show the fault: the norm's argument is a sum that nobody else reads.
UNSEEN = {("norm-modifies-input", "original")}
#: What the config of a listed block says instead, where the fault is about a word that no kind of block has.
CHOICES = {
    "gelu-tanh-as-erf": {"feed_forward": "gelu_tanh"},
    # One pair turns alike in a head of any width: two of the three pairs of a head turn here.
    "rotary-fraction-exponent-by-d-head": {"rotary_fraction": 0.75},
}
#: What a number of the config is instead, where the listed block has the fault's own.
NUMBERS = {
    "eps-clamped": {"norm_eps": 0.0},
    "gradient-eps-fixed": {"norm_eps": 0.25},
    "cache-eps-fixed": {"norm_eps": 0.25},
    "window-fixed": {"window": 2},
    "rotary-fraction-fixed": {"rotary_fraction": 0.75},
}


def blocks_of(fault: str) -> list[str]:
    """Return the blocks in which the spec says that the fault can be seen."""
    return list(built_in_spec().faults[fault].blocks)


def cases(*, stage: bool | None = None, family: str | None = None) -> list[tuple[str, str]]:
    """Return (fault, block) for the faults of a family, or those with or without a stage."""
    return [
        (fault, block)
        for fault, entry in FAULTS.items()
        for block in blocks_of(fault)
        if (family is None or entry["family"] == family)
        and (stage is None or (entry.get("stage") is not None and entry["family"] != "cache") is stage)
        and (fault, block) not in UNSEEN
    ]


@cache
def config_of(block: str, fault: str = "", **changes: int) -> BlockConfig:
    """Return a small config of that kind of block, in which the fault can be seen, every size different."""
    choices = {key: value for key, value in BLOCKS[block].items() if key not in LABELS}
    n_kv_heads = 2 if BLOCKS[block]["heads"] == "grouped" else 4
    return BlockConfig(
        **{"block": block, **choices, **CHOICES.get(fault, {}), **NUMBERS.get(fault, {})},
        **{**SIZES, "n_kv_heads": n_kv_heads, **changes},
    )


def parameters_of(config: BlockConfig, *, sharp: float = 1.0, drive: float = 1.0) -> dict[str, np.ndarray]:
    """Return random parameters at 1/sqrt(fan_in); ``sharp`` multiplies query and key matrices, ``drive`` the gate."""
    random = np.random.default_rng(0)
    # A norm takes the size of a projection away again, so that there its gain decides how sharp the scores are.
    sharpened = ("query", "key") if config.qk_norm is None else ("query_norm.gain", "key_norm.gain")
    sharpened = tuple(f"attention.{name}" for name in sharpened)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        values = random.normal(size=shape)
        parameters[name] = values / math.sqrt(shape[0]) if len(shape) == 2 else 0.3 * values + name.endswith("gain")
        if name in sharpened:
            parameters[name] *= sharp
        elif name == "feed_forward.gate":
            parameters[name] *= drive
    return parameters


def pair(
    fault: str, config: BlockConfig, dtype: str | None = None, *, sharp: float = 1.0, drive: float = 1.0
) -> tuple[NumpyBlock, NumpyBlock]:
    """Return the faulty block and the right one, with the same parameters, in the first dtype of the fault."""
    chosen = dtype or dtype_of(fault)
    parameters = parameters_of(config, sharp=sharp, drive=drive)
    backend = NumpyBackend()
    return backend.with_fault(fault).build(config, parameters, chosen), backend.build(config, parameters, chosen)


def dtype_of(fault: str) -> str:
    """Return a dtype in which the fault can be seen."""
    return "float64" if "float64" in FAULTS[fault].get("dtypes", ["float64"]) else "float32"


def input_of(config: BlockConfig, batch: int = 3, tokens: int = 6, seed: int = 1) -> np.ndarray:
    """Return a random input."""
    return np.random.default_rng(seed).normal(size=(batch, tokens, config.d_model))


def differ(got: Any, expected: Any) -> bool:
    """Return whether two arrays differ in shape, dtype, or by more than rounding."""
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return True
    tolerance = (1e-9 if got.dtype == np.float64 else 1e-5) * np.abs(expected).max(initial=0)
    return not bool((np.abs(got - expected) <= tolerance).all())


def worlds(config: BlockConfig) -> Iterator[tuple[np.ndarray, int, float, float]]:
    """Yield (input, offset, sharpness of the scores, drive of the gate), from the plain to the hostile."""
    yield input_of(config), 5, 1, 1
    yield input_of(config), 5, 1, 1
    yield input_of(config, batch=2, tokens=20), 30, 1, 1
    yield input_of(config, batch=1), 0, 1, 1
    yield input_of(config, tokens=1), 0, 1, 1
    yield input_of(config), 0, 30, 1
    yield input_of(config), 0, 1000, 1
    silent = input_of(config)
    silent[:, 2] = 0
    yield silent, 0, 1, 1
    yield input_of(config) * 1e-6, 0, 1, 1
    yield input_of(config), 0, 1, 1000
    yield input_of(config) + 1000, 0, 1, 1
    yield input_of(config) * 1e6, 0, 1, 1


def differing_stages(fault: str, block: str) -> list[str]:
    """Return the stages that differ in the first world in which some stage does, in the order of the computation."""
    config = config_of(block, fault)
    blocks: dict[tuple[float, float], tuple[NumpyBlock, NumpyBlock]] = {}
    for x, offset, sharp, drive in worlds(config):
        faulty, right = blocks.setdefault((sharp, drive), pair(fault, config, sharp=sharp, drive=drive))
        x = x.astype(dtype_of(fault))
        got, expected = faulty.trace(x, offset), right.trace(x, offset)
        stages = [stage for stage in STAGES if stage in got and differ(got[stage], expected[stage])]
        if stages:
            return stages
    return []


# --- the list ---------------------------------------------------------------------------------------------------------


def test_every_fault_of_the_spec_is_here() -> None:
    """Fails if the spec and the backend disagree about which faults there are."""
    assert sorted(NumpyBackend.faults) == sorted(FAULTS)


def test_unknown_fault() -> None:
    """Fails if a misspelt fault builds a right block, or its error does not help."""
    with pytest.raises(BackendError) as caught:
        NumpyBackend().with_fault("residual-droped")
    assert str(caught.value) == (
        "the numpy backend has no fault 'residual-droped' (did you mean 'residual-dropped'?); "
        f"it has {len(FAULTS)}, named in its 'faults'"
    )


def test_with_fault_leaves_the_backend_alone() -> None:
    """Fails if naming a fault changes the backend that it was asked of."""
    backend = NumpyBackend()
    assert backend.with_fault("mask-missing").fault == "mask-missing"
    assert backend.fault is None


# --- faults that a stage shows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "block"), cases(stage=True))
def test_stage_shows_the_fault(fault: str, block: str) -> None:
    """Fails if a fault is invisible, or shows first at another stage than the spec says."""
    stages = differing_stages(fault, block)
    assert FAULTS[fault]["stage"] in stages
    if BLOCKS[block]["placement"] == "pre" and fault != "placement-swapped":
        assert stages[0] == FAULTS[fault]["stage"]


#: Where the derivative of what is computed is not what the reverse pass must be: roundings are passed through, and
#: what changes from call to call, is tied, or is overwritten has no derivative to compare with.
NO_DERIVATIVE = {
    "residual-rounded", "softmax-in-half", "weights-rounded", "computed-in-float32", "matmul-in-tf32",
    "dropout-in-eval", "norm-shared", "key-value-tied", "norm-modifies-input", "parameters-modified",
    "rotary-offset-ignored", "output-buffer-reused", "one-token-squeezed", "batch-of-one-squeezed",
    "last-token-dropped", "output-dtype-changed", "input-modified", "gradient-input-modified", "gains-rounded",
    "stream-in-float16", "cache-in-float16", "weights-through-float16",
}  # fmt: skip


@pytest.mark.parametrize("fault", [f for f in FAULTS if FAULTS[f]["family"] != "gradients" and f not in NO_DERIVATIVE])
def test_reverse_pass_belongs_to_the_fault(fault: str) -> None:
    """Fails if a block that computes something else does not also have the gradient of that."""
    if dtype_of(fault) != "float64":
        pytest.skip("central differences need float64")
    config = config_of(blocks_of(fault)[0], fault)
    parameters, x = parameters_of(config), input_of(config)
    cotangent, random, step = input_of(config, seed=2), np.random.default_rng(3), 1e-5
    backend = NumpyBackend().with_fault(fault)
    arrays = {"input": x, **parameters}
    gradients = backend.build(config, parameters, "float64").gradients(x, cotangent)
    for name, array in arrays.items():
        direction = random.normal(size=array.shape)
        sides = []
        for sign in (1, -1):
            moved = {**arrays, name: array + sign * step * direction}
            moved_x = moved.pop("input")
            sides.append(np.sum(cotangent * backend.build(config, moved, "float64").forward(moved_x)))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert np.sum(gradients[name] * direction) == pytest.approx(slope, rel=1e-6, abs=1e-6), name


# --- faults that the cache, the parameters or the gradients show ------------------------------------------------------


def decoded(block: NumpyBlock, x: np.ndarray, chunks: tuple[int, ...]) -> np.ndarray:
    """Return the output of decoding by chunks."""
    rows, kept, start = [], None, 0
    for length in chunks:
        y, kept = block.forward_cached(x[:, start : start + length], kept)
        rows.append(y)
        start += length
    return np.concatenate(rows, axis=1)


def _by_turns(block: NumpyBlock, x: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the second output of ``x`` when another sequence's first tokens come between its two chunks."""
    _, kept = block.forward_cached(x[:, :2], None)
    block.forward_cached(other[:, :2], None)
    return block.forward_cached(x[:, 2:], kept)[0]


@pytest.mark.parametrize(("fault", "block"), cases(family="cache"))
def test_cache_shows_the_fault(fault: str, block: str) -> None:
    """Fails if chunks of several tokens hide the fault, or one pass shows it."""
    config = config_of(block, fault)
    faulty, right = pair(fault, config)
    x = input_of(config, tokens=8).astype(dtype_of(fault))
    assert differ(decoded(faulty, x, (3, 2, 1, 2)), decoded(right, x, (3, 2, 1, 2)))
    np.testing.assert_array_equal(faulty.forward(x, 3), right.forward(x, 3))
    for name, gradient in right.gradients(x, x).items():
        np.testing.assert_array_equal(faulty.gradients(x, x)[name], gradient)


@pytest.mark.parametrize(("fault", "block"), cases(family="parameters"))
def test_parameters_show_the_fault(fault: str, block: str) -> None:
    """Fails if the list of parameters is as it should be: names, order, shapes and distinct storage."""
    faulty, right = pair(fault, config_of(block))
    listed, expected = faulty.parameters(), right.parameters()
    shapes = [(name, array.shape) for name, array in listed.items()]
    tied = len({id(array) for array in listed.values()}) < len(listed)
    assert tied or shapes != [(name, array.shape) for name, array in expected.items()]


@pytest.mark.parametrize(("fault", "block"), cases(family="gradients"))
def test_gradients_show_the_fault(fault: str, block: str) -> None:
    """Fails if the gradients are right, or the output is not."""
    config = config_of(block, fault)
    faulty, right = pair(fault, config)
    x, cotangent = (input_of(config, tokens=20, seed=seed).astype(dtype_of(fault)) for seed in (1, 2))
    np.testing.assert_array_equal(faulty.forward(x), right.forward(x))
    expected = right.gradients(x, cotangent)
    given = cotangent.copy()
    faulty.gradients(x, given)
    got = faulty.gradients(x, cotangent.copy())
    assert list(got) == list(expected)
    assert differ(given, cotangent) or any(differ(got[name], array) for name, array in expected.items())


# --- faults of behaviour ----------------------------------------------------------------------------------------------


def _refuses(call: Callable[..., object], *args: object) -> bool:
    try:
        call(*args)
    except ValueError:
        return True
    return False


def _input_changes(faulty: NumpyBlock, x: np.ndarray) -> bool:
    given = x.copy()
    faulty.forward(given)
    return differ(given, x)


def _later_call_differs(faulty: NumpyBlock, x: np.ndarray) -> bool:
    return differ(faulty.forward(x).copy(), faulty.forward(x))


def _earlier_result_changes(faulty: NumpyBlock, x: np.ndarray) -> bool:
    first = faulty.forward(x)
    kept = first.copy()
    faulty.forward(x[::-1])
    return differ(first, kept)


def _earlier_chunk_changes(faulty: NumpyBlock, x: np.ndarray) -> bool:
    first, _ = faulty.forward_cached(x[:, :2].copy(), None)
    kept = first.copy()
    faulty.forward_cached(x[:, 2:4].copy(), None)
    return differ(first, kept)


def _strides_matter(faulty: NumpyBlock, x: np.ndarray) -> bool:
    wide = np.repeat(x, 2, axis=-1)
    views = (np.asfortranarray(x), wide[..., ::2], np.ascontiguousarray(x[:, ::-1])[:, ::-1])
    broadcast = np.broadcast_to(x[:1], x.shape)
    same = np.array_equal(faulty.forward(broadcast), faulty.forward(broadcast.copy()))
    return same and all(differ(faulty.forward(view), faulty.forward(x)) for view in views)


def _newest_counts(faulty: NumpyBlock, x: np.ndarray) -> bool:
    before = faulty.forward(x)
    other = faulty.config.replace(norm_eps=0.25)
    NumpyBackend().with_fault("config-on-class").build(other, dict(faulty.parameters()), str(x.dtype))
    return differ(faulty.forward(x), before)


def _tokens_change(faulty: NumpyBlock, x: np.ndarray) -> bool:
    given = x.copy()
    faulty.forward_cached(given, None)
    return differ(given, x)


def _input_of_gradients_changes(faulty: NumpyBlock, x: np.ndarray) -> bool:
    given = x.copy()
    faulty.gradients(given, x, 3)
    return differ(given, x)


def _any_differs(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return any(differ(array, expected[name]) for name, array in got.items())


def _all_of_another_dtype(faulty: NumpyBlock, right: NumpyBlock, call: str, x: np.ndarray) -> bool:
    """Whether every array of one call is, and none of the others."""
    arguments: dict[str, tuple[Any, ...]] = {"trace": (x, 3), "gradients": (x, x, 3), "parameters": ()}
    changed = {
        name
        for name, given in arguments.items()
        for key, array in getattr(faulty, name)(*given).items()
        if array.dtype != getattr(right, name)(*given)[key].dtype
    }
    return changed == {call} and not differ(faulty.forward(x), right.forward(x))


BEHAVIOUR: dict[str, Callable[[NumpyBlock, NumpyBlock, np.ndarray], bool]] = {
    "norm-modifies-input": lambda faulty, right, x: _input_changes(faulty, x),
    "input-modified": lambda faulty, right, x: _input_changes(faulty, x),
    "parameters-modified": lambda faulty, right, x: _later_call_differs(faulty, x),
    "output-buffer-reused": lambda faulty, right, x: _earlier_result_changes(faulty, x),
    "strides-ignored": lambda faulty, right, x: _strides_matter(faulty, x),
    "empty-tokens-accepted": lambda faulty, right, x: faulty.forward(x[:, :0]).shape == x[:, :0].shape,
    "position-range-unchecked": lambda faulty, right, x: (
        _refuses(right.forward, x, right.config.max_positions)
        and faulty.forward(x, right.config.max_positions).shape == x.shape
        and _refuses(faulty.forward, x, -1)
    ),
    "wide-input-truncated": lambda faulty, right, x: np.array_equal(
        faulty.forward(np.concatenate((x, x), axis=-1)), right.forward(x)
    ),
    "weights-through-float16": lambda faulty, right, x: (
        differ(faulty.forward(x), right.forward(x))
        and not any(differ(array, right.parameters()[name]) for name, array in faulty.parameters().items())
    ),
    "weights-rounded": lambda faulty, right, x: (
        differ(faulty.forward(x), right.forward(x))
        and not any(differ(array, right.parameters()[name]) for name, array in faulty.parameters().items())
    ),
    "norm-in-half-by-one-way": lambda faulty, right, x: (
        differ(faulty.forward_by("each", x, 3), right.forward_by("each", x, 3))
        and not differ(faulty.forward(x, 3), right.forward_by("each", x, 3))
    ),
    "config-on-class": lambda faulty, right, x: _newest_counts(faulty, x),
    "cache-input-modified": lambda faulty, right, x: _tokens_change(faulty, x),
    "cache-output-reused": lambda faulty, right, x: _earlier_chunk_changes(faulty, x),
    "cache-strides-ignored": lambda faulty, right, x: (
        not differ(faulty.forward_cached(x, None)[0], right.forward_cached(x, None)[0])
        and differ(faulty.forward_cached(np.asfortranarray(x), None)[0], right.forward_cached(x, None)[0])
    ),
    "cache-begins-at-last-offset": lambda faulty, right, x: (
        not differ(decoded(faulty, x, (2, 1, 2)), decoded(right, x, (2, 1, 2)))
        and not differ(faulty.forward(x, 3), right.forward(x, 3))
        and differ(decoded(faulty, x, (2, 1, 2)), decoded(right, x, (2, 1, 2)))
    ),
    "gradient-input-modified": lambda faulty, right, x: _input_of_gradients_changes(faulty, x),
    "trace-strides-ignored": lambda faulty, right, x: (
        not _any_differs(faulty.trace(x, 3), right.trace(x, 3))
        and _any_differs(faulty.trace(np.asfortranarray(x), 3), right.trace(x, 3))
    ),
    "trace-dtype-changed": lambda faulty, right, x: _all_of_another_dtype(faulty, right, "trace", x),
    "gradient-dtype-changed": lambda faulty, right, x: _all_of_another_dtype(faulty, right, "gradients", x),
    "parameters-dtype-changed": lambda faulty, right, x: _all_of_another_dtype(faulty, right, "parameters", x),
    "cache-on-block": lambda faulty, right, x: (
        not differ(decoded(faulty, x, (2, 1, 2)), decoded(right, x, (2, 1, 2)))
        and differ(_by_turns(faulty, x, x[::-1]), _by_turns(right, x, x[::-1]))
    ),
    "computed-in-float32": lambda faulty, right, x: differ(faulty.forward(x), right.forward(x)),
}


@pytest.mark.parametrize(
    ("fault", "block"),
    [case for case in cases(stage=False) if FAULTS[case[0]]["family"] not in ("cache", "parameters", "gradients")],
)
def test_behaviour_shows_the_fault(fault: str, block: str) -> None:
    """Fails if the block does not do what the fault's sentence says."""
    config = config_of(block)
    assert BEHAVIOUR[fault](*pair(fault, config), input_of(config).astype(dtype_of(fault)))


def test_no_word_of_the_config_is_changed_for_nothing() -> None:
    """Fails if a fault for which the tests change the config shows without that, in the block as it is listed."""
    for fault in CHOICES:
        for block in blocks_of(fault):
            config = config_of(block)
            faulty, right = pair(fault, config)
            np.testing.assert_array_equal(faulty.forward(input_of(config)), right.forward(input_of(config)))


def test_draws_are_fresh() -> None:
    """Fails if the dropout that stays on is the same at each call, which would be a fixed, wrong scale."""
    config = config_of("gpt")
    faulty, _ = pair("dropout-in-eval", config)
    assert _later_call_differs(faulty, input_of(config))


# --- no fault crashes -------------------------------------------------------------------------------------------------

#: Sizes that are equal or one where faults like to assume otherwise.
DEGENERATE: dict[str, int] = {"d_model": 3, "n_heads": 1, "n_kv_heads": 1, "d_head": 2, "d_ff": 1}


def answers(faulty: NumpyBlock, x: np.ndarray) -> None:
    """Ask a block for all that it can give, warnings being errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        faulty.forward(x)
        faulty.forward(x, 3)
        assert set(faulty.trace(x, 3)) <= set(STAGES)
        assert list(faulty.gradients(x, x, 3)) == ["input", *parameter_shapes(faulty.config)]
        faulty.parameters()
        _, kept = faulty.forward_cached(x, None)
        faulty.forward_cached(x[:, :1], kept)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("sizes", "shape", "dtype"),
    [({}, (2, 5), "float64"), (DEGENERATE, (1, 1), "float32"), (DEGENERATE, (0, 2), "float64")],
)
def test_no_fault_crashes(fault: str, sizes: dict[str, int], shape: tuple[int, int], dtype: str) -> None:
    """Fails if a fault stops a capability from answering, or warns, on a world that the right block answers."""
    config = config_of(blocks_of(fault)[-1], fault, **sizes)
    faulty, _ = pair(fault, config, dtype)
    x = input_of(config, *shape).astype(dtype)
    x.flags.writeable = False
    answers(faulty, x)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_overflow_does_not_warn(dtype: str) -> None:
    """Fails if a fault that overflows warns where it does, or does not overflow."""
    config = config_of("llama")
    faulty, right = pair("activation-overflows", config, dtype, drive=1000)
    x = input_of(config).astype(dtype)
    assert np.isfinite(right.forward(x)).all()
    assert np.isnan(faulty.forward(x)).any()
    answers(faulty, x)
