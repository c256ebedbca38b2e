"""What a mapping claims of its layer: a choice of several words is one that something tells the layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mapped_support import ENCODER, LLAMA

from blocklaws.backends.mapped import load_mapping
from blocklaws.errors import BackendError, BlocklawsError
from blocklaws.running import prepare

Write = Callable[..., Path]

#: The least mapping, of a layer that hears of no choice at all.
DEAF = """
name: deaf
framework: torch
supports:
  norm: rms
  placement: pre
  feed_forward: swiglu
  rotary: null
  bias: false
  heads: equal
build: {layer: {call: "some:Layer", args: [$d_model]}}
mask: builtin
forward: {args: [$input]}
parameters: {}
"""
ONE_FOR_ALL = "to the layer, so one block would be built for all of them; pass it, or say which of them the layer is"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("norm: rms", "norm: [rms, layer]", "rms and layer are supported, but nothing passes $norm "),
        ("placement: pre", "placement: [pre, post]", "pre and post are supported, but nothing passes $placement "),
        (
            "feed_forward: swiglu",
            "feed_forward: [swiglu, geglu, gelu]",
            "swiglu, geglu and gelu are supported, but nothing passes $feed_forward ",
        ),
        ("bias: false", "bias: [false, qkv]", "false and qkv are supported, but nothing passes $bias "),
        ("heads: equal", "heads: [equal, grouped]", "equal and grouped are supported, but nothing passes $n_kv_heads "),
        ("rotary: null", "rotary: [null, half]", "null and half are supported, but nothing passes $cos or $sin "),
        (
            "heads: equal",
            "heads: equal\n  residual: [sequential, parallel]",
            "sequential and parallel are supported, but nothing passes $residual ",
        ),
        (
            "heads: equal",
            "heads: equal\n  residual_scale: number",
            "every number is supported, but nothing passes $residual_scale ",
        ),
        (
            "heads: equal",
            "heads: equal\n  window: [null, number]",
            "null and number are supported, but nothing passes $window ",
        ),
        (
            "heads: equal",
            "heads: equal\n  qk_norm: [null, head, width]",
            "null, head and width are supported, but nothing passes $qk_norm ",
        ),
    ],
)
def test_a_choice_that_nothing_hears_is_refused(write: Write, old: str, new: str, told: str) -> None:
    """Fails if a mapping claims several kinds of block, builds one for all, and violates the others without a word."""
    load_mapping(write(DEAF))
    path = write(DEAF, (old, new))
    with pytest.raises(BackendError) as caught:
        load_mapping(path)
    choice = new.rpartition("\n")[2].strip().partition(":")[0]
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if f"{choice}:" in text)
    assert str(caught.value).startswith(f"{path}:{line}:"), caught.value
    assert f"supports: {choice}: {told}" in str(caught.value)
    assert ONE_FOR_ALL in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        [("placement: pre", "placement: [pre, post]"), ("args: [$d_model]", "args: [$d_model, $placement]")],
        # By a choice, deep in a value, and by the kind of block itself.
        [
            ("norm: rms", "norm: [rms, layer]"),
            ("args: [$d_model]", "with: {a: [{choose: $norm, among: {rms: 1, layer: 2}}]}"),
        ],
        [("norm: rms", "norm: [rms, layer]"), ("args: [$d_model]", "args: [$block]")],
        # In an input that the call uses, by the tables of the harness, by the mask, by a number in a parameter's place.
        [
            ("heads: equal", "heads: equal\n  residual_scale: number"),
            ("forward: {args: [$input]}", "inputs: {scale: $2 * residual_scale}\nforward: {args: [$input, $scale]}"),
        ],
        [("rotary: null", "rotary: [null, half]"), ("args: [$input]", "args: [$input, $cos, $sin]")],
        [
            ("heads: equal", "heads: equal\n  window: [null, number]"),
            ("mask: builtin", "mask: keep"),
            ("args: [$input]", "args: [$input, $mask]"),
        ],
        [
            ("bias: false", "bias: [false, true]"),
            ("parameters: {}", "parameters: {b: {from: attention.query_bias, else: 0}}"),
        ],
        [("heads: equal", "heads: [equal, grouped]"), ("args: [$d_model]", "args: [$n_heads // n_kv_heads]")],
        [("rotary: null", "rotary: [half, interleaved]"), ("mask: builtin", "rotary: half\nmask: builtin")],
        [
            ("heads: equal", "heads: equal\n  softcap: [null, number]\n  where:\n    - {that: softcap == 1, why: so}"),
        ],
    ],
    ids=str,
)
def test_a_choice_that_something_hears_is_accepted(write: Write, changes: list[tuple[str, str]]) -> None:
    """Fails if a right mapping is refused because it tells its layer in a way of its own."""
    load_mapping(write(DEAF, *changes))


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (
            ENCODER,
            "with: {src_mask: $mask}",
            "kwargs: {src_mask: $mask}",
            "forward: unknown key 'kwargs' (did you mean 'with'?); expected one of call, args, with, output",
        ),
        (
            ENCODER,
            "  rotary: null\n",
            "  rotary: yes\n",
            "supports: rotary: 'yes' is not known; expected some of null, ",
        ),
        (
            ENCODER,
            "  rotary: null\n",
            "  rotary: true\n",
            "supports: rotary: true is not known; expected some of null, ",
        ),
        (
            LLAMA,
            "args: [$input]",
            "args: [$input, $positions - $offset]",
            "'$positions - $offset' is not an expression: one $ begins it, and the names after that have none; "
            "write $positions - offset",
        ),
        (
            ENCODER,
            "n_heads * d_head ==",
            "$n_heads * $d_head ==",
            "'$n_heads * $d_head == d_model' is not an expression: its names have no $; "
            "write n_heads * d_head == d_model",
        ),
        (
            LLAMA,
            "use_cache: true, attention_mask: $mask}",
            "use_cache: true, attention_mask: null}",
            "cached: nothing passes $mask here, so with a cache the layer never sees this",
        ),
        (LLAMA, "rotary: half ", "rotary: null ", "rotary: null is not known; expected one of half, interleaved"),
    ],
)
def test_words_are_told_as_a_file_writes_them(write: Write, text: str, old: str, new: str, message: str) -> None:
    """Fails if a message speaks Python, or the nearest key by its letters hides the one that is meant."""
    with pytest.raises(BackendError) as caught:
        load_mapping(write(text, (old, new)))
    assert message in str(caught.value)


@pytest.mark.parametrize("isolate", [False, None])
@pytest.mark.parametrize("blocks", [[], ["llama"]])
def test_a_kind_that_there_is_not_is_refused_with_its_line(
    write: Write, monkeypatch: pytest.MonkeyPatch, blocks: list[str], isolate: bool | None
) -> None:
    """Fails if a misspelt kind in `blocks` is passed over where a run names another, or told without its place."""
    path = write(DEAF, ("build: ", "blocks: [mistral, granit]\nbuild: "))
    monkeypatch.chdir(path.parent)
    with pytest.raises(BlocklawsError) as caught:
        prepare([path.name], blocks=blocks, isolate=isolate)
    assert str(caught.value).startswith("layer.yaml:11:19: blocks: unknown block 'granit' (did you mean 'granite'?); ")
    prepare([write(path.read_text(), (", granit]", "]")).name], blocks=blocks, isolate=isolate)


CHOSEN = ("args: [$d_model]", "with: {a: [{choose: $norm, among: {rms: 1, layer: 2}}]}")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            [("norm: rms", "norm: [rms, layer]"), (CHOSEN[0], CHOSEN[1].replace(", layer: 2", ""))],
            "choose: norm may be layer by 'supports', and there is no entry for it; the entries are rms",
        ),
        (
            [
                ("bias: false", "bias: [false, true]"),
                ("norm: rms", "norm: [rms, layer]"),
                (CHOSEN[0], CHOSEN[1].replace("rms: 1", "rms: {choose: $bias, among: {true: 1}}")),
            ],
            "choose: bias may be false by 'supports', and there is no entry for it; the entries are true",
        ),
    ],
    ids=["missing", "missing-inside"],
)
def test_a_claimed_word_that_no_entry_provides_for_is_refused(
    write: Write, changes: list[tuple[str, str]], told: str
) -> None:
    """Fails if a word is claimed that the file builds no layer for, and no kind of the run happens to ask for it."""
    with pytest.raises(BackendError, match=r"layer\.yaml:\d+:\d+: ") as caught:
        load_mapping(write(DEAF, *changes))
    assert told in str(caught.value)


def told_by(choice: str, among: str) -> tuple[str, str]:
    """Return the change that passes what a word of a choice gives."""
    return ("args: [$d_model]", f"with: {{a: [{{choose: ${choice}, among: {among}}}]}}")


LAYOUTS = ("rotary: null", "rotary: [half, interleaved]")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([LAYOUTS, told_by("rotary", "{half: 1, interleaved: 1}")], "rotary: half and interleaved"),
        (
            [LAYOUTS, told_by("rotary", "{half: {a: [$d_ff]}, interleaved: {a: [$d_ff]}}")],
            "rotary: half and interleaved",
        ),
        (
            [("rotary: null", "rotary: [null, half]"), told_by("rotary", "{null: $d_ff, half: $d_ff}")],
            "rotary: null and half",
        ),
        (
            [
                ("feed_forward: swiglu", "feed_forward: [gelu, gelu_tanh, relu]"),
                told_by("feed_forward", "{gelu: gelu, gelu_tanh: tanh, relu: gelu}"),
            ],
            "feed_forward: gelu and relu",
        ),
        (
            [("bias: false", "bias: [false, true, qkv]"), told_by("bias", '{false: no, true: "yes", qkv: "yes"}')],
            "bias: true and qkv",
        ),
    ],
)
def test_two_words_that_are_heard_as_the_same_are_refused(
    write: Write, changes: list[tuple[str, str]], told: str
) -> None:
    """Fails if a choice counts as heard though both its words give one layer, and no kind of the run has the other."""
    with pytest.raises(BackendError, match=r"layer\.yaml:\d+:\d+: ") as caught:
        load_mapping(write(DEAF, *changes))
    assert f"supports: {told} are supported, but what hears ${told.partition(':')[0]} gives" in str(caught.value)
    assert str(caught.value).endswith("with 'rotary: half' or 'rotary: interleaved'") == ("interleaved" in told)


@pytest.mark.parametrize(
    "changes",
    [
        [LAYOUTS, told_by("rotary", "{half: 1, interleaved: 1}"), ("mask: builtin", "rotary: half\nmask: builtin")],
        [LAYOUTS, told_by("rotary", "{half: 1, interleaved: 1}"), ("args: [$input]", "args: [$input, $cos]")],
        [LAYOUTS, told_by("rotary", "{half: {a: $block}, interleaved: {a: $block}}")],
        [
            ("feed_forward: swiglu", "feed_forward: [swiglu, gelu, relu]"),
            (
                "args: [$d_model]",
                "with: {gated: {choose: $feed_forward, among: {swiglu: true, gelu: false, relu: false}}, "
                "act: {choose: $feed_forward, among: {swiglu: silu, gelu: gelu, relu: relu}}}",
            ),
        ],
        [
            ("bias: false", "bias: [false, true, qkv]"),
            told_by("bias", '{false: no, true: "yes", qkv: "yes"}'),
            ("parameters: {}", "parameters: {b: {from: attention.output_bias, else: 0}}"),
        ],
    ],
    ids=["converted", "by-tables", "by-the-kind", "by-two-choices", "by-a-parameter"],
)
def test_two_words_that_something_tells_apart_are_accepted(write: Write, changes: list[tuple[str, str]]) -> None:
    """Fails if a right mapping is refused because one of the places that hear a choice makes no difference of it."""
    load_mapping(write(DEAF, *changes))


def test_inside_an_entry_only_its_own_word_is_asked_for(write: Write) -> None:
    """Fails if an entry that is never reached must provide for what it is never asked."""
    inner = CHOSEN[1].replace("rms: 1", "rms: {choose: $norm, among: {rms: 1}}, batch: {choose: $bias, among: {x: 1}}")
    load_mapping(write(DEAF, ("norm: rms", "norm: [rms, layer]"), (CHOSEN[0], inner)))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            '{cal: "some:Config", with: {a: 1}}',
            "'with' stands beside 'call', which is not among the keys cal, with (did you mean 'cal'?)",
        ),
        ('{args: [1], b: "x"}', "'args' stands beside 'call', which is not among the keys args, b"),
        (
            "{chose: $norm, among: {rms: 1}}",
            "'among' stands beside 'choose', which is not among the keys chose, among (did you mean 'chose'?)",
        ),
        ('{imprt: "some:thing"}', "'imprt' is no word of a mapping (did you mean 'import'?)"),
    ],
)
def test_a_misspelt_word_is_not_passed_as_a_dict(write: Write, written: str, told: str) -> None:
    """Fails if a slip in one word makes plain data of a call, which fails far from here."""
    with pytest.raises(BackendError) as caught:
        load_mapping(write(DEAF, ("args: [$d_model]", f"args: [$d_model, {written}]")))
    assert told in str(caught.value)
    load_mapping(write(DEAF, ("args: [$d_model]", "args: [$d_model, {ratio: 2, kind: 'a:b', width: $d_model}]")))


def test_a_stage_tells_the_lines_that_it_comes_from(tmp_path: Path) -> None:
    """Fails if the reader of a failure has to find the rule, or the rules of stages that are not shown, himself."""
    path = tmp_path / "llama.yaml"
    path.write_text(LLAMA)
    lines = LLAMA.splitlines()
    sdpa, eager = load_mapping(path)

    def line(begin: str, after: str) -> int:
        start = next(number for number, text in enumerate(lines, 1) if text.startswith(f"{after}:"))
        return next(n for n, text in enumerate(lines[start:], start + 1) if text.strip().startswith(begin))

    gate = f"feed_forward.gate (llama.yaml:{line('mlp.gate_proj.weight', 'parameters')})"
    rule = f"the rule of the stage feed_forward_branch (llama.yaml:{line('feed_forward_branch', 'stages')})"
    assert sdpa.stages_at["feed_forward_branch"][0] == rule
    assert gate in sdpa.stages_at["feed_forward_branch"]
    # Epsilon and base are built, positions are passed: last, for every stage.
    passed = f"inputs.angles (llama.yaml:{line('angles', 'inputs')})"
    for told in sdpa.stages_at.values():
        names = [each.partition(" (")[0] for each in told[-3:]]
        assert (passed in told[-3:], names[1:]) == (True, ["build", "forward"])
    # A stage that is not shown is told with the next one that is.
    query = f"attention.query (llama.yaml:{line('self_attn.q_proj.weight', 'parameters')})"
    for backend in (sdpa, eager):
        shown = {at.partition(" (")[0].rpartition(" ")[2] for found in backend.stages_at.values() for at in found}
        assert ("query" in shown) == any(
            each.startswith("the rule of the stage query") for each in backend.stages_at["query"]
        )
        carrier = "query" if "query" in shown else "attention_weights"
        assert query in backend.stages_at[carrier]
