"""A run that is split among machines: the shards, and the report that they are merged to.

Must hold: the same plan and timings give the same shards everywhere, each case in one of them, about equally long; the
merged report is that of the whole run; what is not one run, or not all of it, is refused in one line that says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke, timeless, write_broken, write_known, write_right, write_spec
from hypothesis import given
from hypothesis import strategies as st

import blocklaws
from blocklaws.report_reading import read_report
from blocklaws.running import prepare
from blocklaws.sharding import Shard, split

QUICK = ("--spec", "spec.yaml", "--profile", "quick", "--no-isolate")
Data = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


def write_shards(of: int, *arguments: str) -> list[str]:
    """Verify each shard; return the names of the reports."""
    names = [f"shard-{number}.json" for number in range(1, of + 1)]
    for number, name in enumerate(names, 1):
        done = invoke("verify", *arguments, *QUICK, "--shard", f"{number}/{of}", "--json", name)
        assert done.exit_code in (0, 1), done.output
    return names


# --- which cases a shard has ---


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60), st.data())
def test_every_case_is_in_one_shard(costs: list[int], data: st.DataObject) -> None:
    """Fails when a case is lost or run twice, a shard is empty, or one is much longer than another."""
    shards = data.draw(st.integers(1, len(costs)))
    ranges = split(costs, shards)
    assert [number for each in ranges for number in each] == list(range(len(costs)))
    assert len(ranges) == shards
    assert all(ranges)
    longest = max(sum(costs[number] for number in each) for each in ranges)
    assert longest <= sum(costs) / shards + 2 * max(costs)


def test_shards_are_equally_long_by_the_times_of_a_report(folder: Path) -> None:
    """Fails when times are not looked at, or a case that they do not know is taken for nothing."""
    write_right(folder)
    invoke("verify", "right.py:Backend", *QUICK, "--block", "llama", "--json", "timings.json")
    data = json.loads(Path("timings.json").read_text(encoding="utf-8"))
    assert len(data["cases"]) == 6
    for case, seconds in zip(data["cases"], (5.2, 0.5, 1.0, 0.5, 1.0, 2.5), strict=True):
        case["seconds"] = seconds
    Path("timings.json").write_text(json.dumps(data), encoding="utf-8")

    def numbers(shard: str, timings: str | None = "timings.json", **more: Any) -> list[int]:
        given = {"spec": "spec.yaml", "profile": "quick", "blocks": ["llama"], **more}
        return list(prepare(["right.py:Backend"], **given, shard=shard, timings=timings).numbers)

    assert numbers("1/2", None) == [0, 1, 2]
    assert [numbers("1/2"), numbers("2/2")] == [[0], [1, 2, 3, 4, 5]]
    assert [numbers("1/3"), numbers("2/3"), numbers("3/3")] == [[0], [1, 2, 3, 4], [5]]
    # Of gpt nothing is known: its cases cost what the others cost on average.
    assert len(numbers("1/2", blocks=["llama", "gpt"])) == 6


@pytest.mark.parametrize("text", ["", "0/2", "3/2", "1", "1/0", "-1/2", "1/2/3", "a/b", "1/1000000000"])
def test_what_is_no_shard_is_refused(folder: Path, text: str) -> None:
    """Fails when a mistyped shard runs something."""
    done = invoke("verify", write_right(folder), *QUICK, f"--shard={text}")
    assert done.exit_code == 2
    assert done.stderr == f"blocklaws: shard {text!r} must read like 2/4: the second of four, counted from 1\n"


def test_shards_that_cannot_be(folder: Path) -> None:
    """Fails when a shard would be empty, or timings are taken that say nothing."""
    right = write_right(folder)
    llama = (right, *QUICK, "--block", "llama")
    done = invoke("verify", *llama, "--shard", "1/7")
    assert (done.exit_code, done.stderr) == (
        2, "blocklaws: 7 shards are more than the 6 cases of the run; use fewer\n",
    )  # fmt: skip
    done = invoke("verify", *llama, "--timings", "x.json")
    assert done.stderr.startswith("blocklaws: timings split a run into shards, and no shard was asked for")
    done = invoke("verify", *llama, "--shard", "1/2", "--timings", "x.json")
    assert done.stderr == "blocklaws: x.json: there is no such file\n"
    assert str(Shard.parse("2/4")) == "2/4"


# --- merging ---


@pytest.mark.slow
def test_the_merged_report_is_that_of_the_whole_run(folder: Path) -> None:
    """Fails when splitting a run changes what it says, in any of its files."""
    backends = (write_broken(folder), write_right(folder))
    write_known(folder, "no-look-ahead", "same-shape")
    with (folder / "known.yaml").open("a", encoding="utf-8") as stream:
        stream.write("- {invariant: gradient-is-finite, block: gpt, dtype: float64, backend: '*', reason: never}\n")
        stream.write("- {invariant: no-look-ahead, backend: another, reason: not asked}\n")
    for more in ((), ("--known-failures", "known.yaml")):
        whole = invoke("verify", *backends, *QUICK, *more, "--json", "whole.json", "--junit", "whole.xml")
        shards = write_shards(4, *backends, *more)
        merged = invoke("merge", *reversed(shards), "--json", "merged.json", "--html", "m.html", "--markdown", "m.md")
        assert timeless("merged.json") == timeless("whole.json")
        assert merged.exit_code == whole.exit_code == 1
        assert merged.stderr == ""
        assert "VIOLATED no-look-ahead: backend broken, block llama, float64" in merged.stdout or more
        assert Path("m.html").stat().st_size > 10_000
        assert "shard" not in timeless("merged.json")
    assert len(timeless("merged.json")["stale_known_failures"]) > 4
    assert read_report("shard-1.json").data["shard"]["of"] == 4
    # What a shard says repeats the shard.
    assert timeless("shard-2.json")["command"].endswith("--known-failures known.yaml --shard 2/4 --no-isolate")


def test_a_shard_of_which_nothing_can_be_checked_does_not_fail(folder: Path) -> None:
    """Fails when a job of a matrix fails because all that its shard has is unchecked; the whole run says so."""
    only = (write_right(folder), "--invariant", "gradient-is-finite", "--block", "llama")
    assert invoke("verify", *only, *QUICK).exit_code == 2
    shards = write_shards(2, *only)
    done = invoke("merge", *shards)
    assert done.exit_code == 2
    assert done.stdout.endswith("exit status 2: nothing could be checked\n")


@pytest.fixture
def shards(folder: Path) -> list[str]:
    """Return the reports of three shards."""
    return write_shards(3, write_right(folder), "--block", "llama")


def changed(name: str, change: Callable[[Data], object]) -> None:
    """Change a report in its file."""
    data = json.loads(Path(name).read_text(encoding="utf-8"))
    change(data)
    Path(name).write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.update(seed=1), "differ in the seed (0 and 1)"),
        (lambda data: data.update(profile="default"), "differ in the profile ('quick' and 'default')"),
        (lambda data: data.update(blocklaws="0.0.1"), "differ in the version of blocklaws ("),
        (lambda data: data["versions"].update(numpy="1.0"), "differ in the versions"),
        (lambda data: data["spec"].update(sha256="0" * 64), "differ in the spec"),
        (lambda data: data["backends"][0].update(device="cuda"), "differ in the backends"),
        (lambda data: data["shard"].update(plan="0" * 64), "differ in the plan of cases ("),
        (lambda data: data["shard"].update(of=4), "differ in the number of shards (3 and 4)"),
        (lambda data: data["shard"].update(command="x"), "differ in the command ("),
    ],
)
def test_other_runs_are_refused(shards: list[str], change: Callable[[Data], object], told: str) -> None:
    """Fails when verdicts of two runs become one report."""
    changed(shards[1], change)
    done = invoke("merge", *shards, "--json", "merged.json")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"blocklaws: {shards[0]} and {shards[1]} are not of one run: they {told}")
    assert not Path("merged.json").exists()


def test_gaps_and_overlaps_are_refused(shards: list[str]) -> None:
    """Fails when a case that nobody ran, or one that two ran, passes for one."""

    def refused(*given: str) -> str:
        done = invoke("merge", *given)
        assert (done.exit_code, done.stdout) == (2, "")
        return done.stderr

    assert refused(*shards[:2]) == "blocklaws: there is a gap: no file is given of shard 3/3\n"
    assert refused(shards[1]) == "blocklaws: there is a gap: no file is given of shard 1/3, 3/3\n"
    assert refused(*shards, shards[0]).startswith("blocklaws: shard-1.json and shard-1.json overlap: both have case 0;")
    # One that was split by other times: two cases more at its end, two fewer at its beginning.
    changed(shards[1], lambda data: data["shard"].update(first=1, end=3))
    assert "shard-1.json and shard-2.json overlap: both have case 1;" in refused(*shards)
    changed(shards[1], lambda data: data["shard"].update(first=3, end=5))
    assert refused(*shards[:2], shards[2]) == (
        "blocklaws: there is a gap: no file is given that has cases 2 to 2; split all by the same --timings\n"
    )
    changed(shards[1], lambda data: data["shard"].update(first=2, end=3))
    assert refused(*shards) == "blocklaws: shard-2.json: is damaged: it has not the cases of shard 2/3\n"
    changed(shards[1], lambda data: data["shard"].update(first=2, end=4))
    changed(shards[1], lambda data: data.update(not_run=1))
    assert refused(*shards) == ("blocklaws: shard-2.json: has a gap: 1 cases of shard 2/3 were not run; run it again\n")


def test_what_is_no_shard_of_a_run_is_refused(folder: Path, shards: list[str]) -> None:
    """Fails when a whole run, or a file of another kind, is merged."""
    invoke("verify", "right.py:Backend", *QUICK, "--block", "llama", "--json", "whole.json")
    done = invoke("merge", *shards, "whole.json")
    assert done.stderr == (
        "blocklaws: whole.json: is the report of a whole run; `verify --shard I/N` writes what can be merged\n"
    )
    done = invoke("merge", *shards, "spec.yaml")
    assert done.stderr.startswith("blocklaws: spec.yaml: is not JSON")
    changed(shards[0], lambda data: data["shard"].pop("plan"))
    done = invoke("merge", *shards)
    assert done.stderr.startswith("blocklaws: shard-1.json: is damaged: shard: 'plan' is a required property")
    assert done.exit_code == 2


def test_a_shard_from_python(folder: Path) -> None:
    """Fails when the call in Python has not what the command has."""
    report = blocklaws.verify(
        write_right(folder), spec="spec.yaml", blocks=["llama"], profile="quick", shard="2/2", workers=1
    )
    assert report.shard is not None
    assert (report.shard["first"], report.shard["end"], len(report.cases)) == (3, 6, 3)
