"""What checking a case means: cases, examinations, outcomes, and the interface of a property.

A property looks at one example at a time (`Property.examine`); the search draws examples, stops at the first that
fails and shrinks it. Must hold: an outcome is one of four verdicts and always says why it is not `holds`; nothing
passes that was not checked. Must not: import Hypothesis, a framework, or the rooms.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from blocklaws.abilities import Abilities
from blocklaws.specification import BlockKind, Clause, Invariant, Profile, Sizes, Specification, Tolerance
from blocklaws.subjects import Subject
from blocklaws.worlds import Example, Recipe, World, adapted_menu, make_world

if TYPE_CHECKING:
    from blocklaws.expressions import Expression, Judgement
    from blocklaws.passes import Pass

__all__ = ["Case", "Examination", "Failure", "Outcome", "Property", "Search", "Verdict", "nearest"]

Verdict = Literal["holds", "violated", "unchecked", "error"]


@dataclasses.dataclass(frozen=True)
class Examination:
    """What one example showed.

    Attributes:
        informative: whether the check could have failed here.
        judgement: the claim that failed; None when everything held.
        raised: what the block raised, when it did.
        void: why nothing was checked, when nothing was.
        max_error: the largest difference seen by a claim of closeness.
        nearest: the (difference, allowed) of the comparison that came nearest to its bound, or went furthest beyond it.
        clause: the clause that failed.
        passes: the passes that were made, by name ("" is the base), for localising.
        tried: those of an example in which the block raised: their configs are told, nothing is asked of them again.
    """

    informative: bool = True
    judgement: Judgement | None = None
    raised: str | None = None
    void: str | None = None
    max_error: float | None = None
    nearest: tuple[float, float] | None = None
    clause: Clause | None = None
    passes: Mapping[str, Pass] = dataclasses.field(default_factory=dict)
    tried: Mapping[str, Pass] = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the example refutes the invariant or the block could not be run on it."""
        return self.judgement is not None or self.raised is not None


