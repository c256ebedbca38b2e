"""Replay: a stored failure is the same failure, in the same words, until the block is mended.

Must hold: a replay examines the stored example and draws none; a report and a failure file serve alike; the test that
is written stands alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke, write_broken, write_right, write_spec

import blocklaws
from blocklaws.failure_text import failure_text
from blocklaws.replaying import examine
from blocklaws.stored_failures import read_failure

LLAMA = ("--spec", "spec.yaml", "--block", "llama", "--dtype", "float64")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


@pytest.fixture
def failing(folder: Path) -> str:
    """Return the id of a failure that a run has stored, with its report in report.json."""
    assert invoke("verify", write_broken(folder), *LLAMA, "--json", "report.json").exit_code == 1
    (stored,) = (folder / ".blocklaws" / "failures").glob("*.json")
    return stored.stem


def mend(folder: Path) -> None:
    """Replace the broken adapter by one that is right."""
    (folder / "broken.py").unlink()
    write_right(folder, "broken.py")


def block_of(text: str) -> str:
    """Return the failure alone, without what stands around it and its replay command."""
    lines = text[text.index("VIOLATED") :].split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if not line.startswith("  replay"))


def test_replay_tells_the_same_failure(folder: Path, failing: str) -> None:
    """Fails when a replay shows another example, or other words, than the run that found it."""
    found = invoke("verify", "broken.py:Backend", *LLAMA).stdout
    for arguments in ((failing,), (failing[:6],), ("report.json",), ("report.json", failing)):
        done = invoke("replay", *arguments)
        assert done.exit_code == 1
        assert block_of(done.stdout) == block_of(found)
        assert done.stdout.endswith("\nno-look-ahead on broken, llama, float64: still violated\n")
        assert f"  replay   blocklaws replay {' '.join(arguments)}\n" in done.stdout
    path = f".blocklaws/failures/{failing}.json"
    assert invoke("replay", path).exit_code == 1


def test_replay_searches_nothing(folder: Path, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a replay depends on what Hypothesis would draw today."""

    def find_search() -> Any:
        raise AssertionError("a replay draws no example")

    monkeypatch.setattr("blocklaws.running.find_search", find_search)
    assert invoke("replay", failing).exit_code == 1


def test_replay_after_a_repair_holds(folder: Path, failing: str) -> None:
    """Fails when a mended block is still said to fail."""
    mend(folder)
    done = invoke("replay", failing)
    assert (done.exit_code, done.stdout) == (0, "no-look-ahead on broken, llama, float64: holds now\n")


def test_replay_of_a_case_that_became_unchecked(folder: Path, failing: str) -> None:
    """Fails when a block that no longer supports the config passes."""
    with (folder / "broken.py").open("a", encoding="utf-8") as stream:
        stream.write("\n\nBackend.supports = lambda self, config: 'not any more'\n")
    done = invoke("replay", failing)
    assert (done.exit_code, done.stdout) == (2, "no-look-ahead on broken, llama, float64: unchecked: not any more\n")


def test_replay_of_a_backend_that_is_gone(folder: Path, failing: str) -> None:
    """Fails when a failure without its backend is a traceback."""
    (folder / "broken.py").unlink()
    done = invoke("replay", failing)
    assert done.exit_code == 2
    assert done.stderr == "blocklaws: backend 'broken.py:Backend': there is no file broken.py\n"


def test_replay_names_the_ids_that_begin_alike(folder: Path, failing: str) -> None:
    """Fails when the beginning of two ids replays either of them."""
    stored = folder / ".blocklaws" / "failures"
    (stored / f"{failing[:5]}00000.json").write_text("{}", encoding="utf-8")
    done = invoke("replay", failing[:5])
    assert done.exit_code == 2
    assert "is the beginning of several failures" in done.stderr


def test_a_case_that_is_not_in_the_report(folder: Path, failing: str) -> None:
    """Fails when an unknown case replays another one."""
    done = invoke("replay", "report.json", "--case", "fffffffff0")
    assert done.exit_code == 2
    assert done.stderr == f"blocklaws: report.json: has no failing case 'fffffffff0'; it has {failing}\n"


def test_the_written_test_stands_alone(folder: Path, failing: str, python: Any) -> None:
    """Fails when the test file does not fail with the failure, or still fails after the repair."""
    done = invoke("replay", failing, "--as-test", "test_mine.py")
    assert done.exit_code == 1
    assert done.stdout.endswith("\nwrote test_mine.py; run it with: pytest test_mine.py\n")
    run = python("-m", "pytest", "-q", "test_mine.py", cwd=folder)
    assert run.returncode == 1, run.stdout
    assert "VIOLATED no-look-ahead: backend broken, block llama, float64" in run.stdout
    mend(folder)
    run = python("-m", "pytest", "-q", "test_mine.py", cwd=folder)
    assert run.returncode == 0, run.stdout


def test_the_written_test_overwrites_nothing(folder: Path, failing: str) -> None:
    """Fails when a test file of the user's is lost."""
    (folder / "test_mine.py").write_text("mine", encoding="utf-8")
    done = invoke("replay", failing, "--as-test", "test_mine.py")
    assert done.exit_code == 2
    assert (folder / "test_mine.py").read_text(encoding="utf-8") == "mine"


def test_what_is_stored(folder: Path, failing: str) -> None:
    """Fails when a stored failure lacks what a replay needs, or the folder shows up in the user's version control."""
    data = json.loads((folder / ".blocklaws" / "failures" / f"{failing}.json").read_text(encoding="utf-8"))
    assert data["blocklaws"] == blocklaws.__version__
    case = data["failure"]
    assert (case["label"], case["spec_file"], case["seed"]) == ("broken.py:Backend", "spec.yaml", 0)
    assert case["counterexample"]["picks"] == {"p": 1}
    assert (folder / ".blocklaws" / ".gitignore").read_text(encoding="utf-8") == "*\n"
    assert read_failure(failing) == case


def test_examine_takes_objects_and_parts(folder: Path) -> None:
    """Fails when a part of an invariant, or a backend that is an object, cannot be looked at alone."""

    class Late:
        name = "late"

        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            return self

        def forward(self, x: Any, position_offset: int = 0) -> Any:
            return x + x.sum(axis=1, keepdims=True)

    sizes = {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4}
    example = {"sizes": sizes, "pattern": "normal", "seed": 1, "position_offset": 0, "picks": {"p": 1}}
    result = examine(Late(), invariant="prefix-invariance", block="llama", dtype="float32", example=example)
    assert result.verdict == "violated"
    assert "backend = ...  # the object that was verified" in failure_text(result)
    assert "blocklaws replay" not in failure_text(result), "no command can find an object again"
    with pytest.raises(
        blocklaws.BlocklawsError, match=r"there is no case of 'prefix-invariance' with the part 'trace'"
    ):
        examine(Late(), invariant="prefix-invariance", block="llama", dtype="float32", part="trace", example=example)
