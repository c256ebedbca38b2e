"""One run split among machines that do not know of each other: which cases a shard has.

Must hold: the shards of one plan and one file of timings are the same on every machine, each case is in exactly one,
and each has at least one; a shard is a stretch of the plan, so that cases which share what is compiled stay together.
Must not: depend on the clock, or on floating point that adds up in another order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blocklaws.errors import BlocklawsError
from blocklaws.report_reading import read_report

if TYPE_CHECKING:
    from blocklaws.checking import Case

__all__ = ["Shard", "case_key", "costs", "plan_digest", "split"]

#: How fine recorded seconds are told apart.
_UNITS_A_SECOND = 10_000


@dataclasses.dataclass(frozen=True)
class Shard:
    """One of several: ``number`` counts from 1."""

    number: int
    of: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Return the shard that a text such as ``2/4`` means.

        Raises:
            BlocklawsError: it means none.
        """
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if match is None or not 1 <= (number := int(match[1])) <= (of := int(match[2])):
            raise BlocklawsError(f"shard {text!r} must read like 2/4: the second of four, counted from 1")
        return Shard(number, of)

    def __str__(self) -> str:
        """Return what `parse` reads."""
        return f"{self.number}/{self.of}"


def case_key(case: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tells the case of a report apart from others; the parts that it was split into have one key."""
    part = case["part"].partition(": ")[0]
    return case["invariant"], part, case["block"], case["backend"], case["dtype"]


def costs(cases: Sequence[Case], timings: Path | str | None) -> list[int]:
    """Return what each case costs: the seconds of a report, or the examples that it may look at.

    A case that the report does not know costs what its examples cost there on average.

    Raises:
        BlocklawsError: the timings are no report of `verify`.
    """
    budgets = [case.budget for case in cases]
    if timings is None:
        return budgets
    stored = read_report(timings)
    if stored.kind != "verify":
        raise BlocklawsError(f"{timings}: is a report of `{stored.kind}`; timings are those of a report of `verify`")
    known: dict[tuple[str, ...], int] = {}
    for case in stored.data["cases"]:
        key = case_key(case)
        known[key] = known.get(key, 1) + round(case["seconds"] * _UNITS_A_SECOND)
    recorded = [
        known.get((case.invariant.id, case.part, case.kind.name, case.subject.name, case.dtype)) for case in cases
    ]
    seen = sum(budget for budget, cost in zip(budgets, recorded, strict=True) if cost is not None)
    if not seen:
        return budgets
    total = sum(cost for cost in recorded if cost is not None)
    return [
        max(1, budget * total // seen) if cost is None else cost for budget, cost in zip(budgets, recorded, strict=True)
    ]


def split(costs: Sequence[int], shards: int) -> list[range]:
    """Return the numbers of the cases of each shard, about equally costly.

    Raises:
        BlocklawsError: there are more shards than cases.

    >>> split([1, 1, 1, 3, 1, 1], 2)
    [range(0, 3), range(3, 6)]
    """
    if shards > len(costs):
        raise BlocklawsError(f"{shards} shards are more than the {len(costs)} cases of the run; use fewer")
    ranges, start, left = [], 0, sum(costs)
    for after in reversed(range(shards)):
        end, own = start + 1, costs[start]
        # One more for as long as that brings it nearer to its share of what is left; one is left for each shard after.
        while end < len(costs) - after and (2 * own + costs[end]) * (after + 1) <= 2 * left:
            own += costs[end]
            end += 1
        ranges.append(range(start, end))
        start, left = end, left - own
    return ranges


def plan_digest(cases: Sequence[Case]) -> str:
    """Return a digest of which cases a plan has, in which order."""
    return hashlib.sha256("\n".join(case.id for case in cases).encode("utf-8", "replace")).hexdigest()
