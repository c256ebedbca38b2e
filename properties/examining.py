"""What the properties written in Python share: how an example is set up, and claims about arrays.

Must hold: ``set`` and admissibility mean here what they mean for the expressions of a spec; a block that raises is
reported as raising, never as an error of the harness. Must not: judge by other rules than the expression language does.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from blocklaws.assigning import assign
from blocklaws.built import BlockRaised, Built
from blocklaws.checking import Case, Examination
from blocklaws.expressions import DEFAULT_BUDGET, Judgement, calibrated, close, finite, identical
from blocklaws.expressions.budget import Meter
from blocklaws.expressions.judging import judge_elements
from blocklaws.expressions.registry import Context
from blocklaws.jitter import closely
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.expression import admissible
from blocklaws.properties.looking import group_of
from blocklaws.worlds import Example, World

__all__ = [
    "PythonProperty",
    "Refuted",
    "as_near",
    "lent",
    "may_turn_a_relu",
    "noise_of_gradients",
    "refuted",
    "require",
    "require_dtype",
    "require_parameters_as_given",
    "same",
    "within",
]


class Refuted(Exception):
    """A claim that failed; `PythonProperty` makes the examination of it."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(str(judgement))
        self.judgement = judgement


def refuted(claim: str, detail: str, **facts: Any) -> Refuted:
    """Return the exception to raise for a claim that fails without two arrays to show."""
    return Refuted(Judgement(False, claim, detail, **{"wrong": 1, "total": 1, **facts}))


def require(judgement: Judgement, prefix: str = "") -> Judgement:
    """Return a judgement that holds.

    Raises:
        Refuted: it does not; ``prefix`` says of what it was asked.
    """
    if judgement.holds:
        return judgement
    raise Refuted(dataclasses.replace(judgement, detail=f"{prefix}: {judgement.detail}") if prefix else judgement)


def require_dtype(what: str, got: np.ndarray, want: np.ndarray) -> None:
    """Require that an array has the dtype of another, which the block was given.

    Raises:
        Refuted: it has not; the next block would be promoted, or rounded, by it.
    """
    if got.dtype != want.dtype:
        raise refuted(f"{what} in the dtype of the input", f"{what} is {got.dtype}, the input is {want.dtype}")


@contextlib.contextmanager
def lent(call: str, *arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Give copies of some arrays to hand to a call of a block, and look at them when it is done.

    Raises:
        Refuted: the call wrote into one of them.
    """
    copies = tuple(array.copy() for array in arrays)
    yield copies
    for copy, array in zip(copies, arrays, strict=True):
        require(identical(copy, array, f"what {call} was given, after the call"), f"{call} wrote into its arguments")


def require_parameters_as_given(built: Built, world: World, when: str) -> None:
    """Require that the arrays that ``build`` got are as they were.

    Raises:
        Refuted: some call wrote into them; ``when`` says which may have.
    """
    given = {name: array for name, array in built.given_parameters.items() if name in world.parameters}
    claim = "the parameters that build was given"
    require(identical(given, dict(world.parameters), claim), f"written to, by {when}")


def within(got: np.ndarray, want: np.ndarray, allowed: np.ndarray | float, claim: str) -> Judgement:
    """Return whether ``|got - want| <= allowed`` everywhere; a NaN or another shape fails."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return identical(got, want, claim)
    with np.errstate(all="ignore"):
        difference = np.abs(got - want)
    return judge_elements(Context(Meter(DEFAULT_BUDGET), None, claim), got, want, difference, allowed)


def same(case: Case, got: np.ndarray, want: np.ndarray, claim: str) -> Judgement:
    """Return whether two runs of one computation agree: to the last bit, or closely if that is all that is promised."""
    if case.subject.deterministic:
        return identical(got, want, claim)
    return close(got, want, case.tolerance, 1.0, claim)


def as_near(case: Case, base: Pass, got: np.ndarray, value: np.ndarray, claim: str, stage: str = "output") -> Judgement:
    """Return whether an output, or a stage, is as near to another as two compilations of one recipe are."""
    require(finite(value, stage))
    reference, exact = base.reference().resolve((stage,)), value.astype(np.float64)
    if exact.shape != reference.shape:
        require(identical(exact, reference, f"the shape of the {stage}"))

    def judge() -> Judgement:
        noise = base.resolve(("recipe", stage)) - reference
        return calibrated(got, exact, exact + noise, case.tolerance, claim)

    return closely((base,), judge)


def noise_of_gradients(case: Case, base: Pass) -> float:
    """Return by how much another order of summation may move an entry of a gradient, where it turns no ReLU."""
    exact = base.reference().gradients()
    rounded = {"input": base.resolve(("recipe", "gradient", "input"))}
    rounded |= base.resolve(("recipe", "gradient", "parameters"))
    noise = max(0.0, *(float(np.abs(exact[name] - value).max(initial=0.0)) for name, value in rounded.items()))
    return case.tolerance.c * noise if np.isfinite(noise) else float("inf")


def may_turn_a_relu(case: Case, base: Pass) -> bool:
    """Return whether some ReLU may be on in one order of summation and off in another, and its gradients with it."""
    if base.world.config.feed_forward != "relu":
        return False
    stage = "feed_forward_norm" if base.world.config.placement == "pre" else "after_attention"
    up, bias = (base.world.parameters.get(f"feed_forward.{name}", np.zeros(())) for name in ("up", "up_bias"))
    sums, rounded = (
        np.asarray(read, np.float64) @ up.astype(np.float64) + bias.astype(np.float64)
        for read in (base.reference().resolve((stage,)), base.resolve(("recipe", stage)))
    )
    margin = case.tolerance.c * np.abs(rounded - sums).max() + case.tolerance.floor * np.abs(sums).max()
    return not np.abs(sums).min() > margin


class PythonProperty:
    """A property whose check is Python: subclasses give ``name``, ``schema`` and `check`."""

    name: str
    schema: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
    capabilities: frozenset[str] = frozenset({"forward"})

    def needs(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the capabilities that a block must have; every block has ``forward``."""
        return self.capabilities - {"forward"}

    def examine(self, case: Case, example: Example) -> Examination:
        """Set the world up and check it; whatever `check` raises of its own becomes an examination."""
        passes: dict[str, Pass] = {}
        try:
            invariant = case.invariant
            drawn = group_of(case).world(case, example.recipe)
            world = assign(drawn, invariant.set, example.picks, case.subject, case.tolerance)
            # A pass of its own, which is gone before the block is called: nobody finds what the reference gave.
            if not admissible(case, Pass(case.subject, world, case.reference)):
                return Examination(void=f"the reference recipe in {case.dtype} is not finite on this world")
            passes[""] = Pass(case.subject, world, case.reference)
            return self.check(case, world, passes[""])
        except Refuted as found:
            return Examination(judgement=found.judgement, passes=passes)
        except BlockRaised as error:
            return Examination(raised=str(error), passes=passes)
        except Unavailable as reason:
            return Examination(void=str(reason))

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Check one world; ``base`` is its pass, in which nothing has been computed yet.

        Raises:
            Refuted: a claim failed.
        """
        raise NotImplementedError
