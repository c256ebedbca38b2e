"""The search: Hypothesis draws examples of a case, stops at the first that fails, and shrinks it.

Must hold: the same case and seed give the same outcome and the same counterexample, in any process; an example that
checked nothing is counted as uninformative, and too many of them make the case an error, never a pass.
Must not: keep a database or a deadline of its own (the profile of a caller must not change a verdict).
"""

from __future__ import annotations

import dataclasses
import math
import random
import warnings
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Flaky, HypothesisWarning

from blocklaws.checking import Case, Examination, Failure, Outcome, Property, nearest
from blocklaws.failure_text import NOT_DETERMINISTIC
from blocklaws.properties.worlds import admissible_sizes, examples
from blocklaws.surroundings import Surroundings
from blocklaws.worlds import Example

__all__ = ["search"]


class _Refuted(Exception):
    """Raised inside Hypothesis for an example that fails, so that it is shrunk."""


class _ProcessEnded(BaseException):
    """Raised for an example that ended the backend's process: to shrink it would end, or wait for, hundreds of them."""


def search(case: Case, property: Property) -> Outcome:
    """Look at up to ``case.budget`` examples and return the outcome."""
    sizes = admissible_sizes(case)
    if not sizes:
        return Outcome("unchecked", "no size in the menu of this block satisfies the invariant's 'where'")
    offsets = case.abilities.offsets
    record = _Record(case, property)
    phases = [Phase.generate, Phase.shrink] if case.shrink else [Phase.generate]

    # Hypothesis seeds the global generators of `random` and NumPy for an example; a verdict must not move the caller's.
    state = random.getstate()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)

            @hypothesis.seed(case.search_seed)
            @settings(
                max_examples=case.budget,
                phases=phases,
                database=None,
                deadline=None,
                derandomize=False,
                report_multiple_bugs=False,
                print_blob=False,
                verbosity=Verbosity.quiet,
                suppress_health_check=list(HealthCheck),
            )
            @given(examples(case, sizes, offsets))
            def examined(example: Example) -> None:
                record.look(example)

            try:
                examined()
            except (_Refuted, _ProcessEnded):
                pass
            except Flaky:
                # An example that failed holds when it is looked at again: the block is to blame, and the failure stays.
                record.flaky = True
    finally:
        random.setstate(state)
    return record.outcome()


class _Record:
    """Counts examples and keeps the last failing one, which is the smallest when Hypothesis is done."""

    def __init__(self, case: Case, property: Property) -> None:
        self._case = case
        self._property = property
        self._examples = 0
        self._informative = 0
        self._void: dict[str, int] = {}
        self._max_error: float | None = None
        self._nearest: tuple[float, float] | None = None
        self._failure: tuple[Example, Examination] | None = None
        self._first_failure = 0
        self.flaky = False

    def look(self, example: Example) -> None:
        """Examine one example; raise when it fails."""
        ends, surroundings = self._ends(), Surroundings()
        examination = self._property.examine(self._case, example)
        if (left := surroundings.restored()) and not examination.failed:
            examination = dataclasses.replace(examination, raised=left)
        if self._failure is None:
            self._count(examination)
        if examination.failed:
            self._failure = (example, examination)
            raise _ProcessEnded if self._ends() != ends else _Refuted

    def _ends(self) -> int:
        """Return how many processes of an isolated backend have ended in a call so far."""
        return int(getattr(self._case.subject.backend, "ends", 0))

    def _count(self, examination: Examination) -> None:
        self._examples += 1
        if examination.failed:
            self._first_failure = self._examples
            self._informative += 1
            return
        if examination.void is not None:
            self._void[examination.void] = self._void.get(examination.void, 0) + 1
            return
        self._informative += examination.informative
        if examination.max_error is not None:
            self._max_error = max(self._max_error or 0.0, examination.max_error)
        self._nearest = nearest(self._nearest, examination.nearest)

    def outcome(self) -> Outcome:
        """Return the verdict on everything seen."""
        counts: dict[str, Any] = {
            "examples": self._examples,
            "informative": self._informative,
            "max_error": self._max_error,
            "nearest": self._nearest,
        }
        if self._failure is not None:
            example, examination = self._failure
            failure = Failure(example, examination, self._first_failure)
            again = f"; {NOT_DETERMINISTIC}" if self.flaky else ""
            if examination.raised is not None:
                return Outcome("error", examination.raised + again, **counts, failure=failure)
            assert examination.judgement is not None
            return Outcome("violated", examination.judgement.detail + again, **counts, failure=failure)
        checked = self._examples - sum(self._void.values())
        if checked == 0:
            reason = max(self._void, key=lambda text: self._void[text]) if self._void else "no example could be drawn"
            return Outcome("unchecked", reason, **counts)
        if self._informative < _fewest(self._case.invariant.min_informative, checked):
            return Outcome(
                "error",
                f"only {self._informative} of {checked} examples could have failed, "
                f"fewer than min_informative={self._case.invariant.min_informative:g} asks for",
                **counts,
            )
        return Outcome("holds", **counts)


def _fewest(share: float, checked: int) -> float:
    """Return the fewest informative examples that are no evidence of a lower share: two deviations below it."""
    return share * checked - 2 * math.sqrt(checked * share * (1 - share))
