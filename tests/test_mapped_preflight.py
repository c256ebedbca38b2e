"""What of a mapping is wrong is told once, with its line, before anything is judged; and where a layer's error arose.

The layer is one of a module that lies beside the mapping file. It takes tokens first, holds gains minus one and returns
a dict, as hand-written ones do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mapped_support import (
    LLAMA,
    config_of,
    far,
    inputs_of,
    needs_llama,
    needs_torch,
    parameters_of,
)

import blocklaws
from blocklaws.backends.mapped import load_mapping
from blocklaws.backends.mapped.blame import given
from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.built import raised
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError

Write = Callable[..., Path]

LAYER = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width, eps, dtype):
        super().__init__()
        self.shift, self.eps = nn.Parameter(torch.zeros(width, dtype=dtype)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.shift)


class Attention(nn.Module):
    def __init__(self, d_model, heads, d_head, dtype):
        super().__init__()
        self.qkv = nn.Parameter(torch.zeros(3, heads, d_model, d_head, dtype=dtype))
        self.out = nn.Parameter(torch.zeros(heads, d_head, d_model, dtype=dtype))

    def forward(self, x, visible):  # token, batch, feature
        q, k, v = torch.einsum("tbd,shdk->sbhtk", x, self.qkv)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible, float("-inf"))
        mixed = torch.einsum("bhts,bhsk->tbhk", scores.softmax(-1), v)
        return torch.einsum("tbhk,hkd->tbd", mixed, self.out), scores


class Block(nn.Module):
    def __init__(self, d_model, heads, d_head, d_ff, eps, dtype):
        super().__init__()
        self.n1, self.n2 = Norm(d_model, eps, dtype), Norm(d_model, eps, dtype)
        self.attn = Attention(d_model, heads, d_head, dtype)
        self.gate = nn.Parameter(torch.zeros(d_model, d_ff, dtype=dtype))
        self.up = nn.Parameter(torch.zeros(d_model, d_ff, dtype=dtype))
        self.down = nn.Parameter(torch.zeros(d_ff, d_model, dtype=dtype))

    def forward(self, x, visible):
        x = x + self.attn(self.n1(x), visible)[0]
        n = self.n2(x)
        return {"y": x + (nn.functional.silu(n @ self.gate) * (n @ self.up)) @ self.down, "none": None}


def broken(**sizes):
    raise ZeroDivisionError("heads over nothing")


class Late(Block):
    def forward(self, x, visible):
        if len(x) == 4:
            raise RuntimeError("four is too many")
        return super().forward(x, visible)
"""
MAPPING = """
name: own
framework: torch
dtypes: [float64, float32]
supports: {norm: rms, placement: pre, feed_forward: swiglu, rotary: null, bias: false, heads: equal}
build:
  layer:
    call: own_layer_of_a_test:Block
    with: {d_model: $d_model, heads: $n_heads, d_head: $d_head, d_ff: $d_ff, eps: $norm_eps, dtype: $dtype}
mask: {form: keep, axes: [tokens, keys]}
forward:
  args: [{value: $input, do: [{transpose: [1, 0, 2]}]}, $mask]
  output: {take: y, do: [{transpose: [1, 0, 2]}]}
parameters:
  n1.shift: {from: attention_norm.gain, do: [{add: -1}]}
  n2.shift: {from: feed_forward_norm.gain, do: [{add: -1}]}
  attn.qkv:
    from:
      - {from: attention.query, do: [{reshape: [$d_model, $n_heads, $d_head]}, {transpose: [1, 0, 2]}]}
      - {from: attention.key, do: [{reshape: [$d_model, $n_heads, $d_head]}, {transpose: [1, 0, 2]}]}
      - {from: attention.value, do: [{reshape: [$d_model, $n_heads, $d_head]}, {transpose: [1, 0, 2]}]}
    join: {stack: 0}
  attn.out: {from: attention.output, do: [{reshape: [$n_heads, $d_head, $d_model]}]}
  gate: feed_forward.gate
  up: feed_forward.up
  down: feed_forward.down
stages:
  attention_norm: {output_of: n1, do: [{transpose: [1, 0, 2]}]}
  attention_branch: {output_of: attn, take: 0, do: [{transpose: [1, 0, 2]}]}
"""


@pytest.fixture
def own(write: Write) -> Write:
    """Write the mapping with changes, and beside it the module of its layer."""

    def written(*changes: tuple[str, str]) -> Path:
        path = write(MAPPING, *changes)
        (path.parent / "own_layer_of_a_test.py").write_text(LAYER, encoding="utf-8")
        return path

    return written


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave neither the module nor its folder to the next test."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_layer_of_a_test", raising=False)


