"""The kill matrix: every fault is refuted, every claim is true, and what the matrix says of a bad spec is so.

Must hold: the matrix of each built-in backend is measured here, in claims mode and with a fixed seed, in every run of
the tests; each way in which a matrix can fail is shown on a spec or a backend that fails in that way alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke, write_spec
from rich.console import Console

import blocklaws.kill_matrix
from blocklaws.discovery import find_subjects
from blocklaws.kill_matrix import Matrix, Plan, run_faults
from blocklaws.kill_results import Kill, Row, is_reference_free
from blocklaws.spec_reading import load_spec

BACKENDS = ("numpy", "torch", "jax")

#: Three invariants: the first refutes what it names, the others show in which ways a claim can fail.
LOOK_AHEAD = """\
invariants:
  - id: no-look-ahead
    says: Changing a token changes no earlier output row.
    where: T >= 2
    pick: {p: 1 .. T-1}
    vary: {input: {tokens: "p:", by: fresh}}
    then: identical(after.output[:, :p], output[:, :p])
    refuted_by: [mask-off-by-one]
"""
FINITE_GRADIENT = """\
  - id: gradient-is-finite
    says: The gradient of the input is finite.
    then: finite(gradient.input)
    refuted_by: [mask-off-by-one]
"""
SAME_SHAPE = """\
  - id: same-shape
    says: The output has the shape of the input.
    then: output.shape == input.shape
"""

#: The NumPy backend under two faults: one raises where the spec's fault is a wrong mask, the other scales the output.
PLANTED = """\
from blocklaws.discovery import find_subjects

RIGHT = find_subjects("numpy")[0].backend


class Planted:
    name = "planted"
    dtypes = ("float64",)
    faults = ("mask-missing", "mask-off-by-one")

    def __init__(self, fault=None):
        self.fault = fault

    def with_fault(self, fault):
        return Planted(fault)

    def build(self, config, parameters, dtype):
        return Block(RIGHT.build(config, parameters, dtype), self.fault)


class Block:
    def __init__(self, right, fault):
        self.right, self.fault = right, fault

    def forward(self, x, position_offset=0):
        if self.fault == "mask-missing":
            raise RuntimeError("no kernel for this")
        return self.right.forward(x, position_offset) * (1 + x.sum())

    def trace(self, x, position_offset=0):
        stages = self.right.trace(x, position_offset)
        return {**stages, "output": self.forward(x, position_offset)}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(matrix: Matrix, width: int = 100) -> str:
    """Return what a matrix shows on a terminal."""
    stream = io.StringIO()
    matrix.render(Console(file=stream, width=width, highlight=False, markup=False, emoji=False))
    return stream.getvalue()


def of_spec(folder: Path, *parts: str, backend: str = "numpy", **options: Any) -> Matrix:
    """Return the quick matrix of a spec that is made of some invariants."""
    options = {"faults": ["mask-off-by-one"], "blocks": (), "profile": "quick", **options}
    return run_faults([backend], spec=write_spec(folder, "".join(parts)), **options)


# --- the built-in backends ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_fault_is_killed_and_every_claim_is_true(
    backend: str, folder: Path, blocklaws: Callable[..., Any]
) -> None:
    """Fails when a fault survives, a `refuted_by` is not true, an invariant is idle, or kills name the wrong stage.

    A process of its own: the shape checks of this one make the NumPy blocks many times slower.
    """
    asked = ("--claims", "--workers", "1", "--json", "m.json")
    done = blocklaws("faults", backend, *asked, cwd=folder, timeout=1800)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    data = json.loads((folder / "m.json").read_text(encoding="utf-8"))
    assert data["score"] == 1
    assert data["declared_but_not_refuted"] == []
    assert not any(rate["share"] < 1 for rate in data["rates"])
    assert {rate["fault"] for rate in data["rates"]} == set(find_subjects(backend)[0].faults)
    right, of = data["localised"]["right"], data["localised"]["of"]
    assert of >= 100
    assert right >= 0.9 * of, done.stdout
    assert data["idle_invariants"] == []
    assert data["declared_but_not_tried"] == []
    refuting = {id for fault in data["faults"] for id in fault["killed_by"]}
    assert refuting == set(load_spec().invariants)


