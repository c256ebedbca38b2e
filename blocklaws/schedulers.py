"""Executors of an engine that runs already: a Dask cluster, or the processes of an MPI job.

Must hold: an engine that is not installed, not there, or without a worker is one line that says what to do. Must not:
import an engine before it is named, or start or stop one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from blocklaws.errors import BlocklawsError, missing_module

__all__ = ["MPI", "scheduled"]

#: The name of the engine that has no address: the job that this process is a part of.
MPI = "mpi"
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://\S+")
#: How long a scheduler may take to answer, and its first worker to come, in seconds.
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
    make: Any = distributed.Client
    try:
        client = make(address, timeout=ANSWERS_WITHIN, set_as_default=False)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        told = " ".join(str(error).split())[:200]
        raise BlocklawsError(f"--scheduler {address}: no Dask scheduler answers there ({told})") from None
    try:
        try:
            client.wait_for_workers(1, timeout=WORKER_WITHIN)
        except TimeoutError:
            raise BlocklawsError(
                f"--scheduler {address}: it has no worker and none came within {WORKER_WITHIN:g} s; start one with: "
                f"dask worker {address} --nthreads 1"
            ) from None
        # Not pure: two runs of one process must not share an answer.
        yield client.get_executor(pure=False)
    finally:
        client.close()


@contextlib.contextmanager
def _mpi() -> Iterator[Executor | None]:
    try:
        from mpi4py import MPI as mpi
        from mpi4py.futures import MPICommExecutor
    except ImportError as error:
        raise BlocklawsError(f"--scheduler {MPI}: {missing_module(error)}") from None
    except RuntimeError as error:  # the library of MPI itself
        told = " ".join(str(error).split())[:200]
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
