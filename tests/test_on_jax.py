"""The JAX backend against the worked numbers, against itself, and against what it must not do to its process."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name bfloat16)
import numpy as np
import pytest

from blocklaws.backends.on_jax import JaxBackend
from blocklaws.canonical import STAGES, parameter_shapes, stage_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError

Array = np.ndarray[Any, np.dtype[Any]]
BACKEND = JaxBackend()
DTYPES = BACKEND.dtypes

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
CONFIGS = {
    "llama": LLAMA,
    "llama-gqa": LLAMA.replace(block="llama-gqa", n_kv_heads=2, rotary="half", rotary_base=500000.0),
    "plain": LLAMA.replace(block="plain", rotary=None, norm_eps=1e-6),
    "gpt": LLAMA.replace(block="gpt", norm="layer", feed_forward="gelu", rotary=None, bias=True),
    "original": LLAMA.replace(
        block="original", norm="layer", placement="post", feed_forward="relu", rotary=None, bias=True
    ),
    # Between them, these two make every further choice.
    "beside": LLAMA.replace(
        **{"block": "beside", "norm": "layer", "feed_forward": "geglu", "n_kv_heads": 2, "d_head": 8, "bias": "qkv"},
        **{"residual": "parallel", "residual_scale": 0.3, "qk_norm": "head", "window": 4, "softcap": 2.0},
        **{"rotary": "half", "rotary_fraction": 0.5},
    ),
    "inside": LLAMA.replace(
        **{"block": "inside", "placement": "inside", "feed_forward": "geglu_tanh", "qk_norm": "width", "window": 2},
        **{"rotary_fraction": 0.7},
    ),
}
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
SUBNORMAL = {"float64": 2.0**-1074, "float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}
#: Values whose squares stay finite where they are accumulated, and projections of which stay finite in the dtype.
HUGE = {"float64": 1e150, "float32": 1e18, "bfloat16": 1e18, "float16": 8e3}


def drawn_parameters(config: BlockConfig, seed: int, dtype: str = "float64") -> dict[str, Array]:
    """Draw weights of standard deviation 1 / sqrt(fan_in), and gains and biases that are all different."""
    generator = np.random.default_rng(seed)
    drawn = {}
    for name, shape in parameter_shapes(config).items():
        fan_in = shape[0] if len(shape) == 2 else 1
        drawn[name] = (generator.normal(size=shape) / np.sqrt(fan_in)).astype(dtype)
    return drawn


def drawn_input(config: BlockConfig, batch: int, tokens: int, seed: int, dtype: str = "float64") -> Array:
    """Draw x [batch, tokens, d_model]."""
    return np.random.default_rng([seed, 1]).normal(size=(batch, tokens, config.d_model)).astype(dtype)


def wide(array: Array) -> Array:
    """Return an array in float64: the oldest NumPy compares no bfloat16 with a tolerance."""
    return array.astype(np.float64)


@functools.cache
def built(kind: str, dtype: str = "float64", seed: int = 0) -> Any:
    """Return a block of a kind with drawn weights."""
    return BACKEND.build(CONFIGS[kind], drawn_parameters(CONFIGS[kind], seed, dtype), dtype)


class TestNumbers:
    """The mathematics."""

    chapter = BlockConfig(
        block="chapter",
        d_model=4,
        n_heads=2,
        n_kv_heads=2,
        d_head=2,
        d_ff=4,
        norm="rms",
        norm_eps=0.0,
        placement="pre",
        feed_forward="swiglu",
        rotary="interleaved",
        rotary_base=10000.0,
        bias=False,
        max_positions=16,
    )

    @pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 6e-7), ("float32", 2e-6)])
    @pytest.mark.parametrize("rotary", ["interleaved", "half"])
    def test_chapter(self, dtype: str, tolerance: float, rotary: str) -> None:
        """Fails if a stage of the worked example differs in a printed digit; with d_head 2 the layouts are equal."""
        identities = {
            name: np.eye(4) if len(shape) == 2 else np.ones(4) for name, shape in parameter_shapes(self.chapter).items()
        }
        block = BACKEND.build(self.chapter.replace(rotary=rotary), identities, dtype)
        stages = block.trace(np.array([[[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]]], dtype))
        expected: dict[str, Any] = {
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
        }
        for stage, numbers in expected.items():
            np.testing.assert_allclose(stages[stage][0], numbers, rtol=0, atol=tolerance, err_msg=stage)

    def test_post_norm(self) -> None:
        """Fails if a post-norm block normalizes anything but the sum of stream and branch."""
        config = CONFIGS["original"].replace(d_model=4, n_heads=2, n_kv_heads=2, d_head=2, d_ff=4)
        parameters = {
            name: np.eye(4) if len(shape) == 2 else np.full(shape, float(name.endswith("gain")))
            for name, shape in parameter_shapes(config).items()
        }
        stages = BACKEND.build(config, parameters, "float64").trace(np.eye(3, 4)[None] * 2)
        total = stages["input"] + stages["attention_branch"]
        normal = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(stages["after_attention"], normal, rtol=1e-12)
        np.testing.assert_array_equal(stages["after_attention"], stages["attention_norm"])
        np.testing.assert_array_equal(stages["output"], stages["feed_forward_norm"])

    @pytest.mark.parametrize("kind", CONFIGS)
    def test_gradients_are_slopes(self, kind: str) -> None:
        """Fails if the gradients do not give the slope along one random direction of input and parameters together."""
        config, generator = CONFIGS[kind], np.random.default_rng(3)
        parameters, x = drawn_parameters(config, 0), drawn_input(config, 2, 5, 0)
        cotangent = generator.normal(size=x.shape)
        direction = {name: generator.normal(size=value.shape) for name, value in {"input": x, **parameters}.items()}

        def loss(step: float) -> float:
            moved = {name: value + step * direction[name] for name, value in parameters.items()}
            output = BACKEND.build(config, moved, "float64").forward(x + step * direction["input"], 3)
            return float(np.sum(output * cotangent))

        found = built(kind).gradients(x, cotangent, 3)
        assert list(found) == ["input", *parameter_shapes(config)]
        slope = sum(float(np.sum(found[name] * direction[name])) for name in direction)
        # Fourth-order central differences: truncation and rounding both stay below 1e-8 of the slope.
        step = 1e-4
        numeric = (8 * (loss(step) - loss(-step)) - (loss(2 * step) - loss(-2 * step))) / (12 * step)
        assert slope == pytest.approx(numeric, rel=1e-7)

    @pytest.mark.parametrize("rotary", ["interleaved", "half"])
    def test_far_positions(self, rotary: str) -> None:
        """Fails if an angle at position 4000 is formed in float32, where it is wrong by up to 2e-4 radians."""
        from blocklaws.backends.on_jax import compiled
        from blocklaws.backends.on_jax.steps import Steps

        config = LLAMA.replace(rotary=rotary)
        a = np.random.default_rng(0).normal(size=(1, 1, 1, 6)).astype(np.float32)
        steps: Any = Steps(config)
        with compiled.precise():
            turned = np.array(steps.rotate(a, steps.rotary_angles(np.array([4000], np.int32))))
        assert turned.dtype == np.float32
        angle = 4000 * 10000.0 ** (-2 * np.arange(3) / 6)
        order = [0, 2, 4, 1, 3, 5] if rotary == "interleaved" else range(6)
        first, second = np.split(a[0, 0, 0, list(order)].astype(np.float64), 2)
        expected = np.concatenate(
            [first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)]
        )
        np.testing.assert_allclose(turned[0, 0, 0, list(order)], expected, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_forward_agrees_with_trace(self, dtype: str) -> None:
        """Fails if the two programs compute different blocks, or a stage has a wrong shape or dtype."""
        block, x = built("llama-gqa", dtype), drawn_input(LLAMA, 2, 5, 4, dtype)
        stages, shapes = block.trace(x, 7), stage_shapes(CONFIGS["llama-gqa"], 2, 5)
        assert tuple(stages) == STAGES
        assert {stage: array.shape for stage, array in stages.items()} == shapes
        assert {array.dtype for array in stages.values()} == {np.dtype(dtype)}
        tolerance = 8 * EPSILON[dtype]
        np.testing.assert_allclose(wide(block.forward(x, 7)), wide(stages["output"]), rtol=tolerance, atol=tolerance)


class TestExactness:
    """What holds bit for bit."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("kind", ["llama-gqa", "original", "beside"])
    def test_suffix_and_batch(self, kind: str, dtype: str) -> None:
        """Fails if a row depends on the values of later tokens or of other sequences, however large they are."""
        block = built(kind, dtype)
        for tokens, seed in itertools.product((3, 33, 65), range(3)):
            generator = np.random.default_rng(seed)
            x = drawn_input(LLAMA, 2, tokens, seed, dtype)
            before = block.forward(x)
            for first, scale in itertools.product((1, tokens - 1), (1.0, HUGE[dtype])):
                changed = x.copy()
                changed[:, first:] = generator.uniform(-scale, scale, size=changed[:, first:].shape)
                np.testing.assert_array_equal(block.forward(changed)[:, :first], before[:, :first])
            changed = x.copy()
            changed[1:] = generator.uniform(-HUGE[dtype], HUGE[dtype], size=changed[1:].shape)
            np.testing.assert_array_equal(block.forward(changed)[0], before[0])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_hidden_weights(self, dtype: str) -> None:
        """Fails if a hidden key has any weight, or weights of a row do not sum to one."""
        weights = built("gpt", dtype).trace(drawn_input(LLAMA, 2, 9, 0, dtype) * 30)["attention_weights"]
        assert not np.triu(weights.astype(np.float64), 1).any()
        np.testing.assert_allclose(weights.astype(np.float64).sum(-1), 1, atol=9 * EPSILON[dtype])

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("kind", ["llama", "gpt", "beside", "inside"])
    def test_zero_branch(self, kind: str, dtype: str) -> None:
        """Fails if a block whose branches are zero changes a bit of its input, a subnormal among them."""
        config = CONFIGS[kind]
        parameters = drawn_parameters(config, 0, dtype)
        for name in parameters:
            if name.startswith(("attention.output", "feed_forward.down")):
                parameters[name] = np.zeros_like(parameters[name])
        block = BACKEND.build(config, parameters, dtype)
        x = drawn_input(config, 2, 3, 0, dtype)
        x[0, 0, 0] = SUBNORMAL[dtype]
        assert block.forward(x).tobytes() == x.tobytes()
        x = drawn_input(config, 2, 3, 0, dtype)
        np.testing.assert_array_equal(block.gradients(x, x[::-1])["input"], x[::-1])


