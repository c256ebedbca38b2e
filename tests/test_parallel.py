"""Several processes, and any executor, give what one process gives.

Must hold: verdicts, counterexamples and order are the same; a process that dies costs its own case only, and nothing
where somebody else killed it; what cannot be sent to another process is refused before anything runs.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke, write_broken, write_known, write_right, write_spec, write_wrong

import blocklaws
from blocklaws import cli_verify
from blocklaws.processes import ProcessEnded, Processes, Queue
from blocklaws.running import prepare, processes
from blocklaws.tasks import check, job_of


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


@pytest.mark.parametrize(
    ("backend", "request_", "expected"),
    [
        ("numpy", {}, 4),
        ("numpy", {"blocks": ["llama"], "dtypes": ["float32"]}, 1),
        ("torch", {"device": "cpu"}, 1),
        ("right.py:Backend", {}, 1),
    ],
    ids=["long", "short", "on a device", "of others"],
)
def test_a_long_run_of_ours_has_several_processes_unasked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str, request_: dict[str, Any], expected: int
) -> None:
    """Fails when code of others, or what holds a device, is run beside itself by nobody's wish, or ours is not."""
    write_right(folder)
    monkeypatch.setattr(cli_verify, "cores", lambda: 64)
    assert cli_verify.unasked(prepare([backend], isolate=False, **request_), [backend]) == expected


@pytest.mark.parametrize(("asked", "expected"), [((), [3]), (("--workers", "2"), [2]), (("--workers", "1"), [1])])
def test_a_number_of_processes_that_is_asked_for_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], expected: list[int]
) -> None:
    """Fails when the choice for a run that gives no number overrides one that is given."""
    begun: list[int] = []

    def counted(workers: int) -> Any:
        begun.append(workers)
        return processes(1)

    monkeypatch.setattr(cli_verify, "unasked", lambda *_: 3)
    monkeypatch.setattr(cli_verify, "processes", counted)
    found = cases(folder, write_right(folder), "--block", "llama", "--dtype", "float64", "--no-isolate", *asked)
    assert (begun, found[0]) == (expected, 0)


@pytest.mark.slow
def test_a_process_that_dies_costs_its_own_case(folder: Path) -> None:
    """Fails when a crash in native code ends the run, or the cases after it are lost."""
    wrong = write_wrong(
        folder, "import os; os._exit(7) if len(x) == 2 else None; return self.right(x, position_offset)"
    )
    status, found, output = cases(folder, wrong, "--block", "llama", "--no-isolate", "--workers", "2")
    assert status == 1
    assert [case["verdict"] for case in found] == ["error", "unchecked", "error"]
    assert {case["reason"] for case in found if case["verdict"] == "error"} == {
        "the process that checked it ended with exit status 7"
    }
    assert "Traceback" not in output


@pytest.mark.slow
def test_workers_have_one_thread_each_and_leave_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when every worker of a framework takes all cores, or the caller's environment is changed."""
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY"]
    change = f"import os; raise ValueError([os.environ.get(name) for name in {names}])"
    before = dict(os.environ)
    _, found, _ = cases(folder, write_wrong(folder, change), "--block", "llama", "--no-isolate", "--workers", "2")
    assert found[0]["reason"].startswith("forward raised ValueError: ['1', '2', 'passive'] ")
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


@pytest.mark.slow
def test_a_process_that_somebody_kills_costs_nothing(folder: Path) -> None:
    """Fails when the memory's guardian, or an administrator, changes a verdict by ending a process once."""
    # The first process to come here is gone, as if it had been killed from outside; the second one goes on.
    once = """import os, pathlib, signal
        if not (been := pathlib.Path("been")).exists():
            been.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.right(x, position_offset)"""
    wrong = write_wrong(folder, once)
    several = cases(folder, wrong, "--block", "llama", "--no-isolate", "--workers", "2")
    assert (folder / "been").exists()
    assert several[:2] == cases(folder, wrong, "--block", "llama", "--no-isolate")[:2]
    assert several[0] == 0


