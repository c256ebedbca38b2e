"""Long runs: one that is stopped and goes on, one that looks until something fails, one whose time is up.

Must hold: whenever a run is killed, the same command goes on to the same report; a state that is damaged, foreign or in
use is refused in one line, and left as it is; a state that cannot be written costs no verdict.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_support import until
from faces_support import invoke, timeless, write_broken, write_known, write_right, write_spec, write_wrong
from hypothesis import given, settings
from hypothesis import strategies as st

import blocklaws.running
from blocklaws.campaign import seconds_of
from blocklaws.errors import BlocklawsError
from blocklaws.journal import Journal, fixed_by
from blocklaws.report import VERDICTS
from blocklaws.running import prepare

QUICK = ("--spec", "spec.yaml", "--profile", "quick", "--no-isolate")
LLAMA = (*QUICK, "--block", "llama")
Data = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


def verified(*arguments: str) -> tuple[int, Data]:
    """Run the command; return its status and its report."""
    Path("report.json").unlink(missing_ok=True)
    done = invoke("verify", *arguments, "--json", "report.json")
    assert done.stderr == ""
    return done.exit_code, timeless()


# --- killed, and resumed ---


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "workers"), [(1, "1"), (4, "1"), (13, "1"), (3, "2"), (11, "2")])
def test_a_run_that_is_killed_goes_on_to_the_same_report(folder: Path, lines: int, workers: str) -> None:
    """Fails when a verdict is lost, told twice or told otherwise because a run was killed in its middle."""
    backends = (write_broken(folder), write_right(folder))
    write_known(folder, "same-shape")
    arguments = [*backends, *QUICK, "--block", "llama", "--block", "gpt", "--known-failures", "known.yaml"]
    command = [sys.executable, "-m", "blocklaws", "verify", *arguments, "--workers", workers, "--resume", "state"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or (Path("state").exists() and count_lines() >= lines))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    known = count_lines() - 1
    resumed = verified(*arguments, "--resume", "state")
    assert count_lines() == 1 + 24 > 1 + known
    assert resumed == verified(*arguments)
    assert resumed[1]["not_run"] == 0
    # What is done is done: nothing is looked at again, and nothing is told otherwise.
    assert verified(*arguments, "--resume", "state") == resumed
    assert count_lines() == 1 + 24


def count_lines() -> int:
    """Return how many whole lines the state has."""
    return Path("state").read_bytes().count(b"\n")


def test_a_state_that_is_torn_anywhere_goes_on(folder: Path) -> None:
    """Fails when a line that was being written as the run was killed spoils the file, or counts."""
    arguments = (write_broken(folder), *LLAMA, "--dtype", "float32", "--resume", "state")
    whole = verified(*arguments)
    content = Path("state").read_bytes()
    ends = [place for place, byte in enumerate(content) if byte == ord("\n")]
    cuts = {0, 1, 17, *ends, *(end + 1 for end in ends), *(end - 1 for end in ends), *(end + 40 for end in ends[:-1])}
    assert len(cuts) > 12
    torn = [(cut, b"") for cut in sorted(cuts)] + [(ends[1] + 1, b'{"case": 1, ' + b"x" * 9000)]
    for cut, tail in torn:
        Path("state").write_bytes(content[:cut] + tail)
        assert verified(*arguments) == whole, cut
        assert [line[:12] for line in Path("state").read_bytes().splitlines()] == [
            line[:12] for line in content.splitlines()
        ], cut


def test_what_is_known_is_not_looked_at_again(folder: Path) -> None:
    """Fails when a run that goes on begins anew."""
    counting = "open('calls', 'a').write('x'); return self.right(x, position_offset)"
    arguments = (write_wrong(folder, counting), *LLAMA, "--resume", "state")
    verified(*arguments)
    calls = Path("calls").stat().st_size
    assert calls > 10
    verified(*arguments)
    assert Path("calls").stat().st_size == calls
    Path("state").write_bytes(b"".join(Path("state").read_bytes().splitlines(keepends=True)[:2]))
    verified(*arguments)
    assert calls < Path("calls").stat().st_size < 2 * calls


# --- a state that cannot be used ---


def changed(change: Callable[[list[Data]], object]) -> None:
    """Change the lines of the state."""
    lines = [json.loads(line) for line in Path("state").read_text(encoding="utf-8").splitlines()]
    change(lines)
    Path("state").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines[0].update(format=2), "is no state of a run of this blocklaws; name another file"),
        (lambda lines: lines[0].update(run=[]), "is no state of a run of this blocklaws; name another file"),
        (
            lambda lines: lines[0]["run"].update(seed=3),
            "state of another run, which differs in seed (3 there, 0 here); ",
        ),
        (lambda lines: lines[0]["run"].update(spec="0" * 64), "which differs in spec; name another file, or remove it"),
        (lambda lines: lines[0]["run"]["versions"].update(numpy="1.0"), "which differs in versions (numpy); "),
        (lambda lines: lines[0]["run"].pop("files"), "which differs in files; "),
        (lambda lines: lines[2].update(case=99), ":3: case 99 is none of this run; remove the file to begin anew"),
        (lambda lines: lines[2].update(case=True), ":3: case True is none of this run"),
        (lambda lines: lines[2].update(case=2), ":3: has results of another case than 2"),
        (lambda lines: lines[2].update(results=[]), "is damaged: results.1: [] should be non-empty; remove the file"),
        (lambda lines: lines[1]["results"][0].update(verdict="fine"), "results.0.0.verdict: 'fine' is not one of"),
        (lambda lines: lines[1]["results"][0].update(seed=7), ":2: has results of the seeds [7]"),
        (
            lambda lines: lines.insert(1, {"held": {"seeds": -1, "examples": 0}}),
            ":2: does not count seeds and examples",
        ),
        (lambda lines: lines.insert(1, {"held": [1]}), ":2: does not count seeds and examples"),
        (lambda lines: lines.insert(1, []), ":2: is no line of the state of a run; remove the file to begin anew"),
    ],
)
def test_a_state_of_something_else_is_one_line(folder: Path, change: Callable[[list[Data]], object], told: str) -> None:
    """Fails when verdicts of another run, or nobody's, get into a report; or a file is lost that was something else."""
    arguments = (write_broken(folder), *LLAMA, "--dtype", "float32", "--resume", "state")
    verified(*arguments)
    changed(change)
    before = Path("state").read_bytes()
    done = invoke("verify", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("blocklaws: state:")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert Path("state").read_bytes() == before


def test_whatever_stands_in_a_state_is_read_or_refused(folder: Path) -> None:
    """Fails when a state that a disk or a stranger has damaged raises something else than a refusal."""
    verified(write_broken(folder), *LLAMA, "--resume", "state")
    run = prepare(["broken.py:Backend"], spec="spec.yaml", profile="quick", blocks=["llama"], isolate=False)
    whole = Path("state").read_bytes()
    refusals: list[str] = []

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 60), st.binary(max_size=8) | st.sampled_from(VALUES))
    def check(start: int, length: int, other: bytes) -> None:
        Path("state").write_bytes(whole[:start] + other + whole[start + length :])
        try:
            with Journal(Path("state"), run, fixed_by(run, until_failure=False)) as journal:
                assert set(journal.results) <= set(run.numbers)
                assert all(result.verdict in VERDICTS for results in journal.results.values() for result in results)
        except BlocklawsError as error:
            refusals.append(str(error))

    check()
    assert 20 < len(refusals) < 150
    assert [told for told in refusals if not told.startswith("state:") or len(told) > 600] == []


