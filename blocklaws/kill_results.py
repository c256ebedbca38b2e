"""What a kill matrix found, as data: a row for each fault that was planted, and what follows from all of them.

Must hold: a fault counts as killed by an invariant only when that invariant's check fails on it; what a fault's block
raises is no kill. A fault that met no invariant has survived. Must not: run anything, or print.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import blocklaws
from blocklaws.canonical import one_array
from blocklaws.report_schema import FORMAT
from blocklaws.specification import Invariant, Specification

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Kill", "Matrix", "Plan", "Rate", "Row", "is_reference_free"]


@dataclasses.dataclass(frozen=True)
class Kill:
    """One invariant that refuted a fault: after how many examples, and the first diverging stage it named."""

    invariant: str
    examples: int
    stage: str | None


@dataclasses.dataclass(frozen=True)
class Row:
    """One fault on one backend, block, dtype and seed: who refuted it, on whom it held, and who could not judge it."""

    fault: str
    backend: str
    block: str
    dtype: str
    seed: int
    kills: tuple[Kill, ...]
    held: tuple[str, ...]
    raised: tuple[tuple[str, str], ...] = ()
    """(invariant, reason) where the block raised, or the check could not be made."""
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def survived(self) -> bool:
        """Whether no invariant refuted the fault here."""
        return not self.kills

    @property
    def met(self) -> tuple[str, ...]:
        """Every invariant that looked at the fault."""
        names = (*(kill.invariant for kill in self.kills), *self.held, *(name for name, _ in self.raised))
        return tuple(dict.fromkeys(names))


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
    every: bool = False
    """Whether each backend's faults meet every invariant, and not those of the first backend only."""
    first_kill: bool = False
    """Whether a fault is left as soon as one invariant has refuted it: for a backend that compiles each block anew."""

    def meets_every(self, label: str) -> bool:
        """Whether the faults of a backend meet every invariant, or only those that claim them.

        Who else refutes a mistake is a matter of its mathematics, so one backend's faults tell; that each backend's are
        refuted, and that the claims are true there, is tried on each.
        """
        return not self.claims_only and (self.every or label == self.backends[0])

    @property
    def command(self) -> str:
        """The command that measures the same."""
        words = ["blocklaws", "faults", *self.backends]
        chosen = (("--block", self.blocks), ("--dtype", self.dtypes), ("--fault", self.faults))
        for option, names in (*chosen, ("--invariant", self.invariants)):
            words += [word for name in names for word in (option, name)]
        words += ["--spec", self.spec] if self.spec else []
        words += ["--profile", self.profile, "--seed", str(self.seed), "--seeds", str(self.seeds)]
        flags = (("--claims", self.claims_only), ("--every", self.every), ("--first-kill", self.first_kill))
        return shlex.join([*words, *(option for option, chosen in flags if chosen)])


@dataclasses.dataclass(frozen=True)
class Rate:
    """In which share of the seeds something was killed, and the median of the examples that its quickest kill took."""

    share: float
    examples: float | None


