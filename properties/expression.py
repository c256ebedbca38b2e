"""The property behind every invariant that the expression language can say.

Must hold: an example is judged exactly as the spec reads: ``set`` first, then the variants of ``vary``, then each
clause of ``then`` in order, then ``informative``. A block that returns the wrong shape refutes the claim; it is no
error of the spec. Must not: know a framework or a fault.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from blocklaws.assigning import assign
from blocklaws.built import BlockRaised
from blocklaws.canonical import STAGES, stage_shapes
from blocklaws.checking import Case, Examination, nearest
from blocklaws.errors import BlocklawsError
from blocklaws.expressions import EvaluationError, Judgement, evaluate, finite, judge
from blocklaws.invariant_reading import PATTERNS
from blocklaws.jitter import closely
from blocklaws.passes import Pass, Scope, Unavailable
from blocklaws.properties.looking import group_of
from blocklaws.specification import Clause
from blocklaws.worlds import Example, World

__all__ = ["ExpressionProperty"]


class ExpressionProperty:
    """Evaluates the clauses of an invariant over the passes of one example."""

    name = "expression"
    schema: Mapping[str, Any] = {"type": "object", "additionalProperties": False}

    def needs(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return nothing: each clause knows its own needs."""
        return frozenset()

    def examine(self, case: Case, example: Example) -> Examination:
        """Judge one example."""
        invariant, picks = case.invariant, example.picks
        passes: dict[str, Pass] = {}
        try:
            group = group_of(case)
            world = assign(group.world(case, example.recipe), invariant.set, picks, case.subject, case.tolerance)
            base = group.shared(case, example) or Pass(case.subject, world, case.reference)
            passes[""] = base
            for number, (name, assignments) in enumerate(invariant.variants.items(), start=1):
                varied = assign(world, assignments, picks, case.subject, case.tolerance, salt=number)
                passes[name] = Pass(case.subject, varied, case.reference, base if _same_block(world, varied) else None)
            scope = Scope(base, {name: each for name, each in passes.items() if name}, picks)
            # The block first: before its last call there is nothing that it could find, or leave for the reference to
            # read.
            scope.call_first(path for each in case.expressions for path in each.columns)
            if not admissible(case, base):
                return Examination(void=f"the reference recipe in {case.dtype} is not finite on this world")
            return self._judge(case, passes, scope)
        except BlockRaised as error:
            return Examination(raised=str(error), tried=passes)
        except Unavailable as reason:
            return Examination(void=str(reason))

    def _judge(self, case: Case, passes: dict[str, Pass], scope: Scope) -> Examination:
        if case.invariant.assume is not None and not judge(case.invariant.assume, scope, case.tolerance).holds:
            return Examination(void=f"the world does not satisfy {case.invariant.assume.text!r}")
        max_error: float | None = None
        near: tuple[float, float] | None = None
        for clause in case.clauses:
            asks_the_recipe = any("recipe" in path for path in clause.expression.references)
            judgement = closely(
                passes.values() if asks_the_recipe else (), partial(_judged, case, clause, passes, scope)
            )
            if not judgement.holds:
                return Examination(judgement=judgement, clause=clause, passes=passes)
            # Where a claim of difference holds, the two are further apart than it asks for: that is no error.
            if judgement.difference is not None and judgement.difference <= (judgement.allowed or 0.0):
                max_error = max(max_error or 0.0, judgement.difference)
            near = nearest(near, judgement.nearness)
        informative = True
        if case.invariant.informative is not None:
            try:
                informative = bool(evaluate(case.invariant.informative, scope, case.tolerance))
            except EvaluationError as error:
                raise BlocklawsError(
                    f"{case.invariant.place}: invariant {case.invariant.id!r}: informative: {error}"
                ) from None
            except Unavailable:
                informative = True
        return Examination(informative=informative, max_error=max_error, nearest=near, passes=passes)


def _judged(case: Case, clause: Clause, passes: Mapping[str, Pass], scope: Scope) -> Judgement:
    try:
        return judge(clause.expression, scope, case.tolerance, exact=case.subject.deterministic)
    except EvaluationError as error:
        text = clause.expression.text
        wrong = _wrong_shape(passes, text) or _not_finite(passes, text)
        if wrong is None:
            raise BlocklawsError(f"{clause.place}: invariant {case.invariant.id!r}: {error}") from None
        return wrong


def admissible(case: Case, base: Pass) -> bool:
    """Whether the reference recipe in the world's dtype stays finite, so that a zeroed branch is zero and not inf * 0.

    Gentle worlds are finite by construction; only hostile patterns and low precision are run.
    """
    world = base.world
    if world.recipe.pattern in PATTERNS["gentle"] and world.dtype != "float16":
        return True
    with np.errstate(all="ignore"):
        try:
            stages = base.recipe().stages()
        except BlockRaised:
            return True  # the invariant is about a world that the reference refuses
    return all(bool(np.isfinite(stage.astype(np.float64)).all()) for stage in stages.values())


def _same_block(world: World, varied: World) -> bool:
    """Whether two worlds differ in their input only, so that one built block serves both."""
    return varied.config == world.config and all(
        varied.parameters[name] is value for name, value in world.parameters.items()
    )


def _not_finite(passes: Mapping[str, Pass], claim: str) -> Judgement | None:
    """Return a failed judgement when some pass gave what is not finite where the reference does: a claim that takes it
    for what something else is held against says nothing of the spec.
    """
    for name, each in passes.items():
        shown = {"output": each.computed("output"), **(each.computed("trace") or {})}
        for stage, value in shown.items():
            if value is None or stage not in STAGES or (found := finite(value, claim)).holds:
                continue
            of = f" of the pass {name!r}" if name else ""
            with contextlib.suppress(Unavailable, BlockRaised):
                if finite(each.reference().resolve((stage,))).holds:
                    detail = f"{stage}{of}, where the reference is finite: {found.detail}"
                    return dataclasses.replace(found, detail=detail)
    return None


def _wrong_shape(passes: Mapping[str, Pass], claim: str) -> Judgement | None:
    """Return a failed judgement when some pass returned an output or a stage of the wrong shape."""
    for name, each in passes.items():
        batch, tokens, _ = each.world.input.shape
        wanted = stage_shapes(each.world.config, batch, tokens)
        shown = {"output": each.computed("output"), **(each.computed("trace") or {})}
        for stage, value in shown.items():
            if value is not None and stage in wanted and value.shape != wanted[stage]:
                of = f" of the pass {name!r}" if name else ""
                return Judgement(
                    False,
                    claim,
                    f"{stage}{of} has shape {value.shape} where {wanted[stage]} was expected",
                    wrong=1,
                    total=1,
                )
    return None
