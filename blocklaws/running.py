"""Runs the cases of a plan and makes the report: what `blocklaws.verify` and the command line call.

Must hold: a case that fails, in whatever way, leaves every other case as it was; the report lists the cases in the order of
the plan, on one process or many. Must not: print.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import blocklaws
from blocklaws.checking import Case, Outcome, Property
from blocklaws.discovery import find_search, find_subjects
from blocklaws.errors import BlocklawsError
from blocklaws.known_failures import KnownFailures
from blocklaws.planning import Choice, plan, properties_of
from blocklaws.report import CaseResult, Report, result_of
from blocklaws.spec_reading import load_spec
from blocklaws.specification import Specification
from blocklaws.subjects import BlockRaised, Subject

__all__ = ["make_report", "resolve", "run_case", "run_cases", "verify"]

Progress = Callable[[int, int, CaseResult], None]


def resolve(backends: Sequence[Any], device: str | None = None) -> list[Subject]:
    """Return the subjects of backends given by name or as objects, on a device where one is asked for."""
    subjects: list[Subject] = []
    for backend in backends:
        if isinstance(backend, Subject):
            subjects.append(backend)
        elif isinstance(backend, str):
            subjects += find_subjects(backend)
        else:
            label = getattr(backend, "name", None) or getattr(backend, "__name__", None) or type(backend).__name__
            subjects.append(Subject(backend, str(label)))
    return [subject.with_device(device) for subject in subjects] if device else subjects


def run_case(case: Case, property: Property, spec_file: str = "") -> list[CaseResult]:
    """Run one case; a part of it that the block cannot show is a result of its own, ``unchecked``."""
    results = []
    try:
        parts = case.split()
    except BlockRaised as error:
        return [result_of(case, Outcome("error", str(error)), 0.0, spec_file)]
    for part, unchecked in parts:
        begin = time.perf_counter()
        if unchecked:
            outcome = Outcome("unchecked", unchecked)
        else:
            try:
                outcome = find_search()(part, property)
            except BlocklawsError as error:
                # The spec asks for what cannot be evaluated on this block: its own case is in error, the others run.
                outcome = Outcome("error", str(error))
        results.append(result_of(part, outcome, time.perf_counter() - begin, spec_file))
    return results


def run_cases(cases: Sequence[Case], known: KnownFailures, spec_file: str = "") -> Iterator[list[CaseResult]]:
    """Run cases one after the other."""
    properties = properties_of(case.invariant for case in cases)
    for case in cases:
        results = run_case(known.prepared(case), properties[case.invariant.property_name], spec_file)
        yield [known.marked(result) for result in results]


def verify(
    *backends: Any,
    spec: Specification | str | Path | None = None,
    blocks: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    invariants: Sequence[str] = (),
    profile: str = "default",
    seed: int = 0,
    device: str | None = None,
    known_failures: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verify backends against a spec.

    Args:
        backends: registered names, ``module:attribute``, ``file.py:attribute``, mapping files, or backend objects.
        spec: a spec file, a loaded `Specification`, or None for the built-in spec.
        blocks, dtypes, invariants: what to check; everything where empty.
        profile: how much to spend: ``quick``, ``default`` or ``thorough``.
        seed: the same seed gives the same verdicts and counterexamples.
        device: where torch and jax compute.
        known_failures: a YAML file of failures that are expected.
        progress: called after each case with its number, the number of cases, and its result.

    Raises:
        BlocklawsError: a backend, the spec or a name could not be used.
    """
    loaded = spec if isinstance(spec, Specification) else load_spec(spec)
    subjects = resolve(backends, device)
    if not subjects:
        raise BlocklawsError("no backend was named; give at least one, such as 'numpy'")
    choice = Choice(tuple(blocks), tuple(dtypes), tuple(invariants), profile, seed)
    cases = plan(loaded, subjects, choice)
    known = KnownFailures.load(known_failures) if known_failures else KnownFailures()
    results: list[CaseResult] = []
    spec_file = "" if spec is None or isinstance(spec, Specification) else str(spec)
    for number, found in enumerate(run_cases(cases, known, spec_file), start=1):
        results += found
        if progress is not None:
            for result in found:
                progress(number, len(cases), result)
    return make_report(loaded, subjects, choice, results, known)


def make_report(
    spec: Specification,
    subjects: Sequence[Subject],
    choice: Choice,
    results: Sequence[CaseResult],
    known: KnownFailures,
) -> Report:
    """Return the report of finished cases."""
    return Report(
        version=blocklaws.__version__,
        spec={"sha256": spec.sha256, "sources": list(spec.sources), "invariants": len(spec.invariants)},
        seed=choice.seed,
        profile=choice.profile,
        backends=tuple(
            {"name": subject.name, "label": subject.label, "dtypes": list(subject.dtypes), "device": subject.device,
             "deterministic": subject.deterministic}
            for subject in subjects
        ),
        cases=tuple(results),
        stale=known.stale(results),
    )  # fmt: skip
