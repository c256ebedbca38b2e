"""The bench of a narrowing: builds the block of a world, calls it once, and holds its output against the reference.

Must hold: an experiment is judged by the calibrated bound of its dtype; what a block refuses says nothing of it, and
one that keeps refusing, or that was called `MOST_CALLS` times, is asked no more. Must not: conclude anything.
"""

from __future__ import annotations

import numpy as np

from blocklaws.built import BlockRaised
from blocklaws.checking import Case
from blocklaws.expressions import EvaluationError
from blocklaws.passes import Pass, Unavailable
from blocklaws.recipe_bound import within_bound
from blocklaws.worlds import World

__all__ = ["MOST_CALLS", "Bench", "Spent"]

#: How many calls of `forward` a narrowing may make.
MOST_CALLS = 30
_MOST_REFUSALS = 6


class Spent(Exception):
    """The calls are used up."""


class Bench:
    """Runs experiments: builds the block of a world, calls it once, and keeps in words what was seen."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._calls = 0
        self._refused = 0
        self.seen: list[str] = []
        #: How many times as large as what is allowed the last difference was that `wrong` looked at.
        self.excess = 0.0

    def output(self, world: World | None) -> np.ndarray | None:
        """Return the block's output as float64, or None when it raised or cannot be built."""
        made = self._run(world)
        return None if made is None else made.output().astype(np.float64)

    def reference(self, world: World, stage: str = "output") -> np.ndarray:
        """Return a stage of the float64 reference."""
        return Pass(self._case.reference, world.astype("float64"), None).stages()[stage]

    def wrong(self, world: World | None) -> bool | None:
        """Whether the output lies outside the bound; None where nothing can be said."""
        made = self._run(world)
        if made is None:
            return None
        try:
            judgement = within_bound(made, "output", made.output(), self._case.tolerance)
        except (EvaluationError, BlockRaised):
            return None
        difference, allowed = judgement.difference or 0.0, judgement.allowed or 0.0
        self.excess = difference / allowed if allowed > 0 and np.isfinite(difference) else np.inf
        return not judgement.holds

    def _run(self, world: World | None) -> Pass | None:
        if world is None:
            return None
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise Spent
        made = Pass(self._case.subject, world, self._case.reference)
        try:
            # Nothing can be told by an output of another shape.
            return made if made.output().shape == world.input.shape else None
        except (BlockRaised, Unavailable):
            # Some refuse a size or a choice; one that always raises may take long each time.
            self._refused += 1
            if self._refused > _MOST_REFUSALS:
                raise Spent from None
            return None

    def alike(self, a: np.ndarray | None, b: np.ndarray | None) -> bool | None:
        """Whether two arrays agree, loosely: what is asked this way differs by far more where it differs."""
        if a is None or b is None or a.shape != b.shape:
            return None
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return False
        scale = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
        return bool(np.abs(a - b).max(initial=0.0) <= self._case.tolerance.rtol**0.5 * scale)
