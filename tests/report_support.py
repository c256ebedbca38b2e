"""What the tests of reports share: real reports, made once a session, and small changes of them.

Must hold: every report that a test changes comes from a run, so that a test cannot agree with itself about a form that
nothing writes.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faces_support import invoke, write_broken, write_right, write_spec
from terminal_scenes import GROUPED, stage

Data = dict[str, Any]


@functools.cache
def _verified() -> str:
    with stage() as folder:
        write_spec(folder, GROUPED)
        backends = (write_broken(folder), write_right(folder))
        blocks = ("--block", "llama", "--block", "gpt")
        done = invoke(
            "verify", *backends, "--spec", "spec.yaml", *blocks, "--profile", "quick", "--json", "report.json"
        )
        assert done.exit_code == 1, done.output
        return (folder / "report.json").read_text(encoding="utf-8")


@functools.cache
def _killed() -> str:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "faults.json"
        faults = ("--fault", "mask-off-by-one", "--fault", "norm-over-tokens")
        done = invoke("faults", "numpy", *faults, "--profile", "quick", "--claims", "--seeds", "2", "--json", path)
        assert done.exit_code == 0, done.output
        return path.read_text(encoding="utf-8")


def verified() -> Data:
    """Return a report of `verify`: one backend whose mask is wrong and one that is right, two blocks, two dtypes."""
    data: Data = json.loads(_verified())
    return data


def killed() -> Data:
    """Return a kill matrix: two faults in numpy, two seeds, claims only."""
    data: Data = json.loads(_killed())
    return data


def holding() -> Data:
    """Return a report of `verify` in which the cases of the right backend alone stand."""
    data = verified()
    data["backends"] = [one for one in data["backends"] if one["name"] == "right"]
    data["cases"] = [case for case in data["cases"] if case["backend"] == "right"]
    return counted(data)


def counted(data: Data) -> Data:
    """Return a report with the summary of its cases."""
    verdicts = [case["verdict"] for case in data["cases"]]
    data["summary"] = {verdict: verdicts.count(verdict) for verdict in data["summary"]}
    return data


def case_of(data: Data, **wanted: str) -> Data:
    """Return the first case of a report that has these values."""
    found: Data = next(case for case in data["cases"] if all(case[key] == value for key, value in wanted.items()))
    return found


def changed(data: Data, change: Callable[[Data], Any]) -> Data:
    """Return a changed copy of a report, its summary counted anew."""
    data = copy.deepcopy(data)
    change(data)
    return counted(data) if "cases" in data else data


def write(folder: Path, **reports: Data) -> None:
    """Write reports as files: ``old=...`` is ``old.json``."""
    for name, data in reports.items():
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
