"""The pytest faces: a checkout's ``pytest properties``, ``--pyargs`` anywhere, and a test file of the user's own.

Must hold: one test a case with an id that says which, unchecked is skipped with its reason, a failure is the text that
the command line prints, known failures are strict, pytest-xdist changes nothing, and other people's fixtures are left
alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from faces_support import write_broken, write_right, write_spec, write_wrong

USER_TEST = """
import blocklaws

@blocklaws.parametrize(
    backends=["right.py:Backend", "broken.py:Backend"], spec="spec.yaml", blocks=["llama"], dtypes=["float64"], {more}
)
def test_invariant(case):
    case.check()
"""
LOOK_AHEAD = "test_invariant[no-look-ahead-llama-broken-float64]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a spec, a backend that is right, and one that is broken."""
    write_spec(tmp_path)
    write_right(tmp_path)
    write_broken(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def run_tests(python: Any, folder: Path) -> Any:
    """Return a function that runs pytest in the folder; it returns (exit status, output)."""

    def run(*arguments: str, more: str = "", cwd: Path | None = None) -> tuple[int, str]:
        (folder / "test_mine.py").write_text(USER_TEST.format(more=more), encoding="utf-8")
        done = python("-m", "pytest", "-rA", *arguments, cwd=cwd or folder)
        return done.returncode, done.stdout + done.stderr

    return run


def outcomes(output: str) -> dict[str, str]:
    """Return test -> outcome from pytest's short summary."""
    return {match[2]: match[1] for match in re.finditer(r"^(PASSED|FAILED|XFAIL) \S+::(\S+)", output, re.MULTILINE)}


def test_a_test_file_of_ones_own(run_tests: Any) -> None:
    """Fails when the decorator gives other tests, ids or outcomes than the cases of a run."""
    status, output = run_tests()
    assert status == 1
    assert outcomes(output) == {
        "test_invariant[no-look-ahead-llama-right-float64]": "PASSED",
        "test_invariant[same-shape-llama-right-float64]": "PASSED",
        LOOK_AHEAD: "FAILED",
        "test_invariant[same-shape-llama-broken-float64]": "PASSED",
    }
    assert output.count("unchecked: the block has no gradients") >= 1
    assert "1 failed, 3 passed, 2 skipped" in output


def test_a_failure_is_the_text_of_the_command_line(run_tests: Any, folder: Path, blocklaws: Any) -> None:
    """Fails when pytest shows less than the command line, or frames of the harness on top."""
    _, output = run_tests()
    shown = [line.removeprefix("E").removeprefix("  ").strip() for line in output.splitlines() if line.startswith("E ")]
    told = blocklaws("verify", "broken.py:Backend", "--spec", "spec.yaml", "--block", "llama", "-q", cwd=folder).stdout
    for start in ("VIOLATED", "says ", "claim ", "worst ", "wrong at", "diverges", "world "):
        (line,) = [line.strip() for line in told.splitlines() if line.strip().startswith(start)]
        assert any(line in each for each in shown), line
    assert "blocklaws.InvariantViolated" in output
    assert "pytest_cases.py" not in output
    assert len([line for line in output.splitlines() if re.match(r"\S+\.py:\d+: ", line)]) == 1
    replayed = blocklaws("replay", re.search(r"blocklaws replay ([0-9a-f]{10})", output)[1], cwd=folder)  # type: ignore[index]
    assert replayed.returncode == 1


def test_files_are_found_beside_the_test(run_tests: Any, folder: Path) -> None:
    """Fails when a test file works from one folder only."""
    (folder / "known.yaml").write_text(
        "- {invariant: no-look-ahead, backend: broken, reason: known}\n", encoding="utf-8"
    )
    (folder / "elsewhere").mkdir()
    status, output = run_tests("../test_mine.py", more='known_failures="known.yaml"', cwd=folder / "elsewhere")
    assert status == 0, output
    assert outcomes(output)[LOOK_AHEAD] == "XFAIL"


def test_a_known_failure_of_some_seeds_may_hold(run_tests: Any, folder: Path) -> None:
    """Fails when pytest takes an entry for strict that says it is not."""
    known = "- {invariant: no-look-ahead, reason: known, strict: false}\n"
    (folder / "known.yaml").write_text(known, encoding="utf-8")
    status, output = run_tests(more='known_failures="known.yaml"')
    assert "listed as a known failure but holds" not in output
    assert "xfailed" in output
    assert status == 0, output


def test_known_failures_are_strict(run_tests: Any, folder: Path) -> None:
    """Fails when a known failure that holds passes, or one that matches nothing goes unnoticed."""
    known = "- {invariant: no-look-ahead, reason: known}\n- {invariant: 'no-look-ahead[trace]', reason: none}\n"
    (folder / "known.yaml").write_text(known, encoding="utf-8")
    status, output = run_tests(more='known_failures="known.yaml"')
    assert status == 1
    assert outcomes(output)[LOOK_AHEAD] == "XFAIL"
    assert outcomes(output)["test_invariant[no-look-ahead-llama-right-float64]"] == "FAILED"
    assert "no-look-ahead-llama-right-float64 is listed as a known failure but holds; remove the entry" in output
    assert "known.yaml:2:3: the known failure of 'no-look-ahead[trace]' matches no case of this run" in output


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_stale_entry_alone_fails_the_session(run_tests: Any, folder: Path, workers: tuple[str, ...]) -> None:
    """Fails when every test is as expected and the stale entry is only printed, or is lost between processes."""
    known = (
        "- {invariant: no-look-ahead, backend: broken, reason: known}\n"
        "- {invariant: 'no-look-ahead[trace]', reason: none}\n"
    )
    (folder / "known.yaml").write_text(known, encoding="utf-8")
    status, output = run_tests(*workers, more='known_failures="known.yaml"')
    assert " failed" not in output.splitlines()[-1]
    assert status == 1
    assert output.count("known.yaml:2:3: the known failure of 'no-look-ahead[trace]' matches no case of this run") == 1


def test_xdist_gives_the_same(run_tests: Any) -> None:
    """Fails when ids or their order differ between processes, so that xdist refuses, or outcomes change."""
    one, several = run_tests(), run_tests("-n", "2")
    assert one[0] == several[0] == 1
    assert outcomes(one[1]) == outcomes(several[1])


def test_the_command_line_may_override_profile_and_seed(run_tests: Any, folder: Path) -> None:
    """Fails when a longer look needs an edit of the test file."""
    assert run_tests("--blocklaws-profile", "quick", "--blocklaws-seed", "3")[0] == 1
    status, output = run_tests("--blocklaws-profile", "quik")
    assert status == 2
    assert "blocklaws: unknown profile 'quik' (did you mean 'quick'?)" in output
    assert "Traceback" not in output
    status, output = run_tests("--blocklaws-seed", "one")
    assert "blocklaws: --blocklaws-seed=one must be a whole number, zero or more" in output


@pytest.mark.slow
@pytest.mark.parametrize("face", ["anywhere", "a file of one's own"])
def test_counterexamples_are_shared_with_pytest(
    run_tests: Any, folder: Path, python: Any, blocklaws: Any, face: str
) -> None:
    """Fails when what one run has found is not what the next one looks at first, in each face of pytest."""
    # Wrong where the input begins so: about one example in fifty.
    (folder / "broken.py").unlink()
    write_wrong(
        folder,
        "return self.right(x, position_offset) * (float('nan') if abs(float(x.reshape(-1)[0])) % 1 > 0.985 else 1)",
        "broken.py",
    )
    (folder / "test_rare.py").write_text(
        "import blocklaws\n\n@blocklaws.parametrize(['broken.py:Wrong'], spec='spec.yaml', blocks=['llama'], "
        "invariants=['no-look-ahead'])\ndef test_invariant(case):\n    case.check()\n",
        encoding="utf-8",
    )
    chosen = ("--spec", "spec.yaml", "--block", "llama", "--invariant", "no-look-ahead", "--profile", "quick")
    anywhere = [word if "-" not in word[:1] else f"--blocklaws-{word[2:]}" for word in chosen]
    faces = {
        "anywhere": ["--pyargs", "blocklaws.properties", "--blocklaws-backend", "broken.py:Wrong", *anywhere],
        "a file of one's own": ["test_rare.py", "--blocklaws-profile", "quick"],
    }

    def status(seed: str, *more: str) -> int:
        done = python("-m", "pytest", "-q", *faces[face], "--blocklaws-seed", seed, *more, cwd=folder)
        return int(done.returncode)

    known = ("--until-failure", "--json", "report.json", "--database", "known", "--no-isolate")
    blocklaws("verify", "broken.py:Wrong", *chosen, *known, cwd=folder)
    seed = str(json.loads((folder / "report.json").read_text(encoding="utf-8"))["seed"])
    assert seed != "0"
    assert status("0") == 0
    assert status("0", "--blocklaws-database", "known") == 1
    assert status("0", "--blocklaws-database", "mine") == 0
    assert status(seed, "--blocklaws-database", "mine") == 1
    assert status("0", "--blocklaws-database", "mine") == 1
    done = python("-m", "pytest", "-q", *faces[face], "--blocklaws-database", "broken.py", cwd=folder)
    assert done.returncode == 2
    assert "blocklaws: --database broken.py: is neither a folder nor a report (.json)" in done.stdout


def test_a_debugger_reaches_a_backend(run_tests: Any, folder: Path) -> None:
    """Fails when a backend that is named cannot be run in the process of the tests, or is run there unasked."""
    (folder / "broken.py").unlink()
    write_broken(folder)
    with (folder / "broken.py").open("a", encoding="utf-8") as stream:
        stream.write("\n\nimport sys\n\nif '_pytest' not in sys.modules:\n    raise RuntimeError('not here')\n")
    options = ("-k", "same-shape and broken")
    assert "not here" in run_tests(*options)[1]
    assert run_tests(*options, "--blocklaws-no-isolate")[0] == 0
    assert run_tests(*options, more="isolate=False")[0] == 0
    assert "not here" in run_tests(*options, "--blocklaws-isolate", more="isolate=False")[1]


def test_backends_as_objects(python: Any, folder: Path) -> None:
    """Fails when a class in the test file cannot be verified, or its failure names a replay that does not exist."""
    (folder / "test_mine.py").write_text(
        "import blocklaws\nfrom broken import Backend\n\n"
        "@blocklaws.parametrize([Backend], blocks=['llama'], dtypes=['float64'], invariants=['prefix-invariance'])\n"
        "def test_invariant(case):\n    case.check()\n",
        encoding="utf-8",
    )
    done = python("-m", "pytest", "-q", cwd=folder)
    assert done.returncode == 1
    assert "VIOLATED prefix-invariance: backend broken, block llama, float64" in done.stdout
    assert "blocklaws replay" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('"numpy"', "backends='numpy' must be a list, such as ['numpy'] or [MyBackend]"),
        ("[]", "blocklaws: no backend was named; give at least one, such as 'numpy'"),
        ('["nunpy"]', "blocklaws: unknown backend 'nunpy' (did you mean 'numpy'?)"),
        ('["numpy"], spec="none.yaml"', "blocklaws: none.yaml: there is no such file"),
    ],
)
def test_a_bad_call_of_the_decorator(python: Any, folder: Path, arguments: str, message: str) -> None:
    """Fails when a mistake in a test file is a traceback of the harness, or collects nothing and passes."""
    (folder / "test_mine.py").write_text(
        f"import blocklaws\n\n@blocklaws.parametrize({arguments})\ndef test_invariant(case):\n    case.check()\n",
        encoding="utf-8",
    )
    done = python("-m", "pytest", "-q", cwd=folder)
    assert done.returncode == 2
    assert message in done.stdout
    assert "running.py" not in done.stdout