@dataclasses.dataclass(frozen=True)
class Matrix:
    """All rows of a kill matrix and what follows from them."""

    spec: Specification
    plan: Plan
    rows: tuple[Row, ...]
    not_run: int = 0
    """How many faults an interrupt left out."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name -> version of what the run stands on."""

    @functools.cached_property
    def by_fault(self) -> Mapping[tuple[str, str], tuple[Row, ...]]:
        """(backend, fault) -> its rows, in the order of the run."""
        grouped: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            grouped.setdefault((row.backend, row.fault), []).append(row)
        return {key: tuple(rows) for key, rows in grouped.items()}

    @functools.cached_property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends, in the order of the run."""
        return tuple(dict.fromkeys(row.backend for row in self.rows))

    @functools.cached_property
    def rates(self) -> Mapping[tuple[str, str], Rate]:
        """(backend, fault) -> how surely it is killed."""
        return {key: _rate(rows) for key, rows in self.by_fault.items()}

    @functools.cached_property
    def survivors(self) -> tuple[tuple[str, str], ...]:
        """(backend, fault) of every fault that some seed left alive."""
        return tuple(key for key, rate in self.rates.items() if rate.share < 1)

    @property
    def score(self) -> float:
        """Share of the faults, over all backends, that are killed in every seed."""
        return 1 - len(self.survivors) / len(self.by_fault) if self.by_fault else 0.0

    @functools.cached_property
    def _killed_by(self) -> Mapping[str, frozenset[str]]:
        return _killed_by(self.rows)

    def kills_of(self, invariant: str) -> frozenset[str]:
        """The faults that an invariant refuted on some backend."""
        return self._killed_by.get(invariant, frozenset())

    @functools.cached_property
    def tried(self) -> tuple[str, ...]:
        """The invariants that met some fault."""
        met = {name for row in self.rows for name in row.met}
        return tuple(id for id in self.spec.invariants if id in met)

    @functools.cached_property
    def idle(self) -> tuple[str, ...]:
        """The invariants that met faults and refuted none."""
        return tuple(id for id in self.tried if not self.kills_of(id))

    @functools.cached_property
    def unearned(self) -> tuple[str, ...]:
        """Reference-free invariants whose every kill is also a kill of another reference-free one: shown, not failed.

        Told from the first backend's faults; nothing can be said where an invariant did not meet every one of them.
        """
        plan = self.plan
        if plan.claims_only or plan.first_kill or plan.faults or plan.invariants or plan.blocks or plan.dtypes:
            return ()
        kills_here = _killed_by(row for row in self.rows if row.backend == self.backends[0])
        free = {
            id: kills_here[id] for id in self.tried if id in kills_here and is_reference_free(self.spec.invariants[id])
        }
        return tuple(
            id
            for id, kills in free.items()
            if kills <= frozenset().union(*(others for other, others in free.items() if other != id))
        )

    @functools.cached_property
    def claims(self) -> Mapping[tuple[str, str, str], Rate | None]:
        """(backend, invariant, fault) of each `refuted_by` that names a fault of the run, and how surely it comes true.

        None where the two never met: the backend cannot show what the invariant asks for, or the run leaves it out.
        """
        claimed = {
            fault: [one.id for one in self._chosen if fault in one.refuted_by]
            for fault in {row.fault for row in self.rows}
        }
        return {
            (backend, id, fault): _rate(met, id) if (met := [row for row in rows if id in row.met]) else None
            for (backend, fault), rows in self.by_fault.items()
            for id in claimed[fault]
        }

    @property
    def _chosen(self) -> list[Invariant]:
        return [
            one for one in self.spec.invariants.values() if one.id in (self.plan.invariants or self.spec.invariants)
        ]

    @functools.cached_property
    def untrue(self) -> tuple[tuple[str, str, str], ...]:
        """(backend, invariant, fault) of each `refuted_by` that was tried and came true in no seed."""
        return tuple(claim for claim, rate in self.claims.items() if rate is not None and not rate.share)

    @functools.cached_property
    def weak(self) -> tuple[tuple[str, str, str], ...]:
        """(backend, invariant, fault) of each `refuted_by` that came true in some seeds and not in nine of ten."""
        return tuple(claim for claim, rate in self.claims.items() if rate is not None and 0 < rate.share < 0.9)

    @functools.cached_property
    def unmet(self) -> tuple[tuple[str, str], ...]:
        """(invariant, fault) of each `refuted_by` that no backend of the run could try."""
        met = {(id, fault) for (_, id, fault), rate in self.claims.items() if rate is not None}
        return tuple(dict.fromkeys((id, fault) for _, id, fault in self.claims if (id, fault) not in met))

    @property
    def unproven(self) -> tuple[str, ...]:
        """The invariants of the run that name no fault."""
        return tuple(one.id for one in self._chosen if one.unproven)

    @functools.cached_property
    def stages(self) -> Mapping[tuple[str, str], tuple[str, str]]:
        """(backend, fault) -> (the stage that most kills name, the stage at fault), where there is one to name."""
        found = {}
        for (backend, fault), rows in self.by_fault.items():
            expected = self.spec.faults[fault].stage
            named = [
                expected if expected and kill.stage in self._same_stages(expected, row.block) else kill.stage
                for row in rows
                for kill in row.kills
                if kill.stage is not None
            ]
            if expected is not None and named:
                found[backend, fault] = (str(statistics.mode(named)), expected)
        return found

    def _same_stages(self, stage: str, block: str) -> set[str]:
        """In a post-norm block the first norm's output is the stream after attention, and the second's the output."""
        pairs = one_array(str(self.spec.blocks[block].choices["placement"])).items()
        return next((set(pair) for pair in pairs if stage in pair), {stage})

    @property
    def localised(self) -> tuple[int, int]:
        """(faults whose most named stage is the stage at fault, faults with a stage to name)."""
        return sum(named == expected for named, expected in self.stages.values()), len(self.stages)

    @property
    def problems(self) -> tuple[str, ...]:
        """What makes the run fail, in words; empty when nothing does.

        Where only some invariants are asked about, a fault that they leave alive is no problem, unless it is named too;
        where faults, blocks or dtypes are left out, or an interrupt left them out, an invariant may well find nothing
        to refute.
        """
        plan, found = self.plan, []
        if self.survivors and (plan.faults or not plan.invariants):
            found.append(f"{_count(len(self.survivors), 'fault')} survived")
        if self.untrue and not (plan.blocks or plan.dtypes or self.not_run):
            found.append(f"{_count(len(self.untrue), 'claim')} came true in no seed")
        if self.idle and not (plan.faults or plan.blocks or plan.dtypes or plan.first_kill or self.not_run):
            found.append(f"{_count(len(self.idle), 'invariant')} refuted nothing")
        return tuple(found)

    @property
    def exit_status(self) -> int:
        """0 every fault is killed, no invariant is idle and every claim is true; 1 otherwise; 2 nothing was tried.

        130 when the run was interrupted.
        """
        if self.not_run:
            return 130
        return int(bool(self.problems)) if self.rows else 2

    def render(self, console: Console) -> None:
        """Show the matrix to a person."""
        from blocklaws.kill_matrix_text import render

        render(self, console)

    def as_dict(self) -> dict[str, Any]:
        """Return the matrix as the design's JSON has it, with a few keys more."""
        right, total = self.localised
        planted = dict.fromkeys(fault for _, fault in self.by_fault)
        return {
            "blocklaws": blocklaws.__version__, "format": FORMAT,
            "versions": dict(self.versions),
            "faults": [
                {
                    "fault": row.fault, "backend": row.backend, "block": row.block, "dtype": row.dtype,
                    "seed": row.seed,
                    "killed_by": [kill.invariant for kill in row.kills],
                    "survived": row.survived,
                    "examples_to_kill": {kill.invariant: kill.examples for kill in row.kills},
                    "stages": {kill.invariant: kill.stage for kill in row.kills},
                    "held": list(row.held),
                    "raised": [list(pair) for pair in row.raised],
                    "seconds": round(row.seconds, 4),
                }
                for row in self.rows
            ],
            "score": round(self.score, 4),
            "idle_invariants": list(self.idle),
            "declared_but_not_refuted": [list(claim) for claim in self.untrue],
            "declared_but_not_tried": [list(claim) for claim in self.unmet],
            "unearned_invariants": list(self.unearned),
            "unproven_invariants": list(self.unproven),
            "rates": [
                {
                    "fault": fault, "backend": backend, "share": round(rate.share, 4), "examples": rate.examples,
                    "stage": self.stages.get((backend, fault), (None,))[0],
                }
                for (backend, fault), rate in self.rates.items()
            ],
            "planted": [
                {"fault": one.id, "family": one.family, "says": one.says, "stage": one.stage}
                for one in self.spec.faults.values()
                if one.id in planted
            ],
            "invariants": list(self.tried),
            "weak_claims": [
                {"backend": backend, "invariant": id, "fault": fault, "share": round(rate.share, 4)}
                for (backend, id, fault) in self.weak
                if (rate := self.claims[backend, id, fault]) is not None
            ],
            "localised": {"right": right, "of": total},
            "spec": {"sha256": self.spec.sha256, "sources": list(self.spec.sources)},
            "profile": self.plan.profile, "seed": self.plan.seed, "seeds": self.plan.seeds,
            "command": self.plan.command, "claims_only": self.plan.claims_only, "first_kill": self.plan.first_kill,
            "not_run": self.not_run,
            "met_every_invariant": [label for label in self.plan.backends if self.plan.meets_every(label)],
            "problems": list(self.problems), "exit_status": self.exit_status,
        }  # fmt: skip


