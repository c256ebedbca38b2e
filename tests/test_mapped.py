"""Mapping files: real layers driven from YAML agree with the reference, and a wrong mapping is caught or refused."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mapped_support import (
    ENCODER,
    LLAMA,
    MAPPINGS,
    NEEDS,
    TOLERANCE,
    config_of,
    far,
    inputs_of,
    needs_llama,
    needs_torch,
    parameters_of,
    variant,
)

import blocklaws
from blocklaws.backends.mapped import load_mapping
from blocklaws.backends.mapped.expressions import Expression
from blocklaws.backends.mapped.masks import parse_mask
from blocklaws.backends.mapped.parameters import ParameterMap
from blocklaws.backends.mapped.reader import read
from blocklaws.backends.mapped.rotary import cos_sin, feature_order, reorder, restore
from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.canonical import stage_shapes
from blocklaws.errors import BackendError
from blocklaws.replaying import examine

# ---------------------------------------------------------------------------------------------- the layers as they are

LAYERS = {
    "hf_llama.yaml": {
        name: [
            ("llama", "float32"),
            ("llama-gqa", "float32"),
            ("interleaved-gqa", "float32"),
            ("plain", "float32"),
            ("biased", "float32"),
            ("llama", "bfloat16"),
            ("llama-gqa", "float16"),
        ]
        for name in ("sdpa", "eager")
    },
    "hf_models.yaml": {
        name: [(name, "float32"), (name, "bfloat16")]
        for name in ("mistral", "qwen2", "qwen3", "gemma", "granite", "olmo2")
    },
    "hf_neox.yaml": {"": [("neox", "float32"), ("neox", "float16")]},
    "litgpt.yaml": {
        "llama": [("llama", "float32"), ("mistral", "float32"), ("qwen3", "float32")],
        "neox": [("neox", "float32")],
        "gemma": [("gemma", "float32"), ("softcapped", "float32")],
        "olmo2": [("olmo2", "float32")],
    },
    "llms_from_scratch.yaml": {
        "gpt": [("gpt-tanh", "float32")],
        "llama": [("square", "float32")],
        "qwen3": [("qwen3-eps", "float32")],
    },
    "hf_gpt2.yaml": {
        name: [("gpt", "float64"), ("gpt", "bfloat16"), ("gpt-tanh", "float64")] for name in ("sdpa", "eager")
    },
    "flax_attention.yaml": {
        "fused": [("plain", "float32"), ("gpt", "bfloat16")],
        "weights": [("plain", "float64")],
        "post": [("original", "float64")],
    },
    "equinox_attention.yaml": {
        "pre": [("plain", "float32"), ("gpt", "float64")],
        "post": [("original", "bfloat16")],
    },
    "keras_hub_llama.yaml": {"": [("square", "float32"), ("square", "bfloat16")]},
    "mlx_llama.yaml": {"": [("llama", "float32"), ("llama-gqa", "bfloat16"), ("biased", "float32")]},
    "torch_encoder.yaml": {
        "pre": [("gpt", "float64"), ("gpt", "bfloat16")],
        "post": [("original", "float64"), ("original", "float32")],
    },
}
LAYER_CASES = [
    pytest.param(file, name, kind, dtype, marks=NEEDS[re.split(r"[_.]", file)[0]])
    for file, variants in LAYERS.items()
    for name, cases in variants.items()
    for kind, dtype in cases
]


def test_every_mapping_of_the_repository_is_compared() -> None:
    """Fails if a mapping or a variant is added and no layer is ever built from it here."""
    shipped = {backend.name for path in MAPPINGS.glob("*.yaml") for backend in load_mapping(path)}
    assert shipped == {
        file.removesuffix(".yaml") + (f"[{name}]" if name else "") for file, names in LAYERS.items() for name in names
    }


@pytest.mark.parametrize(("file", "name", "kind", "dtype"), LAYER_CASES)
def test_a_mapped_layer_agrees_with_the_reference(file: str, name: str, kind: str, dtype: str) -> None:
    """Fails if a weight, a stage, a gradient or a position of a shipped mapping goes to the wrong place."""
    config, tolerance = config_of(kind), TOLERANCE[dtype]
    backend = variant(MAPPINGS / file, name)
    assert backend.supports(config) is None
    given, (x, cotangent) = parameters_of(config), inputs_of(config)
    block = backend.build(config, given, dtype)
    reference = NumpyBackend().build(config, given, "float64")

    offset = 0 if "position_offset" in backend.cannot else 7
    output = block.forward(x, offset) if offset else block.forward(x)
    assert str(output.dtype) == dtype
    assert far(output, reference.forward(x, offset)) < tolerance

    expected, shapes = reference.trace(x, offset), stage_shapes(config, *x.shape[:2])
    for stage, array in block.trace(x, offset).items():
        assert array.shape == shapes[stage], stage
        assert far(array, expected[stage]) < tolerance, stage

    gradients, wanted = block.gradients(x, cotangent, offset), reference.gradients(x, cotangent, offset)
    assert set(gradients) == {"input", *given}
    for key, array in gradients.items():
        assert far(array, wanted[key]) < tolerance, key

    held = block.parameters()
    assert list(held) == list(given)
    for key, array in held.items():
        assert array.shape == given[key].shape
        np.testing.assert_array_equal(array, given[key].astype(array.dtype))

    if hasattr(block, "forward_cached"):
        cache, rows = None, []
        for start, end in ((0, 1), (1, 4), (4, 5)):
            row, cache = block.forward_cached(x[:, start:end], cache)
            rows.append(row)
        assert far(np.concatenate(rows, axis=1), reference.forward(x)) < tolerance


@NEEDS["hf"]
def test_a_layer_that_flushes_what_underflows_is_not_accused() -> None:
    """Fails when a branch that torch's SiLU has flushed to zero, 2e-38 in the mathematics, is called wrong.

    A norm follows the branch in this block, and makes 2.5e-35 of it.
    """
    sizes = {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4}
    example = {"sizes": sizes, "pattern": "far-mean", "seed": 50597, "position_offset": 0, "picks": {}}
    result = examine(
        str(MAPPINGS / "hf_models.yaml"), invariant="stage-parity", block="olmo2", dtype="float32",
        name="hf_models[olmo2]", example=example,
    )  # fmt: skip
    assert result.verdict == "holds", result.reason


@needs_llama
def test_the_agreement_would_notice_swapped_weights(write: Callable[..., Path]) -> None:
    """Fails if the comparison above is too loose to see that gate and up changed places."""
    config = config_of("llama")
    path = write(
        LLAMA,
        ("from: feed_forward.gate", "from: feed_forward.?"),
        ("from: feed_forward.up", "from: feed_forward.gate"),
        ("feed_forward.?", "feed_forward.up"),
    )
    given, (x, _) = parameters_of(config), inputs_of(config)
    wrong = variant(path, "sdpa").build(config, given, "float32").forward(x)
    assert far(wrong, NumpyBackend().build(config, given, "float64").forward(x)) > 0.05


@needs_llama
def test_the_rotary_layout_of_the_mapping_matters(write: Callable[..., Path]) -> None:
    """Fails if re-ordering rotary pairs does nothing: a mapping that names the wrong layout must be seen."""
    config = config_of("llama")
    path = write(LLAMA, ("rotary: half ", "rotary: interleaved "))
    given, (x, _) = parameters_of(config), inputs_of(config)
    wrong = variant(path, "eager").build(config, given, "float32").forward(x, 9)
    assert far(wrong, NumpyBackend().build(config, given, "float64").forward(x, 9)) > 1e-3


@needs_torch
@pytest.mark.parametrize("kind", ["gpt", "original"])
def test_the_mapping_that_the_documentation_builds_up_is_right(
    write: Callable[..., Path], root: Path, kind: str
) -> None:
    """Fails if who follows docs/writing-a-mapping.md ends with a mapping that is refused or wrong."""
    page = (root / "docs" / "writing-a-mapping.md").read_text(encoding="utf-8")
    steps = page[page.index("## Step by step") : page.index("## Every key")]
    [backend] = load_mapping(write("\n".join(re.findall(r"^```yaml\n(.*?)^```$", steps, re.MULTILINE | re.DOTALL))))
    config = config_of(kind)
    given, (x, _) = parameters_of(config), inputs_of(config)
    block, reference = backend.build(config, given, "float64"), NumpyBackend().build(config, given, "float64")
    expected = reference.trace(x)
    for stage, array in block.trace(x).items():
        assert far(array, expected[stage]) < 1e-12, stage


# -------------------------------------------------------------------------------------------------------------- masks

EAGER_MASK = "mask: {form: additive_lowest, axes: [1, 1, tokens, keys]}"
EAGER_PASSED = "forward: {with: {attention_mask: $mask}}"


def earlier_rows_move(block: Any, x: np.ndarray[Any, Any]) -> bool:
    """Whether a change of the last token changes an earlier output row."""
    changed = x.copy()
    changed[:, -1] += 3.0
    return not np.array_equal(block.forward(x)[:, :-1], block.forward(changed)[:, :-1])


@needs_llama
def test_an_eager_mapping_that_passes_no_mask_leaks_the_future(write: Callable[..., Path]) -> None:
    """Fails if the harness quietly supplies the mask that a mapping forgot: eager is not causal by itself."""
    config = config_of("llama")
    forgot = write(
        LLAMA,
        (EAGER_MASK, "mask: builtin"),
        (EAGER_PASSED, ""),
        (
            "stages: {attention_weights:",
            "cached: {mask: {form: additive, axes: [1, 1, tokens, keys]}}\n    stages: {attention_weights:",
        ),
    )
    x = inputs_of(config)[0]
    assert earlier_rows_move(variant(forgot, "eager").build(config, parameters_of(config), "float32"), x)
    [leak] = blocklaws.verify(
        variant(forgot, "eager"),
        invariants=["prefix-invariance"],
        blocks=["llama"],
        profile="quick",
        dtypes=["float32"],
    ).cases
    assert leak.verdict == "violated"
    for name in ("sdpa", "eager"):
        right = variant(MAPPINGS / "hf_llama.yaml", name).build(config, parameters_of(config), "float32")
        assert not earlier_rows_move(right, x), name


@needs_llama
@pytest.mark.parametrize(
    ("name", "form", "right"),
    [
        ("eager", "additive", True),
        ("eager", "additive_lowest", True),
        # The eager path adds whatever it is given: true and false become one and zero.
        ("eager", "keep", False),
        ("eager", "hide", False),
        ("sdpa", "additive", True),
        ("sdpa", "additive_lowest", True),
        ("sdpa", "keep", True),
        ("sdpa", "hide", False),
    ],
)
def test_each_form_of_mask_on_each_attention_path(
    write: Callable[..., Path], name: str, form: str, right: bool
) -> None:
    """Fails if a form of mask is made wrongly, or if a mapping that names the wrong form is not seen to leak."""
    mask = f"{{form: {form}, axes: [1, 1, tokens, keys]}}"
    path = write(LLAMA, (EAGER_MASK, f"mask: {mask}"), ("    mask: builtin ", f"    mask: {mask}\n    {EAGER_PASSED}"))
    config = config_of("llama-gqa")
    given, (x, _) = parameters_of(config), inputs_of(config)
    output = variant(path, name).build(config, given, "float32").forward(x)
    agrees = far(np.nan_to_num(output), NumpyBackend().build(config, given, "float64").forward(x)) < 2e-5
    assert agrees is right


@needs_llama
def test_builtin_masks_do_not_hold_after_cached_tokens(write: Callable[..., Path]) -> None:
    """Fails if sdpa needs no mask any more for several tokens after cached ones; then the mapping can be shorter."""
    config = config_of("llama")
    path = write(
        LLAMA,
        (
            "cached: {mask: {form: keep, axes: [1, 1, tokens, keys]}}",
            "cached: {mask: builtin, with: {attention_mask: null}}",
        ),
    )
    given, (x, _) = parameters_of(config), inputs_of(config)
    block = variant(path, "sdpa").build(config, given, "float32")
    _, cache = block.forward_cached(x[:, :2], None)
    rows, _ = block.forward_cached(x[:, 2:], cache)
    assert far(rows, NumpyBackend().build(config, given, "float64").forward(x)[:, 2:]) > 1e-3


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("{form: keep}", [[1, 1, 0], [1, 1, 1]]),
        ("{form: hide, axes: [keys, tokens]}", [[0, 0], [0, 0], [1, 0]]),
        ("{form: additive, axes: [1, tokens, keys]}", [[[0, 0, -np.inf], [0, 0, 0]]]),
        ("{form: additive_lowest, axes: [tokens, keys]}", [[0, 0, np.finfo(np.float32).min], [0, 0, 0]]),
        ("{form: keep, axes: [batch, 1, tokens, keys]}", [[[[1, 1, 0], [1, 1, 1]]]] * 2),
    ],
)
def test_the_mask_has_the_form_and_axes_it_was_asked_for(
    write: Callable[..., Path], section: str, expected: Any
) -> None:
    """Fails if a mask is transposed, inverted, or does not count cached keys (here one)."""
    mask = parse_mask(read(write(section))).array(1, batch=2, heads=4, tokens=2, dtype=np.dtype("float32"))
    np.testing.assert_array_equal(mask, np.array(expected))


# ------------------------------------------------------------------------------------------------ what leaves no trace


@needs_llama
def test_building_and_tracing_change_nothing_global() -> None:
    """Fails if a build moves the random stream or the threads, or a trace leaves its recording functions behind."""
    import torch
    from transformers.models.llama import modeling_llama

    config = config_of("llama")
    state, threads, function = torch.get_rng_state(), torch.get_num_threads(), modeling_llama.apply_rotary_pos_emb
    block = variant(MAPPINGS / "hf_llama.yaml", "eager").build(config, parameters_of(config), "float32")
    x = inputs_of(config)[0].astype(np.float32)
    before = x.copy()
    block.trace(x)
    block.forward(x)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() is torch.float32
    assert modeling_llama.apply_rotary_pos_emb is function
    np.testing.assert_array_equal(x, before)


@needs_torch
def test_a_device_that_is_not_there_is_refused() -> None:
    """Fails if a wrong --device ends in the framework's own traceback."""
    backend = variant(MAPPINGS / "torch_encoder.yaml", "pre")
    with pytest.raises(BackendError, match=r"device 'nowhere': PyTorch cannot use it here: "):
        backend.with_device("nowhere")
    assert (backend.device, backend.with_device("cpu").device) == (None, "cpu")


