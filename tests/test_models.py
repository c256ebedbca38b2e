"""Whole models: every invariant is shown to refute, the right model holds, a failure reads and replays as a block's.

Must hold: what ``spec/models.yaml`` claims is what is found here: a claimed fault is refuted, every fault is claimed
by some invariant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces_support import invoke

from blocklaws.backends.tiny_models import TinyModels
from blocklaws.errors import BackendError, BlocklawsError, SpecError
from blocklaws.running import verify
from blocklaws.spec_reading import load_spec

SPEC = load_spec()
CLAIMS = [(fault, id) for id, one in SPEC.models.items() for fault in one.refuted_by]
RIGHT = "tiny-models"


def test_the_right_model_holds() -> None:
    """Fails when an invariant of models refutes a model that is right, or looks at nothing."""
    report = verify(RIGHT)
    assert [(case.id, case.reason) for case in report.failures] == []
    assert {case.invariant for case in report.cases if case.verdict == "holds"} == set(SPEC.models)
    assert all(case.informative == case.examples > 0 for case in report.cases)


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize(("fault", "invariant"), CLAIMS)
def test_a_claim_is_true(fault: str, invariant: str, seed: int) -> None:
    """Fails when an invariant does not refute a wrong model that it says it refutes, in both dtypes."""
    report = verify(TinyModels().with_fault(fault), invariants=[invariant], seed=seed)
    assert {case.verdict for case in report.cases} == {"violated"}


def test_every_invariant_and_every_fault_is_claimed() -> None:
    """Fails when an invariant refutes nothing, or a wrong model is refuted by nothing."""
    assert {id for _, id in CLAIMS} == set(SPEC.models)
    assert {fault for fault, _ in CLAIMS} == set(SPEC.model_faults) == set(TinyModels.faults)


@pytest.mark.parametrize(
    ("fault", "invariant", "ids", "picks"),
    [
        ("sees-next-token", "logits-prefix-invariance", (1, 2), {"p": 1, "shift": 1}),
        ("batch-mean-removed", "logits-batch-independence", (2, 1), {}),
        ("positions-restart", "logits-cache-parity", (1, 2), {"p": 1}),
        ("padding-attended", "logits-under-left-padding", (1, 1), {"padding": 1}),
    ],
)
def test_a_counterexample_is_small(fault: str, invariant: str, ids: tuple[int, int], picks: dict[str, int]) -> None:
    """Fails when a counterexample has more tokens or sequences than the mistake needs."""
    report = verify(TinyModels().with_fault(fault), invariants=[invariant], dtypes=["float64"])
    found = report.cases[0].counterexample
    assert found is not None
    assert np.shape(found["ids"]) == ids
    assert found["picks"] == picks


#: A user's own model: ids are summed up, so it is causal; {change} makes it wrong.
OWN = """
import numpy as np

class Models:
    name = "own"
    def build_model(self, model, dtype):
        return Sums()

class Sums:
    vocabulary = 8
    def logits(self, ids):
        table = np.random.default_rng(0).standard_normal((8, 8)).astype("float32")
        {change}
"""
CAUSAL = "return np.cumsum(table[ids], axis=1)"
LEAKING = "return np.cumsum(table[ids], axis=1) + table[ids].mean(axis=1, keepdims=True)"


def write(folder: Path, change: str) -> str:
    (folder / "own.py").write_text(OWN.format(change=change), encoding="utf-8")
    return "own.py:Models"


def test_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a file with `build_model` is no backend, or what it cannot show is passed or hidden."""
    monkeypatch.chdir(tmp_path)
    done = invoke("verify", write(tmp_path, CAUSAL), "--profile", "quick")
    assert done.exit_code == 0, done.output
    assert "2  own: the model has no logits_cached" in done.output
    assert "1  own: the model has no padding and attention mask" in done.output
    assert "9 cases: 6 hold, 0 violated, 0 in error, 3 unchecked" in done.output