def test_the_faults_are_many_and_each_can_be_planted() -> None:
    """Fails when a fault of the spec exists on no backend, a backend has one that the spec does not say, or few do."""
    spec = load_spec()
    planted = {backend: set(find_subjects(backend)[0].faults) for backend in BACKENDS}
    assert set.union(*planted.values()) == set(spec.faults)
    assert len(spec.faults) >= 100
    assert len(set.intersection(*planted.values())) >= 60
    for backend, faults in planted.items():
        speaking = {one.id for one in spec.faults.values() if one.backends is None or backend in one.backends}
        assert faults == speaking, backend


# --- each way to fail -----------------------------------------------------------------------------------------------


def test_a_claim_that_is_not_true_is_listed_and_fails(folder: Path) -> None:
    """Fails when an invariant may name a fault that it does not refute."""
    matrix = of_spec(folder, LOOK_AHEAD, FINITE_GRADIENT)
    assert matrix.untrue == (("numpy", "gradient-is-finite", "mask-off-by-one"),)
    assert matrix.survivors == ()
    assert matrix.exit_status == 1
    assert "gradient-is-finite: mask-off-by-one on numpy" in told(matrix)


def test_a_claim_is_tried_on_every_block_and_dtype(folder: Path) -> None:
    """Fails when a claim counts as untrue that is true on a later block alone."""
    definition = LOOK_AHEAD + (
        "  - id: bias-shows\n    says: The bias of the attention output is added.\n"
        "    vary: {attention.output_bias: 0}\n    then: not bias or apart(after.output, output)\n"
        "    worlds: [normal]\n    min_informative: 0\n    refuted_by: [output-bias-missing]\n"
    )
    matrix = of_spec(folder, definition, faults=["output-bias-missing"], claims_only=True)
    assert matrix.untrue == ()
    assert matrix.survivors == ()


def test_an_invariant_that_refutes_nothing_is_idle_and_fails(folder: Path) -> None:
    """Fails when an invariant without power passes: here one that only holds, and names nothing."""
    always = "  - id: always\n    says: Batches are not negative.\n    then: output.shape[0] >= 0\n"
    matrix = of_spec(folder, LOOK_AHEAD, always, blocks=["llama"])
    assert matrix.idle == ("always",)
    # Where faults or blocks are left out it may refute something there; nothing left out, it is a failure.
    assert not any("refuted nothing" in problem for problem in matrix.problems)
    everywhere = Matrix(matrix.spec, Plan(("numpy",)), matrix.rows)
    assert any("1 invariant refuted nothing" in problem for problem in everywhere.problems)
    assert everywhere.exit_status == 1
    assert "idle, they refuted no fault that they met (1):\n  always\n" in told(everywhere)


def test_a_survivor_is_listed_and_fails(folder: Path) -> None:
    """Fails when a fault that no invariant refuted does not fail the run, or is not shown before everything else."""
    matrix = of_spec(folder, LOOK_AHEAD, faults=["mask-off-by-one", "gain-missing"])
    assert matrix.survivors == (("numpy", "gain-missing"),)
    assert matrix.score == 0.5
    assert matrix.exit_status == 1
    assert told(matrix).index("survivors: 1 fault") < told(matrix).index("\nnorms\n")


def test_a_fault_that_nobody_claims_survives_the_quick_matrix(folder: Path) -> None:
    """Fails when a fault that meets no invariant vanishes instead of counting as alive."""
    matrix = of_spec(folder, LOOK_AHEAD, faults=["mask-off-by-one", "gain-missing"], claims_only=True)
    assert matrix.survivors == (("numpy", "gain-missing"),)
    assert "met      no invariant at all" in told(matrix)
    # Where it is asked what one invariant claims, the faults of the others are nothing to it.
    asked = of_spec(folder, LOOK_AHEAD, faults=[], invariants=["no-look-ahead"], claims_only=True)
    assert [fault for _, fault in asked.by_fault] == ["mask-off-by-one"]
    assert asked.exit_status == 0