def test_loading_and_supports_import_no_framework() -> None:
    """Fails if reading a mapping costs the import of torch or transformers."""
    probe = (
        "import sys\n"
        "from pathlib import Path\n"
        "from blocklaws.backends.mapped import load_mapping\n"
        "loaded = [load_mapping(path) for path in Path(sys.argv[1]).glob('*.yaml')]\n"
        "assert len(loaded) > 1\n"
        "sys.exit(3 * bool({'torch', 'transformers', 'jax'} & set(sys.modules)))"
    )
    for prefix, code in (("", 0), ("import torch\n", 3)) if importlib.util.find_spec("torch") else (("", 0),):
        done = subprocess.run([sys.executable, "-c", prefix + probe, str(MAPPINGS)], check=False)
        assert done.returncode == code


@needs_torch
def test_a_block_has_only_the_methods_that_its_mapping_declares(write: Callable[..., Path]) -> None:
    """Fails if a capability is present that the mapping does not offer: the harness finds them by presence."""
    config = config_of("gpt")
    names = ("forward", "trace", "gradients", "parameters", "forward_cached")
    block = variant(MAPPINGS / "torch_encoder.yaml", "pre").build(config, parameters_of(config), "float32")
    assert [name for name in names if hasattr(block, name)] == list(names[:4])
    head = ENCODER[: ENCODER.index("stages:")].replace(
        "cannot:", "cannot:\n  gradients: for this test\n  parameters: for this test"
    )
    [bare] = load_mapping(write(head))
    assert (bare.name, bare.cannot["gradients"]) == ("torch_encoder", "for this test")
    block = bare.build(config, parameters_of(config), "float32")
    assert [name for name in names if hasattr(block, name)] == ["forward"]


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gpt", {}, "norm is layer; the mapping supports rms"),
        ("llama", {"placement": "post"}, "placement is post; the mapping supports pre"),
        (
            "llama",
            {"d_model": 9},
            "d_model % n_heads == 0 does not hold: LlamaConfig refuses a hidden size that its heads do not divide",
        ),
    ],
)
def test_supports_says_why_not(kind: str, changes: dict[str, Any], reason: str) -> None:
    """Fails if a block that the layer is not is verified, or refused without a reason."""
    backend = variant(MAPPINGS / "hf_llama.yaml", "sdpa")
    assert backend.supports(config_of(kind).replace(**changes)) == reason


