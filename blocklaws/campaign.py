"""A run that may take long: until its time is up, until something fails, over several calls.

Must hold: what is told is the report of one seed, as `verify --seed` gives it: of the first with which something
fails, or of the last that held; a run that is stopped at any moment and goes on from its journal ends with the same
report. Must not: know where cases run, or how they are shown.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from blocklaws.errors import BlocklawsError
from blocklaws.journal import Held, Journal
from blocklaws.report import Report

if TYPE_CHECKING:
    from blocklaws.report import CaseResult
    from blocklaws.running import Run

__all__ = ["Conclusion", "Limits", "campaign", "seconds_of"]

Advance = Callable[[int, list["CaseResult"]], None]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclasses.dataclass(frozen=True)
class Limits:
    """How far to go.

    Attributes:
        until_failure: whether one seed after the other is tried until something fails.
        until: when the time is up, by the monotonic clock.
    """

    until_failure: bool = False
    until: float | None = None


@dataclasses.dataclass(frozen=True)
class Conclusion:
    """What came of it.

    Attributes:
        report: the report of one seed.
        ended: why not everything was done: "" where it was, ``interrupt``, ``time``, or ``lost`` with ``why``.
        why: what ended the run, where it was not the user.
    """

    report: Report
    ended: Literal["", "interrupt", "time", "lost"] = ""
    why: str = ""

    @property
    def status(self) -> int:
        """The exit status: a run that was cut off is not one that holds."""
        if self.ended == "interrupt" or (self.ended == "time" and self.report.not_run and not self.report.failures):
            return 130
        return 2 if self.ended == "lost" else self.report.exit_status


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration such as ``90s``, ``30m``, ``1h30m`` or ``2d``; a bare number is seconds.

    Raises:
        BlocklawsError: it is none.

    >>> seconds_of("1h30m")
    5400.0
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhd])", duration)
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", duration):
        parts = [(duration, "s")]
    seconds = sum(float(count) * _UNITS[unit] for count, unit in parts)
    if "".join(count + unit for count, unit in parts) not in (duration, f"{duration}s") or not 0 < seconds < 1e9:
        raise BlocklawsError(
            f"the duration {duration!r} must read like 90s, 30m, 1h30m or 2d, and be more than nothing"
        )
    return seconds


def campaign(
    run: Run,
    executor: Executor | None,
    limits: Limits,
    journal: Journal | None,
    watch: Callable[[Run], AbstractContextManager[Advance]],
    told: Callable[[Report], None] = lambda _: None,
) -> Conclusion:
    """Check the cases of a run, or of one seed after the other.

    Args:
        run: the run, with the first seed.
        executor: where cases run; in this process where there is none.
        limits: how far to go.
        journal: what is known from before, and where verdicts are kept.
        watch: gives what is called with the number and the results of each case of a seed.
        told: is called with the report of each seed that held, before the next one.
    """
    held = journal.held if journal is not None else Held()
    last = run.with_seed(run.choice.seed + held.seeds - 1).report(journal.last) if journal and held.seeds else None
    while True:
        # The first seed keeps what was asked of its blocks already.
        of_seed = run.with_seed(run.choice.seed + held.seeds) if held.seeds else run
        done = _checked(of_seed, executor, limits, journal, watch)
        if not limits.until_failure or (done.report.exit_status != 0 and not done.report.not_run):
            break
        if done.ended and done.report.not_run:
            if last is not None and not done.report.failures:
                done = dataclasses.replace(done, report=last)
            break
        examples = sum(case.examples for case in done.report.cases)
        held, last = Held(held.seeds + 1, held.examples + examples), done.report
        try:
            told(last)
            if journal is not None:
                journal.held_throughout(held)
        except KeyboardInterrupt:
            done = Conclusion(last, "interrupt")
            break
    if limits.until_failure:
        seeds: Mapping[str, Any] = {"first": run.choice.seed, "held": held.seeds, "examples": held.examples}
        done = dataclasses.replace(done, report=dataclasses.replace(done.report, campaign=seeds))
    return done


def _checked(
    run: Run,
    executor: Executor | None,
    limits: Limits,
    journal: Journal | None,
    watch: Callable[[Run], AbstractContextManager[Advance]],
) -> Conclusion:
    """Check the cases of one seed that are not known yet."""
    results = dict(journal.results) if journal is not None else {}
    ended: Literal["", "interrupt", "time", "lost"] = ""
    why = ""
    try:
        with watch(run) as advance:
            for number in sorted(results):
                advance(number, results[number])
            for number, found in run.results(executor, results.copy(), limits.until):
                results[number] = found
                if journal is not None:
                    journal.add(number, found)
                advance(number, found)
    except KeyboardInterrupt:
        ended = "interrupt"
    except BlocklawsError as error:
        ended, why = "lost", str(error)
    report = run.report(results)
    if report.not_run and not ended:
        ended = "time"
    return Conclusion(report, ended, why)
