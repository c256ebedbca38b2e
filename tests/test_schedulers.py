"""Cases on a Dask cluster and in an MPI job: the real engines, on this machine.

Must hold: the report is that of one process; a worker that is killed in the middle loses no case; a case that ends
every worker is an error, and no other is; an engine that cannot be used is one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
from cluster_support import ALLOWED_MPI, dask_cluster, until
from faces_support import invoke, placeless, timeless, write_broken, write_right, write_spec, write_wrong

import blocklaws.schedulers

LLAMA = ("--spec", "spec.yaml", "--block", "llama", "--dtype", "float32", "--profile", "quick")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


def verified(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command; return its status, its report and what it complained of."""
    done = invoke("verify", *arguments, *LLAMA, "--json", "report.json")
    return done.exit_code, placeless(timeless()), done.stderr


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Do something to a cluster while a run waits for it; it is done when the run has ended."""
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


@pytest.mark.slow
def test_a_dask_cluster_gives_what_one_process_gives(folder: Path) -> None:
    """Fails when the place where a case ran can be told from the report."""
    backends = (write_broken(folder), write_right(folder))
    one = verified(*backends)
    with dask_cluster(folder / "cluster") as cluster:
        assert verified(*backends, "--scheduler", cluster.address) == one
        # A worker computes in one thread, whoever began it.
        threads = write_wrong(folder, "import os; raise ValueError(os.environ.get('OPENBLAS_NUM_THREADS'))")
        _, report, _ = verified(threads, "--no-isolate", "--scheduler", cluster.address)
    assert report["cases"][0]["reason"].startswith("forward raised ValueError: 1 ")
    assert one[0] == 1
    assert one[1]["summary"]["violated"] == 1


@pytest.mark.slow
def test_a_dask_worker_that_is_killed_loses_no_case(folder: Path) -> None:
    """Fails when a machine that goes takes a verdict with it."""
    # Whoever comes first leaves its process's number, and waits to be killed.
    waits = """import os, time
        try:
            os.write(os.open("been", os.O_CREAT | os.O_EXCL | os.O_WRONLY), str(os.getpid()).encode())
        except FileExistsError:
            return self.right(x, position_offset)
        time.sleep(600)"""
    backends = (write_wrong(folder, waits), write_broken(folder))
    with dask_cluster(folder / "cluster") as cluster:

        def kill() -> None:
            (been,) = [int(text) for text in [until(lambda: Path("been").exists() and Path("been").read_text())]]
            (victim,) = [worker for worker in cluster.workers if worker.pid == been]
            victim.send_signal(signal.SIGKILL)

        with meanwhile(kill):
            several = verified(*backends, "--no-isolate", "--scheduler", cluster.address)
        assert sorted(worker.poll() is None for worker in cluster.workers) == [False, True]
    assert several == verified(*backends, "--no-isolate")
    assert several[1]["not_run"] == 0


@pytest.mark.slow
def test_a_case_that_ends_every_worker_is_an_error_alone(folder: Path) -> None:
    """Fails when a crash in native code ends a run on a cluster, or is blamed on the cases beside it."""
    crashes = write_wrong(folder, "import os; os._exit(7) if len(x) == 2 else None; return self.right(x, 0)")
    patient = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with dask_cluster(folder / "cluster", 2, "--nanny", **patient) as cluster:
        status, report, complaint = verified(
            crashes, write_right(folder), "--no-isolate", "--scheduler", cluster.address
        )
    assert (status, complaint) == (1, "")
    assert {case["reason"] for case in report["cases"] if case["verdict"] == "error"} == {
        "the processes that checked it ended"
    }
    assert report["summary"] == {"holds": 2, "violated": 0, "unchecked": 2, "error": 2}


@pytest.mark.slow
@pytest.mark.parametrize("politely", [True, False], ids=["shut down", "killed"])
def test_a_scheduler_that_goes_leaves_what_is_known(folder: Path, politely: bool) -> None:
    """Fails when the end of a cluster loses what it gave, passes for the end of the run, or ends in a traceback."""
    sleeps = write_wrong(folder, "import pathlib, time; pathlib.Path('asleep').touch(); time.sleep(600)")
    with dask_cluster(folder / "cluster", 1) as cluster:

        def go() -> None:
            until(Path("asleep").exists)
            # What the worker found before it fell asleep may still be on its way.
            until(lambda: Path("state.jsonl").read_text().count('{"case": ') == 3)
            if not politely:
                cluster.scheduler.kill()
                return
            import distributed

            with distributed.Client(cluster.address, set_as_default=False) as client:
                client.cancel(list(client.futures), force=True)
                client.shutdown()

        # A process of its own: what an engine logs there is on its standard error, as it is on a user's terminal.
        command = [
            *(sys.executable, "-m", "blocklaws", "verify", write_broken(folder), sleeps, "--no-isolate", *LLAMA),
            *("--scheduler", cluster.address, "--json", "report.json", "--resume", "state.jsonl"),
        ]
        with meanwhile(go):
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "blocklaws: the executor is gone (CancelledError), and with it the cases it had\n"
    report = json.loads(Path("report.json").read_text())
    assert report["not_run"] == 3
    assert report["summary"]["violated"] == 1
    assert done.stdout.endswith("exit status 2: the run was cut off; 3 more cases would have been looked at\n")


@pytest.mark.slow
def test_ctrl_c_leaves_what_a_cluster_has_given(folder: Path) -> None:
    """Fails when the signal of a terminal ends in a traceback, loses what is known, or keeps a cluster busy."""
    sleeps = write_wrong(folder, "import pathlib, time; pathlib.Path('asleep').touch(); time.sleep(600)")
    # A test run in the background ignores the signal, and its children would too.
    heeding = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from blocklaws.cli import main; sys.exit(main())"
    )
    with dask_cluster(folder / "cluster") as cluster:
        arguments = ["verify", write_broken(folder), sleeps, *LLAMA, "--no-isolate", "--scheduler", cluster.address]
        process = subprocess.Popen(
            [sys.executable, "-c", heeding, *arguments, "--json", "report.json", "--resume", "state"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until(lambda: Path("asleep").exists() and Path("state").read_bytes().count(b"\n") >= 4)
        process.send_signal(signal.SIGINT)
        shown, complaint = process.communicate()
        assert (process.returncode, complaint) == (130, "")
        assert "VIOLATED no-look-ahead: backend broken" in shown
        left = placeless(timeless())["not_run"]
        assert 0 < left <= 3
        assert re.search(rf"\nexit status 130: interrupted; {left} more cases? would have been looked at\n$", shown)
        assert Path("state").read_bytes().count(b"\n") == 1 + 6 - left


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("tcp:", "is neither the address of a Dask scheduler, such as tcp://127.0.0.1:8786, nor 'mpi'"),
        ("local", "is neither the address of a Dask scheduler, such as tcp://127.0.0.1:8786, nor 'mpi'"),
        ("tcp://127.0.0.1:1", "no Dask scheduler answers there (Timed out trying to connect to tcp://127.0.0.1:1 "),
        ("tcp://127.0.0.1:port", "no Dask scheduler answers there ("),
    ],
)
def test_an_address_that_leads_nowhere_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    """Fails when a mistyped address ends in a traceback, or in a run somewhere else."""
    monkeypatch.setattr(blocklaws.schedulers, "ANSWERS_WITHIN", 0.5)
    done = invoke("verify", write_right(folder), *LLAMA, "--scheduler", address)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"blocklaws: --scheduler {address}: {told}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("module", "address", "extra"), [
    ("distributed", "tcp://127.0.0.1:1", "dask"), ("mpi4py", "mpi", "mpi"),
])  # fmt: skip
def test_an_engine_that_is_not_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, address: str, extra: str
) -> None:
    """Fails when a user is not told which extra brings an engine."""
    monkeypatch.setitem(sys.modules, module, None)
    done = invoke("verify", write_right(folder), *LLAMA, "--scheduler", address)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"blocklaws: --scheduler {address}: ")
    assert f"pip install 'blocklaws[{extra}]'" in done.stderr
    done = invoke("verify", write_right(folder, "other.py"), *LLAMA, "--scheduler", address, "--workers", "2")
    assert done.stderr == "blocklaws: --workers and --scheduler exclude each other; the scheduler has its own workers\n"


@pytest.mark.slow
def test_a_cluster_without_workers_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a run waits for ever for a worker that nobody starts."""
    monkeypatch.setattr(blocklaws.schedulers, "WORKER_WITHIN", 0.5)
    with dask_cluster(folder / "cluster", 0) as cluster:
        done = invoke("verify", write_right(folder), *LLAMA, "--scheduler", cluster.address)
        assert done.exit_code == 2
        assert done.stderr == (
            f"blocklaws: --scheduler {cluster.address}: it has no worker and none came within 0.5 s; start one with: "
            f"dask worker {cluster.address} --nthreads 1\n"
        )


