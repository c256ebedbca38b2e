"""The kill matrix: every fault of a backend against every invariant.

Must hold: a fault counts as killed by an invariant only when that invariant's check fails on it; what a fault's block
raises is no kill. An invariant that refutes nothing is idle, a `refuted_by` that is not true is listed: both make the
run fail. Must not: know which backends exist, or shrink (a kill is a yes or a no).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from blocklaws.discovery import find_subjects
from blocklaws.errors import BlocklawsError
from blocklaws.known_failures import KnownFailures
from blocklaws.planning import Choice, plan
from blocklaws.running import run_cases
from blocklaws.spec_reading import load_spec
from blocklaws.specification import Fault, Invariant, Specification
from blocklaws.subjects import Subject

__all__ = ["Kill", "Matrix", "Plan", "Row", "measure", "run_faults", "units"]

_PREFERRED_DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Kill:
    """One invariant that refuted a fault: after how many examples, and the first diverging stage it named."""

    invariant: str
    examples: int
    stage: str | None


@dataclasses.dataclass(frozen=True)
class Row:
    """One fault on one backend, block, dtype and seed."""

    fault: str
    backend: str
    block: str
    dtype: str
    seed: int
    kills: tuple[Kill, ...]
    held: tuple[str, ...]
    raised: tuple[str, ...] = ()

    @property
    def survived(self) -> bool:
        """Whether no invariant refuted the fault."""
        return not self.kills


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a kill matrix is to measure; an empty tuple means everything."""

    backends: tuple[str, ...]
    spec: str | None = None
    blocks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    invariants: tuple[str, ...] = ()
    profile: str = "default"
    seed: int = 0
    seeds: int = 1
    claims_only: bool = False
    """Whether a fault meets only the invariants that claim to refute it: the quick matrix of CI."""


@dataclasses.dataclass(frozen=True)
class Matrix:
    """All rows of a kill matrix and what follows from them."""

    spec: Specification
    plan: Plan
    rows: tuple[Row, ...]

    def _faults_of(self) -> dict[tuple[str, str], list[Row]]:
        grouped: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            grouped.setdefault((row.backend, row.fault), []).append(row)
        return grouped

    @property
    def survivors(self) -> tuple[tuple[str, str], ...]:
        """(backend, fault) of every fault that no invariant refuted in some seed."""
        return tuple(key for key, rows in self._faults_of().items() if self._rate(rows) < 1.0)

    @staticmethod
    def _rate(rows: Sequence[Row]) -> float:
        seeds = {row.seed for row in rows}
        return sum(any(row.kills for row in rows if row.seed == seed) for seed in seeds) / len(seeds)

    @property
    def score(self) -> float:
        """Share of the faults, over all backends, that are killed in every seed."""
        grouped = self._faults_of()
        return 1 - len(self.survivors) / len(grouped) if grouped else 0.0

    def kills_of(self, invariant: str) -> set[str]:
        """The faults that an invariant refuted on some backend."""
        return {row.fault for row in self.rows if any(kill.invariant == invariant for kill in row.kills)}

    @property
    def tried(self) -> tuple[str, ...]:
        """The invariants that met some fault."""
        met = {name for row in self.rows for name in (*row.held, *(kill.invariant for kill in row.kills))}
        return tuple(id for id in self.spec.invariants if id in met)

    @property
    def idle(self) -> tuple[str, ...]:
        """The invariants that refuted no fault at all."""
        return tuple(id for id in self.tried if not self.kills_of(id))

    @property
    def unearned(self) -> tuple[str, ...]:
        """Reference-free invariants whose every kill is also a kill of another reference-free one: shown, not failed."""
        free = {id: self.kills_of(id) for id in self.tried if is_reference_free(self.spec.invariants[id])}
        return tuple(
            id
            for id, kills in free.items()
            if kills and kills <= set().union(*(others for other, others in free.items() if other != id))
        )

    @property
    def untrue(self) -> tuple[tuple[str, str, str], ...]:
        """(backend, invariant, fault) of each `refuted_by` that did not come true, where the pair was tried."""
        found = []
        for (backend, fault), rows in self._faults_of().items():
            for id in self.tried:
                if fault in self.spec.invariants[id].refuted_by:
                    met = [row for row in rows if id in row.held or any(kill.invariant == id for kill in row.kills)]
                    if met and not any(kill.invariant == id for row in met for kill in row.kills):
                        found.append((backend, id, fault))
        return tuple(found)

    @property
    def unmet(self) -> tuple[tuple[str, str], ...]:
        """(invariant, fault) of each `refuted_by` that no backend of the run could try."""
        tried = {(id, row.fault) for row in self.rows for id in (*row.held, *(kill.invariant for kill in row.kills))}
        run = {row.fault for row in self.rows}
        return tuple(
            (id, fault)
            for id in self.tried
            for fault in self.spec.invariants[id].refuted_by
            if fault in run and (id, fault) not in tried
        )

    @property
    def localised(self) -> tuple[int, int]:
        """(faults whose most named stage is the stage at fault, faults with a stage to name)."""
        right = total = 0
        for (_, fault), rows in self._faults_of().items():
            expected = self.spec.faults[fault].stage
            named = [kill.stage for row in rows for kill in row.kills if kill.stage is not None]
            if expected is None or not named:
                continue
            total += 1
            right += statistics.mode(named) in _same_stages(expected, rows[0].block, self.spec)
        return right, total

    @property
    def exit_status(self) -> int:
        """0 every fault is killed, no invariant is idle and every claim is true; 1 otherwise; 2 nothing was tried."""
        if not self.rows:
            return 2
        return int(bool(self.survivors or self.untrue or (self.idle and not self.plan.faults)))

    def as_dict(self) -> dict[str, Any]:
        """Return the matrix as the design's JSON has it, with a few keys more."""
        right, total = self.localised
        return {
            "faults": [
                {
                    "fault": row.fault, "backend": row.backend, "block": row.block, "dtype": row.dtype, "seed": row.seed,
                    "killed_by": [kill.invariant for kill in row.kills],
                    "survived": row.survived,
                    "examples_to_kill": {kill.invariant: kill.examples for kill in row.kills},
                    "stages": {kill.invariant: kill.stage for kill in row.kills},
                    "held": list(row.held),
                    "raised": list(row.raised),
                }
                for row in self.rows
            ],
            "score": round(self.score, 4),
            "idle_invariants": list(self.idle),
            "unearned_invariants": list(self.unearned),
            "declared_but_not_refuted": [list(claim) for claim in self.untrue],
            "declared_but_not_tried": [list(claim) for claim in self.unmet],
            "localised": {"right": right, "of": total},
            "spec": {"sha256": self.spec.sha256},
            "profile": self.plan.profile, "seed": self.plan.seed, "seeds": self.plan.seeds,
        }  # fmt: skip


