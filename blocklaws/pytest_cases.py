"""Cases as pytest tests: what a test function gets as ``case``, and the decorator for a test file of one's own.

Must hold: a case that is unchecked is skipped with its reason and never passes, a known failure that holds fails, and a
failure shows the same text as the command line, without frames of the harness. Must not: plan or run at import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from blocklaws.failure_text import failure_text, verify_command

if TYPE_CHECKING:
    from blocklaws.checking import Case
    from blocklaws.report import CaseResult
    from blocklaws.running import Run

__all__ = ["InvariantViolated", "PytestCase", "cases_of", "parametrize"]

_Test = TypeVar("_Test", bound=Callable[..., Any])
MARK = "blocklaws_invariants"


class InvariantViolated(AssertionError):
    """An invariant is violated, or the block could not be run; the message is the whole failure."""


# pytest shows an exception with its module: the short name is the public one.
InvariantViolated.__module__ = "blocklaws"


class PytestCase:
    """One case of a run, as a test gets it.

    Attributes:
        id: a name that no other case of the run has.
        invariant, block, backend, dtype: what is checked on what.
        user_properties: where the running test keeps what it tells its report; the plugin sets it.
    """

    def __init__(self, run: Run, case: Case) -> None:
        self._run = run
        self._case = case
        self.id = case.id
        self.invariant = case.invariant.id
        self.block = case.kind.name
        self.backend = case.subject.name
        self.dtype = case.dtype
        self.user_properties: list[tuple[str, object]] = []

    def __repr__(self) -> str:
        return f"<case {self.id}>"

    def check(self) -> None:
        """Check the case.

        Raises:
            InvariantViolated: the invariant is violated, or the block could not be run.
        """
        __tracebackhide__ = True
        from blocklaws.planning import properties_of
        from blocklaws.running import run_case

        prepared = self._run.known.prepared(self._case)
        property = properties_of([self._case.invariant])[self._case.invariant.property_name]
        results = [self._run.known.marked(one) for one in run_case(prepared, property, self._run.spec_file)]
        failed = [result for result in results if result.failed]
        if failed:
            raise InvariantViolated("\n".join(["", *(self._told(result) for result in failed)]))
        if known := [result.known for result in results if result.known]:
            pytest.xfail(known[0])
        unchecked = [result.reason for result in results if result.verdict == "unchecked"]
        if len(unchecked) == len(results):
            pytest.skip(f"unchecked: {'; '.join(dict.fromkeys(unchecked))}")
        if self._run.known.must_fail(self._case):
            pytest.fail(f"{self.id} is listed as a known failure but holds; remove the entry", pytrace=False)
        self.user_properties += [
            ("blocklaws_unchecked", f"{self.invariant} on {self.backend}: {why}") for why in unchecked
        ]

    def _told(self, result: CaseResult) -> str:
        from blocklaws.stored_failures import store_failure

        problem = store_failure(result, self._run.spec.sha256)
        return failure_text(result, verify_command(result) if problem else None)


def cases_of(run: Run) -> list[PytestCase]:
    """Return the cases of a run, in the order of its plan."""
    return [PytestCase(run, case) for case in run.cases]


def parametrize(
    backends: Sequence[Any],
    *,
    spec: str | Path | None = None,
    blocks: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    invariants: Sequence[str] = (),
    profile: str = "default",
    seed: int = 0,
    device: str | None = None,
    known_failures: str | Path | None = None,
    isolate: bool | None = None,
    database: Sequence[str] = (),
) -> Callable[[_Test], _Test]:
    """Make a test function run once a case: ``def test_invariant(case): case.check()``.

    The arguments are those of `blocklaws.verify`; files are looked for beside the test file first. Nothing is imported
    or planned before pytest collects the test. ``--blocklaws-profile``, ``--blocklaws-seed`` and
    ``--blocklaws-no-isolate`` on pytest's command line win; ``--blocklaws-database`` adds to the databases.
    """
    if isinstance(backends, str) or not isinstance(backends, Sequence):
        raise TypeError(f"backends={backends!r} must be a list, such as ['numpy'] or [MyBackend]")
    request = {
        "backends": list(backends), "spec": spec, "blocks": list(blocks), "dtypes": list(dtypes),
        "invariants": list(invariants), "profile": profile, "seed": seed, "device": device,
        "known_failures": known_failures, "isolate": isolate, "database": list(database),
    }  # fmt: skip
    mark: Callable[[_Test], _Test] = getattr(pytest.mark, MARK)(request)
    return mark
