"""The further choices of a config: how files say them, which runs meet them, and who is asked.

Must hold: a file that does not speak of a choice means a block without it, and a run that names no kind of block meets
the kinds that it met before there were such choices.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocklaws import verify
from blocklaws.backends.mapped.schema import read_mappings
from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.config import DEFAULTS, BlockConfig
from blocklaws.editor_schema import spec_schema
from blocklaws.errors import BackendError, BlocklawsError, SpecError
from blocklaws.explaining import explain, listing
from blocklaws.failure_text import config_text
from blocklaws.kill_matrix import run_faults
from blocklaws.planning import Choice, kinds_of
from blocklaws.spec_reading import built_in_spec, load_spec
from blocklaws.subjects import Subject

SPEC = built_in_spec()
USUAL = ("llama", "llama-gqa", "plain", "gpt", "original")
FURTHER = ("mistral", "qwen2", "qwen3", "neox", "gemma", "olmo2", "granite", "softcapped", "gpt2")
#: The invariants and faults that speak of kinds of block alone which a run must name.
OWN = [one.id for one in SPEC.invariants.values() if set(one.blocks) <= set(FURTHER)]
OWN_FAULTS = [one.id for one in SPEC.faults.values() if set(one.blocks) <= set(FURTHER)]

_BLOCK = """\
blocks:
  mine:
    says: A block of ours.
    source: our own model card
    norm: rms
    norm_eps: 1.0e-6
    placement: pre
    feed_forward: swiglu
    rotary: half
    rotary_base: 10000.0
    bias: false
    heads: equal
    max_positions: 2048
