"""A mistake of each kind, planted in a mapping of each framework, is caught with a message that names it.

What a driver does is the same in every framework: it fills, calls, watches and differentiates. These tests run where
the framework is installed: for ``make test`` torch and Flax, in the environments of ``make conformance`` the rest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mapped_support import MAPPINGS, NEEDS, config_of, parameters_of

import blocklaws
from blocklaws.backends.mapped import load_mapping
from blocklaws.errors import BackendError

Write = Callable[..., Path]
Change = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A mapping, a kind of block that it is, and where each kind of mistake is planted, as (text, other text).

    Attributes:
        unmapped: the line of a rule, and the parameter that is left over without it.
        swapped: gate and up in each other's place.
        mask: the mask, and one of the wrong polarity.
        rotary: the layout, and the wrong one; none where the layer has no rotary positions.
    """

    file: str
    kind: str
    unmapped: tuple[str, str]
    swapped: tuple[Change, ...]
    mask: Change
    rotary: Change | None = None

    @property
    def text(self) -> str:
        """The mapping file."""
        return (MAPPINGS / self.file).read_text(encoding="utf-8")


LAYERS = {
    "torch": Layer(
        "hf_llama.yaml",
        "llama",
        ("  mlp.down_proj.weight: {from: feed_forward.down, do: [transpose]}\n", "mlp.down_proj.weight"),
        (("mlp.gate_proj.weight:", "mlp.@:"), ("mlp.up_proj", "mlp.gate_proj"), ("mlp.@", "mlp.up_proj.weight")),
        (
            "    mask: builtin ",
            "    mask: {form: hide, axes: [1, 1, tokens, keys]}\n    forward: {with: {attention_mask: $mask}}",
        ),
        ("rotary: half ", "rotary: interleaved "),
    ),
    "flax": Layer(
        "flax_attention.yaml",
        "plain",
        ("  feed_forward.down.kernel: feed_forward.down\n", "feed_forward.down.kernel"),
        (("gate.kernel:", "@:"), ("up.kernel:", "gate.kernel:"), ("@", "up.kernel")),
        ("mask: {form: keep,", "mask: {form: hide,"),
    ),
    "equinox": Layer(
        "equinox_attention.yaml",
        "plain",
        ("  feed_forward.down.weight: {from: feed_forward.down, do: [transpose]}\n", "feed_forward.down.weight"),
        (("gate.weight:", "@:"), ("up.weight:", "gate.weight:"), ("@", "up.weight")),
        ("mask: {form: keep,", "mask: {form: hide,"),
    ),
    "keras": Layer(
        "keras_hub_llama.yaml",
        "llama-gqa",
        ("  feedforward_output_dense/kernel: feed_forward.down\n", "feedforward_output_dense/kernel"),
        (
            ("gate_dense/kernel:", "@:"),
            ("intermediate_dense/kernel:", "gate_dense/kernel:"),
            ("@", "intermediate_dense/kernel"),
        ),
        # The layer makes its causal mask itself; what it is given hides more, here each token from itself. With a cache
        # it takes no mask of these sizes, so that section goes.
        (
            "mask: builtin\nforward: {args: [$input]}\n"
            "cached:\n"
            "  start: {call: keras.ops:zeros, args: [[$batch, 2, 128, $n_kv_heads, $d_head], $cache_dtype]}\n"
            "  with: {self_attention_cache: $cache, self_attention_cache_update_index: $offset}\n"
            "  output: 0\n"
            "  cache_output: 1\n",
            "mask: {form: hide, axes: [batch, tokens, keys]}\n"
            "forward: {args: [$input], with: {decoder_attention_mask: $mask}}\n",
        ),
        ("rotary: half\n", "rotary: interleaved\n"),
    ),
    "mlx": Layer(
        "mlx_llama.yaml",
        "llama-gqa",
        ("  mlp.down_proj.weight: {from: feed_forward.down, do: [transpose]}\n", "mlp.down_proj.weight"),
        (("mlp.gate_proj.weight:", "mlp.@:"), ("mlp.up_proj", "mlp.gate_proj"), ("mlp.@", "mlp.up_proj.weight")),
        (
            "mask: builtin\nforward: {args: [$input], with: {mask: causal}}",
            "mask: {form: hide, axes: [tokens, keys]}\nforward: {args: [$input], with: {mask: $mask}}",
        ),
        ("{half: false, interleaved: true}", "{half: true, interleaved: false}"),
    ),
}
CASES = [pytest.param(layer, id=name, marks=NEEDS[re.split(r"[_.]", layer.file)[0]]) for name, layer in LAYERS.items()]
TURNING = [case for case in CASES if LAYERS[str(case.id)].rotary]