def test_a_failure_is_told_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a model's failure lacks its claim, its ids or its replay, or is no longer found by it."""
    monkeypatch.chdir(tmp_path)
    backend = write(tmp_path, LEAKING)
    done = invoke("verify", backend, "--invariant", "logits-prefix-invariance", "--json", "report.json")
    assert done.exit_code == 1, done.output
    case = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["cases"][0]
    assert "VIOLATED logits-prefix-invariance: backend own, block model, float32" in done.output
    assert "close(changed.logits[:, :p], logits[:, :p])" in done.output
    assert "config   model model, vocabulary 8" in done.output
    assert "world    ids [[0, 0]], p = 1, shift = 1" in done.output
    assert case["element"]["axes"] == ["batch", "token", "id"]
    for source in (case["id"], "report.json"):
        again = invoke("replay", source)
        assert again.exit_code == 1, again.output
        assert "logits-prefix-invariance on own, model, float32: still violated" in again.output
    assert invoke("replay", case["id"], "--as-test", "test_leak.py").exit_code == 1
    assert "ids" in (tmp_path / "test_leak.py").read_text(encoding="utf-8")
    refused = invoke("replay", case["id"], "--save-world", "world.npz")
    assert refused.exit_code == 2
    assert "a whole model has no world to save" in refused.output
    write(tmp_path, CAUSAL)
    mended = invoke("replay", case["id"])
    assert (mended.exit_code, "holds now" in mended.output) == (0, True), mended.output


def test_reports_of_models_are_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a file that a run of models writes cannot be made, or is not what its schema says."""
    import jsonschema

    from blocklaws.report_schema import report_schema

    monkeypatch.chdir(tmp_path)
    files = [f"--{kind}={kind}.out" for kind in ("json", "html", "junit", "markdown", "badge")]
    done = invoke("verify", write(tmp_path, LEAKING), *files, "--profile", "quick")
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output
    report = json.loads((tmp_path / "json.out").read_text(encoding="utf-8"))
    jsonschema.validate(report, report_schema("verify"))
    page = (tmp_path / "html.out").read_text(encoding="utf-8")
    assert "[[0, 0]]" in page
    assert invoke("compare", "json.out", "json.out").exit_code == 0


def test_known_failures_of_models_are_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a leak cannot be listed with its reason, or a list outlives the leak."""
    monkeypatch.chdir(tmp_path)
    known = tmp_path / "known.yaml"
    known.write_text("- {invariant: 'logits-*', block: model, backend: own, reason: a mean over tokens}\n")
    only = ("--invariant", "logits-prefix-invariance", "--known-failures", "known.yaml")
    listed = invoke("verify", write(tmp_path, LEAKING), *only)
    assert listed.exit_code == 0, listed.output
    assert "1  a mean over tokens" in listed.output
    stale = invoke("verify", write(tmp_path, CAUSAL), *only)
    assert (stale.exit_code, "holds; remove the entry" in stale.output) == (1, True), stale.output
    known.write_text("- {invariant: logits-repeat, block: modle, reason: misspelt}\n")
    refused = invoke("verify", "own.py:Models", "--known-failures", "known.yaml")
    assert refused.exit_code == 2
    assert "unknown block 'modle' (did you mean 'model'?)" in refused.output


def test_models_and_blocks_in_one_run() -> None:
    """Fails when a run of both loses one, or a filter of the one hides the other for good."""
    report = verify(RIGHT, "numpy", invariants=["logits-repeat", "zero-input"][:1], profile="quick")
    assert {case.backend for case in report.cases} == {RIGHT}
    report = verify(
        RIGHT, "numpy", blocks=["tiny", "llama"], invariants=["logits-repeat", "prefix-invariance"], profile="quick"
    )
    assert {(case.backend, case.block) for case in report.cases} == {(RIGHT, "tiny"), ("numpy", "llama")}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("verify", "tiny-models:small"), "backend 'tiny-models:small': there is only the model 'tiny'"),
        (("verify", "tiny-model"), "unknown backend 'tiny-model' (did you mean 'tiny-models'?)"),
        (("verify", RIGHT, "--device", "cuda"), "builds whole models, which have no --device"),
        (("verify", RIGHT, "--isolate"), "builds whole models, which cannot be isolated; leave --isolate out"),
        (("verify", RIGHT, "--block", "llama"), "no invariant speaks of the chosen blocks and dtypes"),
        (("verify", RIGHT, "--block", "tinny"), "unknown block or model 'tinny' (did you mean 'tiny'?)"),
        (("verify", RIGHT, "--invariant", "logits-repaet"), "unknown invariant 'logits-repaet'"),
        (("faults", RIGHT), "builds whole models: its faults are those of spec/models.yaml, which tests plant"),
        (("trace", RIGHT, "--block", "llama"), "builds whole models, which have no stages to trace"),
    ],
)
def test_what_models_cannot_do_is_refused(arguments: tuple[str, ...], told: str) -> None:
    """Fails when a call that means nothing for models ends in a traceback or in a pass."""
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert told in done.output
    assert "Traceback" not in done.output


