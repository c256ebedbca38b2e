"""Known failures: expected to fail, with a reason, and strictly so.

Must hold: a listed case that fails does not fail the run and is shown with its reason; one that holds, and an entry
that matches nothing, fail the run; a condition that does not apply lets the failure stand.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from faces_support import invoke, scrubbed, write_broken, write_right, write_spec

from blocklaws.known_failures import KnownFailure
from blocklaws.located_yaml import Place


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants and a broken backend."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    write_broken(tmp_path)
    return tmp_path


def verify(folder: Path, known: str, *arguments: str) -> Result:
    """Verify the broken backend with a known-failures file of the given text."""
    (folder / "known.yaml").write_text(known, encoding="utf-8")
    return invoke(
        "verify", "broken.py:Backend", "--spec", "spec.yaml", "--block", "llama", "--known-failures", "known.yaml",
        "--json", "report.json", *arguments,
    )  # fmt: skip


def test_an_expected_failure_fails_nothing(folder: Path) -> None:
    """Fails when a known failure still fails the run, or is not shown with its reason."""
    done = verify(folder, "- invariant: no-look-ahead\n  reason: the mask is being rewritten\n")
    assert done.exit_code == 0, done.output
    assert "VIOLATED" not in done.stdout
    assert "no-look-ahead          2 known " in done.stdout
    assert "known failures, expected in 2 cases:\n      2  the mask is being rewritten\n" in done.stdout
    assert "6 cases: 2 hold, 2 violated, 0 in error, 2 unchecked (2 of them known), in TIME s" in scrubbed(done.stdout)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert {case["known"] for case in report["cases"] if case["verdict"] == "violated"} == {
        "the mask is being rewritten"
    }


def test_an_expected_failure_is_not_shrunk(folder: Path) -> None:
    """Fails when time is spent on a small example that nobody will look at."""
    verify(folder, "- {invariant: no-look-ahead, reason: known}\n")
    known = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    invoke("verify", "broken.py:Backend", "--spec", "spec.yaml", "--block", "llama", "--json", "report.json")
    shrunk = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [case["examples"] for case in known["cases"]] == [case["examples"] for case in shrunk["cases"]]
    for before, after in zip(known["cases"], shrunk["cases"], strict=True):
        if before["counterexample"]:
            assert before["counterexample"]["sizes"]["T"] >= after["counterexample"]["sizes"]["T"]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("block: llama", 0),
        ("block: gpt", 1),
        ("backend: broken", 0),
        ("backend: 'bro*'", 0),
        ("backend: torch", 1),
        ("dtype: 'float*'", 0),
        ("dtype: float64", 1),  # float32 fails too
        ("device: cpu", 0),
        ("device: cuda", 1),
        ("version: numpy >= 1.0", 0),
        ("version: numpy < 1.0", 1),
        ("backend: torch\n  version: no-such-package > 1", 1),  # another backend's condition is its own
    ],
)
def test_conditions(folder: Path, condition: str, expected: int) -> None:
    """Fails when an entry speaks of more, or of fewer, cases than its conditions say."""
    assert verify(folder, f"- invariant: no-look-ahead\n  reason: known\n  {condition}\n").exit_code == expected


def test_a_version_of_what_is_not_installed_is_refused(folder: Path) -> None:
    """Fails when a misspelt distribution makes an entry that never matches, and nobody is told."""
    done = verify(folder, "- invariant: no-look-ahead\n  reason: known\n  version: nunpy >= 1.0\n")
    assert done.exit_code == 2
    assert done.stderr == (
        "blocklaws: known.yaml:1:3: known failure: version: no distribution 'nunpy' is installed "
        "(did you mean 'numpy'?); correct it, or name the backend that stands on it with 'backend'\n"
    )


def test_a_backend_of_another_run_is_told_and_left_alone(folder: Path) -> None:
    """Fails when one list cannot serve two backends, or a misspelt backend goes unnoticed."""
    ours = "- {invariant: no-look-ahead, backend: broken, reason: known}\n"
    done = verify(folder, ours)
    assert "not in this run" not in done.stdout
    entries = "".join(
        f"- {{invariant: no-look-ahead, backend: {name}, reason: x}}\n" for name in ("brokn", "torch", "torch")
    )
    done = verify(folder, ours + entries)
    assert done.exit_code == 0, done.output
    told = "known failures of backends that are not in this run: brokn (did you mean 'broken'?) (known.yaml:2), torch "
    assert told + "(known.yaml:3) " in " ".join(done.stdout.split())


def test_the_name_of_a_variant_is_a_name(folder: Path) -> None:
    """Fails when the brackets of ``layer[eager]`` are read as letters to choose from, and the entry never matches."""
    entry = KnownFailure("no-look-ahead", "known", Place("known.yaml", 1, 3), backend="layer[eager]")
    case = ("no-look-ahead", "no-look-ahead")
    assert entry.matches(*case, "layer[eager]", "llama", "float32", "")
    assert not entry.matches(*case, "layer[sdpa]", "llama", "float32", "")


def test_a_known_failure_that_holds_is_stale(folder: Path) -> None:
    """Fails when a list of known failures keeps what has been mended."""
    done = verify(folder, "- {invariant: no-look-ahead, reason: known}\n- {invariant: same-shape, reason: long ago}\n")
    assert done.exit_code == 1
    assert (
        "stale known failure: known.yaml:2:3: same-shape on broken, llama, float64 is listed as a known failure but "
        "holds; remove the entry\n" in done.stdout
    )
    assert done.stdout.endswith("exit status 1: a known failure is stale\n")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert len(report["stale_known_failures"]) == 2


def test_what_only_some_seeds_show_may_hold(folder: Path) -> None:
    """Fails when an entry that says so is stale in a seed that shows nothing, or excuses what it does not speak of."""
    some = "- {invariant: no-look-ahead, reason: known}\n- {invariant: same-shape, reason: rare, strict: false}\n"
    done = verify(folder, some)
    assert done.exit_code == 0, done.output
    assert "stale" not in done.stdout
    done = verify(folder, some + "- {invariant: no-look-ahead, dtype: bfloat16, reason: none, strict: false}\n")
    assert done.exit_code == 1
    assert "stale known failure: known.yaml:3:3: the known failure of 'no-look-ahead' matches no case" in done.stdout
    done = verify(folder, "- {invariant: no-look-ahead, reason: known, strict: 'no'}\n")
    assert done.exit_code == 2
    assert done.stderr == (
        "blocklaws: known.yaml:1:54: known failure: strict: must be true or false, but here is 'no'\n"
    )


def test_an_entry_that_matches_nothing_is_stale(folder: Path) -> None:
    """Fails when a typo in the list goes unnoticed."""
    done = verify(
        folder,
        "- {invariant: no-look-ahead, reason: known}\n- {invariant: no-look-ahead, dtype: bfloat16, reason: none}\n",
    )
    assert done.exit_code == 1
    assert (
        "stale known failure: known.yaml:2:3: the known failure of 'no-look-ahead' matches no case of this run\n"
        in done.stdout
    )


def test_an_unknown_invariant_is_refused(folder: Path) -> None:
    """Fails when a misspelt id counts as a failure that is not there any more, or as nothing under a filter."""
    done = verify(folder, "- {invariant: no-look-ahaed, reason: known}\n")
    assert done.exit_code == 2
    expected = "known.yaml:1:3: known failure: unknown invariant 'no-look-ahaed' (did you mean 'no-look-ahead'?)\n"
    assert done.stderr == f"blocklaws: {expected}"


def test_an_unchecked_case_is_no_stale_failure(folder: Path) -> None:
    """Fails when a known failure must be removed because a backend lost a capability."""
    known = "- {invariant: no-look-ahead, reason: known}\n- {invariant: gradient-is-finite, reason: known}\n"
    assert verify(folder, known).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {invariant: no-look-ahead}\n", "known.yaml:1:3: known failure has no 'reason', which it must have"),
        ("- {invariant: a, reason: ''}\n", "known.yaml:1:27: known failure: reason: is empty"),
        (
            "- {invariant: a, reason: b, blok: llama}\n",
            "known.yaml:1:29: known failure has an unknown key 'blok' (did you mean 'block'?); the keys are ",
        ),
        (
            "- {invariant: a, reason: b, version: new}\n",
            "known.yaml:1:38: known failure: version: 'new' must read like 'torch < 2.4'",
        ),
        ("invariant: a\n", "known.yaml:1:1: a known-failures file must be a list, but here is a mapping"),
    ],
)
def test_a_bad_list_is_refused(folder: Path, text: str, message: str) -> None:
    """Fails when a mistake in the list is told without its place, or counts as a known failure."""
    done = verify(folder, text)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"blocklaws: {message}")


def test_an_empty_list_is_fine(folder: Path) -> None:
    """Fails when the last entry cannot be removed from a list."""
    write_right(folder)
    assert verify(folder, "").exit_code == 1
    assert verify(folder, "[]\n").exit_code == 1
