"""How mapped layers are called: parts of results, calls by number, other ways, further choices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mapped_support import ENCODER, LLAMA, MAPPINGS, config_of, far, inputs_of, needs_llama, parameters_of, variant

from blocklaws.backends.mapped import load_mapping
from blocklaws.backends.mapped.masks import Mask
from blocklaws.backends.mapped.rotary import cos_sin, feature_order, reorder, restore
from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.errors import BackendError

Write = Callable[..., Path]


@needs_llama
@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        (
            "forward:\n  args: [$input]\n",
            "forward:\n  output: hidden\n  args: [$input]\n",
            "output: hidden",
            "forward: output: there is no 'hidden': the Tensor has no entries by index or name",
        ),
        (
            "attention_branch: {output_of: self_attn, take: 0}",
            "attention_branch: {output_of: self_attn, take: 7}",
            "take: 7",
            "stages: attention_branch: take: there is no 7: the tuple has 2 entries (self_attn)",
        ),
        (
            "after_attention: {input_of: post_attention_layernorm}",
            "after_attention: {input_of: post_attention_layernorm, take: x}",
            "take: x",
            "stages: after_attention: take: there is no 'x': the dict has nothing (post_attention_layernorm)",
        ),
        (
            "apply_rotary_pos_emb, take: 1}",
            "apply_rotary_pos_emb, take: 2}",
            "take: 2",
            "stages: key: take: there is no 2: the tuple has 2 entries",
        ),
        (
            "value: {output_of: self_attn.v_proj, do: [split_heads]}",
            "value: {output_of: self_attn.v_proj, call: 1, do: [split_heads]}",
            "call: 1",
            "stages: value: call: there is no call 1 of self_attn.v_proj; a forward pass made 1, counted from 0",
        ),
        (
            "  with: {cache: $cache, use_cache: true, attention_mask: $mask}\n",
            "  with: {cache: $cache, use_cache: true, attention_mask: $mask}\n  cache_output: cache\n",
            "cache_output",
            "cached: cache_output: there is no 'cache': the Tensor has no entries by index or name",
        ),
    ],
)
def test_a_part_that_is_not_there_is_refused_with_its_place(
    write: Write,
    old: str,
    new: str,
    place: str,
    message: str,
) -> None:
    """Fails if a wrong index ends as an error of the layer, in a case each, without the line of the mapping."""
    path = write(LLAMA, (old, new))
    config = config_of("llama")
    with pytest.raises(BackendError) as caught:
        variant(path, "sdpa").build(config, parameters_of(config), "float32")
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if place in text)
    assert str(caught.value).startswith(f"{path}:{line}:")
    assert message in str(caught.value)


@needs_llama
def test_a_part_that_is_not_there_ends_a_run_with_status_2(write: Write, python: Any) -> None:
    """Fails if a mistake of a mapping that every case would meet is told as a failure of each of them."""
    path = write(LLAMA, ("self_attn, take: 0}\n  after", "self_attn, take: 7}\n  after"))
    done = python(
        "-m", "blocklaws", "verify", path.name, "--block", "llama", "--dtype", "float32", "--profile", "quick",
        cwd=path.parent,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "layer.yaml:80:" in done.stderr
    assert "there is no 7: the tuple has 2 entries" in done.stderr


@needs_llama
def test_one_call_of_several_is_asked_for_by_its_number(write: Write) -> None:
    """Fails if the second call of a function is taken for the first, or several calls pass without a number."""
    config = config_of("gpt")
    given, (x, _) = parameters_of(config), inputs_of(config)
    expected = NumpyBackend().build(config, given, "float64").trace(x)
    called = "{result_of: torch.nn.functional:layer_norm, call: %s}"
    path = write(
        ENCODER,
        ("  attention_norm: norm1\n", f"  attention_norm: {called % 0}\n"),
        ("  feed_forward_norm: norm2\n", f"  feed_forward_norm: {called % 1}\n"),
    )
    stages = variant(path, "pre").build(config, given, "float64").trace(x)
    for stage in ("attention_norm", "feed_forward_norm"):
        assert far(stages[stage], expected[stage]) < 1e-12, stage
    unsaid = write(path.read_text(), (f"  attention_norm: {called % 0}", f"  attention_norm: {called[:-11]}}}"))
    with pytest.raises(BackendError, match=r"went through it 2 times .*; say which with 'call: 0' \(the first\)"):
        variant(unsaid, "pre").build(config, given, "float64")


@pytest.mark.parametrize("rotary", ["[half, interleaved]", "[null, half, interleaved]"])
def test_a_layout_that_cannot_be_known_is_refused(write: Write, rotary: str) -> None:
    """Fails if a mapping that forgets `rotary:` claims both layouts, and violates half of them without a word."""
    forgot = LLAMA[: LLAMA.index("rotary: half ")] + LLAMA[LLAMA.index("\nbuild:") :]
    path = write(
        forgot,
        ("rotary: [null, half, interleaved]", f"rotary: {rotary}"),
        (
            "{choose: $rotary, among: {half: $angles, interleaved: $angles, null: [$cos, $sin]}}",
            "$angles",
        ),
    )
    with pytest.raises(BackendError) as caught:
        load_mapping(path)
    assert "supports: rotary: half and interleaved are supported, but nothing passes $rotary" in str(caught.value)
    # One layout is known, and a layer that hears which one is wanted has both.
    load_mapping(write(path.read_text(), (f"rotary: {rotary}", "rotary: half")))


@needs_llama
def test_training_is_another_way_and_leaves_no_trace(write: Write) -> None:
    """Fails if a mapped layer cannot be asked in training mode, or stays in it."""
    config = config_of("gpt")
    given, (x, _) = parameters_of(config), inputs_of(config)
    block = variant(MAPPINGS / "torch_encoder.yaml", "pre").build(config, given, "float64")
    assert block.ways == ("training",)
    # PyTorch's encoder layer has a fast path for inference alone, so two programs are compared.
    np.testing.assert_allclose(block.forward_by("training", x, 0), block.forward(x), atol=1e-12)
    assert not block._layer.training
    dropping = write(ENCODER, ("dropout: 0.0", "dropout: 0.5"))
    block = variant(dropping, "pre").build(config, given, "float64")
    assert far(block.forward_by("training", x, 0), block.forward(x)) > 0.05


def test_what_a_config_may_leave_out_is_supported_at_its_default() -> None:
    """Fails if a mapping claims a window, a parallel block or a bent score that it never spoke of."""
    backend = variant(MAPPINGS / "hf_llama.yaml", "sdpa")
    config = config_of("llama-gqa")
    assert backend.supports(config) is None
    for change, reason in (
        ({"window": 3}, "window is 3; the mapping supports null"),
        ({"residual": "parallel"}, "residual is parallel; the mapping supports sequential"),
        ({"residual_scale": 0.5}, "residual_scale is 0.5; the mapping supports 1.0"),
        ({"qk_norm": "head"}, "qk_norm is head; the mapping supports null"),
        ({"bias": "qkv"}, "bias is qkv; the mapping supports false or true"),
    ):
        assert backend.supports(config.replace(**change)) == reason


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("window: all", r"supports: window: 'all' is not known; expected some of null, number"),
        ("qk_norm: all", "qk_norm: 'all' is not known"),
    ],
)
def test_a_wrong_word_for_a_further_choice_is_refused(write: Write, line: str, message: str) -> None:
    """Fails if a slip in a choice that may be left out passes for the default."""
    with pytest.raises(BackendError, match=message):
        load_mapping(write(LLAMA, ("  norm: rms\n", f"  norm: rms\n  {line}\n")))


def test_a_mask_shows_no_more_than_the_window() -> None:
    """Fails if a window counts from the wrong side, or forgets cached keys."""
    mask = Mask("keep").array(2, batch=1, heads=1, tokens=2, dtype=np.dtype("float32"), window=2)
    np.testing.assert_array_equal(mask, [[0, 1, 1, 0], [0, 0, 1, 1]])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_part_of_the_features_is_reordered_and_the_rest_stays(layout: str) -> None:
    """Fails if features that are not turned are moved, or the tables are those of a whole head."""
    other = {"half": "interleaved", "interleaved": "half"}[layout]
    config = config_of("llama").replace(rotary=other, rotary_fraction=0.7, d_head=8)
    order = feature_order(config, layout)
    assert order is not None
    assert list(order[4:]) == [4, 5, 6, 7]
    assert list(order[:4]) == ([0, 2, 1, 3])
    cos, sin = cos_sin(config, layout, np.arange(3))
    assert cos.shape == sin.shape == (1, 3, 4)
    head = np.arange(16.0)
    np.testing.assert_array_equal(restore(reorder(head, order), order), head)


@needs_llama
def test_the_reference_is_told_the_same_choices(write: Write) -> None:
    """Fails if a layer that is only given a mask of the window is not a block of that window."""
    path = write(LLAMA, ("  eager:\n", "  eager:\n    supports: {window: [null, number]}\n"))
    config = config_of("llama-gqa").replace(window=2)
    given, (x, _) = parameters_of(config), inputs_of(config)
    output = variant(path, "eager").build(config, given, "float32").forward(x)
    reference = NumpyBackend().build(config.replace(window=None), given, "float64").forward(x)
    assert far(output[:, :2], reference[:, :2]) < 2e-5  # two tokens see all there is
    assert far(output, reference) > 1e-3