def at(text: str) -> int:
    """Return the line of the layer's module that has a text."""
    return next(number for number, line in enumerate(LAYER.splitlines(), 1) if text in line)


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def refusal(path: Path, kind: str = "plain", dtype: str = "float32") -> str:
    config = config_of(kind)
    with pytest.raises(BackendError) as caught:
        load_mapping(path)[0].build(config, parameters_of(config), dtype)
    return str(caught.value)


@needs_torch
def test_a_layer_with_tokens_first_beside_its_mapping_needs_no_python(own: Write) -> None:
    """Fails if a module beside the file is not found, or `do` cannot turn the input and the output."""
    config = config_of("plain")
    given, (x, cotangent) = parameters_of(config), inputs_of(config)
    block = load_mapping(own())[0].build(config, given, "float64")
    reference = NumpyBackend().build(config, given, "float64")
    assert far(block.forward(x), reference.forward(x)) < 1e-12
    expected = reference.trace(x)
    for stage, array in block.trace(x).items():
        assert far(array, expected[stage]) < 1e-12, stage
    gradients, wanted = block.gradients(x, cotangent), reference.gradients(x, cotangent)
    for name, array in gradients.items():
        assert far(array, wanted[name]) < 1e-12, name


@needs_torch
def test_a_gain_that_is_held_minus_one_comes_back_as_it_was_given(own: Write) -> None:
    """Fails if the inverse of a rounded addition, a last bit off, is told of a layer that holds what it was given."""
    config = config_of("plain")
    gain = np.random.default_rng(5).uniform(-3, 3, 8).astype(np.float32)
    assert np.any((gain - np.float32(1)) + np.float32(1) != gain)  # there is a bit to lose
    given = {name: array.astype(np.float32) for name, array in parameters_of(config).items()}
    block = load_mapping(own())[0].build(config, given | {"attention_norm.gain": gain}, "float32")
    held = block.parameters()["attention_norm.gain"]
    assert held.dtype == np.float32
    np.testing.assert_array_equal(held, gain)
    held[...] = 7  # a copy: the layer is not changed through it
    np.testing.assert_array_equal(block.parameters()["attention_norm.gain"], gain)
    # What the layer holds is told, not what it was given: a changed tensor comes back changed, all of it computed.
    shift = block._layer.n1.shift
    shift.data[0] = 0.25
    held = block.parameters()["attention_norm.gain"]
    np.testing.assert_array_equal(held, (shift.detach().numpy().astype(np.float64) + 1).astype(np.float32))


