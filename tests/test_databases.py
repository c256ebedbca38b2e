"""Counterexamples that runs share: in a folder, in a Redis server, from the failures of a report.

Must hold: what one process has found is what the next one looks at first; an empty database changes nothing; what a
stranger has put into one is never a verdict that the case itself could not reach; a database that is gone costs none.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster_support import redis_server
from faces_support import invoke, timeless, write_right, write_spec, write_wrong
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase

import blocklaws
from blocklaws.checking import Case
from blocklaws.properties.databases import SharedExamples, _key_of, open_databases
from blocklaws.properties.worlds import admissible_sizes, could_draw, examples
from blocklaws.running import prepare
from blocklaws.specification import Sizes
from blocklaws.worlds import Example

LLAMA = (
    *("--spec", "spec.yaml", "--block", "llama", "--profile", "quick", "--no-isolate"),
    *("--invariant", "no-look-ahead"),
)
# Wrong where the input begins so: about one example in fifty.
RARE = "return self.right(x, position_offset) * (float('nan') if abs(float(x.reshape(-1)[0])) % 1 > 0.985 else 1)"
needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None,
    reason="there is no redis-server; `make services` installs it on Debian, as root",
)
Data = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


def verified(*arguments: str) -> Data:
    """Run the command; return its report without its times."""
    done = invoke("verify", *arguments, *LLAMA, "--json", "report.json")
    assert done.stderr == ""
    return timeless()


def failing_seed(backend: str) -> str:
    """Return the first seed with which a backend fails, where the one before holds."""
    return str(verified(backend, "--seed", "0", "--until-failure")["seed"])


# --- what one has found, the next one looks at first ---


def shares(backend: str, database: str, process: Any = None) -> None:
    """Check that a failure of one run is the first example of another one, which alone would not have found it."""
    seed = failing_seed(backend)
    assert seed != "0"
    assert verified(backend)["summary"]["violated"] == 0
    found = verified(backend, "--seed", seed, "--database", database)
    (failure,) = [case for case in found["cases"] if case["verdict"] == "violated"]
    again = verified(backend, "--database", database)
    (replayed,) = [case for case in again["cases"] if case["verdict"] == "violated"]
    assert (replayed["examples"], replayed["examples_to_fail"]) == (1, 1)
    assert replayed["counterexample"] == failure["counterexample"]
    assert replayed["id"] == failure["id"]


@pytest.mark.slow
def test_a_folder_is_shared(folder: Path) -> None:
    """Fails when a failure that is known is searched for again."""
    backend = write_wrong(folder, RARE)
    shares(backend, "known")
    # From there it can be read where nothing may be written, with another folder beside it.
    kept = sorted(str(path) for path in Path("known").rglob("*"))
    both = ("--database", "mine", "--database", "readonly:known")
    assert [case["examples"] for case in verified(backend, *both)["cases"] if case["verdict"] == "violated"] == [1]
    assert sorted(str(path) for path in Path("known").rglob("*")) == kept
    mine = verified(backend, "--database", "mine")["cases"]
    assert [case["examples"] for case in mine if case["verdict"] == "violated"] == [1], "what failed again is kept here"


@pytest.mark.slow
@needs_redis
def test_a_redis_server_is_shared_by_processes(folder: Path, blocklaws: Any) -> None:
    """Fails when what one machine has found is not what the next one looks at first."""
    backend = write_wrong(folder, RARE)
    with redis_server(folder / "redis") as (address, _):
        shares(backend, address)
        # Another process, with two workers.
        arguments = ("verify", backend, *LLAMA, "--database", address, "--workers", "2", "--json", "other.json")
        done = blocklaws(*arguments, cwd=folder)
        assert (done.returncode, done.stderr) == (1, "")
    other = json.loads(Path("other.json").read_text(encoding="utf-8"))
    assert [case["examples"] for case in other["cases"] if case["verdict"] == "violated"] == [1]
    assert "redis" not in json.dumps(other), "a report says nothing of where a team keeps its examples"


@pytest.mark.slow
def test_the_failures_of_a_report_are_looked_at_first(folder: Path) -> None:
    """Fails when the artifact of a run elsewhere, or what `verify` has stored here, cannot be used as it is."""
    backend = write_wrong(folder, RARE)
    found = verified(backend, "--seed", failing_seed(backend))
    Path("report.json").rename("theirs.json")
    before = Path("theirs.json").read_bytes()
    for database in ("theirs.json", ".blocklaws/failures", "readonly:.blocklaws/failures"):
        again = verified(backend, "--database", database)
        assert [case["id"] for case in again["cases"] if case["id"]] == [
            case["id"] for case in found["cases"] if case["id"]
        ]
        assert [case["examples"] for case in again["cases"] if case["verdict"] == "violated"] == [1]
    assert Path("theirs.json").read_bytes() == before


@pytest.mark.slow
def test_what_holds_now_is_forgotten(folder: Path) -> None:
    """Fails when a failure that was mended is looked at for ever, or leaves a trace in the report."""
    backend = write_wrong(folder, "return self.right(x, position_offset) + float('nan')")
    empty = verified(backend)
    assert verified(backend, "--database", "known") == empty
    assert any(path.is_file() for path in Path("known").rglob("*"))
    (folder / "wrong.py").unlink()
    backend = write_wrong(folder, "return self.right(x, position_offset)")
    right = verified(backend)
    assert right["summary"]["violated"] == 0
    assert verified(backend, "--database", "known") == right
    values = list(DirectoryBasedExampleDatabase("known").fetch(_key_of(case_of(backend))))
    assert values == []


# --- what cannot be used ---


@pytest.mark.parametrize(
    ("database", "told"),
    [
        ("", "--database '': names nothing; give a folder, redis://HOST, or a report (.json)"),
        ("readonly:", "--database 'readonly:': names nothing; give a folder"),
        ("readonly:nowhere", "--database readonly:nowhere: there is no such folder"),
        ("spec.yaml", "--database spec.yaml: is neither a folder nor a report (.json)"),
        ("no/where", "--database no/where: cannot be made: No such file or directory"),
        ("n" * 300, f"--database {'n' * 200}: cannot be made: File name too long"),
        ("readonly:" + "n" * 300, "--database readonly:nnn"),
        ("x.json", "x.json: there is no such file"),
        ("other.json", "--database other.json: other.json is neither a report nor a failure of blocklaws"),
        ("redis://127.0.0.1:1", "--database redis://127.0.0.1:1: no Redis answers there (Error 111 connecting to"),
        ("redis://me:secret@127.0.0.1:1/3", "--database redis://127.0.0.1:1/3: no Redis answers there ("),
        ("redis://127.0.0.1:port", "--database redis://127.0.0.1:port: no Redis answers there ("),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(folder: Path, database: str, told: str) -> None:
    """Fails when a run begins without what it was told to share, or a password is printed."""
    Path("other.json").write_text("[1]", encoding="utf-8")
    done = invoke("verify", write_right(folder), *LLAMA, "--database", database)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"blocklaws: {told}")
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


def test_redis_that_is_not_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a user is not told which extra brings it."""
    monkeypatch.setitem(sys.modules, "redis", None)
    done = invoke("verify", write_right(folder), *LLAMA, "--database", "redis://127.0.0.1")
    assert done.exit_code == 2
    assert "--database redis://127.0.0.1: " in done.stderr
    assert "pip install 'blocklaws[redis]'" in done.stderr