def test_the_properties_in_a_checkout(python: Any, root: Path) -> None:
    """Fails when the short option of the checkout does not reach the plugin."""
    options = ("--blocklaws-block", "llama", "--blocklaws-dtype", "float32", "--blocklaws-profile", "quick")
    options += ("--blocklaws-invariant", "prefix-invariance", "--blocklaws-invariant", "shape-preservation")
    done = python(
        "-m", "pytest", "properties", "--backend", "numpy", "-v", "-p", "no:cacheprovider", *options, cwd=root
    )
    assert done.returncode == 0, done.stdout
    for id in ("prefix-invariance-llama-numpy-float32", "shape-preservation-llama-numpy-float32"):
        assert f"properties/test_invariants.py::test_invariant[{id}] PASSED" in done.stdout


def test_the_properties_anywhere(python: Any, folder: Path) -> None:
    """Fails when an installation cannot verify a backend by pytest alone."""
    command = ("-m", "pytest", "--pyargs", "blocklaws.properties", "-q", "-rA")
    options = ("--blocklaws-backend", "right.py:Backend", "--blocklaws-backend", "broken.py:Backend")
    options += ("--blocklaws-spec", "spec.yaml", "--blocklaws-block", "llama", "--blocklaws-dtype", "float64")
    done = python(*command, *options, cwd=folder)
    assert done.returncode == 1
    assert outcomes(done.stdout)[LOOK_AHEAD] == "FAILED"
    assert "1 failed, 3 passed, 2 skipped" in done.stdout


