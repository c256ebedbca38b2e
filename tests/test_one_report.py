"""One seed, one report: wherever and in however many pieces a run is made.

Must hold: on one process, two of them, two Dask workers, in an MPI job, in shards that are merged, cut off and resumed,
with an empty database: the same verdicts, counterexamples and JSON, apart from the seconds.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_support import ALLOWED_MPI, dask_cluster
from faces_support import invoke, placeless, timeless, write_broken, write_known, write_right, write_spec, write_wrong

Data = dict[str, Any]
RUN = ("--spec", "spec.yaml", "--block", "llama", "--profile", "quick", "--seed", "3")


def whole(*arguments: str | Path) -> None:
    """Verify, and write ``report.json``."""
    done = invoke("verify", *arguments, "--json", "report.json")
    assert (done.exit_code, done.stderr) == (1, "")


def on_processes(*arguments: str) -> None:
    whole(*arguments, "--workers", "2")


def on_dask(*arguments: str) -> None:
    with dask_cluster(Path("cluster").absolute()) as cluster:
        whole(*arguments, "--scheduler", cluster.address)


def in_shards(*arguments: str) -> None:
    whole(*arguments)
    Path("report.json").rename("timings.json")
    names = [f"shard-{number}.json" for number in (1, 2, 3)]
    for number, name in enumerate(names, 1):
        split = ("--shard", f"{number}/3", "--timings", "timings.json")
        invoke("verify", *arguments, *split, "--json", name, "--workers", str(1 + number % 2))
    assert invoke("merge", *names, "--json", "report.json").exit_code == 1


def resumed(*arguments: str) -> None:
    whole(*arguments, "--resume", "state")
    content = Path("state").read_bytes()
    Path("state").write_bytes(content[: len(content) // 2])
    Path("report.json").unlink()
    whole(*arguments, "--resume", "state", "--workers", "2")


def with_an_empty_database(*arguments: str) -> None:
    whole(*arguments, "--database", "examples")


def until_a_failure(*arguments: str) -> None:
    whole(*arguments, "--until-failure")
    data = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert data.pop("campaign") == {"first": 3, "held": 0, "examples": 0}
    Path("report.json").write_text(json.dumps(data), encoding="utf-8")


WAYS: dict[str, Callable[..., None]] = {
    "two processes": on_processes,
    "two Dask workers": on_dask,
    "three shards, merged": in_shards,
    "cut off and resumed": resumed,
    "an empty database": with_an_empty_database,
    "until a failure": until_a_failure,
}


def read(seconds: float = 0) -> Data:
    """Return the report, with the same time for each case, and remove it."""
    data = placeless(timeless(seconds=seconds))
    Path("report.json").unlink()
    return data


@pytest.mark.slow
def test_every_way_gives_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Fails when it can be told from a report how it was made."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    write_known(tmp_path, "same-shape")
    raises = "raise ValueError('too far') if len(x) > 1 else None; return self.right(x, position_offset)"
    backends = (write_broken(tmp_path), write_right(tmp_path), write_wrong(tmp_path, raises))
    arguments = (*backends, "numpy", *RUN, "--known-failures", "known.yaml")
    whole(*arguments)
    one = read()
    assert {case["verdict"] for case in one["cases"]} == {"holds", "violated", "unchecked", "error"}
    assert one["stale_known_failures"]
    for way, make in WAYS.items():
        make(*arguments)
        assert read() == one, way
    if mpiexec := shutil.which("mpiexec"):
        program = [sys.executable, "-m", "blocklaws", "verify", *arguments, "--scheduler", "mpi"]
        run(mpiexec, "-n", "3", *program, "--json", "report.json", cwd=tmp_path, env=ALLOWED_MPI)
        assert read() == one, "an MPI job"


def test_another_seed_is_another_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the comparison could not see a difference."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    arguments = (write_broken(tmp_path), *RUN)
    whole(*arguments)
    one = read()
    whole(*arguments, "--seed", "4")
    assert read() != one
    whole(*arguments)
    assert read(1) != one
    whole(*arguments)
    assert read() == one