class TestCache:
    """forward_cached."""

    @pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
    @pytest.mark.parametrize("kind", ["llama-gqa", "original", "beside"])
    def test_chunks_equal_the_whole(self, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fails if positions, the mask or the growth of the cache (here past 16 slots) go wrong between chunks."""
        monkeypatch.setattr("blocklaws.backends.on_jax.block.SMALLEST_CACHE", 16)
        block, x = built(kind, dtype), drawn_input(LLAMA, 2, 19, 0, dtype)
        outputs, cache = [], None
        for chunk in (x[:, :2], x[:, 2:3], x[:, 3:17], x[:, 17:]):
            y, cache = block.forward_cached(chunk, cache)
            outputs.append(y)
        tolerance = 16 * EPSILON[dtype]
        whole = wide(block.forward(x))
        np.testing.assert_allclose(wide(np.concatenate(outputs, 1)), whole, rtol=tolerance, atol=tolerance)

    def test_refusals(self) -> None:
        """Fails if a used cache, another batch's, or another block's is accepted, or the length is not bounded."""
        block, x = built("llama"), drawn_input(LLAMA, 2, 3, 0)
        _, cache = block.forward_cached(x, None)
        with pytest.raises(ValueError, match=r"^released cache: this cache was made by another block"):
            built("plain").forward_cached(x, cache)
        with pytest.raises(ValueError, match=r"^released cache: the cache holds 2 sequences, but x has 1"):
            block.forward_cached(x[:1], cache)
        block.forward_cached(x, cache)
        with pytest.raises(ValueError, match=r"^released cache: this cache was used by an earlier call"):
            block.forward_cached(x, cache)
        short = BACKEND.build(LLAMA.replace(max_positions=5), drawn_parameters(LLAMA, 0), "float64")
        _, cache = short.forward_cached(x, None)
        with pytest.raises(ValueError, match=r"^position range: 3 tokens from position 3 are positions 3 to 5"):
            short.forward_cached(x, cache)


class TestRefusals:
    """Each boundary is refused in words that begin with it."""

    @pytest.mark.parametrize(
        ("shape", "dtype", "offset", "message"),
        [
            ((3, 12), "float64", 0, r"input rank: x has shape \[3, 12\] \(2 axes\)"),
            ((2, 3, 11), "float64", 0, r"input width: x has shape \[2, 3, 11\], whose last axis must be d_model=12"),
            ((2, 3, 12), "float32", 0, r"input dtype: x is float32, but this block was built in float64"),
            ((2, 0, 12), "float64", 0, r"empty tokens: x has shape \[2, 0, 12\]"),
            ((2, 3, 12), "float64", -1, r"position range: 3 tokens from position -1"),
            ((2, 3, 12), "float64", 4094, r"position range: .* positions run from 0 to 4095"),
            ((2, 3, 12), "float64", 0.5, r"position range: position_offset=0.5 must be an integer"),
        ],
    )
    @pytest.mark.parametrize("method", ["forward", "trace", "gradients"])
    def test_input(self, shape: tuple[int, ...], dtype: str, offset: Any, message: str, method: str) -> None:
        """Fails if a wrong input reaches JAX, which would broadcast, cut or compile it."""
        x = np.zeros(shape, dtype)
        arguments = (x, x) if method == "gradients" else (x,)
        with pytest.raises(ValueError, match=f"^{message}"):
            getattr(built("llama"), method)(*arguments, offset)

    def test_parameters(self) -> None:
        """Fails if a missing, an extra or a misshapen parameter, or an unknown dtype, is accepted."""
        good = drawn_parameters(LLAMA, 0)
        missing = {name: value for name, value in good.items() if name != "attention.key"}
        with pytest.raises(ValueError, match=r"^configuration: parameters are missing: attention\.key;"):
            BACKEND.build(LLAMA, missing, "float64")
        with pytest.raises(ValueError, match=r"^configuration: .* no parameter 'attention\.kay' \(did you mean"):
            BACKEND.build(LLAMA, {**good, "attention.kay": good["attention.key"]}, "float64")
        with pytest.raises(ValueError, match=r"^component width: .*'feed_forward\.up' has shape \[10, 12\]"):
            BACKEND.build(LLAMA, {**good, "feed_forward.up": good["feed_forward.up"].T}, "float64")
        with pytest.raises(ValueError, match=r"^configuration: dtype='float23' .* \(did you mean 'float32'\?\)"):
            BACKEND.build(LLAMA, good, "float23")

    def test_device(self) -> None:
        """Fails if a device that JAX does not have gives anything but a BackendError in words."""
        x = drawn_input(LLAMA, 2, 3, 0)
        import jax

        on_cpu = BACKEND.with_device("cpu").build(LLAMA, drawn_parameters(LLAMA, 0), "float64")
        # A device that was asked for gets the parameters; where none was, a CPU reads them where they are.
        assert all(isinstance(value, jax.Array) for value in on_cpu.operands.values())
        assert all(value.dtype == np.float64 for value in on_cpu.operands.values())
        np.testing.assert_allclose(on_cpu.forward(x), built("llama").forward(x), rtol=1e-9, atol=1e-9)
        y, cache = on_cpu.forward_cached(x[:, :2], None)
        last, _ = on_cpu.forward_cached(x[:, 2:], cache)
        np.testing.assert_allclose(np.concatenate([y, last], 1), on_cpu.forward(x), rtol=1e-9, atol=1e-9)
        for name in ("abacus", "cpu:99", "cpu:x"):
            with pytest.raises(BackendError, match=re.escape(f"has no device {name!r} here")):
                BACKEND.with_device(name)


class TestManners:
    """What a call leaves behind."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_memory(self, dtype: str) -> None:
        """Fails if an argument is modified, or a result shares memory with an argument or another result."""
        given = drawn_parameters(LLAMA, 0, dtype)
        kept = {name: value.copy() for name, value in given.items()}
        block, x = BACKEND.build(LLAMA, given, dtype), drawn_input(LLAMA, 2, 5, 0, dtype)
        before = x.copy()
        for value in given.values():
            value *= 0
        first = block.forward(x)
        results = [first, *block.trace(x).values(), *block.gradients(x, x).values(), *block.parameters().values()]
        for one, other in itertools.combinations([x, *results], 2):
            assert not np.shares_memory(one, other)
        for array in results[1:]:
            array[...] = 7
        np.testing.assert_array_equal(x, before)
        np.testing.assert_array_equal(block.forward(x), first)
        shown = block.parameters()
        assert list(shown) == list(parameter_shapes(LLAMA))
        for name, value in shown.items():
            assert value.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(value, kept[name])

    def test_layouts(self) -> None:
        """Fails if an input that is read-only, strided or reversed is read in another order than its own."""
        block, x = built("llama"), drawn_input(LLAMA, 2, 5, 0)
        expected = block.forward(x)
        frozen = x.copy()
        frozen.setflags(write=False)
        for same in (frozen, np.asfortranarray(x), x[::-1].copy()[::-1]):
            np.testing.assert_array_equal(block.forward(same), expected)

    @pytest.mark.parametrize("kind", ["llama", "gpt", "beside"])
    def test_empty_batch(self, kind: str) -> None:
        """Fails if a batch of zero is refused or its gradients are missing."""
        block, x = built(kind), drawn_input(LLAMA, 0, 3, 0)
        assert block.forward(x).shape == (0, 3, 12)
        assert block.trace(x)["attention_weights"].shape == (0, 4, 3, 3)
        found = block.gradients(x, x)
        assert not any(value.any() for value in found.values())
        assert block.forward_cached(x, None)[0].shape == (0, 3, 12)

    def test_process_settings(self) -> None:
        """Fails if a float64 block switches 64-bit types on for the process."""
        import jax
        import jax.numpy as jnp

        setting = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        x = drawn_input(LLAMA, 2, 3, 0)
        assert built("llama").forward(x).dtype == np.float64
        built("llama").gradients(x, x)
        assert jax.config.jax_enable_x64 == setting  # type: ignore[attr-defined]
        assert jnp.ones(1).dtype == (jnp.float64 if setting else jnp.float32)

    def test_float32_under_x64(self) -> None:
        """Fails if a float32 block computes in float64, or compiles anew, where the process allows 64-bit types."""
        from blocklaws.backends.on_jax import compiled

        block, x = built("llama", "float32"), drawn_input(LLAMA, 2, 3, 0, "float32")
        expected, before = block.forward(x), compiled.compilations()
        with compiled.precise():
            assert block.forward(x).tobytes() == expected.tobytes()
        assert compiled.compilations() == before
        assert {array.dtype for array in block.trace(x).values()} == {np.dtype(np.float32)}

    def test_one_compilation(self) -> None:
        """Fails if new weights, a new offset, another name or a longer cache of the same capacity compiles again."""
        from blocklaws.backends.on_jax import compiled

        config = LLAMA.replace(d_ff=11)
        before = compiled.compilations()
        for seed in range(3):
            named = config.replace(block=f"kind-{seed}")
            block = BACKEND.build(named, drawn_parameters(named, seed, "float32"), "float32")
            x = drawn_input(config, 2, 1, seed, "float32")
            block.forward(x, seed)
            block.trace(x, seed)
            block.gradients(x, x, seed)
            block.forward_each(x, {"attention.query": np.stack([block.parameters()["attention.query"]] * 2)}, seed)
            cache = None
            for _ in range(5):
                _, cache = block.forward_cached(x, cache)
        after = compiled.compilations()
        # The first chunk finds an empty cache of the shape that the later ones find.
        assert {name: after[name] - before[name] for name in after} == {
            "forward": 1,
            "forward_each": 1,
            "trace": 1,
            "gradients": 1,
            "forward_cached": 1,
        }

    def test_programs_of_a_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fails if a run compiles anything twice, or for other shapes than those of the menu and few beside them."""
        import blocklaws
        from blocklaws.backends.on_jax import compiled

        monkeypatch.setattr(compiled, "MAX_COMPILED", 10**9)
        compiled.clear_caches()
        before = compiled.programs()
        report = blocklaws.verify("jax", blocks=["llama"], dtypes=["float32"], profile="quick")
        made = compiled.programs() - before
        assert report.summary["holds"] == len(report.cases)
        assert set(made.values()) == {1}
        assert report.backends[0]["compilations"] == len(made)
        paths = Counter(program.path for program in made)
        # The nine shapes of the menu. A trace: of a printed example, and of two other epsilons at three tokens.
        # Forward: of one sequence, of a part of the tokens, of no sequence, of two printed examples, of the same bytes
        # in another shape, and of seven other configs at one number of tokens. A cache: chunks of all but one token
        # (of two: of all), of half, of one, and of another config. Gradients: those of the menu, and of another
        # config.
        bounds = {"forward": 9 + 25, "trace": 9 + 3, "gradients": 9 + 1, "forward_cached": 27}
        assert {path: count for path, count in paths.items() if count > bounds[path]} == {}, paths

    @pytest.mark.parametrize(("seconds", "kept"), [(None, True), ("0", True), ("600", False)])
    def test_programs_on_disk(self, tmp_path: Path, seconds: str | None, kept: bool) -> None:
        """Fails if programs are not kept where the process keeps its own, or a limit that it has set is passed over."""
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
        environment.pop("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", None)
        if seconds is not None:
            environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = seconds
        probe = (
            "import jax, sys; sys.path.insert(0, sys.argv[1]); import test_on_jax as tests; found = []; "
            "jax.monitoring.register_event_listener(lambda event, **more: found.append(event)); "
            "before = jax.config.jax_persistent_cache_min_compile_time_secs; "
            "tests.built('llama').forward(tests.drawn_input(tests.LLAMA, 2, 3, 0)); "
            "assert jax.config.jax_persistent_cache_min_compile_time_secs == before; "
            "print(found.count('/jax/compilation_cache/cache_hits'))"
        )
        for hits in (0, int(kept)):
            done = subprocess.run(
                [sys.executable, "-c", probe, str(Path(__file__).parent)],
                capture_output=True, text=True, env=environment, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert (int(done.stdout) > 0) == bool(hits)
        assert any("forward" in file.name for file in tmp_path.iterdir()) == kept

    def test_unknown_compiler_options(self) -> None:
        """Fails if an option that this version of XLA does not know is handed to it, which would refuse to compile."""
        import jax

        from blocklaws.backends.on_jax import compiled

        if "compiler_options" not in inspect.signature(jax.jit).parameters:  # the oldest jax takes none at all
            assert compiled.accepted(compiled.COMPILER_OPTIONS) == {}
            return
        assert compiled.accepted(compiled.COMPILER_OPTIONS) == compiled.COMPILER_OPTIONS
        known = {"xla_backend_optimization_level": 0}
        assert compiled.accepted({**known, "xla_no_such_option": 1}) == known

    unseen = itertools.count(71)

    @pytest.mark.parametrize(
        ("limit", "dtypes", "cleared"),
        [
            ("MAX_COMPILED", ["float32"] * 3, 1),
            ("MAX_COMPILED", ["float32"] * 2, 0),
            ("MAX_OF_OTHER_DTYPES", ["float32", "float32", "float16", "float16"], 1),
            ("MAX_OF_OTHER_DTYPES", ["float32"] * 4, 0),
        ],
    )
    def test_caches_are_cleared(
        self, monkeypatch: pytest.MonkeyPatch, limit: str, dtypes: list[str], cleared: int
    ) -> None:
        """Fails if compiled programs pile up without bound, or are let go while they are used."""
        from blocklaws.backends.on_jax import compiled

        calls = []
        monkeypatch.setattr(compiled, "_held", Counter())
        monkeypatch.setattr(compiled, limit, 2)
        monkeypatch.setattr("jax.clear_caches", lambda: calls.append(True))
        for dtype in dtypes:
            # A number of tokens that nobody has compiled.
            built("plain", dtype).forward(drawn_input(LLAMA, 1, next(self.unseen), 0, dtype))
        assert len(calls) == cleared

    @pytest.mark.parametrize(("statement", "code"), [("", 0), ("import jax; ", 3)])
    def test_import_is_lazy(self, statement: str, code: int) -> None:
        """Fails if importing or making the backend imports JAX; the planted import shows that the probe can fail."""
        probe = (
            "import sys; from blocklaws.backends.on_jax import JaxBackend; b = JaxBackend(); b.supports(None); "
            f"{statement}sys.exit(3 * ('jax' in sys.modules))"
        )
        assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == code