def test_no_backend_is_an_error_that_says_which_option(python: Any, folder: Path) -> None:
    """Fails when a run without a backend passes, or is a traceback."""
    done = python("-m", "pytest", "--pyargs", "blocklaws.properties", "-q", cwd=folder)
    assert done.returncode == 2
    assert (
        "blocklaws: no backend was named; add --blocklaws-backend BACKEND: a registered name such as numpy"
        in done.stdout
    )
    assert "Traceback" not in done.stdout


def test_parts_that_were_not_checked_are_told(python: Any, folder: Path) -> None:
    """Fails when a claim that a block cannot show vanishes because another claim of its invariant holds."""
    write_spec(
        folder,
        "- id: half\n  says: A thing.\n  then: [finite(query), finite(key)]\n",
    )
    with (folder / "right.py").open("a", encoding="utf-8") as stream:
        stream.write(
            "\n\ndef trace(self, x, position_offset=0, full=Block.trace):\n"
            "    shown = full(self, x, position_offset)\n    return {'query': shown['query']}\n"
            "full = Block.trace\n"
            "Block.forward = lambda self, x, position_offset=0: full(self, x, position_offset)['output']\n"
            "Block.trace = trace\n"
        )
    command = ("-m", "pytest", "--pyargs", "blocklaws.properties", "-q", "--blocklaws-backend", "right.py:Backend")
    options = ("--blocklaws-spec", "spec.yaml", "--blocklaws-block", "llama", "--blocklaws-dtype", "float64")
    for workers in ((), ("-n", "1")):
        done = python(*command, *options, *workers, cwd=folder)
        assert done.returncode == 0, done.stdout
        assert "blocklaws: parts of passed cases that were not checked" in done.stdout
        assert "1 x half on right: trace does not show key\n" in done.stdout


def test_a_fixture_named_case_is_left_alone(python: Any, folder: Path) -> None:
    """Fails when the plugin takes over a fixture that is somebody else's."""
    (folder / "test_theirs.py").write_text(
        "import pytest\n\n@pytest.fixture(params=[1, 2])\ndef case(request):\n    return request.param\n\n"
        "def test_theirs(case):\n    assert case in (1, 2)\n",
        encoding="utf-8",
    )
    done = python("-m", "pytest", "-q", "test_theirs.py", "--blocklaws-backend", "right.py:Backend", cwd=folder)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