def test_a_dtype_that_a_layer_cannot_is_refused_with_the_mapping_s_sentence() -> None:
    """Fails if float64 is built although the layer computes its norms in float32."""
    config = config_of("llama")
    with pytest.raises(BackendError, match=r"hf_llama\[sdpa\]: the norms, the rotary tables and eager softmax are"):
        variant(MAPPINGS / "hf_llama.yaml", "sdpa").build(config, parameters_of(config), "float64")


# ------------------------------------------------------------------------------------------------------------- errors

LOAD_ERRORS = [
    (
        "dtypes: [",
        "dtype: [",
        "yaml:7:1: a mapping file: unknown key 'dtype' (did you mean 'dtypes'?); expected one of name, says,",
    ),
    ("bfloat16, float16]", "bfloat, float16]", "yaml:7:19: dtypes: 'bfloat' is not known (did you mean 'bfloat16'?)"),
    ("  norm: rms\n", "", "supports: the key 'norm' is missing"),
    ("  norm: rms\n", "  norm: rmsnorm\n", "supports: norm: 'rmsnorm' is not known; expected some of rms, layer"),
    ("$d_ff", "$d_f", "unknown name $d_f (did you mean 'd_ff'?); known here: block, d_model,"),
    ("$d_ff", "$open(1)", "'open(1)' is not allowed in an expression"),
    (
        "feed_forward.up,",
        "feed_forward.gate,",
        "feed_forward.gate is used twice, for 'mlp.gate_proj.weight' and for 'mlp.up_proj.weight'",
    ),
    (
        "feed_forward.up,",
        "feed_forward.upp,",
        "parameters: 'feed_forward.upp' is not known (did you mean 'feed_forward.up'?)",
    ),
    (
        "from: feed_forward.up, do: [transpose]",
        "from: feed_forward.up, do: [transposed]",
        "'transposed' is not known (did you mean 'transpose'?)",
    ),
    (
        "  feed_forward_branch: mlp",
        "  feed_forward_brnch: mlp",
        "stages: unknown key 'feed_forward_brnch' (did you mean 'feed_forward_branch'?)",
    ),
    (
        "  feed_forward_branch: mlp",
        "  feed_forward_branch: {output: mlp}",
        "stages: feed_forward_branch: unknown key 'output' (did you mean 'output_of'?)",
    ),
    (
        "  feed_forward_branch: mlp",
        "  feed_forward_branch: {take: 0}",
        "expected exactly one of output_of, input_of, result_of, found none",
    ),
    (
        "  feed_forward_norm: post",
        "  attention_norm: post",
        "duplicate key 'attention_norm'; it stands already on line",
    ),
    ("framework: torch", "framework: troch", "framework: 'troch' is not known (did you mean 'torch'?)"),
    ("    mask: builtin ", "    mask: buildin ", "mask: 'buildin' is not known (did you mean 'builtin'?)"),
    (
        "    mask: builtin ",
        "    mask: additive ",
        "mask: nothing passes $mask, so the layer would never see this 'additive' mask",
    ),
    (EAGER_MASK, "mask: builtin", "mask: 'builtin' means that the layer is given no mask, but $mask is passed"),
    ("tokens, keys]}     #", "tokens, token]}     #", "mask.axes: 'token' is not known (did you mean 'tokens'?)"),
    ("{cache: $cache, ", "{", "cached: nothing passes $cache"),
    ("  float64: the", "  float32: the", "cannot: 'float32' is offered elsewhere in the file"),
    ("  layer:\n    call: t", "  blok:\n    call: t", "build: the key 'layer' is missing"),
    ('transformers: "5.24"', "transformers: 5.24", "needs: transformers: expected a version in quotes"),
    (
        "call: transformers.models.llama.configuration_llama:LlamaConfig",
        "call: LlamaConfig",
        "is not an import path; expected package.module:name or $name",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), LOAD_ERRORS, ids=[message[:40] for *_, message in LOAD_ERRORS])
