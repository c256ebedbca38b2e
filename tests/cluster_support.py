"""What tests of engines share: a Dask cluster and a Redis server on the loopback interface, begun and ended by a test.

Must hold: nothing is ended but what was begun here, by its process; what an engine prints is kept for a failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["ALLOWED_MPI", "Cluster", "dask_cluster", "redis_server", "until"]

#: Open MPI refuses to run as root, and more processes than cores, unless it is told that this is meant.
ALLOWED_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
}  # fmt: skip
_HERE = ("--host", "127.0.0.1", "--no-dashboard")


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Return what a condition gives as soon as it is true.

    Raises:
        TimeoutError: it has not come true.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing came of it within {seconds} s")
        time.sleep(0.02)
    return found


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A scheduler that runs, and its workers."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


@contextlib.contextmanager
def dask_cluster(folder: Path, workers: int = 2, *options: str, **environment: str) -> Iterator[Cluster]:
    """Give a scheduler with some workers of one thread each, in a folder of their own."""
    folder.mkdir(exist_ok=True)
    file, log = folder / "scheduler.json", (folder / "log").open("wb")
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    env |= {"DASK_DISTRIBUTED__ADMIN__TICK__LIMIT": "1h", **environment}
    begun: list[subprocess.Popen[bytes]] = []

    def begin(module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.{module}", "--scheduler-file", str(file), *arguments]
        begun.append(subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log))

    try:
        begin("dask_scheduler", *_HERE, "--port", "0")
        until(lambda: file.exists() and file.read_bytes().endswith(b"}"))
        for _ in range(workers):
            begin("dask_worker", *_HERE, "--nthreads", "1", *(options or ("--no-nanny",)))
        yield Cluster(json.loads(file.read_bytes())["address"], *begun[:1], begun[1:])
    finally:
        for process in reversed(begun):
            process.terminate()
        for process in begun:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # a worker waits for the case that it is at
                process.kill()
                process.wait()
        log.close()


@contextlib.contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Give the address of a Redis server that keeps nothing on disk, on a free port of the loopback interface."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(lambda: _answers(port))
            yield f"redis://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(60)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
