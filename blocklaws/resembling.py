"""Which known mistake a failing block acts like: the reference is asked the same, with each fault that it can express.

Must hold: a fault is named only where the reference with it gives what the block gave, in every pass of the failure and
on a larger world, and the right reference does not. It explains a failure and decides no verdict; that a block acts
like no known fault says nothing. Must not: know which faults there are, or ask the block about more than one world.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from blocklaws.built import BlockRaised
from blocklaws.checking import Case
from blocklaws.jitter import FLOAT64_BY_FLOAT32, recipe_dtype
from blocklaws.passes import Pass, Unavailable
from blocklaws.specification import Fault
from blocklaws.subjects import Subject
from blocklaws.worlds import Recipe, World

__all__ = ["resembled"]

#: A fault accounts for a difference when what is left of it is no more than this share of it.
_LEFT = 0.01
#: A difference from the right reference is one when it is so many times what rounding makes of it.
_VISIBLE = 4


@dataclasses.dataclass(frozen=True)
class _Seen:
    """One answer of the block, and how to ask the reference the same."""

    world: World
    got: np.ndarray
    ask: Callable[[Pass], np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Told:
    """An answer of the block beside the right one, and how far rounding may move it."""

    seen: _Seen
    right: np.ndarray
    noise: float


def resembled(case: Case, passes: Mapping[str, Pass]) -> tuple[Fault, ...]:
    """Return the faults of the spec that account for all that a failing block gave, in the order of the spec.

    Args:
        passes: those of the failing example, as its examination has them.
    """
    told = _told(case, [each for passed in passes.values() for each in _answers(passed)])
    if not any(map(_wrong, told or ())):
        return ()  # what is wrong is nothing that a reference could give
    expressed = set(getattr(case.reference.backend, "faults", ()))
    faults = [fault for fault in _spoken_of(case) if fault.id in expressed and _accounts(case, fault, told)]
    more = _told(case, _elsewhere(case, passes.values())) if faults else []
    return tuple(fault for fault in faults if _accounts(case, fault, more))


def _spoken_of(case: Case) -> Iterator[Fault]:
    """Yield the faults that speak of this kind of block: of another, what they say is not what is wrong.

    A kind that a user added is one that no fault could speak of, and may have any of them.
    """
    faults = case.spec.faults.values()
    added = all(case.kind.name not in fault.blocks for fault in faults)
    return (fault for fault in faults if added or case.kind.name in fault.blocks)


def _told(case: Case, seen: Iterable[_Seen]) -> list[_Told]:
    """Set the right answers beside the block's; empty where the reference has none to one of them."""
    found, reference = [], _Oracle(case.reference)
    narrow, share = recipe_dtype(case.dtype), FLOAT64_BY_FLOAT32 if case.dtype == "float64" else 1.0
    for each in seen:
        right, recipe = reference.answer(each, "float64"), reference.answer(each, narrow)
        if right is None or recipe is None or right.shape != each.got.shape:
            return []
        both = np.isfinite(right) & np.isfinite(recipe)
        error = _furthest(recipe - right, both) * share
        found.append(_Told(each, right, 4 * error + case.tolerance.floor * _furthest(right, both)))
    return found


def _answers(passed: Pass) -> Iterator[_Seen]:
    """Yield what the block gave in a pass, as far as anything asked for it."""
    world = passed.world
    if (output := passed.computed("output")) is not None:
        yield _Seen(world, _wide(output), lambda asked: asked.output())
    for lengths in passed.chunkings:
        if (output := passed.computed(f"cached{lengths}")) is not None:
            yield _Seen(world, _wide(output), lambda asked, lengths=lengths: asked.cached(lengths))  # type: ignore[misc]
    for name, stage in (passed.computed("trace") or {}).items():
        yield _Seen(world, _wide(stage), lambda asked, name=name: asked.stages()[name])  # type: ignore[misc]
    for name, gradient in (passed.computed("gradients") or {}).items():
        yield _Seen(world, _wide(gradient), lambda asked, name=name: asked.gradients()[name])  # type: ignore[misc]


def _elsewhere(case: Case, passes: Iterable[Pass]) -> list[_Seen]:
    """Ask the block about a world with several of everything, where mistakes that look alike on a small one part."""
    fitting = [sizes for sizes in case.menu if case.subject.refusal(case.kind.config(sizes)) is None]
    large = [sizes for sizes in fitting if sizes.B > 1 and sizes.T > 3 and sizes.n_heads > 1]
    passed = Pass(case.subject, case.world(Recipe((large or fitting[-1:])[0], "normal", 1)), None)
    try:
        passed.output()
        if any(each.computed("trace") is not None for each in passes):
            passed.stages()
        tokens, step = passed.world.input.shape[1], case.subject.multiples.get("T", 1)
        if tokens > step and any(each.chunkings for each in passes):
            passed.cached((step, tokens - step))
    except (BlockRaised, Unavailable):
        return []
    return list(_answers(passed))


class _Oracle:
    """A reference, right or with a fault; it runs each world once, however many of its answers are wanted."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._passes: dict[tuple[int, str], Pass] = {}

    def answer(self, seen: _Seen, dtype: str) -> np.ndarray | None:
        """Return what it answers where the block gave ``seen``, or None where it has no answer."""
        key = (id(seen.world), dtype)
        if key not in self._passes:
            self._passes[key] = Pass(self._subject, seen.world.astype(dtype), None)
        try:
            return _wide(seen.ask(self._passes[key]))
        except (BlockRaised, Unavailable, KeyError):
            return None


def _accounts(case: Case, fault: Fault, told: Iterable[_Told]) -> bool:
    """Whether the reference with a fault gives all that the block gave."""
    wrong = _Oracle(case.reference.with_fault(fault.id))
    return all(_alike(each, wrong.answer(each.seen, "float64")) for each in told)


def _alike(told: _Told, found: np.ndarray | None) -> bool:
    got = told.seen.got
    if found is None or got.shape != found.shape or (np.isfinite(got) != np.isfinite(found)).any():
        return False
    both = np.isfinite(got) & np.isfinite(told.right)
    return _furthest(got - found, both) <= max(_LEFT * _furthest(got - told.right, both), told.noise)


def _wrong(told: _Told) -> bool:
    """Whether the block's answer is not the right one, by more than rounding."""
    if (np.isfinite(told.seen.got) != np.isfinite(told.right)).any():
        return True
    return _furthest(told.seen.got - told.right, np.isfinite(told.right)) > _VISIBLE * told.noise


def _furthest(difference: np.ndarray, where: np.ndarray) -> float:
    return float(np.abs(difference[where]).max(initial=0.0))


def _wide(value: np.ndarray) -> np.ndarray:
    return np.asarray(value).astype(np.float64)
