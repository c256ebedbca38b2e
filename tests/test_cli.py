"""The command line: each command does what its help says, with the exit status that scripts rely on.

Must hold: 0 everything that was checked holds, 1 something is violated or in error, 2 what was given could not be used
or nothing could be checked, 130 interrupted. The files it writes are what other programs read.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from faces_support import SPEC, invoke, scrubbed, write_broken, write_right, write_spec, write_wrong

import blocklaws
from blocklaws.editor_schema import spec_schema
from blocklaws.located_yaml import load
from blocklaws.spec_reading import built_in_spec

#: The keys of the JSON that the design fixes.
CASE_KEYS = {
    "invariant", "block", "backend", "dtype", "verdict", "reason", "examples", "informative", "seconds", "max_error",
    "stage", "location", "counterexample", "replay",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


LLAMA = ("--spec", "spec.yaml", "--block", "llama", "--dtype", "float64")


def test_help_lists_every_command() -> None:
    """Fails when a command is not found by somebody who asks for help."""
    done = invoke("--help")
    assert done.exit_code == 0
    listed = [line.split()[0] for line in done.output.split("Commands:\n")[1].splitlines()]
    assert listed == [
        *("verify", "merge", "list", "explain", "replay", "compare", "trace", "new-backend", "schema", "faults")
    ]
    for command in listed:
        assert invoke(command, "-h").exit_code == 0


def test_the_version() -> None:
    """Fails when a bug report cannot say what was run."""
    assert invoke("--version").output == f"blocklaws {blocklaws.__version__}\n"


def test_python_m_is_the_command(python: Any) -> None:
    """Fails when the module cannot be run, or a refusal shows a traceback in a process of its own."""
    done = python("-m", "blocklaws", "verify", "nunpy")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("blocklaws: unknown backend 'nunpy'")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_traceback(folder: Path) -> None:
    """Fails when `blocklaws ... | head` ends in a BrokenPipeError."""
    done = subprocess.run(
        f"{sys.executable} -m blocklaws list faults | true; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


# --- verify -----------------------------------------------------------------------------------------------------------


def test_the_exit_status(folder: Path) -> None:
    """Fails when a script cannot tell a violation from a good run."""
    assert invoke("verify", write_right(folder), *LLAMA).exit_code == 0
    assert invoke("verify", write_broken(folder), *LLAMA).exit_code == 1
    unchecked = invoke("verify", "right.py:Backend", *LLAMA, "--invariant", "gradient-is-finite")
    assert unchecked.exit_code == 2
    assert "exit status 2: nothing could be checked" in unchecked.stdout


def test_the_json_report(folder: Path) -> None:
    """Fails when the keys that other programs read are missing, or the JSON is not strict."""
    done = invoke("verify", write_broken(folder), write_right(folder), *LLAMA, "--json", "report.json", "--seed", "5")
    assert done.exit_code == 1

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    report = json.loads((folder / "report.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert {"blocklaws", "spec", "seed", "profile", "backends", "cases", "summary"} <= set(report)
    assert report["blocklaws"] == blocklaws.__version__
    assert len(report["spec"]["sha256"]) == 64
    assert (report["seed"], report["profile"]) == (5, "default")
    assert [backend["name"] for backend in report["backends"]] == ["broken", "right"]
    assert all(set(case) >= CASE_KEYS for case in report["cases"])
    assert report["summary"] == {"holds": 3, "violated": 1, "unchecked": 2, "error": 0}
    (violated,) = [case for case in report["cases"] if case["verdict"] == "violated"]
    assert violated["stage"] == "attention_weights"
    assert violated["location"].endswith("spec.yaml:6")
    assert violated["counterexample"]["sizes"]["T"] == 2
    assert violated["replay"] == f"blocklaws replay {violated['id']}"


def test_the_same_seed_gives_the_same_json(folder: Path) -> None:
    """Fails when a report depends on anything but what was asked."""
    texts = []
    for name in ("one.json", "two.json"):
        invoke("verify", write_broken(folder) if name == "one.json" else "broken.py:Backend", *LLAMA, "--json", name)
        report = json.loads((folder / name).read_text(encoding="utf-8"))
        texts.append(json.dumps([{**case, "seconds": 0} for case in report["cases"]]))
    assert texts[0] == texts[1]


def test_the_junit_report(folder: Path) -> None:
    """Fails when CI services show a violation as passed, or cannot read the file."""
    (folder / "known.yaml").write_text("- {invariant: same-shape, reason: none, backend: right}\n", encoding="utf-8")
    arguments = (
        "verify",
        write_broken(folder),
        write_right(folder),
        write_wrong(folder, "return None"),
        "--spec",
        "spec.yaml",
    )
    done = invoke(*arguments, "--block", "llama", "--junit", "report.xml", "--known-failures", "known.yaml")
    assert done.exit_code == 1
    root = ElementTree.parse(folder / "report.xml").getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["blocklaws broken", "blocklaws right", "blocklaws wrong", "blocklaws known failures"]
    counts = {
        name: [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] for name, suite in suites.items()
    }
    assert counts["blocklaws broken"] == ["6", "2", "0", "2"]
    assert counts["blocklaws right"] == ["6", "0", "0", "2"]
    assert counts["blocklaws wrong"] == ["3", "0", "2", "1"]
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.text is not None
    assert "VIOLATED no-look-ahead: backend broken, block llama, float64" in failure.text
    assert "unchecked: the block has no gradients" in {skipped.get("message") for skipped in root.iter("skipped")}


def test_junit_survives_what_a_block_raises(folder: Path) -> None:
    """Fails when a control character in a message makes the XML unreadable."""
    wrong = write_wrong(folder, r"raise ValueError('\x00 \x1b[31m <&> \ud800')")
    invoke("verify", wrong, "--spec", "spec.yaml", "--block", "llama", "--junit", "report.xml")
    error = ElementTree.parse(folder / "report.xml").getroot().find(".//error")
    assert error is not None
    assert "<&>" in str(error.get("message"))


def test_an_interrupt_shows_what_is_known(folder: Path) -> None:
    """Fails when Ctrl-C loses the cases that are done, passes, or its report looks like a whole one."""
    arguments = ("verify", write_broken(folder), write_wrong(folder, "raise KeyboardInterrupt"))
    files = ("--json", "report.json", "--junit", "report.xml", "--markdown", "report.md", "--badge", "report.svg")
    # In a process of its own what a backend raises is never an interrupt of the user's.
    done = invoke(*arguments, "--no-isolate", "--spec", "spec.yaml", "--block", "llama", *files)
    assert done.exit_code == 130
    assert "VIOLATED no-look-ahead: backend broken, block llama, float64" in done.stdout
    assert scrubbed(done.stdout).endswith(
        "6 cases: 2 hold, 2 violated, 0 in error, 2 unchecked, in TIME s\n"
        "exit status 130: interrupted; 3 more cases would have been looked at\n"
    )
    assert done.stderr == ""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["not_run"] == 3
    assert report["summary"] == {"holds": 2, "violated": 2, "unchecked": 2, "error": 0}
    root = ElementTree.parse(folder / "report.xml").getroot()
    assert root.get("failures") == "3", "two violations, and that it was interrupted"
    assert "interrupted; 3 more cases would have been looked at" in (folder / "report.md").read_text(encoding="utf-8")
    assert "2 violated" in (folder / "report.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_in_a_process_of_its_own(folder: Path, workers: str) -> None:
    """Fails when the signal of a terminal ends in a traceback, or loses what is known, on one process or several."""
    sleeps = write_wrong(folder, "import time; time.sleep(600)")
    arguments = [write_broken(folder), sleeps, "--spec", "spec.yaml", "--block", "llama", "--dtype", "float32"]
    # A test run in the background ignores the signal, and its children would too.
    heeding = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from blocklaws.cli import main; sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", heeding, "verify", *arguments, "--workers", workers, "--json", "report.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:  # the first backend is done, and the second one sleeps
        if line.startswith("  broken  llama  1 hold, 1 violated, 1 unchecked"):
            break
    process.send_signal(signal.SIGINT)
    shown, complaint = process.communicate()
    assert process.returncode == 130
    assert complaint == ""
    assert "VIOLATED no-look-ahead: backend broken" in shown
    assert shown.endswith("\nexit status 130: interrupted; 3 more cases would have been looked at\n")
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["not_run"] == 3


# --- list, explain ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocks", "invariants", "faults"])
def test_list_shows_everything_of_a_kind(kind: str) -> None:
    """Fails when something in the spec cannot be found by its name."""
    lines = invoke("list", kind).output.splitlines()
    spec = built_in_spec()
    of_models = {"invariants": spec.models, "faults": spec.model_faults}.get(kind, {})
    assert [line.split()[0] for line in lines] == [*getattr(spec, kind), *of_models]
    assert all(len(line.split()) > 3 for line in lines), "each has its sentence"


def test_list_shows_backends_and_properties() -> None:
    """Fails when what is registered cannot be seen."""
    backends = [line.split()[0] for line in invoke("list", "backends").output.splitlines()]
    assert {"numpy", "torch", "jax"} <= set(backends)
    assert any(name.endswith("hf_llama.yaml") for name in backends)
    assert "expression" in [line.split()[0] for line in invoke("list", "properties").output.splitlines()]


def test_list_marks_what_is_unproven() -> None:
    """Fails when an invariant without a fault to its name looks like any other."""
    assert (
        "same-shape          The output has the shape of the input. (unproven)\n"
        in invoke("list", "invariants", "--spec", "spec.yaml").output
    )


EXPLAINED = """\
no-look-ahead: an invariant
  says        Changing a token changes no earlier output row.
  family      own
  formula     where: T >= 2
              pick: {p: 1 .. T-1}
              vary: {input: {tokens: "p:", by: fresh}}
              then: identical(after.output[:, :p], output[:, :p])
  needs       forward
  stages      output
  blocks      all
  dtypes      every dtype of the backend
  worlds      integers, normal, shifted, tiny, huge, zero-rows, spiky, far-mean, extreme-scores
  refutes     mask-off-by-one: A query also sees the key after its own position.
  if violated it is usually one of the mistakes above, or one like them
  stands in   spec.yaml:6
