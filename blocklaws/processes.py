"""Processes of this machine as an executor that survives them.

Must hold: a task whose process ends is given to a new one once more, and only if that ends too does its future fail,
with `ProcessEnded`; the other tasks never notice. Every process computes in one thread and what it prints goes to
standard error. Must not: import NumPy, here or in a new process, before the number of threads is limited.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from blocklaws.errors import BlocklawsError
from blocklaws.lifelines import hold_on

__all__ = ["ProcessEnded", "Processes", "cores", "limit_threads", "pool"]

# One block is far too small to share among threads, and the workers fill the cores.
_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    # Where the user has set more threads than there are cores, one that spins until the others come takes their core.
    "OMP_WAIT_POLICY": "passive",
}
#: How many processes a task may end before it is given up. A process that somebody kills costs nothing that way.
_ATTEMPTS = 2


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessEnded(Exception):
    """The process that had a task is gone: a crash in native code, ``os._exit``, or the memory ran out."""


class _Task(NamedTuple):
    future: Future[Any]
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Processes(Executor):
    """An executor of ``workers`` processes, begun when they are needed."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise BlocklawsError(f"workers={workers} must be a positive number")
        self._workers = workers
        self._queue = Queue()
        self._changed = threading.Condition()
        self._closed = self._killed = False
        self._threads: list[threading.Thread] = []
        self._processes: dict[int, _Process] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Put a task into the queue; ``fn`` and its arguments are pickled when its turn comes."""
        return self.submit_in(None, fn, *args, **kwargs)

    def submit_in(self, group: Hashable, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Put a task into the queue of its group.

        A process takes a group's tasks one after the other, as far as that leaves no other process without work: they
        share what was compiled for the first of them.
        """
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.add(group, _Task(future, (fn, args, kwargs)))
            if len(self._threads) < self._workers:
                number = len(self._threads)
                self._threads.append(threading.Thread(target=self._serve, args=(number,), daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; end the processes when those that there are are done."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                for task in self._queue.emptied():
                    task.future.cancel()
            self._changed.notify_all()
        if wait:
            for thread in self._threads:
                thread.join()

    def kill(self) -> None:
        """End the processes at once, in the middle of what they do."""
        with self._changed:
            self._killed = True
            self.shutdown(wait=False, cancel_futures=True)
            for process in self._processes.values():
                process.end()
        self.shutdown()

    def _serve(self, number: int) -> None:
        """Give tasks to one process, until there are no more: the life of a thread."""
        # What this thread begins inherits its mask: an interrupt of the terminal finds no process half awake.
        _block_interrupts(True)
        try:
            self._begin(number)
        except BaseException as error:
            # None can be begun here, and nobody must wait for one.
            with self._changed:
                self._closed = True
                for task in self._queue.emptied():
                    task.future.set_exception(error)
            return
        try:
            while (task := self._next(number)) is not None:
                if task.future.set_running_or_notify_cancel():
                    try:
                        task.future.set_result(self._done(number, task))
                    except BaseException as error:
                        task.future.set_exception(error)
        finally:
            with self._changed:
                process = self._processes.pop(number, None)
            if process is not None:
                process.end()

    def _next(self, number: int) -> _Task | None:
        with self._changed:
            task: _Task | None
            while (task := self._queue.next(number)) is None and not self._closed:
                self._changed.wait()
            return task

    def _done(self, number: int, task: _Task) -> Any:
        for attempt in range(_ATTEMPTS):
            process = self._processes.get(number) or self._begin(number)
            try:
                return process.do(*task.call)
            except ProcessEnded:
                with self._changed:
                    self._processes.pop(number, None)
                    if self._killed or attempt + 1 == _ATTEMPTS:
                        raise
        raise AssertionError("unreachable")

    def _begin(self, number: int) -> _Process:
        process = _Process()
        with self._changed:
            self._processes[number] = process
            if self._killed:
                process.end()
        process.wait()
        return process


class Queue:
    """Which task a worker gets next: those of a group stay together, and an idle worker takes half of a busy one's."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Any]] = {}
        self._own: dict[Hashable, deque[Any]] = {}

    def add(self, group: Hashable, task: Any) -> None:
        """Add a task to its group."""
        self._groups.setdefault(group, deque()).append(task)

    def next(self, worker: Hashable) -> Any:
        """Return a task, or None when none is left."""
        own = self._own.setdefault(worker, deque())
        if not own:
            if self._groups:
                own.extend(self._groups.pop(next(iter(self._groups))))
            else:
                # Take half of what the busiest other worker has not begun.
                longest = max(self._own.values(), key=len)
                taken = [longest.pop() for _ in range((len(longest) + 1) // 2)]
                own.extend(reversed(taken))
        return own.popleft() if own else None

    def emptied(self) -> list[Any]:
        """Return all tasks that nobody was given, and forget them."""
        left = [task for tasks in (*self._own.values(), *self._groups.values()) for task in tasks]
        self._own.clear()
        self._groups.clear()
        return left


class _Process:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        held, self._lifeline = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(target=_work, args=(theirs, held), daemon=True)
        with _one_thread_each():
            self._process.start()
        theirs.close()
        held.close()
        self._ready = False

    def wait(self) -> None:
        """Wait until it can be given something; one that cannot begin is found out when it is."""
        with contextlib.suppress(EOFError, OSError):
            self._connection.recv()
            self._ready = True

    def do(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function gives there, or raise what it raises.

        Raises:
            ProcessEnded: the process is gone.
            BlocklawsError: it has never begun.
        """
        try:
            # What cannot be pickled is the caller's mistake, and not the end of the process.
            self._connection.send((fn, args, kwargs))
            raised, answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit status {code}"
            self._connection.close()
            if not self._ready:
                raise BlocklawsError(
                    f"a worker process cannot begin (it ended {how}); a script that verifies with several workers is "
                    'a file and does so below `if __name__ == "__main__":`, since each worker imports it'
                ) from None
            raise ProcessEnded(f"ended {how}") from None
        if raised:
            raise answer
        return answer

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.terminate()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


def _work(connection: Connection, lifeline: Connection) -> None:
    """Do what is asked until the other side is gone: the life of a process."""
    hold_on(lifeline.fileno())
    _be_a_worker()
    with contextlib.suppress(EOFError, OSError):
        connection.send("ready")
        while True:
            fn, args, kwargs = connection.recv()
            try:
                answer = False, fn(*args, **kwargs)
            except Exception as error:
                answer = True, error
            try:
                connection.send(answer)
            except (AttributeError, TypeError, ValueError) as error:
                connection.send((True, TypeError(f"an answer cannot be sent: {error}")))


@contextlib.contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give processes that compute in one thread each, for work that is not a case; what they print goes to stderr.

    Raises:
        BlocklawsError: one of them died, so that nobody knows what it would have found.
    """
    context = multiprocessing.get_context("spawn")
    with _one_thread_each():
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_be_of_a_pool)
        try:
            yield executor
        except BrokenProcessPool:
            raise BlocklawsError("a worker process died (a crash, or no memory was left); try fewer workers") from None
        finally:
            executor.shutdown(cancel_futures=True)


def _be_of_a_pool() -> None:
    # All of them are given the same things, so none can have a lifeline of its own; what they do is ours, and lets a
    # thread run.
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    _be_a_worker()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _be_a_worker() -> None:
    # An interrupt is the parent's to handle, and standard output belongs to its report.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _block_interrupts(False)
    sys.stdout = sys.stderr


def _block_interrupts(blocked: bool) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, {signal.SIGINT})


def limit_threads() -> list[str]:
    """Limit the threads of what is not loaded yet; return the variables that were not set before.

    What the user has set stays.
    """
    new = {name: value for name, value in _THREADS.items() if name not in os.environ}
    os.environ.update(new)
    return list(new)


# The environment is one for all threads: two that begin a process at once must not restore each other's change.
_BEGINNING = threading.RLock()


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set what a process must find before it imports a framework."""
    with _BEGINNING:
        new = limit_threads()
        try:
            yield
        finally:
            for name in new:
                os.environ.pop(name, None)
