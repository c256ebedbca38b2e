"""What the cases of a group have in common: the worlds that they see, and the passes of those that only look.

A group is one backend, one kind of block and one dtype. Invariants that are drawn from the same, as
`Invariant.drawn_from` tells, see the same worlds there; each world is filled once. An invariant only looks where it
neither changes the world nor asks what a call leaves behind; those that make the same calls share their passes, the
block's and the reference's.

Must hold: a shared pass shows what the block gave in an example that held and left nothing behind, so that each
invariant meets for itself what is wrong. No block can find an expected value that another case left in the memory:
passes are kept for blocks in a process of their own and for our own without a fault, and nothing is kept from one group
to the next. Must not: judge.
"""

from __future__ import annotations

import functools
from typing import Any

from blocklaws.canonical import STAGES
from blocklaws.checking import Case, Examination
from blocklaws.discovery import is_own
from blocklaws.passes import Pass
from blocklaws.specification import BlockKind
from blocklaws.subjects import Subject
from blocklaws.worlds import Example, Recipe, World

__all__ = ["Group", "group_of"]

_CALLS = {"output": "forward", "traced": "trace", "gradient": "gradients"} | {
    stage: "trace" for stage in STAGES if stage not in ("input", "output")
}
#: What is asked of the call itself, or of what it left: each invariant makes such calls for itself.
_ITS_OWN = frozenset({"again", "kept", "passed", "cached", "parameters", "given"})

#: How many worlds and passes are kept: those of a default run of a group. A long profile keeps its first ones.
_MOST = 1000


class Group:
    """The worlds and the passes of one backend, kind of block and dtype."""

    def __init__(self, subject: Subject, kind: BlockKind, dtype: str) -> None:
        self._of = (subject, kind, dtype)
        self._may_share = _may_share(subject)
        self._worlds: dict[Recipe, World] = {}
        self._passes: dict[tuple[Recipe, frozenset[str]], Pass] = {}

    def has(self, case: Case) -> bool:
        """Whether a case is one of the group."""
        subject, kind, dtype = self._of
        return subject is case.subject and kind is case.kind and dtype == case.dtype

    def world(self, case: Case, recipe: Recipe) -> World:
        """Return the world of a recipe."""
        world = self._worlds.get(recipe)
        if world is None:
            world = case.world(recipe)
            if len(self._worlds) < _MOST:
                self._worlds[recipe] = world
        return world

    def shared(self, case: Case, example: Example) -> Pass | None:
        """Return the pass of an example that an invariant with the same calls has looked at, if there is one."""
        if not self._may_share or (calls := _calls(case)) is None:
            return None
        return self._passes.get((example.recipe, calls))

    def keep(self, case: Case, example: Example, examination: Examination) -> None:
        """Keep the pass of an example that held, for the invariants after it; of one that failed, keep none."""
        if not self._may_share or (calls := _calls(case)) is None:
            return
        base = examination.passes.get("")
        if examination.failed:
            # Whoever looks at it again calls the block again, and finds out whether it gives the same.
            self._passes.pop((example.recipe, calls), None)
        elif base is not None and len(self._passes) < _MOST:
            base.let_go()
            self._passes[example.recipe, calls] = base


def group_of(case: Case) -> Group:
    """Return the group of a case; what the last one kept is forgotten where that was another."""
    global _group
    if _group is None or not _group.has(case):
        _group = Group(case.subject, case.kind, case.dtype)
    return _group


_group: Group | None = None


def _calls(case: Case) -> frozenset[str] | None:
    """Return the calls of the block that a case makes; None where it does more than look."""
    invariant = case.invariant
    if invariant.property_name != "expression" or invariant.set or invariant.variants:
        return None
    heads = {path[0] for each in case.expressions for path in each.columns}
    return None if heads & _ITS_OWN else frozenset(_CALLS[head] for head in heads if head in _CALLS)


def _may_share(subject: Subject) -> bool:
    if not subject.deterministic:
        return False
    return subject.isolated or (_is_own(subject.label) and getattr(subject.backend, "fault", None) is None)


_is_own: Any = functools.lru_cache(is_own)