@pytest.mark.slow
def test_a_cluster_that_loses_its_last_worker_leaves_what_is_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a run waits for ever for a worker that does not come back, or loses what the last one gave."""
    monkeypatch.setattr(blocklaws.schedulers, "WORKER_WITHIN", 2.0)
    sleeps = write_wrong(folder, "import pathlib, time; pathlib.Path('asleep').touch(); time.sleep(600)")
    with dask_cluster(folder / "cluster", 1) as cluster:

        def kill() -> None:
            # Until a result has come back it is the worker's, and is lost with it.
            until(lambda: Path("asleep").exists() and len(Path("state").read_bytes().splitlines()) == 1 + 3)
            cluster.workers[0].kill()

        with meanwhile(kill):
            status, report, complaint = verified(
                write_broken(folder), sleeps, "--no-isolate", "--scheduler", cluster.address, "--resume", "state"
            )
    assert status == 2
    assert complaint.splitlines()[0] == (
        f"blocklaws: --scheduler {cluster.address}: it has had no worker for 2 s; start one with: "
        f"dask worker {cluster.address} --nthreads 1"
    )
    assert report["not_run"] == 3
    assert report["summary"]["violated"] == 1


class _Loop:
    """The loop of a client: runs what it is given at once."""

    def add_callback(self, call: Callable[..., Any], *arguments: Any) -> None:
        asyncio.run(call(*arguments))


class _Ended:
    """A future of Dask's that has ended with an exception, or with the answer 7."""

    def __init__(self, status: str, error: BaseException | None) -> None:
        self.status, self.error = status, error

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        if self.error is not None:
            raise self.error
        return 7