VALUES = [b"null", b"[]", b"{}", b"1e999", b"-1", b'""', b"\n", b"true", b"NaN"]


def test_files_that_are_no_state_stay_as_they_are(folder: Path) -> None:
    """Fails when a file that was named by mistake is overwritten."""
    right = write_right(folder)
    for name, content in (
        ("a", b"\xff\x00\n1"),
        ("b", b"precious"),
        ("c", b"[1]\n"),
        ("d", b"{}\n{"),
        ("e", b"[" * 9999),
    ):
        Path(name).write_bytes(content)
        done = invoke("verify", right, *LLAMA, "--resume", name)
        assert done.exit_code == 2, name
        assert done.stderr.count("\n") == 1
        assert Path(name).read_bytes() == content
    done = invoke("verify", right, *LLAMA, "--resume", "/dev/null")
    assert done.stderr == "blocklaws: /dev/null: is no file, and the state of a run must be read again; name one\n"
    done = invoke("verify", right, *LLAMA, "--resume", "no/state")
    assert done.stderr == "blocklaws: cannot write no/state: there is no folder no\n"
    done = invoke("verify", right, *LLAMA, "--resume", "same", "--json", "same")
    assert done.stderr == "blocklaws: same is named for two files; give each a name of its own\n"


def test_a_backend_that_was_changed_is_another_run(folder: Path) -> None:
    """Fails when half of the verdicts are about a backend that is no more."""
    right = write_right(folder)
    verified(right, *LLAMA, "--resume", "state")
    with (folder / "right.py").open("a", encoding="utf-8") as stream:
        stream.write("# changed\n")
    done = invoke("verify", right, *LLAMA, "--resume", "state")
    assert "which differs in files (right.py:Backend); name another file, or remove it" in done.stderr


