"""What a chapter prints, computed: the strict trace, the learner report and the numbers of the lab, on every backend.

Must hold: the figures below were read in the chapters, or are the digest of a file that the block chapter's program is
tested with; nothing here is a copy of what blocklaws printed. Each kind of record is shown to change with faults.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces_support import invoke, write_right
from property_support import Altered, faulty

from blocklaws.chapter_reading import chapter_names, load_chapter, read_chapter
from blocklaws.chapter_trace import fixture_text, trace_fixture
from blocklaws.errors import BlocklawsError, SpecError
from blocklaws.fixture_reading import fixture_names
from blocklaws.printed_numbers import fixed, printed
from blocklaws.spec_reading import load_spec
from blocklaws.subjects import Subject

BACKENDS = ("numpy", "torch", "jax")
BLOCK, LAB = "decoder-block-chapter", "numerics-chapter"

#: SHA-256 of the two outputs that the block chapter's program is tested with, as its public repository has them.
PUBLISHED = {
    "strict": "9ef39180dead8b161e856f77a567be7cd9eda2714a3b4bd9747fa7c90a8c2b72",
    "learner": "f626f2d12ff4732fa239266cb7f808525ba5ea8cf144dad73fbde415a554bbf7",
}


def lines(backend: Any, fixture: str, form: str | None = None, **options: Any) -> list[str]:
    """Return the records of a chapter that a backend gives: a registered name, or an object."""
    if isinstance(backend, str):
        if backend != "numpy":
            pytest.importorskip(backend)
        from blocklaws.discovery import find_subjects

        (subject,) = find_subjects(backend)
    else:
        subject = Subject(backend, "under-test")
    return fixture_text(trace_fixture(subject, load_spec(), fixture, form, **options)).split("\n")


# --- the strict trace: the chapter's tables in its records -----------------------------------------------------------

#: Stage -> its three rows as the chapter's tables have them, zeros left out at the end of a row.
ROWS = {
    "input": ([2], [0, 2], [0, 0, 2]),
    "attention-norm": ([2], [0, 2], [0, 0, 2]),
    "attention-branch": ([2], [0.010881, 1.989119], [0.666667, 0.666667, 1.788570]),
    "after-attention": ([4], [0.010881, 3.989119], [0.666667, 0.666667, 3.788570]),
    "feed-forward-norm": ([2], [0.005455, 1.999993], [0.341520, 0.341520, 1.940806]),
    "feed-forward-branch": ([3.523188], [0.000015, 3.523159], [0.068180, 0.068180, 3.293781]),
    "output": ([7.523188], [0.010896, 7.512278], [0.734847, 0.734847, 7.082351]),
}
WEIGHTS = {
    (0, 0): [1],
    (0, 1): [0.005440, 0.994560],
    (0, 2): [0.333333, 0.333333, 0.333333],
    (1, 0): [1],
    (1, 1): [0.5, 0.5],
    (1, 2): [0.052857, 0.052857, 0.894285],
}
PROBE = ([7.523188, 0, -7.523188], [0.010896, 7.512278, -7.523174], [7.817198, 7.817198, -1.469694])
POST_NORM = [-0.573144, 1.732042, -0.579449, -0.579449]
STATES = [math.tanh(0.5), math.tanh(-0.25 + 0.75 * 0.46211715726), 0.194699]
NAMES = ["attention_norm.gain", *(f"attention.{name}.weight" for name in ("query", "key", "value", "output"))]
NAMES += ["ffn_norm.gain", *(f"ffn.{name}.weight" for name in ("gate", "up", "down"))]


def row(values: list[float], width: int = 4) -> str:
    """Return a row as the chapter writes one."""
    return f"[{','.join(f'{value:.6f}' for value in [*values, *[0.0] * (width - len(values))])}]"


def strict_records() -> list[str]:
    """Return the records that the chapter's listing and tables ask for."""
    order = "attention-norm,attention,residual-1,feed-forward-norm,feed-forward,residual-2"
    sizes = "batch=1|tokens=3|model_width=4|heads=2|head_width=2|feed_forward_width=4|epsilon=0.000000"
    shapes = dict.fromkeys(ROWS, "[1,3,4]")
    places = list(shapes)
    shaped = [*places[:2], "attention-weights", *places[2:], "probe-logits"]
    shapes |= {"attention-weights": "[1,2,3,3]", "probe-logits": "[1,3,3]"}
    seen = {0: "allowed,blocked,blocked", 1: "allowed,allowed,blocked", 2: "allowed,allowed,allowed"}
    return [
        f"CONFIG|{sizes}|stage_order=[{order}]",
        *(f"SHAPE|stage={stage}|value={shapes[stage]}" for stage in shaped),
        *(
            f"STAGE|name={stage}|" + "|".join(f"token_{token}={row(list(its))}" for token, its in enumerate(rows))
            for stage, rows in ROWS.items()
        ),
        *(
            f"WEIGHT|head={head}|query={query}|visibility=[{seen[query]}]|values={row(list(its), 3)}|row_sum=1.000000"
            for (head, query), its in WEIGHTS.items()
        ),
        "MERGE|name=attention|identity=input|branch=attention-branch|result=after-attention|exact=true",
        "MERGE|name=feed-forward|identity=after-attention|branch=feed-forward-branch|result=output|exact=true",
        *(f"PROBE|token={token}|values={row(list(its), 3)}" for token, its in enumerate(PROBE)),
        f"ORDER_PROOF|pre_norm=true|post_norm_differs=true|post_norm_token_1={row(POST_NORM)}"
        f"|pre_norm_token_1={row([0.010881, 3.989119])}",
        "CAUSAL_PROOF|position_0=bitwise-unchanged|position_1=bitwise-unchanged|position_2=changed"
        "|future_probabilities=exact-zero",
        "PARAMETERS|tensors=9|scalars=120|bias=false|stable_order=true|distinct=true"
        f"|names=[{','.join(f'decoder.block.0.{name}' for name in NAMES)}]",
        "GRADIENTS|input=12|parameters=120|total=132|tolerance=0.000020|passed=true|tape_finite=true",
        f"HISTORY|rnn_style_states={row(STATES, 3)}|sequential=true|original_post_norm=true|modern_pre_norm=true"
        "|numeric_order_contrast=true",
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_strict_trace_has_every_figure_of_the_chapter(backend: str) -> None:
    """Fails if a record, its order, a separator or a printed digit is not the chapter's."""
    assert lines(backend, BLOCK, "strict") == strict_records()
    assert len(strict_records()) == 33


@pytest.mark.parametrize("form", PUBLISHED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_output_is_the_published_one_byte_for_byte(backend: str, form: str) -> None:
    """Fails if a reader who runs the chapter's program and compares the two outputs sees a difference."""
    if backend != "numpy":
        pytest.importorskip(backend)
    done = invoke("trace", backend, "--fixture", BLOCK, "--format", form)
    assert done.exit_code == 0
    assert hashlib.sha256(done.stdout_bytes).hexdigest() == PUBLISHED[form], done.stdout


def test_both_llama_kinds_of_block_give_the_same_records() -> None:
    """Fails if another kind of block that the example is of cannot be chosen."""
    assert lines("numpy", BLOCK, "strict", block="llama-gqa") == strict_records()


def test_float32_shows_its_own_digits_and_no_slopes() -> None:
    """Fails if a dtype in which short differences say nothing claims slopes, or its sums are called inexact."""
    found = lines("numpy", BLOCK, "strict", dtype="float32")
    assert found[-2].startswith("GRADIENTS|input=unavailable|parameters=unavailable|total=unavailable")
    assert [line for line in found if line.startswith("MERGE")] == strict_records()[23:25]
    assert all(line.startswith(want.partition("|")[0]) for line, want in zip(found, strict_records(), strict=True))


# --- the lab, part by part -------------------------------------------------------------------------------------------

#: What the numerics chapter prints or says of its run, in our records.
FIGURES = [
    "part_1=state:[1.000000,3.000000] update:[0.500000,-0.500000] sum:[1.500000,2.500000]",
    "part_1=layers:8 branch_scale:0.5 plain_gradient:0.00390625 residual_gradient:25.62890625",
    "part_1=layers:8 branch_scale:-1.0 residual_gradient:0.0",
    "part_2=row:[1.0,3.0,5.0,7.0] centered:[-3.0,-1.0,1.0,3.0] mean:4.000000 variance:5.000000 epsilon:0.00001",
    "part_2=normalized:[-1.341639,-0.447213,0.447213,1.341639] mean:0.000000 variance:0.999998",
    "part_2=gain:2 bias:3 affine:[0.316721,2.105574,3.894426,5.683279] mean:3.000000 variance:3.999992",
    "part_2=constant_row:[2.0,2.0,2.0,2.0] normalized:[0.0,0.0,0.0,0.0]",
    "part_3=input:[2,4,8] heads:2 head_width:4",
    "part_3=stage:output shape:[2,4,8] rms:1.132338",
    "part_3=parameters:872 attention:288 feed_forward:552 attention_norm:16 feed_forward_norm:16",
    "part_3=trace_from_forward:0.000000 forward_from_reference:0.000000",
    "part_4=shapes:[2,4,8]->[2,4,32]->[2,4,8]",
    "part_4=gelu_of:[-1.0,0.0,1.0] gives:[-0.158655,0.000000,0.841345]",
    "part_4=last_row_changed earlier_rows:0.000000",
    "part_5=two_blocks:[2,4,8] earlier_rows:0.000000 changed_row:10.453190",
    "part_5=norm_over_tokens_and_features earlier_rows:1.571958",
    "part_6=zero_branches output_from_input:0.000000 gradient_from_ones:0.000000",
    "part_6=mean_square:1.282190 input_gradient_norm:0.307260 every_gradient_finite:true",
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_lab_has_every_figure_that_is_printed(backend: str) -> None:
    """Fails if a backend is off in a digit that the lab prints, those of its drawn block among them."""
    found = lines(backend, LAB)
    assert [line for line in FIGURES if line not in found] == []
    assert found == lines("numpy", LAB)
    parts = [line.partition("=")[0] for line in found[1:]]
    assert parts == sorted(parts)
    assert set(parts) == {f"part_{number}" for number in range(1, 7)}


# --- every kind of record can be wrong -------------------------------------------------------------------------------

#: Kind of record -> faults that must show in it.
SEEN_IN = {
    "CONFIG": ("gate-sigmoid", "value-rotated", "norm-over-tokens"),
    "SHAPE": ("last-token-dropped", "batch-of-one-squeezed"),
    "STAGE": ("scale-missing", "activation-missing", "residual-scaled"),
    "WEIGHT": ("scale-missing", "mask-off-by-one", "softmax-over-heads"),
    "MERGE": ("residual-dropped", "residual-scaled", "feed-forward-residual-from-norm"),
    "PROBE": ("scale-missing", "gate-sigmoid", "variance-unbiased"),
    "ORDER_PROOF": ("mask-off-by-one", "residual-dropped", "scale-missing"),
    "CAUSAL_PROOF": ("mask-off-by-one", "mask-missing", "norm-over-tokens-and-features"),
    "PARAMETERS": ("bias-left-on", "parameters-out-of-order", "parameter-not-registered", "norm-shared"),
    "GRADIENTS": ("gain-gradient-missing", "softmax-gradient-truncated", "residual-gradient-dropped"),
    "HISTORY": ("residual-dropped", "norm-over-tokens", "variance-squared"),
}


def test_every_kind_of_record_is_shown_to_change() -> None:
    """Fails if a kind of record is added without a fault that shows in it."""
    assert {line.partition("|")[0] for line in strict_records()} == set(SEEN_IN)


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind, faults in SEEN_IN.items() for fault in faults])
def test_a_fault_shows_in_its_records(kind: str, fault: str) -> None:
    """Fails if a record is printed from anything but what the block computes."""
    found, right = lines(faulty(fault), BLOCK, "strict"), strict_records()
    assert len(found) == 33
    assert [line.partition("|")[0] for line in found] == [line.partition("|")[0] for line in right]
    assert any(a != b for a, b in zip(found, right, strict=True) if b.startswith(f"{kind}|"))


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_fault_of_another_backend_shows(backend: str) -> None:
    """Fails if what is printed for a backend does not come from it."""
    pytest.importorskip(backend)
    found, right = lines(faulty("mask-off-by-one", backend), BLOCK, "strict"), strict_records()
    changed = {want.partition("|")[0] for line, want in zip(found, right, strict=True) if line != want}
    assert {"STAGE", "WEIGHT", "PROBE", "CAUSAL_PROOF"} <= changed


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        ("parameter-not-registered", "scalars:"),
        ("empty-tokens-accepted", "empty_tokens:false"),
        ("position-range-unchecked", "position_range:false"),
        ("wide-input-truncated", "input_width:false"),
        ("gain-gradient-missing", "total:132 tolerance:0.000020 passed:false"),
        ("mask-off-by-one", "prefix_1_bitwise:false"),
        ("gate-sigmoid", "feed_forward_norm->other->residual"),
        ("residual-dropped", "pre_norm:false"),
        ("positions-accumulate", "replay=mismatch"),
        ("last-token-dropped", "output:[1,2,4]"),
    ],
)
def test_the_learner_report_tells_of_a_fault(fault: str, shown: str) -> None:
    """Fails if the report for people says that all is well of a block that is wrong."""
    found, right = "\n".join(lines(faulty(fault), BLOCK)), "\n".join(lines("numpy", BLOCK))
    assert found != right
    assert shown in found


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ("part_1=state", "output-bias-missing"),
        ("part_1=layers:8 branch_scale:0.5", "residual-gradient-dropped"),
        ("part_1=layers:8 branch_scale:-1", "norm-detached"),
        ("part_2=normalized", "variance-unbiased"),
        ("part_2=gain", "eps-outside-root"),
        ("part_2=constant_row", "eps-missing"),
        ("part_3=stage:attention_norm", "variance-unbiased"),
        ("part_3=stage:attention_branch", "mask-off-by-one"),
        ("part_3=stage:after_attention", "residual-scaled"),
        ("part_3=stage:feed_forward_norm", "variance-unbiased"),
        ("part_3=stage:feed_forward_branch", "gelu-quick"),
        ("part_3=stage:output", "gelu-tanh-for-erf"),
        ("part_3=parameters", "bias-not-listed"),
        ("part_3=trace_from", "gelu-tanh-for-erf"),
        ("part_4=shapes", "bias-not-listed"),
        ("part_4=gelu", "gelu-tanh-for-erf"),
        ("part_4=last_row", "norm-over-tokens"),
        ("part_5=two_blocks", "mask-off-by-one"),
        ("part_6=zero_branches", "residual-dropped"),
        ("part_6=mean_square", "softmax-gradient-truncated"),
    ],
)
def test_a_part_of_the_lab_tells_of_a_fault(part: str, fault: str) -> None:
    """Fails if a number of the lab does not come from the block."""
    right = [line for line in lines("numpy", LAB) if line.startswith(part)]
    found = lines(faulty(fault), LAB)
    assert len(right) == 1
    assert right[0] not in found


