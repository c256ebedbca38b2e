"""Cases on several processes.

Must hold: verdicts, counterexamples and the order of the report are those of one process: a worker plans the same run
from the same names, and a case's seed is its own. A worker that dies takes its case with it, as an error, and no
other. Must not: import NumPy here, before a worker has limited its framework to one thread.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from blocklaws.errors import BlocklawsError

if TYPE_CHECKING:
    from blocklaws.report import CaseResult
    from blocklaws.running import Run

__all__ = ["cores", "pool", "run_in_parallel"]

# One block is far too small to share among threads, and the workers fill the cores.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_XLA = "--xla_cpu_multi_thread_eigen=false"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_parallel(run: Run, workers: int) -> Iterator[tuple[int, list[CaseResult]]]:
    """Yield (number of the case, its results) as the cases are done.

    Raises:
        BlocklawsError: a backend or the spec was given as an object, which another process cannot find.
    """
    _check_named(run)
    if workers < 1:
        raise BlocklawsError(f"workers={workers} must be a positive number")
    pool: list[_Worker] = []
    queue = _Queue(run)
    try:
        with _one_thread_each():
            for _ in range(min(workers, len(run.cases))):
                pool.append(_Worker(run.request))
        working = {worker.connection: worker for worker in pool if worker.give(queue.next(worker))}
        while working:
            for connection in wait(list(working)):
                assert isinstance(connection, Connection)
                worker = working.pop(connection)
                number, answer = worker.number, worker.answer()
                if isinstance(answer, str):
                    # The process is gone: a crash in native code, os._exit, or the memory ran out.
                    yield number, [_died(run, number, answer)]
                    with _one_thread_each():
                        replaced = _Worker(run.request)
                    queue.inherit(worker, replaced)
                    pool[pool.index(worker)] = worker = replaced
                elif isinstance(answer, BlocklawsError):
                    raise answer
                else:
                    yield number, answer
                if worker.give(queue.next(worker)):
                    working[worker.connection] = worker
    finally:
        for worker in pool:
            worker.stop()


def _check_named(run: Run) -> None:
    objects = [str(subject.label) for subject in run.subjects if subject.label.startswith("<")]
    if objects:
        raise BlocklawsError(
            f"backend {objects[0]} was given as an object, which another process cannot find; with several workers, "
            "name it: package.module:attribute or path/to/file.py:attribute"
        )
    if run.request["spec"] is not None and not isinstance(run.request["spec"], str | os.PathLike):
        raise BlocklawsError("the spec was given as an object; with several workers, give the path of its file")


def _died(run: Run, number: int, how: str) -> CaseResult:
    from blocklaws.checking import Outcome
    from blocklaws.report import result_of

    return result_of(run.cases[number], Outcome("error", how), 0.0, run.spec_file)


class _Queue:
    """Which case a worker gets next. Cases of one backend, block and dtype stay together: they share what compiled."""

    def __init__(self, run: Run) -> None:
        groups: dict[tuple[str, str, str], deque[int]] = {}
        for number, case in enumerate(run.cases):
            groups.setdefault((case.subject.name, case.kind.name, case.dtype), deque()).append(number)
        self._groups = deque(groups.values())
        self._own: dict[_Worker, deque[int]] = {}

    def next(self, worker: _Worker) -> int | None:
        """Return the number of a case, or None when none is left."""
        own = self._own.setdefault(worker, deque())
        if not own:
            if self._groups:
                own.extend(self._groups.popleft())
            else:
                # Take half of what the busiest other worker has not begun.
                longest = max(self._own.values(), key=len)
                taken = [longest.pop() for _ in range((len(longest) + 1) // 2)]
                own.extend(reversed(taken))
        return own.popleft() if own else None

    def inherit(self, gone: _Worker, heir: _Worker) -> None:
        """Give the cases of a worker that died to the one in its place."""
        self._own[heir] = self._own.pop(gone, deque())


class _Worker:
    """A process, and the case that it is at."""

    def __init__(self, request: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_work, args=(theirs, request), daemon=True)
        self._process.start()
        theirs.close()
        self.number = -1

    def give(self, number: int | None) -> bool:
        """Send a case; say whether there was one."""
        if number is None:
            return False
        self.number = number
        # A process that is gone is found out when its answer is read.
        with contextlib.suppress(OSError):
            self.connection.send(number)
        return True

    def answer(self) -> Any:
        """Return the results of the case, an error of the call, or a sentence when the process is gone."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit status {code}"
            return f"the process that checked it ended {how}"

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.terminate()
        self._process.join(5)


@contextlib.contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give processes that compute in one thread each, for work that is not a case; what they print goes to stderr.

    Raises:
        BlocklawsError: one of them died, so that nobody knows what it would have found.
    """
    context = multiprocessing.get_context("spawn")
    with _one_thread_each():
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_be_a_worker)
        try:
            yield executor
        except BrokenProcessPool:
            raise BlocklawsError("a worker process died (a crash, or no memory was left); try fewer workers") from None
        finally:
            executor.shutdown(cancel_futures=True)


def _be_a_worker() -> None:
    # An interrupt is the parent's to handle, and standard output belongs to its report.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set what a process must find before it imports a framework; what the user has set stays."""
    wanted = dict.fromkeys(_THREADS, "1") | {"XLA_FLAGS": _XLA}
    new = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def _work(connection: Connection, request: dict[str, Any]) -> None:
    """Plan the run, then check the cases that are asked for."""
    # An interrupt is the parent's to handle: it shows what is known and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            from blocklaws.running import prepare, run_cases

            options = dict(request)
            run = prepare(options.pop("backends"), **options)
            while True:
                number = connection.recv()
                (results,) = run_cases([run.cases[number]], run.known, run.spec_file)
                connection.send(results)
        except EOFError:
            return
        except BlocklawsError as error:
            connection.send(BlocklawsError(str(error)))
