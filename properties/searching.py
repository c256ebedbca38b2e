"""The search: Hypothesis draws examples of a case, stops at the first that fails, and shrinks it.

Must hold: the same case and seed give the same outcome and the same counterexample, in any process; an example that
checked nothing is counted as uninformative, and too many of them make the case an error, never a pass.
Must not: keep a database that nobody named, or a deadline of its own (the profile of a caller must not change a
verdict).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Flaky, HypothesisWarning
from hypothesis.strategies import SearchStrategy

from blocklaws.checking import Case, Examination, Failure, Outcome, Property, nearest
from blocklaws.failure_text import NOT_DETERMINISTIC
from blocklaws.models.case import ModelCase
from blocklaws.properties.databases import SharedExamples, open_databases
from blocklaws.properties.looking import group_of
from blocklaws.properties.model_runs import model_examples
from blocklaws.properties.worlds import admissible_sizes, examples
from blocklaws.specification import BlockKind, Sizes
from blocklaws.surroundings import Surroundings
from blocklaws.worlds import Example

__all__ = ["search"]


# How rarely a share that is as asked for may be taken for a lower one: a run has a thousand cases.
_BY_CHANCE = 1e-3


class _Refuted(Exception):
    """Raised inside Hypothesis for an example that fails, so that it is shrunk."""


class _ProcessEnded(BaseException):
    """Raised for an example that ended the backend's process: to shrink it would end, or wait for, hundreds of them."""


def search(case: Case, property: Property) -> Outcome:
    """Look at up to ``case.budget`` examples and return the outcome."""
    if isinstance(case, ModelCase):
        strategy = model_examples(case)
        return _searched(case, property, strategy, lambda: _collected(case, strategy))
    sizes = admissible_sizes(case)
    if not sizes:
        return Outcome("unchecked", "no size in the menu of this block satisfies the invariant's 'where'")
    offsets = case.abilities.offsets
    shared = open_databases(case.databases) if case.databases and case.shrink else None
    return _searched(
        case, property, examples(case, sizes, offsets), lambda: _drawn(case, sizes, offsets),
        replayed=lambda: None if shared is None else _replayed(case, property, shared, sizes, offsets),
        keep=lambda example: None if shared is None else shared.keep(case, example),
    )  # fmt: skip


def _searched(
    case: Case,
    property: Property,
    strategy: SearchStrategy[Example],
    drawn: Callable[[], tuple[Example, ...]],
    replayed: Callable[[], _Record | None] = lambda: None,
    keep: Callable[[Example], None] = lambda example: None,
) -> Outcome:
    """Look at examples of a strategy; where nothing is to be shrunk, at those that were drawn before.

    What other runs have found is looked at first: ``replayed`` gives the record of what fails still, and ``keep`` hands
    on what this one finds.
    """
    record = _Record(case, property)
    # Examples are looked at under seeded generators of `random` and NumPy; a verdict must not move the caller's.
    state, of_numpy = random.getstate(), np.random.get_state()
    try:
        if (known := replayed()) is not None:
            return known.outcome()
        _look_at(drawn(), record)
    except _Refuted:
        record = _shrunk(case, property, strategy, record) if case.shrink else record
    except _ProcessEnded:
        pass
    finally:
        random.setstate(state)
        np.random.set_state(of_numpy)
    if record.failing is not None:
        keep(record.failing)
    return record.outcome()


def _shrunk(case: Case, property: Property, strategy: SearchStrategy[Example], failed: _Record) -> _Record:
    """Let Hypothesis draw the same examples, and shrink the one that fails; return the record of that."""
    record = _Record(case, property)
    try:
        _draw(case, strategy, record.look, shrink=True)
    except (_Refuted, _ProcessEnded):
        pass
    except Flaky:
        # An example that failed holds when it is looked at again: the block is to blame, and the failure stays.
        record.flaky = True
    if record.failing is not None:
        return record
    # It failed twice and holds now.
    failed.flaky = True
    return failed