def test_what_a_fault_raises_is_no_kill(folder: Path) -> None:
    """Fails when a block that raises counts as refuted, or its claim as true."""
    (folder / "planted.py").write_text(PLANTED, encoding="utf-8")
    spec = LOOK_AHEAD.replace("[mask-off-by-one]", "[mask-missing]")
    matrix = of_spec(folder, spec, backend="planted.py:Planted", faults=["mask-missing"])
    assert matrix.survivors == (("planted", "mask-missing"),)
    assert matrix.untrue == (("planted", "no-look-ahead", "mask-missing"),)
    assert "RuntimeError: no kernel for this (planted.py:" in " ".join(told(matrix).split())


def test_a_stage_that_is_not_at_fault_is_not_localised(folder: Path) -> None:
    """Fails when any stage counts as the right one; in post-norm a norm's output is the stream after it."""
    (folder / "planted.py").write_text(PLANTED, encoding="utf-8")
    matrix = of_spec(folder, LOOK_AHEAD, backend="planted.py:Planted")
    assert matrix.survivors == ()
    assert matrix.localised == (0, 1)
    assert "mask-off-by-one on planted (at fault attention_weights, named output)" in told(matrix)

    def row(block: str, stage: str) -> Row:
        return Row("gain-missing", "numpy", block, "float64", 0, (Kill("norm-statistic", 1, stage),), ())

    for block, stage, right in (
        ("llama", "attention_norm", 1),
        ("llama", "after_attention", 0),
        ("original", "after_attention", 1),
        ("original", "output", 0),
    ):
        assert Matrix(load_spec(), Plan(("numpy",)), (row(block, stage),)).localised == (right, 1), (block, stage)


# --- what is shown --------------------------------------------------------------------------------------------------

SHOWN = """\
kill matrix: 3 faults, 3 invariants, profile quick, seed 0

survivors: 1 fault that no invariant refuted
  gain-missing on numpy (llama; float64)
    is       The norms do not apply their gains.
    met      no-look-ahead, gradient-is-finite, same-shape

under a backend: how many invariants refuted the fault there; - it cannot be given the fault
refuted by: the quickest first; ex.: examples until the quickest kill; stage: the first to diverge
fault                 numpy  refuted by                                       ex.  stage
norms
  gain-missing            0
mask-and-softmax
  mask-off-by-one         1  no-look-ahead                                      1  attention_weights
behaviour-shape-and-precision
  last-token-dropped      1  same-shape                                         1  output

score 66.7 %: 2 of 3 faults refuted
localised 100.0 %: the stage at fault is named for 2 of 2 that show in a stage
untrue, the invariant names the fault and did not refute it (1):
  gradient-is-finite: mask-off-by-one on numpy
unproven, they name no fault (refuted_by) (1):
  same-shape (refuted last-token-dropped)
exit status 1: 1 fault survived
"""


def test_the_command_shows_the_matrix_and_writes_it(folder: Path) -> None:
    """Fails when the text of a matrix, its JSON or its exit status is not what a reader was promised."""
    write_spec(folder, LOOK_AHEAD + FINITE_GRADIENT + SAME_SHAPE)
    done = invoke(
        "faults", "numpy", "--spec", "spec.yaml", "--profile", "quick", "--block", "llama", "--dtype", "float64",
        "--fault", "gain-missing", "--fault", "mask-off-by-one", "--fault", "last-token-dropped", "--json", "m.json",
    )  # fmt: skip
    assert (done.exit_code, done.stderr) == (1, "")
    assert done.stdout == SHOWN
    data = json.loads((folder / "m.json").read_text(encoding="utf-8"))
    first = data["faults"][0]
    assert {"fault", "backend", "block", "killed_by", "survived", "examples_to_kill"} <= set(first)
    assert (first["fault"], first["killed_by"], first["survived"]) == ("gain-missing", [], True)
    assert data["faults"][1]["examples_to_kill"] == {"no-look-ahead": 1}
    assert data["score"] == 0.6667
    assert data["idle_invariants"] == ["gradient-is-finite"]
    assert data["declared_but_not_refuted"] == [["numpy", "gradient-is-finite", "mask-off-by-one"]]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_line_of_the_matrix_is_wider_than_the_window(folder: Path, width: int) -> None:
    """Fails when a row of the matrix wraps."""
    text = told(of_spec(folder, LOOK_AHEAD, SAME_SHAPE, blocks=["llama"]), width)
    rows = [line for line in text.splitlines() if line.lstrip().startswith("mask-off-by-one")]
    assert rows
    assert all(len(line) <= width for line in rows), text