class Sent(Executor):
    """An executor that does at once, in this thread, what its pickled task says: nothing else can have been sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.sent.append(pickle.dumps((fn, args, kwargs)))
        done, given, named = pickle.loads(self.sent[-1])
        try:
            future.set_result(pickle.loads(pickle.dumps(done(*given, **named))))
        except Exception as error:
            future.set_exception(error)
        return future


def told(report: blocklaws.Report) -> dict[str, Any]:
    """Return a report without its times."""
    data = report.as_dict()
    for case in data["cases"]:
        case["seconds"] = 0
    return data


def test_any_executor_gives_what_one_process_gives(folder: Path) -> None:
    """Fails when where a case runs can be told from the report, or a task is no plain data."""
    given = {"spec": "spec.yaml", "blocks": ["llama"], "dtypes": ["float32"], "profile": "quick"}
    write_known(folder, "no-look-ahead")
    backends = (write_broken(folder), write_right(folder))
    for more in ({}, {"known_failures": "known.yaml"}):
        one = blocklaws.verify(*backends, **given, **more)
        sent = Sent()
        assert told(blocklaws.verify(*backends, **given, **more, executor=sent)) == told(one)
        assert len(sent.sent) == len(one.cases) == 6
        assert max(map(len, sent.sent)) < 4000, "a task names what a worker finds by itself"
    with ThreadPoolExecutor(3) as threads:
        assert told(blocklaws.verify(*backends, **given, **more, executor=threads)) == told(one)
    assert one.failures == ()
    assert "VIOLATED" in str(blocklaws.verify(*backends, **given))


@pytest.mark.slow
def test_a_worker_in_another_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fails when a worker that was started elsewhere finds other files, or tells other places."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "mine.yaml").write_text("extends: spec.yaml\n", encoding="utf-8")
    given = {"spec": "mine.yaml", "blocks": ["llama"], "dtypes": ["float32"], "profile": "quick"}
    one = blocklaws.verify(write_broken(folder), **given)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.chdir, (elsewhere,)) as executor:
        assert told(blocklaws.verify("broken.py:Backend", **given, executor=executor)) == told(one)
    assert [case.location for case in one.failures] == ["spec.yaml:6"]


def test_the_spec_is_sent_and_not_looked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a worker on another machine would need the spec's files, or reads other ones of the same name."""
    (folder / "mine.yaml").write_text("extends: spec.yaml\n", encoding="utf-8")
    job = job_of(prepare(["numpy"], spec="mine.yaml", blocks=["llama"], profile="quick"))
    assert list(job.spec_files) == ["spec.yaml", "mine.yaml"]
    (folder / "spec.yaml").write_text("invariants: []\n", encoding="utf-8")
    (folder / "mine.yaml").unlink()
    spec = blocklaws.load_spec("mine.yaml", job.spec_files)
    assert (spec.sha256, list(spec.invariants)) == (job.spec, ["no-look-ahead", "gradient-is-finite", "same-shape"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spec": "0" * 64}, "the spec is 1ad4d6b3 here and 00000000 in the run; give both one"),
        ({"versions": {"blocklaws": "0.0.9"}}, f"a worker has blocklaws {blocklaws.__version__}, not 0.0.9; python "),
        ({"host": "other"}, "case 0 is 'no-look-ahead-llama-right-float64', and 'x' was asked for (on the worker "),
    ],
)
def test_a_worker_that_would_run_something_else_refuses(folder: Path, change: dict[str, Any], told: str) -> None:
    """Fails when verdicts of another spec, another version or another case get into a report."""
    job = job_of(prepare([write_right(folder)], spec="spec.yaml", blocks=["llama"], profile="quick"))
    if host := change.pop("host", ""):
        change["home"] = (host, 1)
    with pytest.raises(blocklaws.BlocklawsError) as caught:
        check(dataclasses.replace(job, **change), 0, "x", True)
    assert told.replace("1ad4d6b3", job.spec[:8]) in str(caught.value)