"""


def spec_of(folder: Path, lines: str = "", rest: str = "") -> Any:
    """Read a spec with one kind of block that says some more."""
    path = folder / "own.yaml"
    path.write_text(_BLOCK + lines + rest, encoding="utf-8")
    return load_spec(path)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_block_that_says_nothing_of_them_does_without(tmp_path: Path) -> None:
    """Fails when a file from before these choices is refused, or its block gets one of them."""
    kind = spec_of(tmp_path).blocks["mine"]
    assert {name: kind.choices[name] for name in DEFAULTS} == DEFAULTS
    assert kind.by_default
    assert kind.config(SPEC.menus["equal"][0]).further == {}


def test_a_block_says_them(tmp_path: Path) -> None:
    """Fails when a choice of a file does not reach the config, or null is taken for a number."""
    lines = "    window: 4\n    softcap: 30\n    qk_norm: head\n    residual_scale: 0.5\n    by_default: false\n"
    kind = spec_of(tmp_path, lines).blocks["mine"]
    config = kind.config(SPEC.menus["equal"][0])
    assert config.further == {"residual_scale": 0.5, "qk_norm": "head", "window": 4, "softcap": 30.0}
    assert isinstance(config.window, int)
    assert not kind.by_default
    nothing = spec_of(tmp_path, "    window: null\n    softcap: null\n    qk_norm: null\n").blocks["mine"]
    assert nothing.config(SPEC.menus["equal"][0]).further == {}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("    window: 2.5\n", "14:13: block 'mine': window: must be a whole number of keys, but here is 2.5"),
        ("    window: 0\n", "14:13: block 'mine': window: is 0, but must lie between 1 and 1e+07"),
        ("    window: true\n", "14:13: block 'mine': window: must be a number, but here is True"),
        ("    softcap: none\n", "14:14: block 'mine': softcap: must be a number, but here is 'none'"),
        ("    softcap: -1\n", "14:14: block 'mine': softcap: is -1, but must lie between 0.001 and 1e+06"),
        ("    rotary_fraction: 2\n", "14:22: block 'mine': rotary_fraction: is 2, but must lie between 0.001 and 1"),
        ("    rotary_fraction: null\n", "14:22: block 'mine': rotary_fraction: must be a number, but here is nothing"),
        (
            "    residual: paralel\n",
            "14:15: block 'mine': residual: 'paralel' is not one of sequential, parallel (did you mean 'parallel'?)",
        ),
        ("    qk_norm: heads\n", "14:14: block 'mine': qk_norm: 'heads' is not one of null, head, width (did you mean"),
        ("    by_default: 0\n", "14:17: block 'mine': by_default: must be true or false, but here is 0"),
        ("    windows: 3\n", "14:5: block 'mine' has an unknown key 'windows' (did you mean 'window'?)"),
    ],
)
def test_a_mistake_in_a_block(tmp_path: Path, lines: str, message: str) -> None:
    """Fails when a wrong word or number is accepted, or told without its place and the rule."""
    with pytest.raises(SpecError) as caught:
        spec_of(tmp_path, lines)
    assert f"own.yaml:{message}" in str(caught.value)


def test_choices_that_contradict_each_other(tmp_path: Path) -> None:
    """Fails when a file asks for branches beside each other with norms behind them and learns it from a traceback."""
    path = tmp_path / "own.yaml"
    path.write_text(_BLOCK.replace(": pre", ": post") + "    residual: parallel\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert (
        "block 'mine' with the sizes of menu 'equal': configuration: placement='post' with residual='parallel'; "
        "branches beside each other are normed before (placement 'pre')"
    ) in str(caught.value)


_RULE = "\ninvariants:\n  - {{id: mine, says: A rule., blocks: {blocks}, then: finite(output)}}\n"


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ("{window: given}", ("mistral", "mine")),
        ("{window: 7}", ("mine",)),
        ("{window: null, qk_norm: given}", ("qwen3", "olmo2")),
        ("{residual: parallel}", ("neox",)),
        ("{residual: given}", ("neox",)),
        ("{residual_scale: given}", ("granite",)),
        ("{bias: [true, qkv], rotary_fraction: 1}", ("gpt", "original", "qwen2", "gpt2")),
        ("{placement: [post, inside]}", ("original", "olmo2")),
    ],
)
def test_an_entry_speaks_of_kinds_by_their_choices(tmp_path: Path, wanted: str, kinds: tuple[str, ...]) -> None:
    """Fails when a filter by a further choice takes a kind that does not make it, or leaves out one that does."""
    spec = spec_of(tmp_path, "    window: 7\n", _RULE.format(blocks=wanted))
    assert spec.invariants["mine"].blocks == kinds


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("{window: 5}", "blocks: window is never 5; it is one of null, 3, given"),
        ("{qk_norm: heads}", "blocks: qk_norm is never 'heads'; it is one of null, head, width, given"),
        ("{norm: given}", "blocks: norm is never 'given'; it is one of rms, layer"),
        ("{windows: given}", "blocks: unknown choice 'windows' (did you mean 'window'?)"),
        ("{window: given, softcap: given}", "blocks: no block of the spec has all of these choices"),
    ],
)
def test_a_filter_that_no_kind_can_meet(tmp_path: Path, wanted: str, message: str) -> None:
    """Fails when an entry that could never be checked is accepted."""
    with pytest.raises(SpecError) as caught:
        spec_of(tmp_path, "", _RULE.format(blocks=wanted))
    assert message in str(caught.value)


def test_the_editor_knows_them() -> None:
    """Fails when an editor marks a further choice as a mistake, or asks for one that may be left out."""
    block = spec_schema()["$defs"]["block"]
    assert {*DEFAULTS, "by_default"} <= set(block["properties"])
    assert not {*DEFAULTS, "by_default"} & set(block["required"])
    assert block["properties"]["window"]["type"] == ["integer", "null"]
    either = spec_schema()["$defs"]["blocks"]["anyOf"][1]["properties"]
    assert {"type": ["integer", "null"]} in either["window"]["anyOf"][0]["anyOf"]
    assert "given" in either["qk_norm"]["anyOf"][0]["enum"]


# --- which runs meet them ---------------------------------------------------------------------------------------------


class Asking:
    """A backend that asks for a further kind of block."""

    name = "asking"
    dtypes = ("float64",)
    blocks: Any = ("qwen3",)
    build = NumpyBackend().build


def test_a_run_that_names_no_block_meets_the_usual_ones() -> None:
    """Fails when a backend meets choices unasked that its author has never heard of."""
    assert tuple(kind.name for kind in kinds_of(SPEC, Subject(NumpyBackend, "numpy"), Choice())) == USUAL
    assert tuple(SPEC.blocks) == (*USUAL, *FURTHER)


def test_a_run_or_a_backend_names_further_ones() -> None:
    """Fails when a kind that is asked for is not verified, or one that the run leaves out is."""
    subject = Subject(Asking, "asking")
    assert tuple(kind.name for kind in kinds_of(SPEC, subject, Choice())) == (*USUAL, "qwen3")
    assert tuple(kind.name for kind in kinds_of(SPEC, subject, Choice(("mistral",)))) == ("mistral",)
    report = verify(Asking(), blocks=["neox"], invariants=["branches-beside-each-other"], profile="quick")
    assert {case.block for case in report.cases} == {"neox"}
    assert {case.verdict for case in report.cases} == {"holds"}


def test_a_backend_asks_for_what_there_is() -> None:
    """Fails when a misspelt kind of block in `blocks` is passed over, or a text is taken for a list."""
    wrong = type("Wrong", (Asking,), {"blocks": ("qwen4",)})
    with pytest.raises(BlocklawsError, match="unknown block 'qwen4' \\(did you mean 'qwen3'\\?\\)"):
        kinds_of(SPEC, Subject(wrong, "wrong"), Choice())
    with pytest.raises(BackendError) as caught:
        Subject(type("Text", (Asking,), {"blocks": "qwen3"}), "text")
    assert str(caught.value) == (
        "backend 'text': blocks='qwen3' must be a tuple of names of further kinds of block, such as ('mistral',)"
    )


def test_list_and_explain_tell_where_they_are_met() -> None:
    """Fails when a reader of the list cannot see why a kind of block is not in the report."""
    sentences = dict(listing("blocks", SPEC))
    assert [name for name, says in sentences.items() if says.endswith(" (where it is named)")] == list(FURTHER)
    ((_, fields),) = explain("mistral", SPEC)
    assert dict(fields)["verified"] == "where it is named, by --block mistral or by the backend's `blocks`"
    assert "window 3" in dict(fields)["choices"]
    ((_, fields),) = explain("llama", SPEC)
    assert "window" not in dict(fields)["choices"]


def test_a_failure_tells_the_choices_of_its_config() -> None:
    """Fails when a counterexample hides the choice that it depends on."""
    told = {name: config_text(SPEC.blocks[name].config(SPEC.menus["grouped"][0]).as_dict()) for name in SPEC.blocks}
    assert told["llama-gqa"].endswith("swiglu, rotary half (base 500000)")
    assert told["mistral"].endswith("swiglu, rotary half (base 10000), window 3")
    assert told["neox"].endswith("gelu, rotary half (base 10000), biases, residual parallel, rotary_fraction 0.5")
    assert told["qwen2"].endswith("rotary half (base 1e+06), qkv biases")


# --- mappings ---------------------------------------------------------------------------------------------------------


def config_of(block: str, **changes: Any) -> BlockConfig:
    """Return the smallest config of a kind of block."""
    kind = SPEC.blocks[block]
    return kind.config(SPEC.menus[kind.heads][0]).replace(**changes)


def _mapped(folder: Path, root: Path, supports: str, head: str = "", tells: str = "bias") -> Any:
    from blocklaws.backends.mapped.backend import MappedBackend

    text = (root / "backends/mappings/hf_llama.yaml").read_text(encoding="utf-8")
    text = text.replace("hidden_act: silu", f"hidden_act: silu\n      told: ${tells}", 1)
    path = folder / "mine.yaml"
    path.write_text(text.replace("supports:\n", f"{head}supports:\n{supports}", 1), encoding="utf-8")
    return MappedBackend(read_mappings(path)[0])


def test_a_mapping_supports_what_it_speaks_of(tmp_path: Path, root: Path) -> None:
    """Fails when a mapping that never heard of windows claims a block that has one."""
    silent = _mapped(tmp_path, root, "")
    assert silent.supports(config_of("llama-gqa")) is None
    assert silent.supports(config_of("mistral")) == "window is 3; the mapping supports null"
    assert silent.supports(config_of("granite")) == "residual_scale is 0.25; the mapping supports 1.0"
    assert silent.supports(config_of("qwen2")) == "bias is qkv; the mapping supports false or true"
    windows = "  window: [null, number]\n"
    spoken = _mapped(tmp_path, root, f"{windows}  qk_norm: head\n", "blocks: [mistral]\n", tells="window")
    assert spoken.blocks == ("mistral",)
    assert spoken.supports(config_of("mistral", qk_norm="head")) is None
    assert spoken.supports(config_of("mistral", qk_norm="head", window=None)) is None
    assert spoken.supports(config_of("mistral")) == "qk_norm is null; the mapping supports head"
    with pytest.raises(BackendError, match="supports: window: 'any' is not known; expected some of null, number"):
        _mapped(tmp_path, root, "  window: any\n")


# --- each check refutes what it claims --------------------------------------------------------------------------------


def test_every_choice_has_invariants_and_faults_of_its_own() -> None:
    """Fails when a further choice is made by a kind of block and nothing is said of it alone."""
    assert len(OWN) >= 18
    assert len(OWN_FAULTS) >= 30
    for name in set(FURTHER) - {"gpt2"}:  # which makes a choice that there was before
        assert any(name in SPEC.faults[id].blocks for id in OWN_FAULTS), name
        assert any(name in SPEC.invariants[id].blocks for id in OWN), name


@pytest.mark.slow
def test_every_claim_of_theirs_is_true() -> None:
    """Fails when an invariant of a further choice passes a block that its claim says it refutes."""
    matrix = run_faults(["numpy"], faults=OWN_FAULTS, claims_only=True, workers=1)
    assert matrix.survivors == ()
    assert not matrix.untrue
    claimed = {(id, fault) for id in OWN for fault in SPEC.invariants[id].refuted_by}
    killed = {(kill.invariant, row.fault) for row in matrix.rows for kill in row.kills}
    assert claimed <= killed


def test_a_fault_of_a_further_kind_is_tried_unasked() -> None:
    """Fails when a kill matrix without --block passes over the faults that no usual kind can show."""
    matrix = run_faults(
        ["numpy"], faults=["window-ignored"], claims_only=True, first_kill=True, profile="quick", workers=1
    )
    assert {row.block for row in matrix.rows} == {"mistral"}
    usual = run_faults(["numpy"], faults=["scale-missing"], claims_only=True, profile="quick", workers=1)
    assert {row.block for row in usual.rows} <= set(USUAL)


def _window_of_all(block: Any) -> Callable[..., Any]:
    return lambda x, position_offset=0: (
        NumpyBackend()
        .build(block.config.replace(window=None), block.parameters(), "float64")
        .forward(x, position_offset)
    )


def test_a_window_is_seen_from_the_output_alone() -> None:
    """Fails when a kernel that forgets its window, and shows nothing but its output, passes."""

    class Forgetful:
        name = "forgetful"
        dtypes = ("float64",)

        def build(self, config: BlockConfig, parameters: dict[str, np.ndarray], dtype: str) -> Any:
            right = NumpyBackend().build(config, parameters, dtype)
            return type("Block", (), {"forward": staticmethod(_window_of_all(right))})()

    report = verify(Forgetful(), blocks=["mistral"], invariants=["window-honoured", "output-parity"], profile="quick")
    assert {case.name: case.verdict for case in report.cases} == {
        "window-honoured": "violated", "output-parity": "violated",
    }  # fmt: skip