def _replayed(
    case: Case, property: Property, shared: SharedExamples, sizes: tuple[Sizes, ...], offsets: bool
) -> _Record | None:
    """Look at what other runs have found; return the record of what fails still, or None where nothing does."""
    record = _Record(case, property)
    for value, example in shared.of(case, sizes, offsets):
        with contextlib.suppress(_Refuted, _ProcessEnded):
            _look_at([example], record)
        if record.failing is not None:
            # Where it was read only, or would be forgotten after a while, it is kept anew.
            shared.keep(case, example)
            return record
        shared.forget(case, value)
    return None


def _draw(case: Case, strategy: SearchStrategy[Example], look: Callable[[Example], object], *, shrink: bool) -> None:
    """Draw examples and look at each, until one raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)

        def examined(example: Example) -> None:
            look(example)

        # Applied by hand: Hypothesis tokenizes the source of a test, decorators and all, each time that one begins.
        asked = settings(
            max_examples=case.budget,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            database=None,
            deadline=None,
            derandomize=False,
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        hypothesis.seed(case.search_seed)(asked(given(strategy)(examined)))()


# Until one fails, examples are looked at in the order in which they are drawn, whatever they show: they are drawn once
# for all backends and faults, and for all invariants that are drawn from the same. The kind is held beside them, so
# that its identity stays its own.
_DRAWN: dict[tuple[Any, ...], tuple[BlockKind, tuple[Example, ...]]] = {}
_MOST_DRAWN = 1000


def _drawn(case: Case, sizes: tuple[Sizes, ...], offsets: bool) -> tuple[Example, ...]:
    """Return the examples of a case, drawn once for all that take the same sizes."""
    multiples = tuple(sorted(case.subject.multiples.items()))
    key = (id(case.kind), case.search_seed, case.budget, sizes, multiples, offsets)
    if key not in _DRAWN:
        if len(_DRAWN) >= _MOST_DRAWN:
            del _DRAWN[next(iter(_DRAWN))]
        _DRAWN[key] = (case.kind, _collected(case, examples(case, sizes, offsets)))
    return _DRAWN[key][1]


def _collected(case: Case, strategy: SearchStrategy[Example]) -> tuple[Example, ...]:
    found: list[Example] = []
    _draw(case, strategy, found.append, shrink=False)
    return tuple(found)


def _look_at(drawn: Sequence[Example], record: _Record) -> None:
    """Look at examples as Hypothesis would: seeded, until one fails, and at that one again."""
    for example in drawn:
        try:
            _look_seeded(record, example)
        except _Refuted:
            _look_seeded(record, example)
            record.flaky = True
            return


def _look_seeded(record: _Record, example: Example) -> None:
    random.seed(0)
    np.random.seed(0)
    record.look(example)


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

    @property
    def failing(self) -> Example | None:
        """The failing example that is kept."""
        return self._failure[0] if self._failure is not None else None

    def look(self, example: Example) -> None:
        """Examine one example; raise when it fails."""
        ends, surroundings = self._ends(), Surroundings()
        examination = self._property.examine(self._case, example)
        if (left := surroundings.restored()) and not examination.failed:
            examination = dataclasses.replace(examination, raised=left)
        if self._failure is None:
            self._count(examination)
        group_of(self._case).keep(self._case, example, examination)
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
        if _too_few(self._informative, checked, self._case.invariant.min_informative):
            return Outcome(
                "error",
                f"only {self._informative} of {checked} examples could have failed, "
                f"fewer than min_informative={self._case.invariant.min_informative:g} asks for",
                **counts,
            )
        return Outcome("holds", **counts)


def _too_few(informative: int, checked: int, share: float) -> bool:
    """Whether so few informative examples are evidence of a lower share than is asked for.

    Of four examples two may be uninformative by chance; none that could have failed is always too few, where the share
    leaves no room for it.
    """
    if informative >= share * checked - 2 * math.sqrt(checked * share * (1 - share)):
        return False
    chances = (math.comb(checked, n) * share**n * (1 - share) ** (checked - n) for n in range(informative + 1))
    return informative == 0 or sum(chances) < _BY_CHANCE
