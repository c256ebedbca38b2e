"""Executors of an engine that runs already: a Dask cluster, or the processes of an MPI job.

Must hold: an engine that is not installed, not there, or without a worker is one line that says what to do, and so is
one that loses its last worker in the middle: no run waits for ever. Must not: import an engine before it is named, or
start or stop one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from typing import Any

from blocklaws.errors import BlocklawsError, missing_module, one_line

__all__ = ["MPI", "scheduled"]

#: The name of the engine that has no address: the job that this process is a part of.
MPI = "mpi"
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://\S+")
#: How long a scheduler may take to answer, and be without a worker, in seconds.
ANSWERS_WITHIN, WORKER_WITHIN = 10.0, 60.0


@contextlib.contextmanager
def scheduled(address: str) -> Iterator[Executor | None]:
    """Give an executor of what an address names; None in a process that is one of its workers, and has worked.

    Args:
        address: of a Dask scheduler, such as ``tcp://127.0.0.1:8786``, or ``mpi``.

    Raises:
        BlocklawsError: it is neither, or cannot be used.
    """
    if address == MPI:
        with _mpi() as executor:
            yield executor
    elif _ADDRESS.fullmatch(address):
        with _dask(address) as executor:
            yield executor
    else:
        raise BlocklawsError(
            f"--scheduler {address}: is neither the address of a Dask scheduler, such as tcp://127.0.0.1:8786, "
            f"nor {MPI!r}"
        )


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        import distributed
    except ImportError as error:
        raise BlocklawsError(f"--scheduler {address}: {missing_module(error)}") from None
    with _unlogged("distributed"):
        yield from _client(address, distributed.Client)


def _client(address: str, make: Any) -> Iterator[Executor]:
    start_one = f"start one with: dask worker {address} --nthreads 1"
    try:
        client = make(address, timeout=ANSWERS_WITHIN, set_as_default=False)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        told = one_line(error, 200)
        raise BlocklawsError(f"--scheduler {address}: no Dask scheduler answers there ({told})") from None
    try:
        try:
            client.wait_for_workers(1, timeout=WORKER_WITHIN)
        except TimeoutError:
            raise BlocklawsError(
                f"--scheduler {address}: it has no worker and none came within {WORKER_WITHIN:g} s; {start_one}"
            ) from None
        deserted = f"--scheduler {address}: it has had no worker for {WORKER_WITHIN:g} s; {start_one}"
        executor = _Attended(_OnDask(client), lambda: len(client.nthreads()), WORKER_WITHIN, deserted)
        with executor.attended():
            yield executor
    finally:
        client.close()


@contextlib.contextmanager
def _unlogged(engine: str) -> Iterator[None]:
    """Keep what an engine logs from the terminal: that it has gone is told in one line, and not with its tracebacks."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == engine]
    quiet = [logger for logger in map(logging.getLogger, names) if not logger.disabled]
    for logger in quiet:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in quiet:
            logger.disabled = False


class _OnDask(Executor):
    """Calls on the workers of a Dask client.

    Dask has such an executor too. A result that is lost with its worker, while it is fetched, and cannot be computed
    again leaves a future of that one without an answer for ever.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Give a call to the cluster."""
        # Not pure: two runs of one process must not share an answer.
        theirs = self._client.submit(call, *arguments, pure=False, **options)
        ours: Future[Any] = Future()
        # In the loop of the client, where one that waits keeps none of the others waiting; while it waits it holds
        # what Dask would drop if nobody did.
        self._client.loop.add_callback(_hand_on, theirs, ours)
        return ours


async def _hand_on(theirs: Any, ours: Future[Any]) -> None:
    with contextlib.suppress(InvalidStateError):  # given up in the meantime
        try:
            answer = await theirs
        except (Exception, asyncio.CancelledError) as error:
            # What the call raised is its answer; anything else says that the engine has gone, or lets it go.
            ours.set_exception(error if theirs.status == "error" else CancelledError())
        else:
            ours.set_result(answer)


class _Attended(Executor):
    """An executor whose futures fail when nobody works on them: Dask itself waits until a worker comes.

    Args:
        executor: what runs the calls.
        workers: how many there are; what it raises says that the engine is gone, of which its own futures tell.
        patience: how long there may be none, in seconds.
        deserted: what is said then.
    """

    def __init__(self, executor: Executor, workers: Callable[[], int], patience: float, deserted: str) -> None:
        self._executor = executor
        self._workers = workers
        self._patience = patience
        self._deserted = deserted
        self._waiting: set[Future[Any]] = set()
        self._done = threading.Event()

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Give a call to the executor."""
        future = self._executor.submit(call, *arguments, **options)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """Look after the futures, in a thread of its own."""
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._done.set()
            watch.join()

    def _watch(self) -> None:
        seen = time.monotonic()
        while not self._done.wait(min(1.0, self._patience / 4)):
            try:
                present = self._workers()
            except Exception:  # whatever an engine raises that has gone
                return
            if present:
                seen = time.monotonic()
            elif time.monotonic() - seen > self._patience:
                for future in tuple(self._waiting):
                    # An answer may come at this very moment, and is then as good as any.
                    with contextlib.suppress(InvalidStateError):
                        future.set_exception(BlocklawsError(self._deserted))


@contextlib.contextmanager
def _mpi() -> Iterator[Executor | None]:
    try:
        from mpi4py import MPI as mpi
        from mpi4py.futures import MPICommExecutor
    except ImportError as error:
        raise BlocklawsError(f"--scheduler {MPI}: {missing_module(error)}") from None
    except RuntimeError as error:  # the library of MPI itself
        told = one_line(error, 200)
        raise BlocklawsError(f"--scheduler {MPI}: mpi4py finds no MPI ({told}); install one") from None
    if mpi.COMM_WORLD.Get_size() == 1:
        raise BlocklawsError(
            f"--scheduler {MPI}: this is a job of one process, and one only gives cases to others; start it as "
            "mpiexec -n 3 blocklaws verify ..., in which two check cases"
        )
    # Where every process of the job runs this, those that are not the first work here until it is done.
    job: Any = MPICommExecutor(mpi.COMM_WORLD, root=0)
    with job as executor:
        yield executor