def is_reference_free(invariant: Invariant) -> bool:
    """Whether an invariant needs no oracle: it mentions neither the reference nor the recipe, and no property does for it."""
    if invariant.property_name != "expression":
        return False
    heads = {part for clause in invariant.clauses for path in clause.expression.references for part in path}
    return not heads & {"reference", "recipe"}


def _same_stages(stage: str, block: str, spec: Specification) -> set[str]:
    """In a post-norm block the first norm's output is the stream after attention, and the second's the output."""
    if spec.blocks[block].choices["placement"] == "pre":
        return {stage}
    pairs = ({"attention_norm", "after_attention"}, {"feed_forward_norm", "output"})
    return next((pair for pair in pairs if stage in pair), {stage})


def units(plan: Plan, spec: Specification) -> list[tuple[str, str]]:
    """Return (backend, fault) of everything that a plan measures.

    Raises:
        BlocklawsError: a backend has no faults planted in it, or a fault is unknown.
    """
    chosen = [spec.one("faults", id).id for id in plan.faults] or list(spec.faults)
    found = []
    for label in plan.backends:
        for subject in find_subjects(label):
            if not subject.faults:
                raise BlocklawsError(
                    f"backend {subject.name!r} has no faults planted in it (no `faults` and `with_fault`); "
                    "the kill matrix is measured on numpy, torch and jax"
                )
            found += [(label, id) for id in chosen if id in subject.faults]
    return found


