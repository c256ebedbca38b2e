"""What a user may get wrong, one message each: it says what, where, and what to do.

Must hold: what cannot be used is one line on standard error and exit status 2, without a traceback; a backend that
misbehaves is a verdict, and every other case still runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faces_support import SPEC, invoke, write_right, write_spec, write_wrong

REGISTERED = "jax, numpy, torch, tiny-models, transformers-models"
KINDS_OF_NAMES = "package.module:attribute, path/to/file.py:attribute, or a mapping file (.yaml)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of the test's own, so that messages name files as a user would."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments: str) -> str:
    """Call the command line, which must refuse; return its one line."""
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("blocklaws: ")
    return line.removeprefix("blocklaws: ")


# --- the call ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vrify",), "there is no command 'vrify' (did you mean 'verify'?) (`blocklaws --help` tells more)"),
        (("verify",), "Missing argument 'BACKEND...'. (`blocklaws verify --help` tells more)"),
        (("verify", "numpy", "--sead", "1"), "No such option"),
        (
            ("verify", "numpy", "--seed", "one"),
            "Invalid value for '--seed': 'one' is not a valid integer range. (`blocklaws verify --help` tells more)",
        ),
        (
            ("verify", "numpy", "--block", "lama"),
            "unknown block 'lama' (did you mean 'llama'?); `blocklaws list blocks` shows all 14",
        ),
        (("verify", "numpy", "--dtype", "float23"), "unknown dtype 'float23' (did you mean 'float32'?)"),
        (("verify", "numpy", "--profile", "quik"), "unknown profile 'quik' (did you mean 'quick'?)"),
        (("verify", "numpy", "--invariant", "prefix-invarance"), "unknown invariant 'prefix-invarance' (did you mean "),
        (("verify", "numpy", "numpy"), "two backends are named 'numpy' (numpy and numpy); give each a name of its own"),
        (("verify", "numpy", "--json", "no/report.json"), "cannot write no/report.json: there is no folder no"),
        (("verify", "numpy", "--json", ""), "cannot write .: Is a directory"),
        (("verify", "numpy", "-q", "-v"), "--quiet and --verbose exclude each other; leave one out"),
        (("verify", "numpy", "--device", "cuda"), "backend 'numpy' cannot choose a device (it has no with_device)"),
        (("verify", "numpy", "--known-failures", "none.yaml"), "none.yaml: there is no such file"),
        (("verify", "numpy", "--spec", "none.yaml"), "none.yaml: there is no such file"),
        (("verify", "numpy", "--block", "gpt", "--invariant", "rms-norm-definition"), "no invariant speaks of the"),
        (("explain", "lama"), "there is no invariant, fault, block or property 'lama' (did you mean 'llama'?); "),
        (
            ("list", "block"),
            "Invalid value for '{blocks|invariants|faults|backends|properties}': 'block' is not one of",
        ),
        (("trace", "numpy", "--block", "lama"), "unknown block 'lama' (did you mean 'llama'?); "),
        (("trace", "numpy", "--block", "llama", "--dtype", "float16"), "backend 'numpy' does not offer float16; "),
        (
            ("replay", "0123456789"),
            "there is no failure '0123456789' in .blocklaws/failures; replay in the folder where",
        ),
        (("replay", "none.json"), "none.json: there is no such file"),
        (("new-backend", "mine"), "mine is no Python file; give a name that ends in .py, such as my_backend.py"),
        (("new-backend", "my-block.py"), "my-block.py cannot be imported: 'my-block' is no Python name; use letters, "),
    ],
)
def test_a_call_that_cannot_be_used(arguments: tuple[str, ...], message: str) -> None:
    """Fails when a mistake of the call is told badly, or ends in a traceback."""
    assert refused(*arguments).startswith(message)


# --- a backend that cannot be found or used ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nunpy",
            f"unknown backend 'nunpy' (did you mean 'numpy'?); a backend is a registered name ({REGISTERED}), "
            f"{KINDS_OF_NAMES}",
        ),
        ("none.py:Backend", "backend 'none.py:Backend': there is no file none.py"),
        ("right.py", "backend 'right.py' names a file but no attribute in it; write right.py:NAME"),
        (
            "right.py:Bakend",
            "backend 'right.py:Bakend': right.py has no attribute 'Bakend' (did you mean 'Backend'?)",
        ),
        ("no_such_module:Backend", "backend 'no_such_module:Backend': there is no module 'no_such_module'"),
        ("none.yaml", "backend 'none.yaml': there is no such mapping file"),
        ("syntax.py:B", "backend 'syntax.py:B': importing syntax.py fails: '(' was never closed (line 1)"),
        ("raises.py:B", "backend 'raises.py:B': importing raises.py raised ValueError: no luck (line 2 of raises.py)"),
        ("exits.py:B", "backend 'exits.py:B': importing exits.py raised SystemExit: 3 (line 2 of exits.py)"),
        ("exits:B", "backend 'exits:B': importing exits raised SystemExit: 3 (line 2 of exits.py)"),
        ("needs.py:B", "backend 'needs.py:B': no_such_library is not installed; pip install no_such_library"),
        (
            "odd.py:number",
            "backend 'odd.py:number' is a int: a backend has build(config, parameters, dtype), or is a function "
            "f(x, parameters, config)",
        ),
        (
            "odd.py:narrow",
            "backend 'odd.py:narrow' is a function that cannot be called as f(x, parameters, config)",
        ),
        (
            "odd.py:Dtypes",
            "backend 'odd.py:Dtypes': unknown dtype 'float23' (did you mean 'float32'?); dtypes are float64, float32, "
            "bfloat16, float16",
        ),
        (
            "odd.py:Multiples",
            "backend 'odd.py:Multiples': multiples names an unknown size 'd_heads' (did you mean 'd_head'?); sizes are "
            "B, T, n_heads, n_kv_heads, d_head, d_ff, d_model",
        ),
        ("odd.py:Name", "backend 'odd.py:Name': name=7 must be a printable text"),
        (
            "odd.py:Needy",
            "backend 'odd.py:Needy': its class raised TypeError: Needy.__init__() missing 1 required positional "
            "argument: 'path'; it must be made without arguments",
        ),
        (
            "odd.py:built",
            "backend 'odd.py:built' is a Built (this has forward: it is a built block, wrap it in an object with build",
        ),
    ],
)
def test_a_backend_that_cannot_be_used(folder: Path, name: str, message: str) -> None:
    """Fails when a backend that is none ends in a traceback, or its message leaves out what to do."""
    write_right(folder)
    (folder / "syntax.py").write_text("B = (\n", encoding="utf-8")
    (folder / "raises.py").write_text("\nraise ValueError('no luck')\n", encoding="utf-8")
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    (folder / "needs.py").write_text("import no_such_library\n", encoding="utf-8")
    (folder / "odd.py").write_text(ODD, encoding="utf-8")
    line = refused("verify", name)
    # The sentence about installing is that of the registry of extras; any other ending is ours word for word.
    assert line.startswith(message), line


ODD = """
number = 7

