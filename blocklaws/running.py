"""Runs the cases of a plan and makes the report: what `blocklaws.verify` and the command line call.

Must hold: a case that fails, in whatever way, leaves every other case as it was; the report lists the cases in the
order of the plan, on one process or many. Must not: print.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import blocklaws
from blocklaws import tampering
from blocklaws.arguments import check_arguments
from blocklaws.built import BlockRaised
from blocklaws.checking import Case, Outcome, Property
from blocklaws.claims import never_met_of
from blocklaws.discovery import check_databases, find_search, find_subjects, is_own, registered
from blocklaws.errors import BackendError, BlocklawsError, one_line
from blocklaws.failure_text import run_command, shown_place
from blocklaws.known_failures import KnownFailures
from blocklaws.models.subject import NOT_ISOLATED, BuildsModels, subject_of
from blocklaws.planning import Choice, plan, properties_of, reference_subject
from blocklaws.preflight import preflight
from blocklaws.processes import Processes
from blocklaws.report import CaseResult, Report, result_of
from blocklaws.sharding import Shard, costs, plan_digest, split
from blocklaws.spec_reading import load_spec
from blocklaws.specification import Specification
from blocklaws.subjects import Subject, attribute
from blocklaws.surroundings import Surroundings
from blocklaws.versions import versions_of

if TYPE_CHECKING:
    from blocklaws.isolation_process import Limits

__all__ = ["Run", "make_report", "prepare", "processes", "resolve", "run_case", "run_cases", "verify"]

Progress = Callable[[int, int, CaseResult], None]


def resolve(
    backends: Sequence[Any], device: str | None = None, isolate: bool | None = False, limits: Limits | None = None
) -> list[Subject]:
    """Return the subjects of backends given by name or as objects, on a device where one is asked for.

    Args:
        backends: names and objects, as in `verify`.
        device: where torch and jax compute.
        isolate: as in `verify`.
        limits: the time and the memory of a process of its own.

    Raises:
        BlocklawsError: a backend cannot be found, or is to be isolated and was given as an object.
    """
    subjects: list[Subject] = []
    for backend in backends:
        if isolate or (isolate is None and _guarded(backend)):
            try:
                subjects += _isolated(backend, device, limits, wall=bool(isolate))
                continue
            except BuildsModels:
                # Only the process that has imported a file knows that it builds whole models: these run here.
                if isolate:
                    raise
        if isinstance(backend, Subject):
            here = [backend]
        elif isinstance(backend, str):
            here = find_subjects(backend)
        else:
            kind = type(backend).__name__
            label = attribute(backend, kind, "name", None) or attribute(backend, kind, "__name__", None) or kind
            here = [subject_of(backend, f"<{label}>")]  # no name that another process could find it by
        subjects += [subject.with_device(device) for subject in here] if device else here
    return subjects


def _guarded(backend: Any) -> bool:
    """Whether a backend is run in a process of its own unasked: code of others may crash, exit, hang or eat memory."""
    return isinstance(backend, str) and not is_own(backend) and hasattr(os, "killpg")


def _isolated(backend: Any, device: str | None, limits: Limits | None, *, wall: bool) -> list[Subject]:
    from blocklaws.isolation import isolated

    if not isinstance(backend, str):
        raise BlocklawsError(
            f"backend {backend!r:.100} was given as an object, which cannot be moved to another process; "
            "to isolate "
            "it, name it: package.module:attribute, path/to/file.py:attribute, or a mapping file (.yaml)"
        )
    if backend.partition(":")[0] in registered("models"):
        raise BuildsModels(f"backend {backend!r} builds whole models{NOT_ISOLATED}")
    return isolated(backend, device, limits, wall=wall)


# What a backend may change, all threads share: of two runs at once, each would be blamed for what the other does.
_ONE_RUN = threading.RLock()


def run_case(case: Case, property: Property, spec_file: str = "") -> list[CaseResult]:
    """Run one case; a part of it that the block cannot show is a result of its own, ``unchecked``."""
    with warnings.catch_warnings():
        # A verdict must not depend on the caller's filters: under `-W error` an overflow would raise inside the block.
        warnings.simplefilter("ignore")
        before = case.subject.compilations()
        first, *others = _run_case(case, property, spec_file)
        return [dataclasses.replace(first, compilations=case.subject.compilations() - before), *others]


def _run_case(case: Case, property: Property, spec_file: str) -> list[CaseResult]:
    results = []
    surroundings = Surroundings()
    try:
        parts = case.split()
    except BlockRaised as error:
        return [result_of(case, Outcome("error", str(error)), 0.0, spec_file)]
    finally:
        left = surroundings.restored()
    left = left or case.left_by_supports
    if left:
        return [result_of(case, Outcome("error", left), 0.0, spec_file)]
    for part, unchecked in parts:
        begin = time.perf_counter()
        if unchecked:
            outcome = Outcome("unchecked", unchecked)
        else:
            try:
                outcome = find_search()(part, property)
            except BackendError as error:
                outcome = Outcome("error", str(error))
            except BlocklawsError as error:
                # The spec asks for what cannot be evaluated on this block: its own case is in error, the others run.
                outcome = Outcome("error", shown_place(str(error)), spec_mistake=True)
            except Exception as error:
                # A mistake of the harness or of a property must not cost the cases after it, nor look like a verdict.
                outcome = Outcome("error", _own_mistake(error))
            if replaced := tampering.found():
                outcome = Outcome("error", replaced)
        results.append(result_of(part, outcome, time.perf_counter() - begin, spec_file))
    return results


def _own_mistake(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = one_line(error, 300)
    at = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"blocklaws or a property failed with {type(error).__name__}: {message} ({at}); please report it"


def run_cases(
    cases: Sequence[Case], known: KnownFailures, spec_file: str = "", changes: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[CaseResult]]:
    """Run cases one after the other; those whose ids are in ``changes`` are in error for that reason."""
    properties = properties_of(case.invariant for case in cases)
    for case in cases:
        if case.id in changes:
            results = [result_of(case, Outcome("error", changes[case.id]), 0.0, spec_file)]
        else:
            results = run_case(known.prepared(case), properties[case.invariant.property_name], spec_file)
        yield [known.marked(result) for result in results]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is planned and not begun; `prepare` makes it."""

    request: Mapping[str, Any]
    """What `prepare` was called with: another process plans the same run from it, if it names every backend."""
    spec: Specification
    subjects: tuple[Subject, ...]
    choice: Choice
    cases: tuple[Case, ...]
    known: KnownFailures
    spec_file: str
    numbers: range
    """The numbers of the cases that are checked: of all, or of one shard."""
    shard: Shard | None = None
    token: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    """Tells this plan from others, in a worker that has planned it too; the same with another seed."""

    @functools.cached_property
    def versions(self) -> Mapping[str, str]:
        """Name -> version of what the run stands on."""
        return versions_of(subject.backend for subject in self.subjects)

    def with_seed(self, seed: int) -> Run:
        """Return the same run with another seed."""
        return dataclasses.replace(
            self, request={**self.request, "seed": seed}, choice=dataclasses.replace(self.choice, seed=seed),
            cases=tuple(dataclasses.replace(case, seed=seed) for case in self.cases),
        )  # fmt: skip

    def results(
        self, executor: Executor | None = None, done: Container[int] = (), until: float | None = None
    ) -> Iterator[tuple[int, list[CaseResult]]]:
        """Yield (number of the case, its results) as the cases are done.

        Args:
            executor: where; in this process where there is none.
            done: the numbers of cases that are left out.
            until: when to begin no further case, by the monotonic clock.

        Raises:
            BlocklawsError: a backend refuses a kind of block; with an executor, when a backend or the spec was given as
                an object.
        """
        left = [number for number in self.numbers if number not in done]
        cases = [self.cases[number] for number in left]
        changes = preflight(cases) if executor is None or isinstance(executor, Processes) else {}
        if executor is not None:
            from blocklaws.parallel import run_on_executor

            yield from run_on_executor(self, executor, done, until)
            return
        found = run_cases(cases, self.known, self.spec_file, changes)
        for number in left:
            if until is not None and time.monotonic() > until:
                return
            yield number, next(found)

    def report(self, results: Mapping[int, Sequence[CaseResult]]) -> Report:
        """Return the report of the finished cases, by their numbers; it says how many were not run."""
        ordered = [result for number in sorted(results) for result in results[number]]
        report = make_report(self.spec, self.subjects, self.choice, ordered, self.known, self.cases)
        report = dataclasses.replace(report, command=run_command(self.request))
        if self.shard is not None:
            report = self._as_shard(report)
        if left := len(self.numbers) - len(results):
            # Entries of a known-failures file that matched nothing may yet have matched.
            report = dataclasses.replace(report, not_run=left, stale=())
        return report

    def _as_shard(self, report: Report) -> Report:
        assert self.shard is not None
        told = self.known.told(report.cases, self.choice, self.subjects)
        shard = {
            **dataclasses.asdict(self.shard), "first": self.numbers.start, "end": self.numbers.stop,
            "cases": len(self.cases), "plan": plan_digest(self.cases),
            "command": run_command({**self.request, "shard": None, "timings": None}), "known": told,
        }  # fmt: skip
        # That nothing matched an entry is known when all shards are.
        stale = tuple(sentence for entry in told for sentence in entry["holding"])
        return dataclasses.replace(report, shard=shard, stale=stale)