@pytest.mark.slow
@needs_redis
def test_a_server_that_goes_costs_no_verdict(folder: Path) -> None:
    """Fails when a run ends, or a case is in error, because others' examples cannot be had."""
    backend = write_wrong(folder, "return self.right(x, position_offset) + float('nan')")
    alone = verified(backend)
    with redis_server(folder / "redis") as (address, server):
        assert verified(backend, "--database", address) == alone
        server.terminate()
        server.wait()
        # It was there when the run began: the same process has opened it.
        done = invoke("verify", backend, *LLAMA, "--database", address, "--json", "report.json")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"blocklaws: the database {address} cannot be used any more (")
    assert done.stderr.endswith("); the run goes on without it\n")
    assert done.stderr.count("\n") == 1
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert report["summary"] == alone["summary"]


def test_a_folder_that_takes_nothing_more_is_told(folder: Path) -> None:
    """Fails when a full disk, of which Hypothesis says nothing, looks like a counterexample that is shared."""
    backend = write_wrong(folder, "return self.right(x, position_offset) + float('nan')")
    place = folder / "takes nothing"
    alone = verified(backend, "--database", str(place))
    shutil.rmtree(place)
    place.write_text("", encoding="utf-8")
    done = invoke("verify", backend, *LLAMA, "--database", str(place), "--json", "report.json")
    assert done.stderr == (
        f"blocklaws: the database {place} cannot be used any more "
        "(what was saved is not there; is there room for it?); the run goes on without it\n"
    )
    assert timeless() == alone