def nearest(*found: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the (difference, allowed) that uses most of what is allowed, the first of equals.

    >>> nearest((1.0, 4.0), None, (1.0, 2.0))
    (1.0, 2.0)
    """
    return max((pair for pair in found if pair is not None), key=_used, default=None)


def _used(pair: tuple[float, float]) -> float:
    difference, allowed = pair
    if not difference:
        return 0.0
    return difference / allowed if allowed > 0 else math.inf


class Property(Protocol):
    """How one kind of invariant is checked. Registered under the entry point group ``blocklaws.properties``."""

    name: str
    schema: Mapping[str, Any]
    """A JSON Schema of the arguments that ``with`` may give."""

    def needs(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the capabilities that a block must have."""

    def examine(self, case: Case, example: Example) -> Examination:
        """Check one example."""


Search = Callable[["Case", Property], "Outcome"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """The smallest example that fails, and what it shows."""

    example: Example
    examination: Examination
    examples_to_fail: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one case."""

    verdict: Verdict
    reason: str = ""
    examples: int = 0
    informative: int = 0
    max_error: float | None = None
    nearest: tuple[float, float] | None = None
    """The (difference, allowed) of the comparison that came nearest to its bound, over all examples."""
    failure: Failure | None = None
    spec_mistake: bool = False
    """Whether an error is the spec's: an expression that cannot be evaluated, whatever the backend."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One invariant (or the part of it that needs the same capabilities), one kind of block, one backend, one dtype."""

    invariant: Invariant
    part: str
    clauses: tuple[Clause, ...]
    needs: frozenset[str]
    kind: BlockKind
    subject: Subject
    dtype: str
    spec: Specification
    reference: Subject
    profile: Profile
    seed: int
    shrink: bool = True
    databases: tuple[str, ...] = ()
    """Where counterexamples are shared with other runs."""

    @property
    def name(self) -> str:
        """The invariant's id, with the part of it that this case checks."""
        return f"{self.invariant.id}[{self.part}]" if self.part else self.invariant.id

    @property
    def id(self) -> str:
        """A name that no other case of a run has."""
        return f"{self.name}-{self.kind.name}-{self.subject.name}-{self.dtype}"

    @property
    def tolerance(self) -> Tolerance:
        """How close is close in this case's dtype."""
        return self.spec.tolerances[self.dtype]

    @property
    def budget(self) -> int:
        """How many examples to look at."""
        return max(1, round(self.profile.examples * self.invariant.examples))

    @property
    def search_seed(self) -> int:
        """A seed that is the same for every backend and for every invariant that is drawn from the same.

        All of them see the same worlds: what is computed of a world once serves those that only look at it.
        """
        text = f"{self.seed}|{self.invariant.drawn_from}|{self.kind.name}|{self.dtype}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    @functools.cached_property
    def expressions(self) -> tuple[Expression, ...]:
        """Everything that an example is judged by: the clauses, then what is informative, and what is assumed."""
        rest = (self.invariant.informative, self.invariant.assume)
        return (*(clause.expression for clause in self.clauses), *(each for each in rest if each is not None))

    @functools.cached_property
    def menu(self) -> tuple[Sizes, ...]:
        """The sizes of this kind of block that the backend can take, smallest first."""
        return adapted_menu(self.spec.menus[self.kind.heads], self.subject.multiples)

    def world(self, recipe: Recipe) -> World:
        """Fill the arrays of a recipe for this case."""
        return make_world(self.kind, recipe, self.dtype)

    @functools.cached_property
    def supported(self) -> str | None:
        """Why the backend cannot build this kind of block, or None when it can."""
        refusals = {self.subject.refusal(self.kind.config(sizes)) for sizes in self.menu}
        return None if None in refusals else sorted(str(refusal) for refusal in refusals)[0]

    @property
    def left_by_supports(self) -> str:
        """What the backend's ``supports`` has changed that all share; empty where it has changed nothing."""
        return self.subject.left_by_supports(self.kind.config(sizes) for sizes in self.menu)

    @property
    def abilities(self) -> Abilities:
        """What a block of this case can do.

        Raises:
            BlockRaised: the backend cannot build the smallest world.
        """
        return self.subject.abilities(
            self.kind.name, self.dtype, lambda: self.world(Recipe(self._smallest, "normal", 0))
        )

    @functools.cached_property
    def _smallest(self) -> Sizes:
        return next(sizes for sizes in self.menu if self.subject.refusal(self.kind.config(sizes)) is None)

    def config_of(self, example: Example) -> dict[str, Any]:
        """Return the config of an example's block, as a report has it."""
        return self.kind.config(example.recipe.sizes).as_dict()

    def split(self) -> list[tuple[Case, str]]:
        """Return the case as far as it can be checked, and the rest of its clauses, each with why it cannot.

        A trace may show any subset of the stages, and gradients any subset of the parameters: what is missing is
        ``unchecked`` on its own and does not hide what can be checked.
        """
        if self.dtype not in self.subject.dtypes:
            why = self.subject.cannot.get(self.dtype)
            return [(self, f"{self.subject.name} does not offer {self.dtype}" + (f" ({why})" if why else ""))]
        if self.supported is not None:
            return [(self, self.supported)]
        abilities = self.abilities
        if not abilities.offsets and self.sets_offset:
            return [(self, abilities.no_offset)]
        if reason := abilities.missing(self.needs):
            return [(self, reason)]
        parts: dict[str, list[Clause]] = {}
        for clause in self.clauses:
            parts.setdefault(abilities.missing(clause.needs), []).append(clause)
        if len(parts) < 2:
            return [(self, reason) for reason in parts or [""]]
        return [(self._of(reason, tuple(clauses)), reason) for reason, clauses in sorted(parts.items())]

    def _of(self, reason: str, clauses: tuple[Clause, ...]) -> Case:
        return dataclasses.replace(self, clauses=clauses, part=f"{self.part}: {reason}" if reason else self.part)

    @property
    def sets_offset(self) -> bool:
        """Whether the invariant itself asks for a position offset; position 0, where a cache begins, is none."""
        groups = (self.invariant.set, *self.invariant.variants.values())
        offsets = [each for group in groups for each in group if each.target == "position_offset"]
        return any(each.value != 0 for each in offsets)