def narrow(x):
    return x

class Dtypes:
    dtypes = ("float23",)
    def build(self, config, parameters, dtype): ...

class Multiples:
    multiples = {"d_heads": 8}
    def build(self, config, parameters, dtype): ...

class Name:
    name = 7
    def build(self, config, parameters, dtype): ...

class Needy:
    def __init__(self, path): ...
    def build(self, config, parameters, dtype): ...

class Built:
    def forward(self, x): ...

built = Built()
"""


def test_two_backends_of_one_name(folder: Path) -> None:
    """Fails when two backends share a column of the report."""
    write_right(folder, "one.py")
    (folder / "two.py").write_text(
        (folder / "one.py").read_text(encoding="utf-8").replace('name = "one"', 'name = "same"'), encoding="utf-8"
    )
    (folder / "one.py").write_text((folder / "two.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert refused("verify", "one.py:Backend", "two.py:Backend") == (
        "two backends are named 'same' (one.py:Backend and two.py:Backend); give each a name of its own, so that a "
        "report can tell them apart"
    )


# --- a spec -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "where: T",
            "were: T",
            "spec.yaml:8:5: invariant 'no-look-ahead' has an unknown key 'were' (did you mean 'where'?)",
        ),
        (
            "says: The gr",
            "id: twice\n    says: The gr",
            "spec.yaml:14:5: duplicate key 'id'; it stands already on line 13",
        ),
        (
            "[mask-off-by-one]\n  - id: gr",
            "[mask-of-by-one]\n  - id: gr",
            "spec.yaml:12:18: invariant 'no-look-ahead': refuted_by: unknown fault 'mask-of-by-one' (did you mean ",
        ),
        (
            "    then: finite(gradient.input)\n",
            "",
            "spec.yaml:13:5: invariant 'gradient-is-finite' has no 'then' (and no 'property'), so it says nothing",
        ),
        ("then: output.shape", "then: outptu.shape", "spec.yaml:19:11: invariant 'same-shape': then: "),
        (
            "id: same-shape",
            "id: gradient-is-finite",
            "spec.yaml:17:9: duplicate id 'gradient-is-finite'; it stands already on",
        ),
        ("  - id: same-shape", "\t- id: same-shape", "spec.yaml:17:1: not valid YAML: "),
        (
            "invariants:",
            "invarants:",
            "spec.yaml:5:1: the spec has an unknown key 'invarants' (did you mean 'invariants'?)",
        ),
    ],
)
def test_a_spec_that_cannot_be_meant(folder: Path, old: str, new: str, message: str) -> None:
    """Fails when a mistake in a spec is told without its place."""
    assert SPEC.count(old) == 1
    write_spec(folder, SPEC.replace(old, new))
    assert refused("verify", "numpy", "--spec", "spec.yaml").startswith(message)


def test_an_unknown_property_is_refused_with_its_place(folder: Path) -> None:
    """Fails when a spec that names a property nobody has is a traceback."""
    write_spec(folder, "- id: mine\n  says: Something.\n  property: expresion\n")
    line = refused("verify", "numpy", "--spec", "spec.yaml")
    assert line.startswith(
        "spec.yaml:1:3: invariant 'mine': unknown property 'expresion' (did you mean 'expression'?); "
    )


# --- a backend that misbehaves: a verdict -----------------------------------------------------------------------------


def verdicts(folder: Path, backend: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Verify with a right backend beside it; return the status, the wrong one's cases, what was printed."""
    write_spec(folder)
    right = write_right(folder)
    done = invoke(
        "verify", backend, right, "--spec", "spec.yaml", "--block", "llama", "--dtype", "float32",
        "--json", "report.json", *arguments,
    )  # fmt: skip
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    others = [case for case in report["cases"] if case["backend"] == "right"]
    assert [case["verdict"] for case in others] == ["holds", "unchecked", "holds"], "the other backend still runs"
    return (
        done.exit_code,
        {case["invariant"]: case for case in report["cases"] if case["backend"] == "wrong"},
        done.output,
    )


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        (
            "raise RuntimeError('kernel launch failed')",
            "error",
            "forward raised RuntimeError: kernel launch failed (wrong.py:",
        ),
        ("return None", "error", "forward returned nothing (None) where an array was expected"),
        ("return 'text'", "error", "forward returned a str of dtype <U4, not an array of real numbers"),
        ("return object()", "error", "forward returned a object of dtype object, not an array of real numbers"),
        ("import sys; sys.exit(3)", "error", "forward raised SystemExit: 3 (wrong.py:"),
        ("return self.forward(x)", "error", "forward raised RecursionError: "),
        ("return self.right(x, position_offset)[:, :1]", "violated", "left is "),
        ("return self.right(x, position_offset)[0]", "violated", "left is "),
    ],
)
def test_a_forward_that_misbehaves(folder: Path, change: str, verdict: str, reason: str) -> None:
    """Fails when a block's mistake stops the run, passes, or is taken for the harness's."""
    status, cases, output = verdicts(folder, write_wrong(folder, change))
    assert status == 1
    case = cases["same-shape"]
    assert case["verdict"] == verdict
    assert case["reason"].startswith(reason)
    assert cases["gradient-is-finite"]["verdict"] == "unchecked"
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("change", "invariant", "reason"),
    [
        ("return (self.right(x, position_offset) * float('nan'))", "no-look-ahead", "elements wrong"),
        (
            "y = self.right(x, position_offset); y[:] += x.sum(axis=1, keepdims=True); return y",
            "no-look-ahead",
            "elements wrong",
        ),
    ],
)
def test_wrong_numbers_are_violations(folder: Path, change: str, invariant: str, reason: str) -> None:
    """Fails when NaN equals NaN, or a block that sees the future passes."""
    status, cases, _ = verdicts(folder, write_wrong(folder, change))
    assert status == 1
    assert cases[invariant]["verdict"] == "violated"
    assert reason in cases[invariant]["reason"]


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        ("return self.right(x, position_offset).astype('float16')", "shape-preservation"),
        ("return self.right(x, position_offset).tolist()", "shape-preservation"),
        ("y = self.right(x, position_offset); x += 1; return y", "arguments-unchanged"),
        (
            "return self.right(x, position_offset) + np.random.default_rng().normal(size=x.shape).astype(x.dtype)",
            "repeatable",
        ),
    ],
)
def test_bad_manners_are_violations(folder: Path, change: str, invariant: str) -> None:
    """Fails when the built-in spec lets a block change its dtype or its input, return lists, or answer at random."""
    wrong = write_wrong(folder, change)
    done = invoke(
        "verify", wrong, "--invariant", invariant, "--block", "llama", "--profile", "quick", "--json", "report.json"
    )
    assert done.exit_code == 1, done.output
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert "violated" in {case["verdict"] for case in report["cases"]}