def test_a_wrong_mapping_is_refused_when_it_is_loaded(
    write: Callable[..., Path], old: str, new: str, message: str
) -> None:
    """Fails if a slip in a mapping is accepted, or its message lacks the place or the nearest right word."""
    path = write(LLAMA, (old, new))
    with pytest.raises(BackendError) as caught:
        load_mapping(path)
    text = str(caught.value)
    assert text.startswith(f"{path}:")
    assert message in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("args: [$input]", "args: []", "nothing passes $input, the block's input"),
        ("join: {concatenate: 1}, ", "", "a list in 'from' needs 'join'"),
        ("{concatenate: 1}", "{concatenate: first}", "the axis of concatenate: expected an integer, found 'first'"),
        ("linear1.bias: feed", "linear1.bias: !x feed", "a tag ('!x'); tags are not part of"),
        ("norm2.bias: feed_forward_norm.bias", "norm2.bias: {else: 0}", "the key 'from' is missing"),
        ("that: n_heads *", "that: n_head *", "unknown name $n_head (did you mean 'n_heads'?)"),
    ],
)
def test_a_wrong_mapping_of_pytorch_s_layer_is_refused(
    write: Callable[..., Path], old: str, new: str, message: str
) -> None:
    """Fails if what only this mapping has (fused weights, conditions) is not checked when it is loaded."""
    path = write(ENCODER, (old, new))
    with pytest.raises(BackendError) as caught:
        load_mapping(path)
    assert str(caught.value).startswith(f"{path}:")
    assert message in str(caught.value)