@needs_torch
@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        (
            [("{take: y, do: [{transpose: [1, 0, 2]}]}", "{do: [{transpose: [1, 0, 2]}]}")],
            "  output:",
            "forward: the layer returned a dict with y, none; say which with 'output'",
        ),
        (
            [("  output: {take: y, do: [{transpose: [1, 0, 2]}]}\n", "")],
            "  args:",
            "forward: the layer returned a dict with y, none; say which with 'output'",
        ),
        (
            [("take: y,", "take: none,")],
            "  output:",
            "forward: the layer returned nothing (null) at 'none'; expected one array",
        ),
        (
            [("{take: y, do: [{transpose: [1, 0, 2]}]}", "y")],
            "  output:",
            "forward: the part 'y' of the result has shape (2, 1, 8), where [batch, token, d_model] is (1, 2, 8); "
            "where tokens come first, pass $input transposed and say output: {do: [{transpose: [1, 0, 2]}]}",
        ),
        (
            [("{take: y, do: [{transpose: [1, 0, 2]}]}", "{take: y, do: [{select: [0, 0]}]}")],
            "  output:",
            "part 'y' of the result has shape (1, 8), where [batch, token, d_model] is (1, 2, 8); look at 'output', ",
        ),
        (
            [("{take: y, do: [{transpose: [1, 0, 2]}]}", "{take: y, do: [{transpose: [1, 0]}]}")],
            "  output:",
            "forward: output: the operations do not fit shape (2, 1, 8): permute",
        ),
        (
            [("{value: $input, do: [{transpose: [1, 0, 2]}]}", "$input")],
            "  output:",
            "forward: the part 'y' of the result has shape (2, 2, 8), where [batch, token, d_model] is (1, 2, 8)",
        ),
        (
            [("attn, take: 0, do: [{transpose: [1, 0, 2]}]", "attn")],
            "  attention_branch:",
            "stages: attention_branch: attn gave a tuple of 2; say which with 'take'",
        ),
        (
            [(", $mask]", "]"), ("mask: {form: keep, axes: [tokens, keys]}", "mask: builtin")],
            "  args:",
            "forward: calling Block failed: TypeError: Block.forward() missing 1 required positional argument: ",
        ),
        (
            [(", $mask]", ", null]"), ("mask: {form: keep, axes: [tokens, keys]}", "mask: builtin")],
            "  args:",
            "forward: calling Block failed: TypeError: bad operand type for unary ~: 'NoneType' "
            "(own_layer_of_a_test.py:{visible})",
        ),
        (
            [("test:Block\n", "test:broken\n")],
            "    call:",
            "calling broken failed: ZeroDivisionError: heads over nothing (own_layer_of_a_test.py:{broken})",
        ),
        (
            [
                (
                    "    call: own_layer_of_a_test:Block\n    with: {d_model: $d_model, heads: $n_heads, "
                    "d_head: $d_head, d_ff: $d_ff, eps: $norm_eps, dtype: $dtype}",
                    "    import: own_layer_of_a_test:Block",
                )
            ],
            "    import:",
            "build: layer: expected a Module of torch, found the class Block itself; build one of it with 'call'",
        ),
        (
            [
                (
                    "    call: own_layer_of_a_test:Block\n    with: {d_model: $d_model, heads: $n_heads, "
                    "d_head: $d_head, d_ff: $d_ff, eps: $norm_eps, dtype: $dtype}",
                    '    call: "fractions:Fraction"',
                )
            ],
            "    call:",
            "build: layer: expected a Module of torch, found a Fraction",
        ),
    ],
)
def test_a_slip_is_refused_with_its_line_before_anything_is_judged(
    own: Write, changes: list[tuple[str, str]], place: str, message: str
) -> None:
    """Fails if a slip is met by every case, is told of an innocent stage, or of a file of ours."""
    path = own(*changes)
    text = refusal(path)
    assert text.startswith(f"{path}:{line_of(path, place)}:"), text
    lines = {name: at(word) for name, word in (("broken", "over nothing"), ("visible", "~visible"))}
    for name, number in lines.items():
        message = message.replace(f"{{{name}}}", str(number))
    assert message in text


@needs_llama
@pytest.mark.parametrize(
    ("old", "new", "message", "given"),
    [
        (
            "start: {call: transformers.cache_utils:DynamicCache}",
            "start: {import: transformers.cache_utils:DynamicCache}",
            "cached: calling LlamaDecoderLayer failed: TypeError: ",
            "; given hidden_states [1, 2, 8], position_embeddings [1, 2, 6], [1, 2, 6], attention_mask [1, 1, 2, 2] (",
        ),
        (
            "with: {cache: $cache, use_cache: true, attention_mask: $mask}",
            "with: {cash: $cache, use_cache: true, attention_mask: $mask}",
            "cached: after the first tokens, calling LlamaDecoderLayer failed: RuntimeError: ",
            "(batch 1, tokens 1, keys 3); the cache was still empty after the first call: does the layer take it by "
            "this name?",
        ),
    ],
)
def test_a_wrong_cache_is_refused_at_the_line_of_the_cached_call(
    write: Write, old: str, new: str, message: str, given: str
) -> None:
    """Fails if a cache that is passed wrongly is met by the cases, or the place told is not the layer's library."""
    path = write(LLAMA, (old, new))
    text = refusal(path, "llama")
    assert text.startswith(f"{path}:{line_of(path, '  start: {')}:"), text
    assert message in text
    assert re.search(r"\((modeling_llama|sdpa_attention)\.py:\d+\); given ", text)
    assert given in text


def test_arrays_are_told_by_the_names_that_they_have_in_a_call() -> None:
    """Fails if the shapes of what a mapping passed are told by no name, or what is no array with them."""
    x, mask = np.zeros((1, 2, 8)), np.zeros((2, 2))

    class Layer:
        def __call__(self, *arguments: Any, **keywords: Any) -> None: ...

        def forward(self, x: Any, tables: Any, cache: Any, mask: Any = None) -> None: ...

    assert given(Layer(), [x, (mask, x), object()], {"mask": mask}) == (
        "x [1, 2, 8], tables [2, 2], [1, 2, 8], mask [2, 2]"
    )
    assert given(lambda *arguments: None, [3, x], {}) == "argument 1 [1, 2, 8]"
    assert given(print, [], {"width": 8}) == ""