"""


def test_explain_an_invariant() -> None:
    """Fails when an invariant is explained without its formula, its fault or its place."""
    assert invoke("explain", "no-look-ahead", "--spec", "spec.yaml").output == EXPLAINED


def test_explain_every_name_of_the_spec() -> None:
    """Fails when some entry of the built-in spec cannot be explained."""
    from blocklaws.explaining import explain

    spec = built_in_spec()
    for name in (*spec.invariants, *spec.faults, *spec.blocks, "expression"):
        for heading, fields in explain(name, spec):
            assert heading.startswith(f"{name}: ")
            assert [label for label, text in fields if not text] == []
            assert "stands in" in dict(fields)


def test_explain_what_stands_on_one_line(folder: Path) -> None:
    """Fails when the formula of an entry in flow style is lost or takes its neighbours along."""
    write_spec(folder, '- {id: short, says: A thing., then: "finite(output)", where: T >= 2}\n')
    assert (
        '  formula     where: "T >= 2"\n              then: "finite(output)"\n'
        in invoke("explain", "short", "--spec", "spec.yaml").output
    )


# --- trace ------------------------------------------------------------------------------------------------------------


def test_trace_shows_where_a_block_leaves_the_reference(folder: Path) -> None:
    """Fails when the table points at another stage than the one that is wrong."""
    done = invoke("trace", write_broken(folder), "--block", "llama", "--dtype", "float64")
    assert done.exit_code == 0
    rows = {line.split()[0]: line for line in done.output.splitlines() if line.strip()}
    assert rows["value"].split()[:2] == ["value", "2x2x3x4"]
    assert "outside" not in rows["value"]
    assert rows["attention_weights"].endswith("outside the bound")
    assert done.output.endswith("\nthe first stage outside the bound of float64 is attention_weights\n")


def test_trace_as_json(folder: Path) -> None:
    """Fails when a program cannot read the stages."""
    data = json.loads(invoke("trace", write_right(folder), "--block", "gpt", "--json").output)
    assert [row["stage"] for row in data["stages"]][-1] == "output"
    assert all(row["within"] for row in data["stages"])
    assert data["first_outside"] is None
    assert data["world"]["sizes"]["T"] == data["stages"][0]["shape"][1]


def test_trace_of_a_block_without_stages(folder: Path) -> None:
    """Fails when a block without a trace cannot be looked at, or what it does not show is left out."""
    output = invoke("trace", write_wrong(folder, "return self.right(x, 0)"), "--block", "llama").output
    assert output.count("not shown") == 9
    assert "it has no trace" in output
    short = write_wrong(folder, "return self.right(x, 0)[:, :1] * float('nan')", "short.py")
    output = invoke("trace", short, "--block", "llama").output
    assert "wrong shape" in output


# --- new-backend, schema, faults --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_new_backend_verifies_at_once(folder: Path) -> None:
    """Fails when the first thing that a user sees of their adapter is a failure."""
    done = invoke("new-backend", "mine.py")
    assert done.output == "wrote mine.py\ncheck it with: blocklaws verify mine.py:Backend\n"
    verified = invoke("verify", "mine.py:Backend", "--profile", "quick", "--json", "report.json", "-q")
    assert verified.exit_code == 0, verified.output
    cases = json.loads((folder / "report.json").read_text(encoding="utf-8"))["cases"]
    assert {case["block"] for case in cases if case["verdict"] == "holds"} == {
        kind.name for kind in built_in_spec().blocks.values() if kind.by_default
    }
    reasons = {case["reason"] for case in cases if case["verdict"] == "unchecked"}
    assert reasons == {
        *(f"the block has no {name}" for name in ("gradients", "parameters", "forward_cached", "forward_by")),
        "the backend does not say that it validates (validates = True)",
    }


def test_a_new_backend_overwrites_nothing(folder: Path) -> None:
    """Fails when a file of the user's is lost."""
    (folder / "mine.py").write_text("mine", encoding="utf-8")
    done = invoke("new-backend", "mine.py")
    assert done.exit_code == 2
    assert done.stderr == "blocklaws: mine.py exists already and is left as it is; name another file\n"
    assert (folder / "mine.py").read_text(encoding="utf-8") == "mine"


