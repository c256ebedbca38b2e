"""`blocklaws compare`: each kind of change is seen, is told once, and fails the comparison exactly where it is worse.

Must hold: two equal reports have nothing to tell; what is worse in one direction is no regression in the other, but for
what is gone or no longer checked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke
from report_support import Data, case_of, changed, holding, killed, verified, write

from blocklaws.comparing import KINDS, REGRESSIONS, compare
from blocklaws.report_reading import read_report

FAILED = {"verdict": "violated", "reason": "4 of 4 elements wrong", "stage": "value", "id": "0123456789"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kinds(old: Data, new: Data, **options: Any) -> list[str]:
    """Return the kinds of change between two reports that have the form of the schema."""
    write(Path(), old=old, new=new)
    comparison = compare(read_report("old.json"), read_report("new.json"), **options)
    assert comparison.exit_status == int(any(kind in comparison.regressions for kind in comparison.by_kind))
    return list(comparison.by_kind)


def example() -> Any:
    """Return a counterexample, as a real failure has it."""
    return case_of(verified(), verdict="violated")["counterexample"]


def one(data: Data) -> Data:
    """Return the case that the changes are made to; it holds."""
    return case_of(data, invariant="parity", block="gpt", dtype="float32")


def set_to(**values: Any) -> Callable[[Data], None]:
    """Return a change of that case."""
    return lambda data: one(data).update(values)


def take_out(data: Data) -> None:
    """Remove that case."""
    data["cases"].remove(one(data))


def take_out_backend(data: Data) -> None:
    """Remove a backend and all of its cases."""
    data["backends"] = data["backends"][1:]
    data["cases"] = [case for case in data["cases"] if case["backend"] != "broken"]


def split(data: Data) -> None:
    """Leave some clauses of that case unchecked."""
    case = one(data)
    data["cases"].append({**case, "part": ": trace does not show query", "verdict": "unchecked", "reason": "no query"})


UNCHECKED = {"verdict": "unchecked", "reason": "the block has no trace", "examples": 0, "informative": 0}

#: what is done to a report of which everything holds -> what a comparison with it must say, forwards and backwards.
CHANGES: dict[str, tuple[Callable[[Data], Any], list[str], list[str]]] = {
    "nothing": (lambda data: None, [], []),
    "violated": (lambda data: one(data).update(FAILED, counterexample=example()), ["newly violated"], ["mended"]),
    "in error": (set_to(verdict="error", reason="forward raised"), ["newly in error"], ["mended"]),
    "unchecked": (set_to(**UNCHECKED), ["newly unchecked"], ["newly checked"]),
    "a part of it unchecked": (split, ["newly unchecked"], ["newly checked"]),
    "gone": (take_out, ["gone"], ["new"]),
    "fewer examples": (set_to(examples=2, informative=2), ["weaker"], []),
    "less informative": (set_to(informative=2), ["weaker"], []),
    "known": (
        lambda data: one(data).update(FAILED, counterexample=example(), known="yes"), ["expected now"], ["mended"]
    ),
    "slower": (lambda data: [case.update(seconds=9.0) for case in data["cases"]], ["slower"], []),
    "more programs": (lambda data: data["backends"][0].update(compilations=40), [], []),
    "a little slower": (lambda data: [case.update(seconds=1.1 * case["seconds"]) for case in data["cases"]], [], []),
    "a stale known failure": (
        lambda data: data["stale_known_failures"].append("known.yaml:1: matched nothing"), ["newly stale"], []
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_in_its_own_kind(name: str) -> None:
    """Fails when something that is worse goes unseen, or one change is told as several."""
    change, forwards, backwards = CHANGES[name]
    old = holding()
    assert one(old)["examples"] >= 4
    new = changed(old, change)
    assert kinds(old, new) == forwards
    assert kinds(new, old) == backwards


def test_every_kind_of_change_of_a_run_is_tried_here() -> None:
    """Fails when a kind is added and no test shows that it is ever told."""
    tried = {kind for _, *both in CHANGES.values() for kinds in both for kind in kinds}
    tried |= {"fails in another way", "unchecked for another reason"}
    faults = {
        "newly survived",
        "killed less surely",
        "lost kills",
        "newly idle",
        "newly untrue",
        "new kills",
        "newly killed",
    }
    assert tried | faults == set(KINDS)


def test_two_ways_of_failing(folder: Path) -> None:
    """Fails when an error that was a violation looks like a regression, or like nothing."""
    old = changed(holding(), lambda data: one(data).update(FAILED, counterexample=example()))
    new = changed(old, set_to(verdict="error", reason="forward raised"))
    assert kinds(old, new) == kinds(new, old) == ["fails in another way"]


def test_another_reason_is_no_regression() -> None:
    """Fails when the words of a reason make a regression, or the number of unchecked parts goes unseen."""
    old = changed(holding(), set_to(**UNCHECKED))
    assert kinds(old, changed(old, set_to(reason="no trace at all"))) == ["unchecked for another reason"]
    split_old = changed(holding(), split)

    def reworded(data: Data) -> None:
        data["cases"][-1].update(part=": the trace lacks query", reason="the trace lacks query")

    def worse(data: Data) -> None:
        reworded(data)
        data["cases"].append({**data["cases"][-1], "part": ": the trace lacks key", "reason": "the trace lacks key"})

    assert kinds(split_old, changed(split_old, reworded)) == ["unchecked for another reason"]
    assert kinds(split_old, changed(split_old, worse)) == ["newly unchecked", "unchecked for another reason"]


def test_a_case_of_which_nothing_is_left_checked() -> None:
    """Fails when a case that falls apart into unchecked parts is told as gone, or as nothing."""

    def apart(data: Data) -> None:
        case = one(data)
        data["cases"].remove(case)
        for reason in ("no query", "no key"):
            data["cases"].append({**case, **UNCHECKED, "part": f": {reason}", "reason": reason})

    assert kinds(holding(), changed(holding(), apart)) == ["newly unchecked"]


def test_a_new_case_that_fails_is_a_regression() -> None:
    """Fails when an invariant that is new, and violated, is only told as new."""
    old = changed(holding(), take_out)
    new = changed(holding(), lambda data: one(data).update(FAILED, counterexample=example()))
    assert kinds(old, new) == ["newly violated"]


def test_a_backend_is_gone_in_one_line() -> None:
    """Fails when a backend that was left out is told a case at a time."""
    new = changed(verified(), take_out_backend)
    write(Path(), old=verified(), new=new)
    done = invoke("compare", "old.json", "new.json")
    assert done.exit_code == 1
    assert "gone (1)\n  everything on broken\n    20 cases\n" in done.stdout
    assert kinds(new, changed(verified(), lambda data: None)) == ["newly violated", "new"]


def test_slower_fails_where_it_is_asked_to(folder: Path) -> None:
    """Fails when noise fails a comparison, or the ratio is not the one that was asked for."""
    old = changed(holding(), lambda data: [case.update(seconds=1.0) for case in data["cases"]])
    new = changed(holding(), lambda data: [case.update(seconds=1.8) for case in data["cases"]])
    write(folder, old=old, new=new)
    done = invoke("compare", "old.json", "new.json")
    assert done.exit_code == 0
    assert "\nslower (" in done.stdout
    assert "  all invariants on right\n    16.0 s -> 28.8 s\n" in done.stdout
    assert invoke("compare", "old.json", "new.json", "--fail-on", "slower").exit_code == 1
    assert invoke("compare", "old.json", "new.json", "--fail-on", "slower", "--slower", "2").exit_code == 0


def test_more_compiled_programs_are_slower() -> None:
    """Fails when a backend that compiles for each example anew is not told before its time is noticed."""
    few, many = (changed(holding(), lambda data, n=n: data["backends"][0].update(compilations=n)) for n in (40, 90))
    assert (kinds(few, many), kinds(many, few)) == (["slower"], [])
    assert "  compiling on right\n    40 -> 90 programs\n" in invoke("compare", "new.json", "old.json").stdout


def test_what_was_asked_differently_is_told(folder: Path) -> None:
    """Fails when a reader cannot see that two runs were not asked the same."""

    def asked(data: Data) -> None:
        data.update(profile="thorough", seed=7, not_run=3, blocklaws="0.2.0")
        data["versions"]["numpy"] = "9.9"
        data["spec"]["sha256"] = "0" * 64
        data["backends"][0]["device"] = "cuda"

    write(folder, old=holding(), new=changed(holding(), asked))
    text = invoke("compare", "old.json", "new.json").stdout
    for told in (
        "profile: quick, now thorough", "seed: 0, now 7", "now 00000000", "now 9.9", "blocklaws 0.2.0",
        "device of right: the default one, now cuda", "new.json is of an interrupted run: 3 more",
    ):  # fmt: skip
        assert told in text


# --- kill matrices ---


def lose(data: Data, fault: str, seeds: int, all_of_them: bool) -> None:
    """Let a fault lose its kills in some seeds: all, or the first alone where there are others."""
    rows = [row for row in data["faults"] if row["fault"] == fault and (all_of_them or len(row["killed_by"]) > 1)]
    assert rows
    for row in rows[:seeds]:
        lost = list(row["killed_by"]) if all_of_them else row["killed_by"][:1]
        row["killed_by"] = [name for name in row["killed_by"] if name not in lost]
        row["held"] += lost
        for name in lost:
            del row["examples_to_kill"][name]
        row["survived"] = not row["killed_by"]
    rows = [row for row in data["faults"] if row["fault"] == fault]
    rate = next(rate for rate in data["rates"] if rate["fault"] == fault)
    rate["share"] = sum(not row["survived"] for row in rows) / len(rows)


def without_fault(data: Data) -> None:
    """Take a fault out of a kill matrix."""
    for key in ("faults", "rates"):
        data[key] = [entry for entry in data[key] if entry["fault"] != "norm-over-tokens"]


def rates(**values: Any) -> Callable[[Data], None]:
    """Return a change of the rate of a fault."""
    return lambda data: next(rate for rate in data["rates"] if rate["fault"] == "norm-over-tokens").update(values)


FAULT_CHANGES: dict[str, tuple[Callable[[Data], Any], list[str], list[str]]] = {
    "nothing": (lambda data: None, [], []),
    "survives": (
        lambda data: lose(data, "norm-over-tokens", 9, True),
        ["newly survived", "lost kills"],
        ["new kills", "newly killed"],
    ),
    "survives in a seed": (lambda data: lose(data, "norm-over-tokens", 1, True), ["newly survived"], ["newly killed"]),
    "one invariant holds": (lambda data: lose(data, "norm-over-tokens", 9, False), ["lost kills"], ["new kills"]),
    "gone": (without_fault, ["gone"], ["new"]),
    "takes longer to kill": (rates(examples=90), ["slower"], []),
    "an idle invariant": (lambda data: data["idle_invariants"].append("output-parity"), ["newly idle"], []),
    "an untrue claim": (
        lambda data: data["declared_but_not_refuted"].append(["numpy", "output-parity", "x"]), ["newly untrue"], []
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULT_CHANGES)
def test_a_change_of_a_kill_matrix_is_seen(name: str) -> None:
    """Fails when a fault that survives now, or an invariant that lost its kill, goes unseen."""
    change, forwards, backwards = FAULT_CHANGES[name]
    new = changed(killed(), change)
    assert kinds(killed(), new) == forwards
    assert kinds(new, killed()) == backwards


def test_a_fault_that_is_killed_in_fewer_seeds() -> None:
    """Fails when a fault that was never sure to be killed may get worse unseen."""
    old, new = (changed(killed(), rates(share=share)) for share in (0.9, 0.6))
    assert kinds(old, new) == ["killed less surely"]
    assert kinds(old, changed(killed(), rates(share=0.0))) == ["newly survived"]


def test_a_new_fault_that_survives_is_a_regression() -> None:
    """Fails when a fault that nobody catches is only told as new."""
    old = changed(killed(), without_fault)
    new = changed(killed(), lambda data: lose(data, "norm-over-tokens", 1, True))
    assert kinds(old, new) == ["newly survived"]


def test_kills_are_not_compared_where_a_run_stopped_at_the_first() -> None:
    """Fails when `faults --first-kill` loses kills that it never looked for."""
    new = changed(killed(), lambda data: lose(data, "norm-over-tokens", 9, False))
    assert kinds(killed(), {**new, "first_kill": True}) == []


# --- the command ---


def test_the_exit_status_and_the_files(folder: Path) -> None:
    """Fails when a script cannot tell a regression, or a file that is no report, from a good comparison."""
    bad = changed(holding(), CHANGES["violated"][0])
    write(folder, good=holding(), bad=bad, faults=killed())
    same = invoke("compare", "good.json", "good.json")
    assert (same.exit_code, same.stdout.splitlines()[-1]) == (0, "exit status 0: nothing got worse (nothing changed)")
    worse = invoke("compare", "good.json", "bad.json", "--markdown", "worse.md")
    assert (worse.exit_code, worse.stdout.splitlines()[-1]) == (1, "exit status 1: 1 newly violated")
    assert "    held; diverges first at value\n    blocklaws replay bad.json 0123456789\n" in worse.stdout
    text = (folder / "worse.md").read_text(encoding="utf-8")
    assert text.startswith(
        "### blocklaws compare: 1 newly violated\n\n**newly violated (1)**\n\n- <code>parity on right"
    )
    better = invoke("compare", "bad.json", "good.json")
    assert (better.exit_code, better.stdout.splitlines()[-1]) == (0, "exit status 0: nothing got worse (1 mended)")
    mixed = invoke("compare", "good.json", "faults.json")
    assert (mixed.exit_code, mixed.stdout) == (2, "")
    assert mixed.stderr == (
        "blocklaws: good.json is a report of `verify` and faults.json one of `faults`; compare two of a kind\n"
    )


def test_long_lists_are_cut_and_counted(folder: Path) -> None:
    """Fails when a thousand lines bury the status, or --verbose leaves some out."""
    new = changed(holding(), lambda data: [case.update(UNCHECKED) for case in data["cases"]])
    old = holding()
    for data in (old, new):
        model = dict(case_of(data, invariant="parity"))
        data["cases"] += [{**model, "invariant": f"parity-{number}"} for number in range(40)]
    write(folder, old=changed(old, lambda data: None), new=changed(new, lambda data: None))
    short = invoke("compare", "old.json", "new.json").stdout
    assert "more; --verbose lists them" in short
    assert "parity-39" not in short
    assert "parity-39 on right" in invoke("compare", "old.json", "new.json", "--verbose").stdout


def test_every_regression_has_its_place_in_the_order() -> None:
    """Fails when a kind that is worse is told after one that is not."""
    assert KINDS[: len(REGRESSIONS)] == REGRESSIONS