@pytest.mark.parametrize("by", [1.1e-6, -1.1e-6])
def test_one_unit_of_the_last_digit_shows(by: float) -> None:
    """Fails if a stage could be off by what is printed and the trace were the same."""

    def trace(block: Any, x: Any, position_offset: int = 0) -> Any:
        stages = dict(block.trace(x, position_offset))
        moved = stages["attention_branch"].copy()
        moved[0, 1, 0] += by
        return {**stages, "attention_branch": moved}

    found = lines(Altered(trace=trace), BLOCK, "strict")
    changed = [want for line, want in zip(found, strict_records(), strict=True) if line != want]
    assert changed[1].startswith("STAGE|name=attention-branch")
    assert changed[2].startswith("MERGE|name=attention")


# --- what cannot be shown --------------------------------------------------------------------------------------------


def test_what_cannot_be_formed_is_told_and_keeps_its_record(tmp_path: Path) -> None:
    """Fails if a block of another shape loses records, ends in a traceback, or its reasons are not told."""
    file = tmp_path / "short.py"
    file.write_text(
        "from blocklaws.discovery import find_subjects\n"
        "Short = find_subjects('numpy')[0].with_fault('last-token-dropped').backend\n",
        encoding="utf-8",
    )
    done = invoke("trace", f"{file}:Short", "--fixture", BLOCK, "--format", "strict")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 33
    assert "|token_2=unavailable" in done.stdout
    assert "unavailable: central-differences: forward returned shape" in done.stderr
    assert "unavailable: output[0, 2]: " in done.stderr