def test_rates_over_seeds(folder: Path) -> None:
    """Fails when a fault counts as killed that one seed leaves alive, or the rate is not the share of the seeds."""
    spec = load_spec()

    def row(seed: int, *examples: int) -> Row:
        kills = tuple(Kill("prefix-invariance", number, None) for number in examples)
        return Row("mask-off-by-one", "numpy", "llama", "float64", seed, kills, () if kills else ("prefix-invariance",))

    matrix = Matrix(spec, Plan(("numpy",), seeds=4), (row(0, 1), row(1, 5), row(2), row(3, 9)))
    (rate,) = matrix.rates.values()
    assert (rate.share, rate.examples) == (0.75, 5)
    assert matrix.survivors == (("numpy", "mask-off-by-one"),)
    assert matrix.weak == (("numpy", "prefix-invariance", "mask-off-by-one"),)
    assert matrix.untrue == ()
    text = told(matrix)
    assert "alive in 25 % of the seeds" in text
    assert "prefix-invariance: mask-off-by-one on numpy (75 %)" in text
    measured = of_spec(folder, LOOK_AHEAD, seeds=3, seed=7, blocks=["llama"])
    assert {row.seed for row in measured.rows} == {7, 8, 9}


def test_an_advisory_invariant_meets_what_it_claims(folder: Path) -> None:
    """Fails when an invariant that is off by default judges faults that nobody asked it about."""
    off = FINITE_GRADIENT.replace("says:", "advisory: true\n    says:").replace("[mask-off-by-one]", "[gain-missing]")
    claimed = of_spec(folder, LOOK_AHEAD, off, faults=["mask-off-by-one"], blocks=["llama"])
    assert claimed.tried == ("no-look-ahead",)
    assert of_spec(folder, LOOK_AHEAD, off, faults=["gain-missing"], blocks=["llama"]).untrue
    asked = of_spec(folder, LOOK_AHEAD, off, invariants=["gradient-is-finite"], blocks=["llama"])
    assert asked.tried == ("gradient-is-finite",)


def test_unearned_invariants_are_those_that_another_one_covers() -> None:
    """Fails when an invariant counts as unearned that refutes something alone, or one that needs the reference does."""
    spec = load_spec()
    assert is_reference_free(spec.invariants["prefix-invariance"])
    assert not is_reference_free(spec.invariants["output-parity"])
    assert not is_reference_free(spec.invariants["gradients-match-central-differences"])

    def row(fault: str, *names: str) -> Row:
        return Row(fault, "numpy", "llama", "float64", 0, tuple(Kill(name, 1, None) for name in names), ())

    rows = (
        row("mask-missing", "prefix-invariance", "future-weights-are-zero", "output-parity"),
        row("norm-over-tokens", "prefix-invariance"),
    )
    assert Matrix(spec, Plan(("numpy",)), rows).unearned == ("future-weights-are-zero",)
    assert Matrix(spec, Plan(("numpy",), claims_only=True), rows).unearned == ()


def _met(matrix: Matrix, backend: str) -> set[str]:
    return {name for row in matrix.rows if row.backend == backend for name in row.met}