def test_a_build_that_raises(folder: Path) -> None:
    """Fails when a backend that cannot build is not told once for all of its cases."""
    write_right(folder, "wrong.py")
    with (folder / "wrong.py").open("a", encoding="utf-8") as stream:
        stream.write("\n\nclass Wrong(Backend):\n    def build(self, *given):\n        raise OSError('no compiler')\n")
    status, cases, output = verdicts(folder, "wrong.py:Wrong")
    assert status == 1
    assert {case["verdict"] for case in cases.values()} == {"error"}
    assert {case["reason"] for case in cases.values()} == {
        f"build raised OSError: no compiler (wrong.py:{line_of(folder)})"
    }
    assert output.count("OSError: no compiler") == 1, "one mistake is shown once"
    assert "also     2 other cases with the same exception:" in output


def line_of(folder: Path) -> int:
    """Return the line on which the adapter raises."""
    lines = (folder / "wrong.py").read_text(encoding="utf-8").splitlines()
    return 1 + next(number for number, line in enumerate(lines) if "no compiler" in line)


def test_what_a_block_prints_does_not_mix_with_the_report(folder: Path) -> None:
    """Fails when noise of a backend lands on standard output."""
    write_spec(folder)
    wrong = write_wrong(folder, "print('NOISE'); return self.right(x, position_offset)")
    done = invoke("verify", wrong, "--spec", "spec.yaml", "--block", "llama", "--profile", "quick")
    assert done.exit_code == 0
    assert "NOISE" not in done.stdout
    assert "NOISE" in done.stderr


