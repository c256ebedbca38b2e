"""Cases on an executor: processes of this machine, or whatever has `concurrent.futures`' interface.

Must hold: verdicts, counterexamples and the order of the report are those of one process: a worker plans the same run
from the same names, and a case's seed is its own. A worker that dies costs its case at most, as an error, and no
other. Must not: know an engine that brings executors.
"""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import TYPE_CHECKING, Any

from blocklaws.errors import BlocklawsError, one_line
from blocklaws.processes import ProcessEnded, Processes
from blocklaws.tasks import check, job_of

if TYPE_CHECKING:
    from blocklaws.report import CaseResult
    from blocklaws.running import Run

__all__ = ["run_on_executor"]


def run_on_executor(
    run: Run, executor: Executor, done: Container[int] = (), until: float | None = None
) -> Iterator[tuple[int, list[CaseResult]]]:
    """Yield (number of the case, its results) as the cases are done, on an executor that somebody else shuts down.

    Args:
        run: the run.
        executor: where.
        done: the numbers of cases that are left out.
        until: when to stop, by the monotonic clock.

    Raises:
        BlocklawsError: a backend or the spec was given as an object; a worker plans another run, or cannot work; the
            executor is gone.
    """
    job = job_of(run)
    numbers: dict[Future[Any], int] = {}

    def submit(number: int) -> Future[Any]:
        case = run.cases[number]
        given = (job, number, case.id, run.known.prepared(case).shrink)
        try:
            if isinstance(executor, Processes):
                return executor.submit_in((case.subject.name, case.kind.name, case.dtype), check, *given)
            return executor.submit(check, *given)
        except RuntimeError as error:  # it was shut down, or is broken
            raise BlocklawsError(_gone(error)) from None
        except Exception as error:
            raise BlocklawsError(f"the executor does not take a case: {_told(error)}") from None

    try:
        for number in run.numbers:
            if number not in done:
                numbers[submit(number)] = number
        suspects = []
        for future in _as_done(list(numbers), until):
            number = numbers.pop(future)
            if (found := _answer(run, number, future)) is None:
                suspects.append(number)
            else:
                yield number, found
        for number in suspects:
            if until is not None and time.monotonic() > until:
                return
            # Dask blames everything that a worker had when it ended; alone, a case answers for itself.
            found = _answer(run, number, submit(number))
            yield number, found or [_lost(run, number, "the processes that checked it ended")]
    except TimeoutError:
        if until is None:
            raise
    finally:
        for future in numbers:
            future.cancel()


def _as_done(futures: Sequence[Future[Any]], until: float | None) -> Iterator[Future[Any]]:
    """Yield futures as they are done or cancelled; `as_completed` never hears of those that a shutdown cancels.

    Raises:
        TimeoutError: the time is over, by the monotonic clock.
    """
    done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(done.put)
    for _ in futures:
        try:
            yield done.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None


def _told(error: BaseException, most: int = 200) -> str:
    told = one_line(error, most)
    return f"{type(error).__name__}{': ' + told if told else ''}"


def _gone(error: BaseException) -> str:
    return f"the executor is gone ({_told(error)}), and with it the cases it had"


def _answer(run: Run, number: int, future: Future[Any]) -> list[CaseResult] | None:
    """Return the results of a case; None where the workers that had it ended, maybe for another's sake."""
    from blocklaws.report import CaseResult

    try:
        results = future.result()
    except BlocklawsError:
        raise
    except (BrokenExecutor, CancelledError) as error:
        raise BlocklawsError(_gone(error)) from None
    except ProcessEnded as ended:
        return [_lost(run, number, f"the process that checked it {ended}")]
    except Exception as error:
        if type(error).__name__ == "KilledWorker":
            return None
        raise BlocklawsError(f"a worker cannot check cases: {_told(error, 300)}") from None
    if not (isinstance(results, list) and results and all(isinstance(result, CaseResult) for result in results)):
        raise BlocklawsError(
            f"the executor's future gave {results!r:.80} for a case; it must give what the submitted function returned"
        )
    return [run.known.marked(_told_here(result)) for result in results]


def _told_here(result: CaseResult) -> CaseResult:
    """Return a result with its places as this process tells them: a worker may stand in another folder."""
    from blocklaws.failure_text import shown_place

    location, clause_at = shown_place(result.location), shown_place(result.clause_at)
    return dataclasses.replace(result, location=location, clause_at=clause_at)


def _lost(run: Run, number: int, why: str) -> CaseResult:
    from blocklaws.checking import Outcome
    from blocklaws.report import result_of

    return result_of(run.cases[number], Outcome("error", why), 0.0, run.spec_file)