class _Client:
    """A client whose every call ends in the same way."""

    loop = _Loop()

    def __init__(self, ended: _Ended) -> None:
        self.ended = ended

    def submit(self, call: Any, *arguments: Any, pure: bool) -> _Ended:
        assert not pure
        return self.ended


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        ("finished", None, None),
        ("error", KeyError("killed"), KeyError),  # of the call, or a KilledWorker
        ("error", OSError("no such file"), OSError),
        # It was computed, was lost with its worker while it was fetched, and nobody answers any more.
        ("finished", OSError("comm closed"), CancelledError),
        ("cancelled", asyncio.CancelledError(), CancelledError),
        ("cancelled", CancelledError(), CancelledError),
    ],
)
def test_whatever_becomes_of_a_call_on_dask_is_an_answer(
    status: str, error: BaseException | None, expected: type[BaseException] | None
) -> None:
    """Fails when a run waits for ever for what Dask calls finished and cannot give."""
    future = blocklaws.schedulers._OnDask(_Client(_Ended(status, error))).submit(abs, 1)
    if expected is None:
        assert future.result(timeout=10) == 7
    else:
        assert type(future.exception(timeout=10)) is expected


def test_an_answer_that_nobody_waits_for_any_more() -> None:
    """Fails when the loop of a client complains of a call that was given up."""
    given_up: Future[Any] = Future()
    assert given_up.cancel()
    asyncio.run(blocklaws.schedulers._hand_on(_Ended("finished", None), given_up))
    asyncio.run(blocklaws.schedulers._hand_on(_Ended("error", KeyError()), given_up))
    assert given_up.cancelled()


# --- MPI ---

MPIEXEC = shutil.which("mpiexec")
mpi = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec; `make services` installs one on Debian, as root")


@mpi
@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("-m", "mpi4py.futures")], ids=["each-process", "mpi4py.futures"])
def test_an_mpi_job_gives_what_one_process_gives(folder: Path, run: Any, how: tuple[str, ...]) -> None:
    """Fails when the place where a case ran can be told from the report, or a second process prints one too."""
    backends = (write_broken(folder), write_right(folder))
    one = verified(*backends)
    program = [sys.executable, *how, "-m", "blocklaws", "verify", *backends, *LLAMA, "--scheduler", "mpi"]
    done = run(str(MPIEXEC), "-n", "3", *program, "--json", "report.json", cwd=folder, env=ALLOWED_MPI)
    assert done.returncode == 1, done.stderr
    assert placeless(timeless()) == one[1]
    assert done.stdout.count("exit status 1: something is violated or in error") == 1
    assert done.stdout.count("VIOLATED no-look-ahead") == 1


@mpi
@pytest.mark.slow
def test_a_mistake_in_an_mpi_job_is_one_line(folder: Path, run: Any) -> None:
    """Fails when a job hangs because its first process refuses, or every process says why."""
    program = [sys.executable, "-m", "blocklaws", "verify", "nothing", *LLAMA, "--scheduler", "mpi"]
    done = run(str(MPIEXEC), "-n", "2", *program, cwd=folder, env=ALLOWED_MPI)
    assert done.returncode == 2
    assert done.stderr.count("blocklaws: unknown backend 'nothing'") == 1
    done = run(str(MPIEXEC), "-n", "1", *program, cwd=folder, env=ALLOWED_MPI)
    assert done.returncode == 2
    assert "this is a job of one process, and one only gives cases to others" in done.stderr