def test_a_backend_that_does_not_validate_has_no_refusals() -> None:
    """Fails if boundaries are crossed on a block that promises nothing, or said to be refused."""
    errors = lines(Altered(validates=False), BLOCK)[7]
    assert {part.partition(":")[2] for part in errors.removeprefix("errors=").split()} == {"unavailable"}


def test_gradients_that_are_not_given_are_not_counted() -> None:
    """Fails if coordinates are said to be compared that the block does not give."""

    def gradients(block: Any, x: Any, cotangent: Any, position_offset: int = 0) -> Any:
        found = block.gradients(x, cotangent, position_offset)
        return {name: value for name, value in found.items() if not name.endswith("gain")}

    report = lines(Altered(gradients=gradients), BLOCK)
    assert report[6] == "gradcheck=input:12 parameters:112 total:124 tolerance:0.000020 passed:false tape_finite:true"
    assert lines(Altered(gradients=gradients), LAB)[-1].endswith("every_gradient_finite:false")


def test_a_block_without_a_cache_releases_none() -> None:
    """Fails if a boundary that was not tried is said to be refused."""

    class Uncached(Altered):
        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            block = super().build(config, parameters, dtype)
            block.forward_cached = None
            return block

    assert lines(Uncached(), BLOCK)[7].endswith("position_range:true released_input:unavailable")


