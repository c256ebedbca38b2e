"""What changed from one kill matrix to another: faults that survive now, kills that are lost, examples that they take.

Must hold: a fault that is not tried any more is gone, never killed; a lost kill says whether the invariant met the
fault and held, or did not meet it. Kills are not compared where a run left a fault after its first. Must not: read
files, or print.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blocklaws.report_changes import Change

__all__ = ["fault_changes"]

# Fewer examples than this more are chance.
_NOISE = 5

_Key = tuple[str, str]


def fault_changes(old: Mapping[str, Any], new: Mapping[str, Any], slower: float) -> Iterator[Change]:
    """Yield what changed from one kill matrix to another; ``slower`` is a ratio of examples to kill."""
    before, after = _rates(old), _rates(new)
    for (backend, fault), was in before.items():
        if (now := after.get((backend, fault))) is None:
            yield Change("gone", backend, fault, detail=_surely(was["share"]))
        else:
            yield from _rated(backend, fault, was, now, slower)
    for (backend, fault), now in after.items():
        if (backend, fault) not in before:
            kind = "newly survived" if now["share"] < 1 else "new"
            yield Change(kind, backend, fault, detail=f"a new fault, {_surely(now['share'])}")
    if not (old["first_kill"] or new["first_kill"]):
        yield from _kills(old, new)
    for invariant in new["idle_invariants"]:
        if invariant not in old["idle_invariants"]:
            yield Change("newly idle", "", invariant, detail="refutes no fault that it meets")
    untrue = {tuple(claim) for claim in old["declared_but_not_refuted"]}
    for backend, invariant, fault in new["declared_but_not_refuted"]:
        if (backend, invariant, fault) not in untrue:
            yield Change("newly untrue", backend, invariant, detail=f"names {fault} and does not refute it")


def _rates(matrix: Mapping[str, Any]) -> dict[_Key, Mapping[str, Any]]:
    return {(rate["backend"], rate["fault"]): rate for rate in matrix["rates"]}


def _surely(share: float) -> str:
    # Rounded down: 100 % means every seed.
    return "killed" if share == 1 else "survived" if share == 0 else f"killed in {int(100 * share)} % of the seeds"


def _rated(backend: str, fault: str, was: Mapping[str, Any], now: Mapping[str, Any], slower: float) -> Iterator[Change]:
    told = f"{_surely(was['share'])} -> {_surely(now['share'])}"
    if now["share"] < was["share"]:
        kind = "newly survived" if was["share"] == 1 or now["share"] == 0 else "killed less surely"
        yield Change(kind, backend, fault, detail=told)
    elif now["share"] > was["share"]:
        yield Change("newly killed", backend, fault, detail=told)
    before, after = was["examples"], now["examples"]
    if before is not None and after is not None and after > slower * before and after - before >= _NOISE:
        yield Change("slower", backend, fault, detail=f"{before:g} -> {after:g} examples to kill")


def _kills(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = _killers(old), _killers(new)
    met = {(row["backend"], row["fault"], name) for row in new["faults"] for name in row["held"]}
    met |= {(row["backend"], row["fault"], name) for row in new["faults"] for name, _ in row["raised"]}
    for backend, fault in (key for key in before if key in after):
        for invariant in sorted(before[backend, fault] - after[backend, fault]):
            how = "it held" if (backend, fault, invariant) in met else "it did not meet the fault"
            yield Change("lost kills", backend, fault, detail=f"{invariant} does not refute it any more: {how}")
        if gained := after[backend, fault] - before[backend, fault]:
            yield Change("new kills", backend, fault, detail=f"{', '.join(sorted(gained))}")


def _killers(matrix: Mapping[str, Any]) -> dict[_Key, set[str]]:
    killers: dict[_Key, set[str]] = {}
    for row in matrix["faults"]:
        killers.setdefault((row["backend"], row["fault"]), set()).update(row["killed_by"])
    return killers