def test_a_backend_that_supports_nothing_is_unchecked(folder: Path) -> None:
    """Fails when a run in which nothing could be checked passes."""
    write_right(folder)
    with (folder / "right.py").open("a", encoding="utf-8") as stream:
        stream.write("\n\nclass Nothing(Backend):\n    def supports(self, config):\n        return 'not yet'\n")
    done = invoke("verify", "right.py:Nothing", "--block", "llama", "--profile", "quick")
    assert done.exit_code == 2
    assert "exit status 2: nothing could be checked" in done.stdout
    assert "right: not yet" in done.stdout


# --- a JSON that is none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.json: is not JSON: "),
        ("[1, 2]", "bad.json: is neither a report nor a failure of blocklaws (it has no 'blocklaws' version)"),
        ('{"blocklaws": "0.1.0"}', "bad.json: has no list of 'cases' and no 'failure', so there is nothing to replay"),
        (
            '{"blocklaws": "0.1.0", "cases": [{"counterexample": null}]}',
            "bad.json: no case of this report has a counterexample, so there is nothing to replay",
        ),
        ('{"blocklaws": "0.1.0", "failure": {"counterexample": {}}}', "bad.json: the case is damaged: "),
        ('{"blocklaws": "0.1.0", "failure": {"counterexample": 7}}', "bad.json: the case is damaged: "),
        ("[" * 100_000, "bad.json: is not JSON: "),
        (
            '{"blocklaws": "0.1.0", "seed": ' + "9" * 5000 + "}",
            "bad.json: is not JSON: a number of 5,000 digits is none",
        ),
        ('{"seed": 0, "cases": [], "seed": 1}', "bad.json: is not JSON: the key 'seed' stands twice in one object"),
    ],
)
def test_a_damaged_or_foreign_json_is_refused(folder: Path, text: str, message: str) -> None:
    """Fails when a JSON that is no failure of ours ends in a traceback."""
    (folder / "bad.json").write_text(text, encoding="utf-8")
    assert refused("replay", "bad.json").startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pattern", "norml", "example: unknown pattern 'norml' (did you mean 'normal'?)"),
        ("picks", {}, "example: invariant 'prefix-invariance' picks ['p'], but the example has nothing; the spec has"),
        ("seed", -1, "bad.json: the case is damaged: counterexample.seed: -1 is less than the minimum of 0"),
        ("sizes", {"B": 60_000}, "bad.json: the case is damaged: counterexample.sizes: "),
    ],
)
def test_a_changed_counterexample_is_refused(folder: Path, key: str, value: object, message: str) -> None:
    """Fails when values that no search draws reach a block."""
    sizes = {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4}
    example: dict[str, object] = {
        "sizes": sizes,
        "pattern": "normal",
        "seed": 0,
        "position_offset": 0,
        "picks": {"p": 1},
    }
    case = {
        "invariant": "prefix-invariance",
        "block": "llama",
        "backend": "numpy",
        "label": "numpy",
        "dtype": "float32",
    }
    data = {"blocklaws": "0.1.0", "failure": {**case, "counterexample": {**example, key: value}}}
    (folder / "bad.json").write_text(json.dumps(data), encoding="utf-8")
    assert refused("replay", "bad.json").startswith(message)


@pytest.mark.parametrize("option", ["--json", "--html", "--junit", "--markdown", "--badge", "--resume"])
def test_a_file_behind_links_in_a_circle_is_refused_before_the_run(folder: Path, option: str) -> None:
    """Fails when a link that leads nowhere ends a run in a traceback, or loses what the run has found."""
    Path("there").symlink_to("back")
    Path("back").symlink_to("there")
    done = invoke("verify", "numpy", option, "there")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "blocklaws: cannot write 'there': Too many levels of symbolic links\n"


def test_a_spec_that_extends_links_in_a_circle(folder: Path) -> None:
    """Fails when a stranger's spec ends in a traceback."""
    Path("there").symlink_to("there")
    Path("own.yaml").write_text("extends: there\n", encoding="utf-8")
    done = invoke("verify", "numpy", "--spec", "own.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "blocklaws: own.yaml:1:10: the spec: extends: 'there' is neither 'blocklaws' nor a file beside this one\n"
    )
