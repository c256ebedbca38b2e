"""Several processes give what one gives.

Must hold: verdicts, counterexamples and order are the same; a process that dies costs its own case only; what cannot
be sent to another process is refused before anything runs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke, write_broken, write_right, write_spec, write_wrong

import blocklaws
from blocklaws.parallel import _Queue
from blocklaws.running import prepare


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


def cases(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run the command; return its status, its cases without their times, and what it printed."""
    done = invoke("verify", *arguments, "--spec", "spec.yaml", "--json", "report.json")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return done.exit_code, [{**case, "seconds": 0} for case in report["cases"]], done.output


@pytest.mark.slow
def test_several_processes_give_what_one_gives(folder: Path) -> None:
    """Fails when the number of processes changes a verdict, a counterexample or the order of the report."""
    backends = (write_broken(folder), write_right(folder))
    options = ("--block", "llama", "--block", "gpt", "--block", "plain")
    one = cases(folder, *backends, *options)
    several = cases(folder, *backends, *options, "--workers", "3")
    assert one[0] == several[0] == 1
    assert one[1] == several[1]


@pytest.mark.slow
def test_a_process_that_dies_costs_its_own_case(folder: Path) -> None:
    """Fails when a crash in native code ends the run, or the cases after it are lost."""
    wrong = write_wrong(
        folder, "import os; os._exit(7) if len(x) == 2 else None; return self.right(x, position_offset)"
    )
    status, found, output = cases(folder, wrong, "--block", "llama", "--workers", "2")
    assert status == 1
    assert [case["verdict"] for case in found] == ["error", "unchecked", "error"]
    assert {case["reason"] for case in found if case["verdict"] == "error"} == {
        "the process that checked it ended with exit status 7"
    }
    assert "Traceback" not in output


@pytest.mark.slow
def test_workers_have_one_thread_each_and_leave_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when every worker of a framework takes all cores, or the caller's environment is changed."""
    for name in ("OMP_NUM_THREADS", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    change = "import os; raise ValueError([os.environ.get(name) for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS')])"
    before = dict(os.environ)
    _, found, _ = cases(folder, write_wrong(folder, change), "--block", "llama", "--workers", "2")
    assert found[0]["reason"].startswith("forward raised ValueError: ['1', '2'] ")
    assert {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} == {
        name: value for name, value in before.items() if not name.startswith("PYTEST")
    }


def test_objects_cannot_be_sent() -> None:
    """Fails when a backend that another process cannot find is silently left out or pickled."""

    class Mine:
        def build(self, config: Any, parameters: Any, dtype: str) -> Any: ...

    with pytest.raises(blocklaws.BlocklawsError) as caught:
        blocklaws.verify(Mine(), workers=2)
    assert str(caught.value) == (
        "backend <Mine> was given as an object, which another process cannot find; with several workers, name it: "
        "package.module:attribute or path/to/file.py:attribute"
    )
    with pytest.raises(blocklaws.BlocklawsError, match="the spec was given as an object"):
        blocklaws.verify("numpy", spec=blocklaws.load_spec(), workers=2)


def test_every_case_is_given_once_and_groups_stay_together(folder: Path) -> None:
    """Fails when a case is lost or run twice, or a worker compiles what another one has compiled."""
    run = prepare([write_right(folder)], spec="spec.yaml", blocks=["llama", "gpt"])
    queue, workers = _Queue(run), [object(), object()]
    given: dict[int, list[int]] = {0: [], 1: []}
    turn = 0
    while (number := queue.next(workers[turn % 2])) is not None:  # type: ignore[arg-type]
        given[turn % 2].append(number)
        turn += 1
    assert sorted(given[0] + given[1]) == list(range(len(run.cases)))
    assert given[0][:3] == [0, 1, 2]
    assert given[1][:3] == [3, 4, 5]


def test_an_idle_worker_takes_half_of_what_is_left(folder: Path) -> None:
    """Fails when one worker is left with everything while the others wait."""
    run = prepare([write_right(folder)], spec="spec.yaml", blocks=["llama"], dtypes=["float64"])
    queue, busy, idle = _Queue(run), object(), object()
    assert queue.next(busy) == 0  # type: ignore[arg-type]
    assert queue.next(idle) == 2  # type: ignore[arg-type]
    assert queue.next(busy) == 1  # type: ignore[arg-type]
    assert queue.next(busy) is None  # type: ignore[arg-type]
