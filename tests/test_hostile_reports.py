"""JSON from anywhere: whatever was done to a report, `compare` and `replay` say one line and never a traceback.

Must hold: real reports are changed at random, in their bytes and in their values; a command ends with one of its exit
statuses, tells a refusal on one line, and takes no memory that a report does not need.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from faces_support import invoke, places, write_broken, write_right, write_spec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from report_support import killed, verified
from terminal_scenes import GROUPED

hostile = settings(
    max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

#: Values that nobody expects where they stand; what JSON can say, and texts that a reader might trip over. Each is new:
#: a list that two places shared would be changed in both, and could come to hold itself.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [0, -1, 2**31, 2**63, 10**400, 1e308, [], {}, [[]], {"a": {}}, "", "\x1b[2J", "\ud800", "../x", "<x>"]
    ),
    st.text(max_size=20),
).map(copy.deepcopy)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run in a folder with the backends and the spec of the reports, and with the reports."""
    folder = tmp_path_factory.mktemp("hostile")
    write_spec(folder, GROUPED)
    write_broken(folder)
    write_right(folder)
    for name, data in (("verify", verified()), ("faults", killed())):
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def checked(done: Result) -> Result:
    """Return what came out of a command, which did not end in a traceback."""
    assert isinstance(done.exception, SystemExit | None), repr(done.exception)
    assert done.exit_code in (0, 1, 2)
    if done.exit_code == 2 and done.stderr:
        assert done.stderr.startswith("blocklaws: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert len(done.stderr) < 1_500
    assert "\x1b" not in done.stdout
    return done


def mutant(data: st.DataObject, report: Any) -> Any:
    """Return a report in which a few places hold something else, or are gone."""
    for _ in range(data.draw(st.integers(1, 3), label="changes")):
        everywhere = places(report)
        # The reports have few keys at the top and many below: choose a depth first.
        depth = data.draw(st.integers(1, max(map(len, everywhere))))
        path = data.draw(st.sampled_from([place for place in everywhere if len(place) <= depth]), label="place")
        holder = report
        for part in path[:-1]:
            holder = holder[part]
        if data.draw(st.booleans(), label="gone"):
            del holder[path[-1]]
        else:
            holder[path[-1]] = data.draw(ODD, label="value")
        if not places(report):
            break
    return report


@pytest.mark.parametrize("kind", ["verify", "faults"])
@hostile
@given(data=st.data())
def test_changed_values(folder: Path, kind: str, data: st.DataObject) -> None:
    """Fails when a value of the wrong kind, in any place, is trusted."""
    report = mutant(data, verified() if kind == "verify" else killed())
    (folder / "bad.json").write_text(json.dumps(report), encoding="utf-8")
    for arguments in (("bad.json", f"{kind}.json"), (f"{kind}.json", "bad.json"), ("bad.json", "bad.json")):
        checked(invoke("compare", *arguments, "--markdown", "summary.md"))
    checked(invoke("replay", "bad.json"))


@pytest.mark.parametrize("kind", ["verify", "faults"])
@hostile
@given(data=st.data())
def test_changed_bytes(folder: Path, kind: str, data: st.DataObject) -> None:
    """Fails when a file that was cut, or has wrong bytes in it, ends in a traceback."""
    content = bytearray((folder / f"{kind}.json").read_bytes())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content)), label="length")]
    for _ in range(data.draw(st.integers(0, 3), label="changes")):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    (folder / "bad.json").write_bytes(bytes(content))
    checked(invoke("compare", f"{kind}.json", "bad.json"))
    checked(invoke("replay", "bad.json"))


@hostile
@given(content=st.one_of(st.binary(max_size=60), st.recursive(ODD, lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["blocklaws", "format", "cases", "faults", "failure", "counterexample", "spec"]), inner
), max_leaves=20).map(lambda value: json.dumps(value).encode())))  # fmt: skip
@example(content=b"[" * 100_000)
@example(content=b'{"blocklaws":"1","format":1,"cases":' + b"[" * 900 + b"]" * 900 + b"}")
@example(content=b'{"blocklaws": "1", "format": NaN, "cases": []}')
@example(content=b'{"blocklaws": "1", "format": 1e999, "cases": []}')
@example(content=b'{"blocklaws": "1", "format": 1' + b"0" * 5_000 + b', "cases": []}')
@example(content=b"\xff\xfe\x00")
@example(content=b"\xef\xbb\xbf{}")
@example(content=b"&a [*a]")
@example(content=b"<html>")
def test_foreign_files(folder: Path, content: bytes) -> None:
    """Fails when a file that was never a report is taken for one, or ends in a traceback."""
    (folder / "bad.json").write_bytes(content)
    assert checked(invoke("compare", "verify.json", "bad.json")).exit_code == 2
    assert checked(invoke("replay", "bad.json")).exit_code == 2


@settings(hostile, max_examples=60)
@given(data=st.data())
def test_a_changed_counterexample_is_refused_or_replayed(folder: Path, data: st.DataObject) -> None:
    """Fails when sizes, picks or a pattern that no search draws reach a block, or make it allocate what they say."""
    case = next(case for case in verified()["cases"] if case["counterexample"])
    report = mutant(data, case["counterexample"])
    failure = {"blocklaws": "0.1.0", "format": 1, "failure": {**case, "counterexample": report}}
    (folder / "bad.json").write_text(json.dumps(failure), encoding="utf-8")
    checked(invoke("replay", "bad.json"))


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"d_ff": 65_536, "d_model": 65_536}, "example: an array of 65536 x 65536 is in no small world"),
        ({"d_ff": 65_536, "d_model": 8_192, "n_heads": 2_048}, "example: an array of "),
        ({"T": 65_536}, "example: an array of 1 x 1 x 65536 x 65536 is in no small world"),
        ({"B": 65_536, "T": 65_536}, "example: an array of 65536 x 65536 x 4 is in no small world"),
    ],
)
def test_a_world_that_fills_the_memory_is_refused(folder: Path, sizes: dict[str, int], told: str) -> None:
    """Fails when a few digits in a file make a replay allocate gigabytes."""
    case = next(case for case in verified()["cases"] if case["counterexample"])
    case["counterexample"]["sizes"].update({"n_kv_heads": sizes.get("n_heads", 1), **sizes})
    (folder / "bad.json").write_text(json.dumps({"blocklaws": "0.1.0", "failure": case}), encoding="utf-8")
    done = checked(invoke("replay", "bad.json"))
    assert done.exit_code == 2
    assert told in done.stderr


def test_files_that_cannot_be_read(folder: Path) -> None:
    """Fails when a folder, a name that is not there, or a file without an end is not told for what it is."""
    (folder / "folder.json").mkdir(exist_ok=True)
    for name, told in (
        ("folder.json", "folder.json: is a folder, not a file"),
        ("none.json", "none.json: there is no such file"),
        ("/dev/zero", "/dev/zero: is larger than 200,000,000 bytes; that is no report of blocklaws"),
        ("/dev/null", "/dev/null: is not JSON: "),
        ("broken.py", "broken.py: is not JSON: "),
    ):
        done = checked(invoke("compare", "verify.json", name))
        assert done.exit_code == 2
        assert done.stderr.startswith(f"blocklaws: {told}")