def prepare(
    backends: Sequence[Any],
    *,
    spec: Specification | str | Path | None = None,
    blocks: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    invariants: Sequence[str] = (),
    profile: str = "default",
    seed: int = 0,
    device: str | None = None,
    known_failures: str | Path | None = None,
    isolate: bool | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    shard: str | None = None,
    timings: str | Path | None = None,
    database: Sequence[str] = (),
    spec_files: Mapping[str, bytes] | None = None,
) -> Run:
    """Plan a run; the arguments are those of `verify`, and ``spec_files`` those of `load_spec`.

    Raises:
        BlocklawsError: a backend, the spec or a name could not be used.
    """
    check_arguments({
        "spec": spec, "blocks": blocks, "dtypes": dtypes, "invariants": invariants, "profile": profile, "seed": seed,
        "device": device, "known_failures": known_failures, "isolate": isolate, "time_limit": time_limit,
        "memory_limit": memory_limit, "shard": shard, "timings": timings, "database": database,
    })  # fmt: skip
    request = {
        "backends": list(backends), "spec": spec, "blocks": list(blocks), "dtypes": list(dtypes),
        "invariants": list(invariants), "profile": profile, "seed": seed, "device": device,
        "known_failures": known_failures, "isolate": isolate, "time_limit": time_limit, "memory_limit": memory_limit,
        "shard": shard, "timings": timings, "database": list(database),
    }  # fmt: skip
    part = None if shard is None else Shard.parse(shard)
    if timings is not None and part is None:
        raise BlocklawsError("timings split a run into shards, and no shard was asked for; leave them out")
    loaded = spec if isinstance(spec, Specification) else load_spec(spec, spec_files)
    known = KnownFailures.load(known_failures) if known_failures else KnownFailures()
    if isolate or all(isinstance(backend, str) and is_own(backend) for backend in backends):
        tampering.end()  # nobody's code but ours runs in this process
    else:
        _watch_the_harness(loaded)
    subjects = resolve(backends, device, isolate, _limits(time_limit, memory_limit))
    if replaced := tampering.found():
        raise BlocklawsError(f"while a backend was loaded: {replaced}")
    if not subjects:
        raise BlocklawsError("no backend was named; give at least one, such as 'numpy'")
    known.check(loaded, subjects)
    choice = Choice(tuple(blocks), tuple(dtypes), tuple(invariants), profile, seed)
    cases = plan(loaded, subjects, choice)
    if database:
        check_databases(database)
        cases = [dataclasses.replace(case, databases=tuple(database)) for case in cases]
    spec_file = "" if spec is None or isinstance(spec, Specification) else str(spec)
    numbers = range(len(cases)) if part is None else split(costs(cases, timings), part.of)[part.number - 1]
    return Run(request, loaded, tuple(subjects), choice, tuple(cases), known, spec_file, numbers, part)


