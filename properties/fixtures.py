"""Worked examples from print, verified on the block under test to every digit that is printed.

Must hold: the numbers come from ``spec/fixtures/`` and nowhere else; a value may differ by half a unit of its last
printed digit and by the roundings of its dtype, by nothing more. The drawn world of an example is not looked at: a
fixture is a world.
Must not: compute a printed number without the block; each is a stage, an output or a gradient of one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from blocklaws.built import BlockRaised
from blocklaws.canonical import parameter_count
from blocklaws.checking import Case, Examination
from blocklaws.errors import BlocklawsError
from blocklaws.expressions import EvaluationError, evaluate, judge
from blocklaws.fixture_reading import Fixture, FixtureCheck, fixture_names, load_fixture
from blocklaws.passes import Pass, Scope, Unavailable
from blocklaws.properties.central_differences import Differences, Settings
from blocklaws.properties.examining import PythonProperty, Refuted, refuted, require, within
from blocklaws.properties.measurements import nonuniform
from blocklaws.properties.stacks import Stack
from blocklaws.worlds import Example, World, as_dtype

__all__ = ["FixturesProperty"]

# Roundings of the dtype that a printed number may be off by, relative to the larger of it and one.
_ROUNDINGS = 64.0


class FixturesProperty(PythonProperty):
    """One check of one fixture."""

    name = "fixtures"

    @property
    def schema(self) -> Mapping[str, Any]:  # type: ignore[override]  # the names are read when they are asked for
        """A JSON Schema of the arguments."""
        return {
            "type": "object",
            "additionalProperties": False,
            "required": ["fixture", "check"],
            "properties": {"fixture": {"enum": list(fixture_names())}, "check": {"type": "string"}},
        }

    def needs(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return what the check mentions."""
        return load_fixture(arguments["fixture"]).check(arguments["check"]).needs

    def examine(self, case: Case, example: Example) -> Examination:
        """Check the fixture's own world."""
        fixture = load_fixture(case.invariant.arguments["fixture"])
        check = fixture.check(case.invariant.arguments["check"])
        passes: dict[str, Pass] = {}
        try:
            if misfit := fixture.misfit(case.kind):
                raise Unavailable(misfit)
            world = fixture.world(case.kind, case.dtype, check.set)
            if (reason := case.subject.refusal(world.config)) is not None:
                raise Unavailable(reason)
            passes[""] = Pass(case.subject, world, case.reference)
            if check.counts:
                _count(check, world, passes[""])
            if check.coordinates:
                _compare_gradients(case, check, world, passes[""])
            if check.chain is not None:
                _compare_chain(case, check, world)
            if check.shows or check.claims:
                _show(case, fixture, check, passes)
            return Examination(passes=passes)
        except Refuted as found:
            return Examination(judgement=found.judgement, passes=passes)
        except BlockRaised as error:
            return Examination(raised=str(error), passes=passes)
        except Unavailable as reason:
            return Examination(void=str(reason))


def _allowed(printed: np.ndarray, digits: int, dtype: str) -> np.ndarray:
    rounding = float(ml_dtypes.finfo(as_dtype(dtype)).eps)
    allowed: np.ndarray = 0.5 * 10.0**-digits + _ROUNDINGS * rounding * np.maximum(1.0, np.abs(printed))
    return allowed


def _show(case: Case, fixture: Fixture, check: FixtureCheck, passes: dict[str, Pass]) -> None:
    """Compare printed values and judge claims."""
    world, scope = passes[""].world, _scope(case, fixture, check, passes)
    for shown in check.shows:
        text = shown.expression.text
        try:
            got = np.asarray(evaluate(shown.expression, scope, case.tolerance), np.float64)
        except EvaluationError as error:
            raise refuted(text, f"{text} cannot be formed: {error}") from None
        require(
            within(got, shown.values, _allowed(shown.values, check.digits, world.dtype), text),
            f"fixture {fixture.name}",
        )
    for claim in check.claims:
        try:
            require(judge(claim, scope, case.tolerance, exact=case.subject.deterministic), f"fixture {fixture.name}")
        except EvaluationError as error:
            raise BlocklawsError(f"{check.place}: fixture {fixture.name!r}: {error}") from None