def test_two_runs_do_not_share_a_state(folder: Path) -> None:
    """Fails when two runs write into each other's lines."""
    arguments = (write_right(folder), *LLAMA, "--resume", "state")
    run = prepare([arguments[0]], spec="spec.yaml", profile="quick", blocks=["llama"], isolate=False)
    with Journal(Path("state"), run, fixed_by(run, until_failure=False)):
        done = invoke("verify", *arguments)
    assert done.exit_code == 2
    assert done.stderr == ("blocklaws: state: another run writes to it; wait for its end, or name another file\n")
    assert verified(*arguments)[0] == 0


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from blocklaws.cli import main
sys.argv[0] = "blocklaws"
main()
"""


@pytest.mark.slow
def test_a_disk_that_is_full_costs_no_verdict(folder: Path, python: Any) -> None:
    """Fails when a state or a report for which there is no room ends a run, or hides what it found."""
    for backend, status in ((write_broken(folder), 1), (write_right(folder), 2)):
        arguments = ("verify", backend, *LLAMA, "--dtype", "float32", "--resume", f"state{status}", "--json", "r.json")
        done = python("-c", FULL.format(limit=1500), *arguments, cwd=folder)
        assert done.returncode == status
        assert done.stderr.splitlines()[0] == (
            f"blocklaws: cannot write state{status}: File too large; the run goes on without it"
        )
        assert done.stderr.splitlines()[-1] == "blocklaws: cannot write r.json: File too large"
        assert "Traceback" not in done.stderr
        assert "exit status" in done.stdout
        assert ("VIOLATED no-look-ahead" in done.stdout) == (status == 1)
        assert not Path("r.json").exists()
        assert [path.name for path in folder.iterdir() if path.name.startswith(".r")] == []
        # What was written before the disk was full is good.
        assert verified(*arguments[1:-2])[0] == status % 2


# --- until something fails ---

# Wrong where the input begins so: about one example in fifty.
RARE = "return self.right(x, position_offset) * (float('nan') if abs(float(x.reshape(-1)[0])) % 1 > 0.985 else 1)"


@pytest.mark.slow
def test_until_something_fails(folder: Path) -> None:
    """Fails when a run passes over the first seed that fails, or tells another report than that seed's."""
    rare = (write_wrong(folder, RARE), *LLAMA, "--invariant", "no-look-ahead")
    status, report = verified(*rare, "--until-failure", "--resume", "state")
    seeds = report.pop("campaign")
    assert status == 1
    assert report["seed"] == seeds["held"] > 0
    assert seeds["examples"] == 4 * seeds["held"]
    for seed in range(seeds["held"] + 1):
        status, alone = verified(*rare, "--seed", str(seed))
        assert status == (seed == seeds["held"])
    assert report == alone
    assert "--seed" in report["command"]
    # The state knows the end; and one that was cut off finds it again.
    again = verified(*rare, "--until-failure", "--resume", "state")
    assert again == (1, {**report, "campaign": seeds})
    lines = Path("state").read_bytes().splitlines(keepends=True)
    Path("state").write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    assert verified(*rare, "--until-failure", "--resume", "state") == again
    assert verified(*rare, "--until-failure", "--workers", "2") == again