def test_a_world_whose_block_is_not_supported_is_left_out_with_its_reason() -> None:
    """Fails if one kind of block that a backend has not hides the rest of a chapter."""

    class Layered(Altered):
        def supports(self, config: Any) -> str | None:
            return None if config.norm == "layer" else "only layer norms"

    data = trace_fixture(Subject(Layered(), "layered"), load_spec(), LAB)
    assert data["unavailable"] == ["chain: only layer norms"]
    kept = [line for line in FIGURES if "layers:" not in line]
    assert [line for line in kept if line not in fixture_text(data).split("\n")] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fixture", "decoder-block-chaptr"), "unknown fixture 'decoder-block-chaptr' (did you mean 'decoder-block-"),
        (("--fixture", "nothing"), f"there are {', '.join((*chapter_names(), *fixture_names()))}"),
        (("--fixture", LAB, "--format", "strict"), f"{LAB} has no format 'strict'; it has learner and table"),
        (("--fixture", "norm-row", "--format", "learner"), "norm-row has no format 'learner'; it has table"),
        (("--fixture", BLOCK, "--block", "gpt"), "of decoder-block-chapter) is of llama and llama-gqa, not of gpt; "),
        (("--fixture", BLOCK, "--block", "lama"), "unknown block 'lama' (did you mean 'llama'?)"),
        (("--fixture", LAB, "--block", "gpt"), "residual-path (of numerics-chapter) is of plain, not of gpt; leave"),
        (("--fixture", BLOCK, "--seed", "1"), "--seed draws a world, and a fixture is one; leave --seed or --fixture"),
        (("--fixture", BLOCK, "--dtype", "float16"), "backend 'numpy' does not offer float16; "),
        (("--block", "llama", "--format", "strict"), "--format strict is of a chapter; name it with --fixture"),
        ((), "give the kind of block with --block, or a worked example with --fixture"),
        (("--fixture", BLOCK, "--format", "short"), "'short' is not one of 'table', 'learner', 'strict'"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    """Fails if a mistake of the call is told badly, or ends in a traceback."""
    done = invoke("trace", "numpy", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_block_that_shows_too_little_is_refused_in_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    """Fails if a backend without trace or gradients gets a table of holes, or a traceback."""
    monkeypatch.chdir(tmp_path)
    done = invoke("trace", write_right(tmp_path), "--fixture", BLOCK)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"blocklaws: backend 'right' cannot give the learner records of {BLOCK}: "
        "the block has no gradients and no parameters\n"
    )
    bare = tmp_path / "bare.py"
    bare.write_text("def block(x, parameters, config):\n    return x\n", encoding="utf-8")
    done = invoke("trace", f"{bare}:block", "--fixture", LAB)
    assert done.exit_code == 2
    assert done.stderr.endswith("the block has no gradients and no parameters and no trace\n")
    narrow = tmp_path / "narrow.py"
    narrow.write_text(bare.read_text(encoding="utf-8") + "block.multiples = {'d_head': 8}\n", encoding="utf-8")
    done = invoke("trace", f"{narrow}:block", "--fixture", BLOCK)
    assert done.exit_code == 2
    assert "d_head=2 is no multiple of 8" in done.stderr


def test_a_block_that_raises_is_told_in_one_line() -> None:
    """Fails if what a block raises is a traceback, or is taken for a value that is not available."""

    def forward(block: Any, x: Any, position_offset: int = 0) -> Any:
        raise RuntimeError("out of order")

    with pytest.raises(BlocklawsError, match="backend 'altered': forward raised RuntimeError: out of order"):
        lines(Altered(forward=forward), BLOCK)


# --- what the page shows ---------------------------------------------------------------------------------------------


def test_the_founding_page_shows_what_is_printed(root: Path) -> None:
    """Fails if a line that docs/founding-documents.md shows under a command is not printed by it."""
    page = (root / "docs" / "founding-documents.md").read_text(encoding="utf-8")
    shown = [part for block in page.split("```console\n$ ")[1:] for part in block.partition("\n```")[0].split("\n$ ")]
    assert len(shown) == 5
    for command, *wanted in (part.split("\n") for part in shown):
        words = command.split()[1:]
        if words[1] != "numpy":
            pytest.importorskip(words[1])
        done = invoke(*words)
        assert done.exit_code == 0
        assert [line for line in wanted if line != "..." and line not in done.stdout.split("\n")] == []


# --- other faces -----------------------------------------------------------------------------------------------------


def test_as_json_a_record_has_its_text_and_its_values() -> None:
    """Fails if a program has to read the texts to get a number, or gets it rounded."""
    data = json.loads(invoke("trace", "numpy", "--fixture", BLOCK, "--format", "strict", "--json").stdout)
    assert {key: data[key] for key in ("backend", "fixture", "format", "block", "dtype", "unavailable")} == {
        "backend": "numpy",
        "fixture": BLOCK,
        "format": "strict",
        "block": "llama",
        "dtype": "float64",
        "unavailable": [],
    }
    assert [record["text"] for record in data["records"]] == strict_records()
    weight = data["records"][18]["values"]
    assert (weight["h"], weight["q"]) == (0, 1)
    assert weight["attention_weights[0, h, q]"][0] == pytest.approx(0.0054402, abs=1e-7)
    assert data["records"][31]["values"] == {
        "input_slopes": 12,
        "parameter_slopes": 120,
        "input_slopes + parameter_slopes": 132,
        "slope_tolerance": 2e-5,
        "slopes_agree": True,
        "gradients_finite": True,
    }


@pytest.mark.parametrize("name", [*fixture_names(), BLOCK, LAB])
def test_every_fixture_has_a_table(name: str) -> None:
    """Fails if the world of a worked example cannot be looked at, or a right block leaves the bound in it."""
    done = invoke("trace", "numpy", "--fixture", name, "--format", "table")
    assert done.exit_code == 0, done.output
    fixture = load_chapter(name).fixture if name in chapter_names() else name
    assert f", {fixture}\n" in done.stdout
    assert done.stdout.endswith("every stage that is shown lies within the bound of float64\n")


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", [0.1234565, 0.0078125, 2.5e-6, 1.0000005, 1234.0000015, -0.1234575])
def test_a_tie_falls_the_same_way_whatever_the_last_bits_are(tie: float) -> None:
    """Fails if two backends that differ by roundings print different digits where the exact value is a tie."""
    near = [tie * (1 + sign * step * 2.0**-52) for sign in (-1, 1) for step in range(9)]
    assert len({fixed(value, 6) for value in near}) == 1
    assert len({f"{value:.6f}" for value in near}) > 1  # one rounding of the value as it is


def test_zero_has_no_sign_and_what_is_no_number_says_so() -> None:
    """Fails if noise around zero shows as -0.000000, or an infinity as a number."""
    assert {fixed(value, 6) for value in (0.0, -0.0, 1e-17, -1e-17, -4.9e-7, 4.9e-7)} == {"0.000000"}
    assert [fixed(value, 3) for value in (math.nan, math.inf, -math.inf)] == ["NaN", "inf", "-inf"]
    assert fixed(-0.00051, 3) == "-0.001"


def test_away_from_ties_the_digits_are_those_of_the_exact_value() -> None:
    """Fails if the second rounding changes what one rounding of the exact value would print."""
    random = np.random.default_rng(3)
    values = random.normal(size=4000) * 10.0 ** random.integers(-7, 6, 4000)
    assert [fixed(float(value), 6).lstrip("-") for value in values] == [f"{abs(value):.6f}" for value in values]


def test_values_are_printed_by_their_kind() -> None:
    """Fails if a truth value is printed as a number, a whole number with a point, or a word without its label."""
    assert printed(True, 6, {}) == "true"
    assert printed((1, 3, 4), 6, {}) == "[1,3,4]"
    assert printed(np.array([[0.5, -0.0], [1.0, 2.0]]), 1, {}) == "[[0.5,0.0],[1.0,2.0]]"
    assert printed(("a", "b"), 6, {"a": "first"}) == "[first,b]"
    assert printed(np.array([True, False]), 6, {}) == "[true,false]"


# --- chapters that cannot be meant -----------------------------------------------------------------------------------

GOOD = """\
says: An example.
source: somewhere
fixture: identity-block
constants: {scale: 2}
worlds:
  twice: {fixture: identity-block, input: scale * input}
measured:
  - by: parameter-counts
    with: {all: "*"}
    gives: {all: every}
values:
  moved: twice.output - output
learner:
  - "T={T} moved={max(abs(moved))|3} all={every}"
  - each: {t: T}
    record: "row {t}={output[0, t]}"
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("says:", "sais:", "unknown key 'sais' (did you mean 'says'?)"),
        ("fixture: identity-block\n", "fixture: identity-blok\n", "did you mean 'identity-block'"),
        ("scale * input", "scales * input", "world 'twice': input: 'scales * input': unknown name 'scales'"),
        ("{scale: 2}", "{T: 2}", "'T' already means something else"),
        ("{scale: 2}", "{probe: 2}", "'probe' already means something else"),
        ("worlds:", "labels: [a]\nworlds:", "labels must be a mapping (key: value), but here is a list"),
        ("worlds:", "labels: {a: 1}\nworlds:", "labels: a: must be a text, but here is 1"),
        ("    gives: {all: every}\n", "", "gives must be a mapping (key: value), but here is nothing"),
        ("scale * input", "1", "world 'twice': input: an expression is a text, but here is 1"),
        ("twice: {", "output: {", "'output' already means something else"),
        ("twice: {", "scale: {", "'scale' already means something else"),
        ("{fixture: identity-block, input", "{fixture: identity-block, layer: 1, input", "layer: is 1"),
        ("gives: {all: every}", "gives: {all: scale}", "'scale' already means something else"),
        (
            "    gives: {all: every}",
            "    of: thrice\n    gives: {all: every}",
            "no world 'thrice' (did you mean 'twice'?)",
        ),
        ("twice.output - output", "twice.outputt - output", "outputt"),
        ("moved:", "T:", "'T' already means something else"),
        ("moved:", "every:", "'every' already means something else"),
        ("{T}", "{T", "a brace without its partner"),
        ("{T}", "{T]}", "this is not an expression"),
        ("{every}", "{evry}", "unknown name 'evry'"),
        ("each: {t: T}", "each: {output: T}", "'output' already means something else"),
        ("each: {t: T}", "each: {t: S}", "unknown name 'S'"),
        ("learner:", "learned:", "unknown key 'learned' (did you mean 'learner'?)"),
    ],
)
def test_a_chapter_that_cannot_be_meant_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    """Fails if a mistake in a chapter's file is told without its line, or not at all."""
    path = tmp_path / "x.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert read_chapter("x", path).needs("learner") == frozenset()
    assert old in GOOD
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(SpecError, match=r"x\.yaml:\d+:\d+: ") as raised:
        read_chapter("x", path)
    assert said in str(raised.value)


def test_a_measurement_that_does_not_exist_is_told() -> None:
    """Fails if a mistyped measurement ends in a traceback."""
    from blocklaws.discovery import find_measurement

    with pytest.raises(BlocklawsError, match=r"unknown measurement 'chains' \(did you mean 'chain'\?\); there are "):
        find_measurement("chains")


@pytest.mark.parametrize("name", chapter_names())
def test_every_name_of_a_chapter_is_used(name: str) -> None:
    """Fails if a chapter's file has a value, a constant, a world or a measured number that no record shows."""
    chapter = load_chapter(name)
    said = {path[0] for expression in chapter.values.values() for path in expression.references}
    said |= {
        path[0]
        for world in chapter.worlds.values()
        for expression in (world.input, world.cotangent)
        if expression is not None
        for path in expression.references
    }
    said |= {
        path[0]
        for records in chapter.formats.values()
        for record in records
        for field in record.fields
        for path in field.expression.references
    }
    said |= {measured.of for measured in chapter.measured}
    given = {given for measured in chapter.measured for given in measured.gives.values()}
    assert {*chapter.values, *chapter.worlds, *given, *chapter.constants} - said == set()