@needs_torch
def test_a_failing_first_call_tells_the_shapes_that_it_was_given(own: Write) -> None:
    """Fails if exchanged axes or the wrong positions are to be guessed from what the framework says."""
    text = refusal(own((", $mask]", ", {value: $mask, do: [{reshape: [1, -1]}]}]")))
    width = config_of("plain").d_model
    assert f"; given x [2, 1, {width}], visible [1, 4] (batch 1, tokens 2, keys 2)" in text
    called = "{call: torch:matmul, args: [$input, $mask]}"
    text = refusal(own((", $mask]", f", {called}]")))
    assert "calling matmul failed: RuntimeError" in text
    assert f"; given argument 0 [1, 2, {width}], argument 1 [2, 2]" in text


@needs_torch
def test_a_refused_block_is_refused_again(own: Write) -> None:
    """Fails if a block whose calls were refused once passes as tried when it is asked for anew."""
    config = config_of("plain")
    [backend] = load_mapping(own(("take: y,", "take: none,")))
    for _ in range(2):
        with pytest.raises(BackendError, match="returned nothing"):
            backend.build(config, parameters_of(config), "float32")


@needs_torch
def test_what_a_layer_raises_later_names_its_line_and_the_call_of_the_mapping(own: Write) -> None:
    """Fails if an error of a layer on some input is told of a file of ours."""
    path = own(("test:Block\n", "test:Late\n"))
    config = config_of("plain")
    block = load_mapping(path)[0].build(config, parameters_of(config), "float32")
    x = inputs_of(config)[0][:, :4]
    for call, method in (("forward", block.forward), ("trace", block.trace)):
        with pytest.raises(RuntimeError, match="four is too many") as caught:
            method(x)
        where = f"own_layer_of_a_test.py:{at('four is')}, called by layer.yaml:{line_of(path, '  args:')}"
        assert str(raised(call, caught.value)) == f"{call} raised RuntimeError: four is too many ({where})"


class _Refusing:
    """A backend that refuses the second kind of block, as a mapping does that does not fit its layer."""

    name = "refusing"
    dtypes = ("float32", "float64")

    def __init__(self, *, preflight: bool) -> None:
        self.preflight = preflight
        self.built: list[tuple[str, str]] = []

    def build(self, config: BlockConfig, parameters: dict[str, Any], dtype: str) -> Any:
        self.built.append((config.block, dtype))
        if config.block == "llama":
            raise BackendError("layer.yaml:3:1: it does not fit")
        if config.block == "original" and len(self.built) == 1:
            np.random.seed(7)
        if config.block == "plain":
            raise RuntimeError("left to the cases")
        return NumpyBackend().build(config, parameters, dtype)


@pytest.mark.parametrize("early", [True, False])
def test_a_kind_that_is_refused_ends_the_run_before_another_is_judged(early: bool) -> None:
    """Fails if the kinds before it are judged, for minutes, before what a later one lacks is told."""
    backend, seen = _Refusing(preflight=early), []
    told = r"^layer\.yaml:3:1: it does not fit( \(in a block llama, float32\))?$"
    with pytest.raises(BackendError, match=told) as caught:
        blocklaws.verify(
            backend,
            blocks=["gpt", "llama"],
            dtypes=["float32"],
            invariants=["shape-preservation"],
            profile="quick",
            progress=lambda *_: seen.append(1),
        )
    assert ("in a block" in str(caught.value), bool(seen)) == (early, not early)


@pytest.mark.parametrize(
    ("kind", "told"), [("original", "changed NumPy's global random state"), ("plain", "left to the cases")]
)
def test_what_a_block_does_while_it_is_tried_is_told_of_its_cases(kind: str, told: str) -> None:
    """Fails if an exception, or a change of what all share, is lost because no case was running."""
    backend = _Refusing(preflight=True)
    [result] = blocklaws.verify(
        backend, blocks=[kind], dtypes=["float32"], invariants=["shape-preservation"], profile="quick"
    ).cases
    assert backend.built
    assert result.verdict == "error"
    assert told in result.reason


@needs_torch
def test_a_mapping_is_tried_first_in_a_process_of_its_own_too(own: Write) -> None:
    """Fails if a guarded process does not hand on that a mapping is to be tried first."""
    seen: list[int] = []
    with pytest.raises(BackendError, match=r"layer\.yaml:\d+:\d+: forward: the layer returned nothing"):
        blocklaws.verify(
            str(own(("take: y,", "take: none,"))),
            blocks=["gpt", "plain"],
            dtypes=["float32"],
            profile="quick",
            progress=lambda *_: seen.append(1),
        )
    assert not seen
