"""How much one evaluation may cost, and the meter that keeps count.

Must hold: a cost is reserved *before* the memory is taken, and depends on sizes alone, so that the same expression on
the same world is refused or accepted on every machine. Must not look at a clock.
"""

from __future__ import annotations

import dataclasses
import math

from blocklaws.expressions.problems import EvaluationError

__all__ = ["DEFAULT_BUDGET", "MAX_RANK", "Budget", "Meter"]

#: Axes that an array may have; a block has four.
MAX_RANK = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one evaluation.

    Attributes:
        elements: the largest array that may arise.
        work: element operations in all, weighted so that one takes about 10 ns: the default is under a second.
    """

    elements: int = 10_000_000
    work: int = 60_000_000


DEFAULT_BUDGET = Budget()


class Meter:
    """Counts what an evaluation has spent."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.spent = 0

    def spend(self, work: int) -> None:
        """Count ``work`` element operations.

        Raises:
            EvaluationError: the expression has spent its budget.
        """
        self.spent += work
        if self.spent > self.budget.work:
            raise EvaluationError(f"the expression takes more than {self.budget.work} element operations")

    def reserve(self, shape: tuple[int, ...], weight: int = 1) -> None:
        """Count an array of ``shape`` that is about to be made, ``weight`` operations an element.

        Raises:
            EvaluationError: it has too many axes or elements, or a negative length, or the budget is spent.
        """
        if len(shape) > MAX_RANK:
            raise EvaluationError(f"an array with {len(shape)} axes is too many, at most {MAX_RANK} are allowed")
        if any(length < 0 for length in shape):
            raise EvaluationError(f"shape {shape} has a negative length")
        elements = math.prod(shape)
        if elements > self.budget.elements:
            raise EvaluationError(
                f"an array of shape {shape} has {elements} elements, at most {self.budget.elements} are allowed"
            )
        self.spend(elements * weight)