# --- what strangers put in ---


def case_of(backend: str, invariant: str = "no-look-ahead", spec: str | None = "spec.yaml") -> Case:
    """Return a case of a backend."""
    run = prepare(
        [backend],
        spec=spec,
        blocks=["llama"],
        dtypes=["float32"],
        invariants=[invariant],
        profile="quick",
        isolate=False,
    )
    return run.cases[0]


def planted(case: Case, values: Sequence[bytes]) -> list[Example]:
    """Return what comes out of a database into which some values were put, for a case."""
    database = InMemoryExampleDatabase()
    for value in values:
        database.save(_key_of(case), value)
    shared = SharedExamples(database, "planted", keeps=True)
    found = shared.of(case, admissible_sizes(case), True)
    kept = set(database.fetch(_key_of(case)))
    assert kept == {value for value, _ in found}, "what cannot be used is forgotten"
    return [example for _, example in found]


GOOD: Data = {
    "sizes": {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4},
    "pattern": "integers", "seed": 0, "position_offset": 0, "picks": {"p": 1},
}  # fmt: skip


def test_an_example_that_could_not_be_drawn_is_dropped(folder: Path) -> None:
    """Fails when a stranger's example, or one of an older spec, decides about a case that would never have drawn it."""
    case = case_of("numpy")
    assert len(planted(case, [json.dumps(GOOD).encode()])) == 1
    others = [
        GOOD | {"picks": {"p": 2}}, GOOD | {"picks": {"p": 0}}, GOOD | {"picks": {"p": True}},
        GOOD | {"picks": {"p": 1.0}},
        GOOD | {"picks": {}}, GOOD | {"picks": {"p": 1, "q": 1}}, GOOD | {"pattern": "unheard of"}, GOOD | {"seed": -1},
        GOOD | {"seed": 2**40}, GOOD | {"position_offset": 10**6}, GOOD | {"more": 1},
        GOOD | {"sizes": GOOD["sizes"] | {"T": 1}}, GOOD | {"sizes": GOOD["sizes"] | {"B": 60_000}}, [GOOD], None, 1,
    ]  # fmt: skip
    assert planted(case, [json.dumps(other).encode() for other in others]) == []
    assert planted(case, [b"", b"\xff", b"[" * 9999, b"{}", b" " * 20_000 + json.dumps(GOOD).encode()]) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.text(max_size=30).map(str.encode), max_size=4))
def test_whatever_is_in_a_database_a_run_goes_on(values: list[bytes]) -> None:
    """Fails when what somebody else has put into a database raises."""
    assert planted(_CASE[0], values) == []


_CASE = [case_of("numpy", "prefix-invariance", None)]


def test_what_is_drawn_could_be_drawn() -> None:
    """Fails when a counterexample of some invariant would be dropped as a stranger's."""
    run = prepare(["numpy"], blocks=["llama", "gpt"], dtypes=["float32"], profile="quick")
    seen: set[str] = set()
    for case in run.cases:
        sizes = admissible_sizes(case)
        if not sizes or case.invariant.id in seen:
            continue
        seen.add(case.invariant.id)
        check_drawn(case, sizes)
    assert len(seen) > 60


def check_drawn(case: Case, sizes: tuple[Sizes, ...]) -> None:
    """Check that what a case draws is taken back from JSON, and that with a pick more it is not."""
    offsets = case.abilities.offsets

    @settings(max_examples=6, deadline=None, database=None)
    @given(examples(case, sizes, offsets))
    def check(example: Example) -> None:
        again = Example.from_dict(json.loads(json.dumps(example.as_dict())))
        assert could_draw(case, sizes, offsets, again), (case.id, again)
        other = dataclasses.replace(again, picks={**again.picks, "unheard_of": 1})
        assert not could_draw(case, sizes, offsets, other)

    check()


def test_opening_twice_is_opening_once(folder: Path) -> None:
    """Fails when every case of a run connects anew."""
    assert open_databases(("known",)) is open_databases(("known",))
    assert blocklaws.verify(write_right(folder), spec="spec.yaml", blocks=["llama"], database=["known"]).failures == ()