@pytest.mark.slow
def test_a_campaign_that_is_killed_goes_on(folder: Path) -> None:
    """Fails when seeds that held are looked at again, or forgotten, because a run was killed."""
    # It waits once two seeds are kept, and fails when it is told to, so that the test decides how far it comes: were it
    # killed a little later, the cases that see the failure could be kept already.
    told = (
        "import os, pathlib, time; state = pathlib.Path('state'); fails = os.path.exists('fail'); "
        "time.sleep(0 if fails or not state.exists() or b'{\"seeds\": 2' not in state.read_bytes() else 60); "
        "return self.right(x, position_offset) * (float('nan') if fails else 1)"
    )
    arguments = (write_wrong(folder, told), *LLAMA, "--until-failure", "--resume", "state")
    command = [sys.executable, "-m", "blocklaws", "verify", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: Path("state").exists() and b'{"held": {"seeds": 2' in Path("state").read_bytes())
    process.send_signal(signal.SIGKILL)
    process.wait()
    held = json.loads(Path("state").read_bytes().splitlines()[1])["held"]["seeds"]
    Path("fail").touch()
    status, report = verified(*arguments)
    assert status == 1
    assert report["campaign"] == {"first": 0, "held": held, "examples": 4 * 2 * held}
    assert report["seed"] == held


def test_an_end_of_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a run goes on after its time, or one that was cut off passes for one that holds."""
    right = write_right(folder)
    done = invoke("verify", right, *LLAMA, "--max-time", "0.000001", "--json", "report.json")
    assert done.exit_code == 130
    assert done.stdout.endswith("exit status 130: interrupted; 6 more cases would have been looked at\n")
    assert timeless()["not_run"] == 6

    def ticking(step: float) -> None:
        now = iter(range(10**9))
        clock = types.SimpleNamespace(monotonic=lambda: next(now) * step, perf_counter=lambda: 0.0)
        monkeypatch.setattr(blocklaws.running, "time", clock)
        monkeypatch.setattr("blocklaws.cli_verify.time", types.SimpleNamespace(monotonic=lambda: 0.0))

    ticking(1)
    status, report = verified(right, *LLAMA, "--max-time", "3.5", "--resume", "state")
    assert (status, report["not_run"], len(report["cases"])) == (130, 2, 4)
    ticking(1)
    status, report = verified(write_broken(folder), *LLAMA, "--max-time", "3.5")
    assert (status, report["not_run"]) == (1, 2), "what is violated is so, however much was left out"
    # Six cases a seed: the second one is not finished, and the first one is told.
    ticking(1)
    status, report = verified(right, *LLAMA, "--max-time", "8.5", "--until-failure")
    assert (status, report["not_run"], report["seed"]) == (0, 0, 0)
    assert report["campaign"] == {"first": 0, "held": 1, "examples": 16}
    # And a run that goes on has its time anew.
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    status, report = verified(right, *LLAMA, "--resume", "state", "--max-time", "1h")
    assert (status, report["not_run"]) == (0, 0)


def test_what_excludes_each_other(folder: Path) -> None:
    """Fails when shards of a run would end with different seeds."""
    done = invoke("verify", write_right(folder), *LLAMA, "--until-failure", "--shard", "1/2")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("blocklaws: --until-failure and --shard exclude each other: each shard would end")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5h", 5400), ("1h30m", 5400), ("2d", 172_800)]
)
def test_durations(text: str, seconds: float) -> None:
    """Fails when a duration means another one."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "m", "5x", "1h 30m", "-5", "1e3", "nan", "h1", "9" * 30])
def test_what_is_no_duration_is_refused(folder: Path, text: str) -> None:
    """Fails when a mistyped duration runs for ever, or not at all."""
    with pytest.raises(BlocklawsError):
        seconds_of(text)
    done = invoke("verify", write_right(folder), *LLAMA, f"--max-time={text}")
    assert done.exit_code == 2
    assert done.stderr == (
        f"blocklaws: the duration {text!r} must read like 90s, 30m, 1h30m or 2d, and be more than nothing\n"
    )