BUILD_ERRORS = [
    (
        "  mlp.down_proj.weight: {from: feed_forward.down, do: [transpose]}\n",
        "",
        "parameters: no rule fills mlp.down_proj.weight of the layer",
    ),
    (
        "  mlp.down_proj.weight: {from: feed_forward.down, do: [transpose]}\n",
        "  mlp.down_proj.weight: {constant: 0}\n",
        "parameters: no rule uses feed_forward.down of the block",
    ),
    (
        "  mlp.down_proj.weight:",
        "  mlp.down_prj.weight:",
        "the layer has no parameter 'mlp.down_prj.weight' (did you mean 'mlp.down_proj.weight'?)",
    ),
    (
        "{from: feed_forward.down, do: [transpose]}",
        "feed_forward.down",
        "'mlp.down_proj.weight' would be filled with shape (10, 8), but the layer's has shape (8, 10)",
    ),
    (
        "attention_bias: $bias",
        "attention_bias: $bias == bias",
        "the layer has 'self_attn.q_proj.bias', but this block has no attention.query_bias",
    ),
    (
        "hidden_size: $d_model",
        "hidden_sise: $n_heads * d_head",
        "would be filled with shape (8,), but the layer's has shape (4096,)",
    ),
    (
        "modeling_llama:LlamaDecoderLayer",
        "modeling_llama:LlamaDecoderLayr",
        "has no 'LlamaDecoderLayr' (did you mean 'LlamaDecoderLayer'?)",
    ),
    (
        "transformers.models.llama.modeling_llama:LlamaDecoderLayer",
        "transfromers.models:LlamaDecoderLayer",
        "'transfromers.models' cannot be imported",
    ),
    ("args: [$config, 0]", "args: [$config]", "calling LlamaDecoderLayer failed: TypeError"),
    (
        "  feed_forward_branch: mlp",
        "  feed_forward_branch: mpl",
        "stages: feed_forward_branch: the layer has no sub-module 'mpl' (did you mean 'mlp'?)",
    ),
    ('transformers: "5.24"', 'transformers: "99.0"', "hf_llama[sdpa] needs transformers>=99.0, but"),
    ('transformers: "5.24"', 'trnsformers: "5.24"', "needs trnsformers>=5.24, which is not installed"),
]