def measure(label: str, fault: Fault, plan_: Plan, spec: Specification) -> Iterator[Row]:
    """Run one fault of one backend against the invariants, once a seed."""
    subject = find_subjects(label)[0].with_fault(fault.id)
    dtypes = [
        dtype
        for dtype in _PREFERRED_DTYPES
        if dtype in subject.dtypes
        and (not plan_.dtypes or dtype in plan_.dtypes)
        and (fault.dtypes is None or dtype in fault.dtypes)
    ]
    blocks = [block for block in fault.blocks if not plan_.blocks or block in plan_.blocks]
    if (fault.backends is not None and subject.name not in fault.backends) or not dtypes or not blocks:
        return
    for number in range(plan_.seeds):
        # The first block and dtype meet every invariant; the others meet those that the first could not, and those
        # whose claim to refute this fault has not come true yet.
        left = list(_invariants(plan_, spec, fault))
        for dtype in dtypes:
            for block in blocks:
                here = [one for one in left if block in one.blocks and (one.dtypes is None or dtype in one.dtypes)]
                if here:
                    row = _row(subject, fault, block, dtype, here, plan_, spec, plan_.seed + number)
                    yield row
                    killed = {kill.invariant for kill in row.kills}
                    left = [
                        one for one in left if one not in here or (fault.id in one.refuted_by and one.id not in killed)
                    ]


def _invariants(plan_: Plan, spec: Specification, fault: Fault) -> Iterator[Invariant]:
    for invariant in spec.invariants.values():
        if plan_.invariants and invariant.id not in plan_.invariants:
            continue
        if plan_.claims_only and fault.id not in invariant.refuted_by:
            continue
        if not invariant.advisory or fault.id in invariant.refuted_by:
            yield invariant


def _row(
    subject: Subject,
    fault: Fault,
    block: str,
    dtype: str,
    invariants: Sequence[Invariant],
    plan_: Plan,
    spec: Specification,
    seed: int,
) -> Row:
    choice = Choice((block,), (dtype,), tuple(one.id for one in invariants), plan_.profile, seed)
    cases = [dataclasses.replace(case, shrink=False) for case in plan(spec, [subject], choice)]
    kills: dict[str, Kill] = {}
    held, raised = [], []
    for results in run_cases(cases, KnownFailures()):
        for result in results:
            if result.verdict == "violated":
                kills.setdefault(result.invariant, Kill(result.invariant, result.examples_to_fail, result.stage))
            elif result.verdict == "holds":
                held.append(result.invariant)
            elif result.verdict == "error":
                raised.append(f"{result.invariant}: {result.reason}")
    return Row(
        fault.id, subject.name, block, dtype, seed, tuple(kills.values()),
        tuple(dict.fromkeys(id for id in held if id not in kills)), tuple(raised),
    )  # fmt: skip


def run_faults(
    backends: Sequence[str],
    *,
    spec: str | None = None,
    blocks: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    faults: Sequence[str] = (),
    invariants: Sequence[str] = (),
    profile: str = "default",
    seed: int = 0,
    seeds: int = 1,
    workers: int = 1,
    claims_only: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Matrix:
    """Measure the kill matrix of some backends; see `Plan`."""
    plan_ = Plan(
        tuple(backends),
        spec,
        tuple(blocks),
        tuple(dtypes),
        tuple(faults),
        tuple(invariants),
        profile,
        seed,
        seeds,
        claims_only,
    )
    loaded = load_spec(spec)
    for kind, names in (
        ("blocks", blocks),
        ("tolerances", dtypes),
        ("invariants", invariants),
        ("profiles", [profile]),
    ):
        for name in names:
            loaded.one(kind, name)
    todo = units(plan_, loaded)
    rows: list[Row] = []
    for number, found in enumerate(_each(todo, plan_, loaded, workers), start=1):
        rows += found
        if progress is not None:
            progress(number, len(todo), " ".join(todo[number - 1]))
    return Matrix(loaded, plan_, tuple(rows))


def _each(todo: Sequence[tuple[str, str]], plan_: Plan, spec: Specification, workers: int) -> Iterator[Sequence[Row]]:
    if workers <= 1:
        for label, id in todo:
            yield tuple(measure(label, spec.faults[id], plan_, spec))
        return
    from blocklaws.parallel import pool

    with pool(workers) as executor:
        yield from executor.map(_measured, todo, [plan_] * len(todo), chunksize=1)


def _measured(unit: tuple[str, str], plan_: Plan) -> tuple[Row, ...]:
    spec = load_spec(plan_.spec)
    return tuple(measure(unit[0], spec.faults[unit[1]], plan_, spec))


def rates(matrix: Matrix) -> Mapping[tuple[str, str], tuple[float, float | None]]:
    """Return (backend, fault) -> (share of the seeds that kill it, median of the examples that the quickest kill needs)."""
    found = {}
    for key, rows in matrix._faults_of().items():
        quickest = [min(kill.examples for kill in row.kills) for row in rows if row.kills]
        found[key] = (matrix._rate(rows), statistics.median(quickest) if quickest else None)
    return found
