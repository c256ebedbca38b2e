"""A case as a task for another process, on this machine or another: plain data there, results back.

Must hold: a worker plans the same run from the same names and refuses when its plan is another one (its blocklaws, its
spec, its packages, its cases), for its verdicts would be another run's; one case at a time is checked in a process,
since a backend may change what all threads share. Must not: send a backend or anything else that only this process
has; import NumPy before the number of threads is limited.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blocklaws
from blocklaws.errors import BlocklawsError
from blocklaws.processes import limit_threads

if TYPE_CHECKING:
    from blocklaws.report import CaseResult
    from blocklaws.running import Run

__all__ = ["Job", "check", "job_of"]


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker needs to plan a run.

    Attributes:
        token: tells one plan from the next in a worker that outlives it.
        seed: of the cases; a worker plans once for all seeds.
        request: what `running.prepare` takes.
        spec_files: path -> content of the user's spec and of what it extends.
        folder: where relative names are looked for; a worker that has no such folder looks in its own.
        home: the process that asks.
        versions: of what the run stands on.
        spec: the digest of the spec.
    """

    token: str
    seed: int
    request: Mapping[str, Any]
    spec_files: Mapping[str, bytes]
    folder: str
    home: tuple[str, int]
    versions: Mapping[str, str]
    spec: str


def job_of(run: Run) -> Job:
    """Return the job of a run.

    Raises:
        BlocklawsError: a backend or the spec was given as an object, which another process cannot find.
    """
    objects = [str(subject.label) for subject in run.subjects if subject.label.startswith("<")]
    if objects:
        raise BlocklawsError(
            f"backend {objects[0]} was given as an object, which another process cannot find; with several workers, "
            "name it: package.module:attribute or path/to/file.py:attribute"
        )
    if run.request["spec"] is not None and not isinstance(run.request["spec"], str | os.PathLike):
        raise BlocklawsError("the spec was given as an object; with several workers, give the path of its file")
    from blocklaws.spec_reading import built_in_spec

    # Which failures are expected, and which cases are asked for, is this side's to know: a worker is told of each case
    # whether to shrink it.
    request = {**run.request, "known_failures": None, "shard": None, "timings": None}
    own = {name: Path(name).read_bytes() for name in run.spec.sources[len(built_in_spec().sources) :]}
    versions = {"blocklaws": blocklaws.__version__, **run.versions}
    return Job(run.token, run.choice.seed, request, own, os.getcwd(), _here(), versions, run.spec.sha256)


def _here() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


# What this process has planned last, and the lock of the one case that it checks.
_planned: tuple[str, Run] | None = None
_BUSY = threading.Lock()


def check(job: Job, number: int, id: str, shrink: bool) -> list[CaseResult]:
    """Check one case of a job, in a worker.

    Args:
        job: the run.
        number, id: which case.
        shrink: whether its counterexample is to be made small.

    Raises:
        BlocklawsError: the worker cannot plan the run, or plans another one.
    """
    with _BUSY, _as_worker(job):
        try:
            run = _run_of(job)
            case = run.cases[number] if number < len(run.cases) else None
            if case is None or case.id != id:
                raise BlocklawsError(f"case {number} is {case and case.id!r}, and {id!r} was asked for")
        except BlocklawsError as error:
            host = socket.gethostname()
            raise BlocklawsError(f"{error} (on the worker {host})" if host != job.home[0] else str(error)) from None
        from blocklaws.known_failures import KnownFailures
        from blocklaws.running import run_cases

        case = dataclasses.replace(case, seed=job.seed, shrink=shrink)
        (results,) = run_cases([case], KnownFailures(), run.spec_file)
        return results


@contextlib.contextmanager
def _as_worker(job: Job) -> Iterator[None]:
    """Work where the names of the job are, and leave standard output to the report."""
    if job.home == _here():  # a thread of the process that asks
        yield
        return
    limit_threads()
    folder = job.folder if os.path.isdir(job.folder) else os.curdir
    with contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        yield


def _run_of(job: Job) -> Run:
    global _planned
    if _planned is None or _planned[0] != job.token:
        from blocklaws.running import prepare

        options = dict(job.request)
        run = prepare(options.pop("backends"), **options, spec_files=job.spec_files)
        if run.spec.sha256 != job.spec:
            raise BlocklawsError(f"the spec is {run.spec.sha256[:8]} here and {job.spec[:8]} in the run; give both one")
        here = {"blocklaws": blocklaws.__version__, **run.versions}
        other = [
            f"{name} {here.get(name, 'is missing')}, not {job.versions.get(name)}"
            for name in {**job.versions, **here}
            if here.get(name) != job.versions.get(name)
        ]
        if other:
            raise BlocklawsError(f"a worker has {'; '.join(other)}; install there what the run has")
        _planned = (job.token, run)
    return _planned[1]
