"""The kill matrix: every fault of a backend against every invariant.

Must hold: a fault meets each invariant that speaks of a block and dtype which can show it, and a claim
(`refuted_by`) is tried on each of those until it comes true; a fault that meets nothing still has its row. Must not:
know which backends exist, or shrink (a kill is a yes or a no).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence

from blocklaws import tampering
from blocklaws.abilities import Abilities
from blocklaws.discovery import find_subjects
from blocklaws.errors import BlocklawsError
from blocklaws.kill_results import Kill, Matrix, Plan, Row
from blocklaws.known_failures import KnownFailures
from blocklaws.models.subject import only_blocks
from blocklaws.planning import Choice, kinds_of, plan
from blocklaws.processes import cores, pool
from blocklaws.running import run_cases
from blocklaws.spec_reading import load_spec
from blocklaws.specification import Fault, Invariant, Specification
from blocklaws.subjects import Subject
from blocklaws.versions import versions_of
from blocklaws.worlds import World

__all__ = ["Matrix", "Plan", "measure", "run_faults", "units"]

# The first of these that backend and fault have meets every invariant: float32, in which blocks are used, shows most
# faults; the tolerances of low precision hide small ones.
_PREFERRED_DTYPES = ("float32", "float64", "bfloat16", "float16")

# Starting processes costs more than sharing so many faults saves.
_FEW = 16

_read_once = functools.cache(load_spec)


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
    workers: int | None = 1,
    claims_only: bool = False,
    first_kill: bool = False,
    every: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Matrix:
    """Measure the kill matrix of some backends; the arguments are those of `Plan`.

    Args:
        workers: how many processes; each takes one fault at a time. None: one for each core, where the faults are many.
        progress: called after each fault with the number that are done, the number of all, and which it was.

    Raises:
        BlocklawsError: a name is unknown, a backend has no faults, or the choice leaves nothing to try.
    """
    plan_ = Plan(
        tuple(dict.fromkeys(backends)), spec, tuple(blocks), tuple(dtypes), tuple(faults), tuple(invariants), profile,
        seed, seeds, claims_only, every, first_kill,
    )  # fmt: skip
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
    versions = versions_of(subject.backend for label in plan_.backends for subject in find_subjects(label))
    # The watch of an earlier run in this process would put back what was changed since, rightly or not.
    tampering.end()
    rows: list[Row] = []
    done = 0
    try:
        for done, found in enumerate(_each(todo, plan_, loaded, workers), 1):
            rows += found
            if progress is not None:
                label, fault = todo[done - 1]
                progress(done, len(todo), f"{fault} on {label}")
    except KeyboardInterrupt:
        if not rows:
            raise
        return Matrix(loaded, plan_, tuple(rows), len(todo) - done, versions)
    if not rows:
        raise BlocklawsError(
            "none of the chosen faults can be shown in the chosen blocks and dtypes, so nothing was tried"
        )
    return Matrix(loaded, plan_, tuple(rows), versions=versions)


def units(plan_: Plan, spec: Specification) -> list[tuple[str, str]]:
    """Return (backend, fault) of everything that a plan measures.

    Raises:
        BlocklawsError: a backend has no faults planted in it, a fault is unknown, or no backend has the chosen ones.
    """
    chosen = [spec.one("faults", id).id for id in plan_.faults] or list(spec.faults)
    if plan_.claims_only and plan_.invariants and not plan_.faults:
        # What some invariants claim is asked: a fault that they do not speak of has nothing to do with it.
        claimed = {fault for id in plan_.invariants for fault in spec.invariants[id].refuted_by}
        chosen = [id for id in chosen if id in claimed]
    found = []
    for label in plan_.backends:
        for subject in find_subjects(label):
            only_blocks(subject, ": its faults are those of spec/models.yaml, which tests plant")
            if not subject.faults:
                raise BlocklawsError(
                    f"backend {subject.name!r} has no faults planted in it (no `faults` and `with_fault`), so there is "
                    "nothing to refute; the built-in backends numpy, torch and jax have them"
                )
            found += [(label, id) for id in chosen if id in subject.faults]
    if not found:
        which = ", ".join(plan_.faults) or "a fault that the chosen invariants name"
        raise BlocklawsError(f"nothing to try: no backend of {', '.join(plan_.backends)} can be given {which}")
    return list(dict.fromkeys(found))


def measure(right: Subject, fault: Fault, plan_: Plan, spec: Specification) -> Iterator[Row]:
    """Plant one fault in one backend and run it against the invariants, once a seed.

    The first block and dtype meet every invariant, where the plan has it so; the others meet those that the first could
    not, and those whose claim to refute this fault has not come true yet.
    """
    subject = _Planted(right, fault.id)
    usual = [kind.name for kind in kinds_of(spec, subject, Choice(plan_.blocks))]
    # A fault of a choice that only further kinds of block make is tried on those, or it would never be.
    blocks = usual if plan_.blocks or set(usual) & set(fault.blocks) else list(spec.blocks)
    places = [
        (block, dtype)
        for dtype in _PREFERRED_DTYPES
        for block in fault.blocks
        if dtype in subject.dtypes
        and fault.can_show(block, dtype, subject.name)
        and block in blocks
        and dtype in (plan_.dtypes or spec.tolerances)
    ]
    for seed in range(plan_.seed, plan_.seed + plan_.seeds if places else plan_.seed):
        left = list(_invariants(plan_, spec, fault, plan_.meets_every(right.label)))
        met = False
        for block, dtype in places:
            here = [one for one in left if block in one.blocks and dtype in (one.dtypes or spec.tolerances)]
            if not here:
                continue
            met = True
            row = _row(subject, fault, block, dtype, here, plan_, spec, seed)
            yield row
            killed = {kill.invariant for kill in row.kills}
            if killed and plan_.first_kill:
                break
            left = [one for one in left if one not in here or (fault.id in one.refuted_by and one.id not in killed)]
        if not met:
            block, dtype = places[0]
            yield Row(fault.id, subject.name, block, dtype, seed, (), ())


class _Planted(Subject):
    """A backend with a fault. What its blocks can do is asked of the right ones: a fault changes what they answer.

    Asking the wrong ones would cost a backend that compiles three programs for each fault.
    """

    def __init__(self, right: Subject, fault: str) -> None:
        super().__init__(right.backend.with_fault(fault), right.label)
        self._right = right

    def abilities(self, block: str, dtype: str, world: Callable[[], World]) -> Abilities:
        """Return what blocks like this world's can do."""
        return self._right.abilities(block, dtype, world)