def test_the_schema_is_one_and_accepts_our_own_spec(root: Path, folder: Path) -> None:
    """Fails when an editor marks a spec that is right."""
    schema = json.loads(invoke("schema").output)
    assert schema == spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    worlds = load(root / "spec" / "worlds.yaml")
    ours = {stem: load(root / "spec" / f"{stem}.yaml") for stem in ("blocks", "tolerances", "faults", "invariants")}
    for spec in ({**ours, **worlds}, load(folder / "spec.yaml"), ours["invariants"]):
        assert [error.message for error in validator.iter_errors(spec)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("where:", "were:"),
        ("invariants:", "invarants:"),
        ("id: same-shape", "id: same shape"),
        ("    then: finite(gradient.input)\n", ""),
        ("{input: {tokens", "{inptu: {tokens"),
        ("by: fresh", "on: fresh"),
        ("refuted_by: [mask-off-by-one]\n  - id: gr", "refuted_by: mask-off-by-one\n  - id: gr"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(folder: Path, old: str, new: str) -> None:
    """Fails when an editor stays silent about a mistake that the reader will not take."""
    assert old in SPEC
    write_spec(folder, SPEC.replace(old, new))
    assert invoke("list", "invariants", "--spec", "spec.yaml").exit_code == 2
    assert list(jsonschema.Draft202012Validator(spec_schema()).iter_errors(load(folder / "spec.yaml"))) != []


def test_faults_hands_its_options_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an option of `faults` does not reach the kill matrix, or its status and JSON do not come back."""
    called: dict[str, Any] = {}

    class Matrix:
        exit_status = 1

        def as_dict(self) -> dict[str, Any]:
            return {"score": 1.0}

        def render(self, console: Any) -> None:
            console.print("THE MATRIX")

    def run_faults(backends: list[str], **options: Any) -> Matrix:
        called.update(options, backends=backends)
        return Matrix()

    monkeypatch.setattr("blocklaws.kill_matrix.run_faults", run_faults)
    done = invoke(
        "faults", "numpy", "--block", "llama", "--dtype", "float32", "--fault", "mask-missing", "--invariant",
        "prefix-invariance", "--profile", "quick", "--seed", "3", "--seeds", "4", "--workers", "2",
        "--claims", "--every", "--first-kill", "--json", "faults.json",
    )  # fmt: skip
    assert done.exit_code == 1
    assert "THE MATRIX" in done.stdout
    assert json.loads((folder / "faults.json").read_text(encoding="utf-8")) == {"score": 1.0}
    assert called == {
        "backends": ["numpy"], "spec": None, "blocks": ("llama",), "dtypes": ("float32",), "faults": ("mask-missing",),
        "invariants": ("prefix-invariance",), "profile": "quick", "seed": 3, "seeds": 4, "workers": 2,
        "claims_only": True, "every": True, "first_kill": True, "progress": None,
    }  # fmt: skip