def test_the_first_backend_meets_every_invariant_and_the_others_what_claims_them() -> None:
    """Fails when a second backend's claims are not tried, when it meets everything unasked, or when it is not said."""
    claiming, other = "attention-branch-definition", "arguments-unchanged"
    chosen: dict[str, Any] = {
        "faults": ["output-bias-missing"], "invariants": [claiming, other], "blocks": ["gpt"], "profile": "quick",
    }  # fmt: skip
    matrix = run_faults(["numpy", "torch"], **chosen)
    assert (_met(matrix, "numpy"), _met(matrix, "torch")) == ({claiming, other}, {claiming})
    assert matrix.as_dict()["met_every_invariant"] == ["numpy"]
    assert "a fault meets only the invariants that claim it on torch" in told(matrix)
    asked = run_faults(["torch", "numpy"], every=True, **chosen)
    assert _met(asked, "torch") == _met(asked, "numpy") == {claiming, other}
    assert asked.as_dict()["met_every_invariant"] == ["torch", "numpy"]
    assert "only the invariants" not in told(asked)


@pytest.mark.slow
def test_several_processes_give_the_same_matrix(folder: Path) -> None:
    """Fails when the number of processes changes a row or the order of the rows."""
    options = {"faults": ["mask-off-by-one", "gain-missing", "last-token-dropped"]}
    one, two = (of_spec(folder, LOOK_AHEAD, SAME_SHAPE, workers=workers, **options) for workers in (1, 2))
    assert one.rows == two.rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("numpy", "--fault", "mask-mising"), "unknown fault 'mask-mising' (did you mean 'mask-missing'?)"),
        (("numpy", "--invariant", "prefix-invarance"), "(did you mean 'prefix-invariance'?)"),
        (("numpy", "--block", "lama"), "unknown block 'lama' (did you mean 'llama'?)"),
        (("numpy", "--dtype", "float31"), "unknown dtype 'float31' (did you mean 'float32'?)"),
        (("numpy", "--profile", "fast"), "unknown profile 'fast'"),
        (("nmpy",), "unknown backend 'nmpy' (did you mean 'numpy'?)"),
        (("numpy", "--fault", "square-overflows"), "no backend of numpy can be given square-overflows"),
        (("numpy", "--fault", "gelu-quick", "--block", "llama"), "none of the chosen faults can be shown"),
        (("examples/my_block.py:MyBackend",), "there is no file"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    """Fails when a wrong name is a traceback, an empty matrix, or a success."""
    done = invoke("faults", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_backend_without_faults_is_refused(folder: Path) -> None:
    """Fails when a backend in which nothing can be planted gives an empty matrix."""
    (folder / "mine.py").write_text(PLANTED.replace("faults = (", "unused = ("), encoding="utf-8")
    done = invoke("faults", "mine.py:Planted")
    assert done.exit_code == 2
    assert "has no faults planted in it" in done.stderr


def test_an_interrupt_shows_the_faults_that_were_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when Ctrl-C loses what is known, or half a matrix passes for a whole one or calls an invariant idle."""
    monkeypatch.chdir(tmp_path)
    measure = blocklaws.kill_matrix.measure

    def interrupted(label: str, fault: Any, *given: Any) -> Any:
        if fault.id != "mask-missing":
            raise KeyboardInterrupt
        return measure(label, fault, *given)

    monkeypatch.setattr("blocklaws.kill_matrix.measure", interrupted)
    options = ("--fault", "mask-missing", "--fault", "mask-off-by-one", "--fault", "norm-over-tokens")
    done = invoke("faults", "numpy", "--claims", "--profile", "quick", *options, "--json", "faults.json")
    assert done.exit_code == 130
    assert done.stdout.endswith("\nexit status 130: interrupted; 2 more faults would have been planted\n")
    data = json.loads((tmp_path / "faults.json").read_text(encoding="utf-8"))
    assert (data["not_run"], data["exit_status"], data["problems"]) == (2, 130, [])
    nothing = invoke("faults", "numpy", "--claims", "--fault", "mask-off-by-one")
    assert (nothing.exit_code, nothing.stderr.strip()) == (130, "blocklaws: interrupted")