class Odd(Executor):
    """An executor that raises, or whose futures give something else."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if isinstance(self._answer, Exception):
            raise self._answer
        future: Future[Any] = Future()
        future.set_result(self._answer)
        return future


def test_runs_of_two_threads_do_not_blame_each_other() -> None:
    """Fails when a run finds the random state changed by the run beside it."""

    def once(_: int) -> list[str]:
        report = blocklaws.verify(
            "numpy", blocks=["plain"], dtypes=["float32"], profile="quick",
            invariants=["output-parity", "prefix-invariance", "trace-agrees", "shape-preservation", "repeatable"],
        )  # fmt: skip
        return [case.verdict for case in report.cases]

    with ThreadPoolExecutor(3) as threads:
        assert {verdict for found in threads.map(once, range(6)) for verdict in found} == {"holds"}


def test_an_executor_that_breaks_is_one_line(folder: Path) -> None:
    """Fails when a pool that a crash has broken ends in a traceback, or in verdicts about cases that never ran."""
    wrong = write_wrong(folder, "import os; os._exit(3)")
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor,
        pytest.raises(blocklaws.BlocklawsError, match=r"^the executor is gone \(BrokenProcessPool: .*\), and with it"),
    ):
        blocklaws.verify(wrong, spec="spec.yaml", blocks=["llama"], executor=executor, isolate=False)
    with ThreadPoolExecutor(1) as executor:
        pass
    with pytest.raises(blocklaws.BlocklawsError, match=r"^the executor is gone \(RuntimeError: cannot schedule new"):
        blocklaws.verify(wrong, spec="spec.yaml", blocks=["llama"], executor=executor, isolate=False)
    # A shutdown in the middle cancels what waits, and tells nobody who waits for it.
    leaving = ThreadPoolExecutor(1)
    with pytest.raises(blocklaws.BlocklawsError, match=r"^the executor is gone \(CancelledError\), and with it"):
        blocklaws.verify(
            "numpy", blocks=["plain"], dtypes=["float64"], profile="quick", executor=leaving,
            progress=lambda *_: leaving.shutdown(wait=False, cancel_futures=True),
        )  # fmt: skip
    with pytest.raises(blocklaws.BlocklawsError, match=r"^the executor does not take a case: ValueError: no room"):
        blocklaws.verify("numpy", executor=Odd(ValueError("no room")))
    with pytest.raises(blocklaws.BlocklawsError, match=r"^the executor's future gave 42 for a case; it must give what"):
        blocklaws.verify("numpy", executor=Odd(42))
    with pytest.raises(blocklaws.BlocklawsError, match="workers=2 and an executor exclude each other"):
        blocklaws.verify(wrong, workers=2, executor=executor)


@pytest.mark.slow
def test_processes_are_an_executor() -> None:
    """Fails when a task is lost, an exception stays where it was raised, or an end is not told."""
    processes = Processes(2)
    try:
        assert sorted(processes.map(abs, range(-20, 0))) == list(range(1, 21))
        with pytest.raises(ValueError, match="invalid literal"):
            processes.submit(int, "x").result()
        with pytest.raises(ProcessEnded, match=r"^ended with exit status 5$"):
            processes.submit(os._exit, 5).result()
        with pytest.raises(Exception, match="pickle"):
            processes.submit(lambda: 1).result()
        with pytest.raises(TypeError, match="an answer cannot be sent"):
            processes.submit(threading.Lock).result()
        sleeping = processes.submit(time.sleep, 600)
        waiting = [processes.submit(time.sleep, 600) for _ in range(4)]
        assert processes.submit(abs, -1).cancel()
        while not sleeping.running():
            time.sleep(0.01)
    finally:
        processes.kill()
    assert isinstance(sleeping.exception(), ProcessEnded)
    assert sum(future.cancelled() for future in waiting) >= 3, "one of them may have begun"
    with pytest.raises(RuntimeError, match="after shutdown"):
        processes.submit(abs, 1)


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(folder: Path, python: Any) -> None:
    """Fails when a script whose workers run it again hangs, or begins processes without end."""
    right = write_right(folder)
    call = f"import blocklaws\nblocklaws.verify({right!r}, spec='spec.yaml', blocks=['llama'], workers=2)\n"
    (folder / "script.py").write_text(call, encoding="utf-8")
    told = (
        "blocklaws.errors.BlocklawsError: a worker process cannot begin (it ended with exit status 1); a script that "
        'verifies with several workers is a file and does so below `if __name__ == "__main__":`, since each worker '
        "imports it"
    )
    done = python("script.py", cwd=folder)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, told)
    guarded = "import blocklaws\nif __name__ == '__main__':\n    " + call.splitlines()[1] + "\n"
    (folder / "script.py").write_text(guarded, encoding="utf-8")
    assert python("script.py", cwd=folder).returncode == 0
    done = python("-", cwd=folder, typed=guarded)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, told)


def test_every_task_is_given_once_and_groups_stay_together() -> None:
    """Fails when a task is lost or given twice, or a worker compiles what another one has compiled."""
    queue, given = Queue(), ([], [])  # type: tuple[Queue, tuple[list[str], list[str]]]
    for task in ("a1", "a2", "a3", "b1", "b2", "b3", "c1"):
        queue.add(task[0], task)
    turn = 0
    while (task := queue.next(turn % 2)) is not None:
        given[turn % 2].append(task)
        turn += 1
    assert given[0][:3] == ["a1", "a2", "a3"]
    assert given[1][:3] == ["b1", "b2", "b3"]
    assert sorted(given[0] + given[1]) == ["a1", "a2", "a3", "b1", "b2", "b3", "c1"]


def test_an_idle_worker_takes_half_of_what_is_left() -> None:
    """Fails when one worker is left with everything while the others wait."""
    queue = Queue()
    for task in range(1, 6):
        queue.add("", task)
    assert queue.next("busy") == 1
    assert queue.next("idle") == 4
    assert [queue.next("busy"), queue.next("busy")] == [2, 3]
    assert [queue.next("busy"), queue.next("busy"), queue.next("idle")] == [5, None, None]
