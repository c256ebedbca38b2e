"""Failures by cause: what one mistake refutes is told once.

Must hold: every failure is in exactly one group. Its first is a failed claim of the spec where there is one, since that
says what is wrong, and a property about calls or memory only what it was looking for; of those it is the smallest
world, and of those the first in the order of the run. Must not: claim more than is known: one cause means one backend
and one first diverging stage, or one exception; a failure of which neither is known stands with its own invariant.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocklaws.report import CaseResult

__all__ = ["Cause", "causes"]

_PLACE = re.compile(r" \([^()]*:\d+\)$")
_SIZES = ("n_heads", "n_kv_heads", "d_head", "d_ff")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Failures that have one cause.

    Attributes:
        what: what they share, in words that read on after their number: ``with the same exception``.
        smallest: the one that is the easiest to read, mostly that in the smallest world; it is told in full.
        others: all others, in the order of the run.
    """

    what: str
    smallest: CaseResult
    others: tuple[CaseResult, ...]


def causes(failures: Sequence[CaseResult]) -> list[Cause]:
    """Return failures by their causes, in the order in which the causes first showed."""
    groups: dict[tuple[str, ...], list[CaseResult]] = {}
    for result in failures:
        groups.setdefault(_key(result), []).append(result)
    found = []
    for (_, kind, *_), results in groups.items():
        smallest = min(results, key=_size)
        what = {
            "stage": f"with the same first diverging stage, {smallest.stage}",
            "exception": "with the same exception",
            "spec": "with the same mistake of the spec",
        }.get(kind, "of the same invariant")
        found.append(Cause(what, smallest, tuple(result for result in results if result is not smallest)))
    return found


def _key(result: CaseResult) -> tuple[str, ...]:
    if result.spec_mistake:
        # What is wrong in the spec is wrong on every backend, if perhaps in the words of other sizes.
        return ("", "spec", result.invariant)
    if result.verdict == "error":
        if result.counterexample is None and result.examples:
            # The search ended without an exception: too few examples could have failed, which is the invariant's own.
            return (result.backend, "error", result.name)
        return (result.backend, "exception", _without_numbers(result.reason))
    if result.stage:
        return (result.backend, "stage", result.stage)
    return (result.backend, "invariant", result.name)


def _without_numbers(reason: str) -> str:
    """Return what was raised and where, without the sizes of the one example in its message."""
    place = _PLACE.search(reason)
    message = reason[: place.start()] if place else reason
    return re.sub(r"\d+", "#", message) + (place.group() if place else "")


def _size(result: CaseResult) -> tuple[Any, ...]:
    """Return what makes a failure easy to read: a claim that is written out, then a small input, then plain values."""
    if (example := result.counterexample) is None:
        return (0,)
    if "ids" in example:  # of a whole model
        return (not result.clause_at, len(example["ids"]) * len(example["ids"][0]))
    sizes = example["sizes"]
    plain = example["pattern"] != "integers"
    return (
        not result.clause_at, sizes["B"] * sizes["T"] * sizes["d_model"],
        *(sizes[name] for name in _SIZES), plain, example["position_offset"],
    )  # fmt: skip