def _invariants(plan_: Plan, spec: Specification, fault: Fault, every: bool) -> Iterator[Invariant]:
    for invariant in spec.invariants.values():
        claimed = fault.id in invariant.refuted_by
        if plan_.invariants and invariant.id not in plan_.invariants:
            continue
        # An advisory invariant is off until it is asked for; its claims must be true all the same.
        if claimed or (every and not (invariant.advisory and not plan_.invariants)):
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
    begin = time.perf_counter()
    kills: dict[str, Kill] = {}
    held: list[str] = []
    raised: dict[str, str] = {}
    for results in run_cases(cases, KnownFailures()):
        for result in results:
            if result.verdict == "violated":
                kills.setdefault(result.invariant, Kill(result.invariant, result.examples_to_fail, result.stage))
            elif result.verdict == "holds":
                held.append(result.invariant)
            elif result.verdict == "error":
                raised.setdefault(result.invariant, result.reason)
        if kills and plan_.first_kill:
            break
    return Row(
        fault.id, subject.name, block, dtype, seed, tuple(kills.values()),
        tuple(dict.fromkeys(id for id in held if id not in kills)), tuple(raised.items()),
        time.perf_counter() - begin,
    )  # fmt: skip


def _each(
    todo: Sequence[tuple[str, str]], plan_: Plan, spec: Specification, workers: int | None
) -> Iterator[tuple[Row, ...]]:
    if workers is None:
        workers = cores() if len(todo) > _FEW else 1
    if min(workers, len(todo)) == 1:
        right = {label: find_subjects(label)[0] for label in dict.fromkeys(label for label, _ in todo)}
        for label, id in todo:
            yield tuple(measure(right[label], spec.faults[id], plan_, spec))
        return
    with pool(min(workers, len(todo))) as executor:
        yield from executor.map(_measured, todo, [plan_] * len(todo))


def _measured(unit: tuple[str, str], plan_: Plan) -> tuple[Row, ...]:
    """Measure one fault in a process of a pool, which serves one run."""
    spec = _read_once(plan_.spec)
    return tuple(measure(_found_once(unit[0]), spec.faults[unit[1]], plan_, spec))


@functools.cache
def _found_once(label: str) -> Subject:
    """Return a backend without faults: what its blocks can do is asked once for all faults of a process."""
    return find_subjects(label)[0]