@needs_llama
@pytest.mark.parametrize(("old", "new", "message"), BUILD_ERRORS, ids=[message[:40] for *_, message in BUILD_ERRORS])
def test_a_mapping_that_does_not_fit_its_layer_is_refused_when_it_is_built(
    write: Callable[..., Path], old: str, new: str, message: str
) -> None:
    """Fails if a weight of either side can be left over, or a layer's own refusal comes without the place."""
    path = write(LLAMA, (old, new))
    config = config_of("llama")
    with pytest.raises(BackendError) as caught:
        variant(path, "sdpa").build(config, parameters_of(config), "float32")
    text = str(caught.value)
    assert text.startswith(f"{path}:")
    assert message in text


@needs_llama
@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("self_attn", "a forward pass gave nothing there (self_attn); expected one array"),
        ("input_layernorm, do: [split_heads]", "the operations do not fit shape (1, 2, 8)"),
        (
            "mlp, do: [{reshape: [$batch, $n_heads, $tokens, -1]}]",
            "mlp gave shape (1, 2, 2, 4), the stage has (1, 2, 2, 2)",
        ),
    ],
)
def test_a_stage_that_a_pass_does_not_give_is_refused(write: Callable[..., Path], stage: str, message: str) -> None:
    """Fails if a captured array of another shape, or none at all, passes for a stage, or is met only while judging."""
    take = ", take: 1" if stage == "self_attn" else ""
    path = write(
        LLAMA,
        (
            "    cannot: {attention_weights: the fused kernel does not return them}\n",
            f"    stages: {{attention_weights: {{output_of: {stage}{take}}}}}\n",
        ),
    )
    config = config_of("llama")
    with pytest.raises(BackendError) as caught:
        variant(path, "sdpa").build(config, parameters_of(config), "float32")
    assert message in str(caught.value)