def _killed_by(rows: Iterable[Row]) -> Mapping[str, frozenset[str]]:
    """Return invariant -> the faults that it refuted in some rows; one that refuted none is not there."""
    kills: dict[str, set[str]] = {}
    for row in rows:
        for kill in row.kills:
            kills.setdefault(kill.invariant, set()).add(row.fault)
    return {id: frozenset(faults) for id, faults in kills.items()}


def _rate(rows: Sequence[Row], invariant: str | None = None) -> Rate:
    """Return how surely some rows are killed: by anybody, or by one invariant."""
    quickest: dict[int, list[int]] = {row.seed: [] for row in rows}
    for row in rows:
        quickest[row.seed] += [kill.examples for kill in row.kills if invariant in (None, kill.invariant)]
    least = [min(examples) for examples in quickest.values() if examples]
    return Rate(len(least) / len(quickest), statistics.median(least) if least else None)


def is_reference_free(invariant: Invariant) -> bool:
    """Whether an invariant needs no oracle: it mentions neither reference nor recipe, and no property does."""
    if invariant.property_name != "expression":
        return False
    return not {"reference", "recipe"} & set(_parts(invariant))


def _parts(invariant: Invariant) -> Iterable[str]:
    return (part for clause in invariant.clauses for path in clause.expression.references for part in path)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