def broken(**attributes: Any) -> Any:
    class Model:
        vocabulary = 8

        def logits(self, ids: np.ndarray) -> np.ndarray:
            return np.zeros((*ids.shape, 8))

    class Models:
        name = "broken"

        def build_model(self, model: str, dtype: str) -> Any:
            made = Model()
            for name, value in attributes.items():
                setattr(made, name, value)
            return made

    return Models()


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"vocabulary": "many"}, "vocabulary='many'; it must be a whole number from 2 on"),
        ({"reserved": 7}, "a model with 1 ids to draw from; 2 are needed"),
        ({"logits": None}, "returned a Model without a logits method"),
        ({"logits": lambda ids: 1 / 0}, "logits raised ZeroDivisionError"),
    ],
)
def test_a_model_that_cannot_be_called_is_an_error(attributes: dict[str, Any], told: str) -> None:
    """Fails when a model's own mistake is told as the harness's, or as a verdict."""
    report = verify(broken(**attributes), invariants=["logits-shape"])
    assert [case.verdict for case in report.cases] == ["error"]
    assert told in report.cases[0].reason


def test_wrong_attributes_are_refused() -> None:
    """Fails when a backend of models with names that are none gets as far as a run."""
    models = broken()
    models.models = "tiny"
    with pytest.raises(BackendError, match="models='tiny' must be a tuple of names"):
        verify(models)


def test_a_run_without_its_pick_is_refused(tmp_path: Path) -> None:
    """Fails when an invariant may mention a run that nothing tells how to make."""
    from blocklaws.located_yaml import load
    from blocklaws.models.reading import read_model_invariant

    file = tmp_path / "models.yaml"
    file.write_text("- {id: mine, says: Mine., then: 'close(cut.logits, logits)'}\n", encoding="utf-8")
    (entry,) = entries = load(file)
    with pytest.raises(SpecError, match="the run 'cut' follows p, which 'pick' does not give"):
        read_model_invariant("mine", entry, entries.items_at[0], {})


def test_what_there_is_can_be_listed_and_explained() -> None:
    """Fails when a reader of a verdict cannot look up what it means."""
    listed = invoke("list", "invariants").output
    assert all(id in listed for id in SPEC.models)
    assert "tiny-models" in invoke("list", "backends").output
    told = invoke("explain", "logits-cache-parity").output
    assert "logits-cache-parity: an invariant of whole models" in told
    assert "positions-restart" in told
    assert "chunk-unmasked: a fault of whole models" in invoke("explain", "chunk-unmasked").output


def test_an_example_that_cannot_be_meant_is_refused() -> None:
    """Fails when a damaged file reaches a model."""
    from blocklaws.replaying import examine

    case = {"invariant": "logits-repeat", "block": "tiny", "dtype": "float32", "name": RIGHT}
    for example in ({"ids": [], "picks": {}}, {"ids": [[3], [3, 4]], "picks": {}}, {"ids": [[19]], "picks": {}},
                    {"ids": [[3]], "picks": {"p": 1}}, {"ids": [["3"]], "picks": {}}):  # fmt: skip
        with pytest.raises(BlocklawsError, match="example: "):
            examine(RIGHT, **case, example=example)
    assert examine(RIGHT, **case, example={"ids": [[3, 4]], "picks": {}}).verdict == "holds"