@pytest.mark.parametrize("layer", CASES)
def test_a_weight_without_a_rule_is_refused_by_name(write: Write, layer: Layer) -> None:
    """Fails if a layer keeps a random weight that no rule fills."""
    line, name = layer.unmapped
    config = config_of(layer.kind)
    config = config.replace(d_model=config.n_heads * config.d_head)  # as some layers want it
    with pytest.raises(BackendError, match=f"parameters: no rule fills {name} of the layer"):
        load_mapping(write(layer.text, (line, "")))[0].build(config, parameters_of(config), "float32")


def stages_of_failure(path: Path, layer: Layer, invariant: str) -> set[str | None]:
    """Return the stages at which the violated cases of one invariant diverge first."""
    cases = blocklaws.verify(
        load_mapping(path)[0],
        blocks=[layer.kind],
        dtypes=["float32"],
        invariants=[invariant],
        profile="quick",
    ).cases
    assert not [case.reason for case in cases if case.verdict == "error"]
    return {case.stage for case in cases if case.verdict == "violated"}


@pytest.mark.parametrize("layer", CASES)
def test_swapped_gate_and_up_are_told_by_the_stage_behind_them(write: Write, layer: Layer) -> None:
    """Fails if two weights of one shape in each other's place hold, or are told of another stage."""
    path = write(layer.text, *layer.swapped)
    assert stages_of_failure(path, layer, "output-parity") == {"feed_forward_branch"}


@pytest.mark.parametrize("layer", CASES)
def test_a_mask_of_the_wrong_polarity_is_told_by_the_attention(write: Write, layer: Layer) -> None:
    """Fails if a layer that sees what it should not, or not what it should, is taken for a decoder block."""
    stages = stages_of_failure(write(layer.text, layer.mask), layer, "output-parity")
    assert stages & {"attention_weights", "attention_branch"} == stages != set()


@pytest.mark.parametrize("layer", TURNING)
def test_a_wrong_rotary_layout_is_told_by_query_or_key(write: Write, layer: Layer) -> None:
    """Fails if pairs that do not belong together are turned and nobody sees it."""
    assert layer.rotary is not None
    stages = stages_of_failure(write(layer.text, layer.rotary), layer, "output-parity")
    assert stages & {"query", "key", "attention_weights", "attention_branch"} == stages != set()


def test_looks_into_a_vmapped_call_are_exact_and_compile_nothing() -> None:
    """Fails when a look compiles a program that is kept for ever, comes late, or sees a rounded or another array."""
    jax = pytest.importorskip("jax")
    from blocklaws.backends.mapped.jax_arrays import JaxArrays

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    arrays = JaxArrays("float64", None)
    seen: list[np.ndarray] = []

    def of_a_row(row: jax.Array) -> jax.Array:
        arrays.record(row, seen.append)
        return row

    def of_a_sequence(sequence: jax.Array) -> jax.Array:
        arrays.record(sequence, seen.append)
        return jax.vmap(of_a_row, in_axes=1)(sequence)

    with arrays.settings():
        for number in range(5):
            batch = number + np.random.default_rng(number).random((3, 6, 700))
            jax.vmap(of_a_sequence)(jax.numpy.array(batch))
            whole, rows = seen
            np.testing.assert_array_equal(whole, batch, strict=True)
            np.testing.assert_array_equal(rows, batch.transpose(0, 2, 1), strict=True)
            seen.clear()
            if number == 0:
                compiled.clear()  # what moves an axis was compiled for the first
    assert [event for event in compiled if "backend_compile" in event] == []


def test_a_compiled_call_has_nothing_to_look_at() -> None:
    """Fails when a look into a compiled function ends it, or gives what is no array."""
    jax = pytest.importorskip("jax")
    from blocklaws.backends.mapped.jax_arrays import JaxArrays

    arrays = JaxArrays("float32", None)
    seen: list[np.ndarray] = []

    def layer(row: jax.Array) -> jax.Array:
        arrays.record(row, seen.append)
        return 2 * row

    batch = np.ones((3, 5), np.float32)
    for transformed in (jax.jit(layer), jax.jit(jax.vmap(layer)), jax.vmap(jax.jit(layer))):
        np.testing.assert_array_equal(transformed(jax.numpy.array(batch)), 2 * batch)
    assert seen == []