def _scope(case: Case, fixture: Fixture, check: FixtureCheck, passes: dict[str, Pass]) -> Any:
    """Return what the names of a check stand for: one block's passes, or the outputs of a stack."""
    world = passes[""].world
    changed = None if fixture.changed is None else fixture.changed_world(world)
    if check.layers == 1:
        variants = {} if changed is None else {"changed": Pass(case.subject, changed, case.reference, passes[""])}
        passes.update(variants)
        return Scope(passes[""], variants, fixture.constants)
    stack = _stack(case, fixture, check)
    values: dict[tuple[str, ...], np.ndarray] = {("input",): world.input, ("output",): stack.forward(world.input)}
    if changed is not None:
        values |= {("changed", "input"): changed.input, ("changed", "output"): stack.forward(changed.input)}
    return {**values, **{(name,): value for name, value in fixture.constants.items()}}


def _stack(case: Case, fixture: Fixture, check: FixtureCheck) -> Stack:
    worlds = [fixture.world(case.kind, case.dtype, check.set, layer) for layer in range(check.layers)]
    return Stack(case.subject, worlds)


def _count(check: FixtureCheck, world: World, base: Pass) -> None:
    """Compare the numbers that the block lists, and those that the config asks for, with the printed counts."""
    listed = base.parameters()
    for pattern, want in check.counts.items():
        got = sum(array.size for name, array in listed.items() if fnmatch.fnmatchcase(name, pattern))
        if got != want:
            claim = f"the number of parameters {pattern}"
            raise refuted(claim, f"{claim}: got {got}, want {want}", got=float(got), want=float(want))
    if (whole := check.counts.get("*")) is not None and parameter_count(world.config) != whole:
        raise BlocklawsError(f"{check.place}: the canonical count is {parameter_count(world.config)}, not {whole}")


def _compare_gradients(case: Case, check: FixtureCheck, world: World, base: Pass) -> None:
    """Compare every coordinate of every gradient with central differences, each alone, and count them."""
    if world.dtype != "float64":
        raise Unavailable(
            f"differences over a step of {check.step:g} say nothing in {world.dtype}; only float64 is checked"
        )
    world = nonuniform(world)
    gradients = base.built.gradients(world.input.copy(), world.cotangent.copy(), world.position_offset)
    settings = Settings(check.step, check.tolerance, coordinates=check.coordinates)
    differences = Differences(case, world, base.built, settings)
    compared = 0
    for name in ("input", *world.parameters):
        if name not in gradients:
            raise Unavailable(f"gradients does not give {name}")
        if gradients[name].shape != (world.input if name == "input" else world.parameters[name]).shape:
            raise refuted(f"gradient.{name}", f"has shape {gradients[name].shape}")
        compared += differences.compare(name, gradients[name].astype(np.float64))
    if compared != check.coordinates:
        raise BlocklawsError(f"{check.place}: {compared} coordinates were compared, not {check.coordinates}")


def _compare_chain(case: Case, check: FixtureCheck, world: World) -> None:
    """Compare the derivative through equal blocks, with the skip path or without it."""
    assert check.chain is not None
    stack = Stack(case.subject, [world] * check.layers)
    x, cotangent = world.input, world.cotangent
    found = stack.input_gradient(x, cotangent, skip=check.chain.skip)
    if found is None:
        raise Unavailable("gradients does not give input")
    want = np.full(x.shape, check.chain.value)
    claim = (
        f"the derivative through {check.layers} {'blocks' if check.chain.skip else 'branches without the skip path'}"
    )
    require(within(found, want, _allowed(want, check.digits, world.dtype), claim))