# ----------------------------------------------------------------------------------------------------- the small parts


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("own", ["half", "interleaved"])
def test_reordered_features_turn_as_the_block_s_own(own: str, layout: str) -> None:
    """Fails if a head's features, re-ordered for the other layout, do not turn to the re-ordered result."""
    config = config_of("llama").replace(rotary=own)
    order = feature_order(config, layout)
    assert (order is None) is (own == layout)

    def turn(array: Any, pairs: str) -> Any:
        cos, sin = cos_sin(config, pairs, np.arange(4))
        first, second = (array[..., 0::2], array[..., 1::2]) if pairs == "interleaved" else np.split(array, 2, axis=-1)
        if pairs == "interleaved":
            swapped = np.stack([-second, first], axis=-1).reshape(array.shape)
        else:
            swapped = np.concatenate([-second, first], axis=-1)
        return array * cos[0] + swapped * sin[0]

    head = np.random.default_rng(0).normal(size=(4, config.d_head))
    np.testing.assert_allclose(restore(turn(reorder(head, order), layout), order), turn(head, own), atol=1e-15)


def test_fused_and_shifted_weights_go_there_and_come_back(write: Callable[..., Path]) -> None:
    """Fails if a group-wise fused projection, a shifted gain or a per-head layout cannot be read back exactly."""
    config = config_of("llama-gqa")
    section = """
norm.scale: {from: attention_norm.gain, do: [{add: -1}]}
qkv:
  from:
    - {from: attention.query, do: [{reshape: [$d_model, $n_kv_heads, $group, $d_head]}]}
    - {from: attention.key, do: [{reshape: [$d_model, $n_kv_heads, 1, $d_head]}]}
    - {from: attention.value, do: [{reshape: [$d_model, $n_kv_heads, 1, $d_head]}]}
  join: {concatenate: 2}
  do: [{reshape: [$d_model, -1]}, transpose]
out: {from: attention.output, do: [{reshape: [$n_heads, $d_head, $d_model]}]}
norm2.scale: feed_forward_norm.gain
gate_up: {from: [feed_forward.up, feed_forward.gate], join: {stack: 0}, do: [{transpose: [0, 2, 1]}]}
down: {from: feed_forward.down, do: [transpose]}
spare: {constant: 0}
"""
    shapes = {"norm.scale": (8,), "qkv": (48, 8), "out": (4, 6, 8), "norm2.scale": (8,)}
    shapes |= {"gate_up": (2, 10, 8), "down": (8, 10), "spare": (3,)}
    given = parameters_of(config)
    layout = ParameterMap(read(write(section))).lay_out(config, given, shapes, None)
    fused = layout.arrays["qkv"].T.reshape(8, 2, 4, 6)  # group by group: two query heads, a key head, a value head
    np.testing.assert_array_equal(fused[:, 1, 0], given["attention.query"][:, 12:18])
    np.testing.assert_array_equal(fused[:, 1, 2], given["attention.key"][:, 6:])
    np.testing.assert_array_equal(layout.arrays["gate_up"][1], given["feed_forward.gate"].T)
    assert not layout.arrays["spare"].any()
    for difference in (False, True):
        back = layout.read(layout.arrays, difference=difference)
        assert list(back) == list(given)
        for name, array in back.items():
            shift = 1.0 if difference and name == "attention_norm.gain" else 0.0
            np.testing.assert_allclose(array, given[name] - shift, atol=1e-15, err_msg=name)


@pytest.mark.parametrize(
    "text",
    ["().__class__", "a._b", "a[0]", "a ** a", "lambda: a", "a if a else a", "'x'", "a and a", "1 < a < 3", "(" * 150],
)
def test_an_expression_can_do_no_more_than_arithmetic(write: Callable[..., Path], text: str) -> None:
    """Fails if the value language grows a way to call, to index, to run long or to reach private names."""
    with pytest.raises(BackendError, match=r"is not allowed in an expression|is not an expression"):
        Expression(text, read(write("value: 1")))