def _limits(time_limit: float | None, memory_limit: int | None) -> Limits:
    from blocklaws.isolation_process import Limits

    limits = Limits()
    if time_limit is not None:
        longer = limits.first_seconds / limits.call_seconds  # frameworks compile in a first call
        limits = dataclasses.replace(limits, call_seconds=time_limit, first_seconds=longer * time_limit)
    if memory_limit is not None:
        limits = dataclasses.replace(limits, memory_mib=memory_limit)
    return limits


def _watch_the_harness(spec: Specification) -> None:
    """Notice, from before the first backend is loaded, when one replaces what judges it."""
    rooms = [type(reference_subject().backend).__module__, find_search().__module__]
    packages = ["blocklaws.expressions", *(module.rpartition(".")[0] for module in rooms)]
    tampering.begin(packages, {"the tolerances of the spec": spec.tolerances})


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
    workers: int = 1,
    executor: Executor | None = None,
    isolate: bool | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    shard: str | None = None,
    timings: str | Path | None = None,
    database: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Verify backends against a spec. A second call, of another thread, waits for the first.

    Args:
        backends: registered names, ``module:attribute``, ``file.py:attribute``, mapping files, or backend objects.
        spec: a spec file, a loaded `Specification`, or None for the built-in spec.
        blocks, dtypes, invariants: what to check; everything where empty.
        profile: how much to spend: ``quick``, ``default`` or ``thorough``.
        seed: the same seed gives the same verdicts and counterexamples.
        device: where torch and jax compute.
        known_failures: a YAML file of failures that are expected.
        workers: how many processes; more than one needs backends and a spec that are named, not given as objects.
        executor: instead of workers, any executor of the kind of `concurrent.futures`: of Dask, of mpi4py, a pool. It
            is left as it is, and the same is needed of backends and spec.
        isolate: whether each backend runs in a process of its own, with a bound on its time and memory, which refuses
            to import what could tell an answer. None: those that are named and not blocklaws' own do, without the
            refusals; objects and blocklaws' own adapters are called here.
        time_limit: seconds for a call in a process of its own (30); a first call of its kind has four times as long.
        memory_limit: MiB of memory for such a process (8192).
        shard: which part of the run, such as ``2/4``; `blocklaws merge` joins their reports.
        timings: a report with the times by which the shards are made equal; the number of examples otherwise.
        database: where counterexamples are shared with other runs, which are looked at first: folders, reports,
            ``redis://HOST:PORT``; ``readonly:`` before one leaves it as it is.
        progress: called after each case with the number of finished cases, the number of cases, and the result.

    Raises:
        BlocklawsError: a backend, the spec or a name could not be used.
    """
    check_arguments({"workers": workers, "executor": executor, "progress": progress})
    if executor is not None and workers != 1:
        raise BlocklawsError(f"workers={workers} and an executor exclude each other: the executor has its own workers")
    with _ONE_RUN:
        run = prepare(
            backends, spec=spec, blocks=blocks, dtypes=dtypes, invariants=invariants, profile=profile, seed=seed,
            device=device, known_failures=known_failures, isolate=isolate, time_limit=time_limit,
            memory_limit=memory_limit, shard=shard, timings=timings, database=database,
        )  # fmt: skip
        results = {}
        with processes(workers) if executor is None else contextlib.nullcontext(executor) as place:
            for number, found in run.results(place):
                results[number] = found
                if progress is not None:
                    for result in found:
                        progress(len(results), len(run.numbers), result)
        return run.report(results)


@contextlib.contextmanager
def processes(workers: int) -> Iterator[Executor | None]:
    """Give an executor of processes of this machine, and end them; None for one, which is this process itself."""
    executor = Processes(workers) if workers != 1 else None
    try:
        yield executor
    finally:
        if executor is not None:
            executor.kill()


def make_report(
    spec: Specification,
    subjects: Sequence[Subject],
    choice: Choice,
    results: Sequence[CaseResult],
    known: KnownFailures,
    planned: Sequence[Case],
) -> Report:
    """Return the report of finished cases, out of those that were planned."""
    sources = [shown_place(source) for source in spec.sources]
    compiled = Counter[str]()
    for result in results:
        compiled[result.backend] += result.compilations
    return Report(
        version=blocklaws.__version__,
        spec={"sha256": spec.sha256, "sources": sources, "invariants": len(spec.invariants)},
        seed=choice.seed,
        profile=choice.profile,
        backends=tuple(
            {"name": subject.name, "label": subject.label, "dtypes": list(subject.dtypes), "device": subject.device,
             "deterministic": subject.deterministic,
             **({"compilations": compiled[subject.name]} if compiled[subject.name] else {}),
             **({"never_met": list(words)} if (words := never_met_of(subject, planned)) else {})}
            for subject in subjects
        ),
        cases=tuple(results),
        stale=known.stale(results, choice, subjects),
        invariants=tuple(spec.invariants),
        meanings={
            id: {"family": told.family, "why": told.why, "means": told.means}
            for id in dict.fromkeys(result.invariant for result in results)
            if (told := spec.invariants.get(id)) is not None
        },
        versions=versions_of(subject.backend for subject in subjects),
    )  # fmt: skip
