"""An answer is computed for the values that are asked about, not kept from another question that looks alike.

Must hold: the questions look alike by what a cache could be keyed on: the address of the input, its shape, its sum,
its first or last elements, a sample of it, the input without the parameters, the number of calls. The answers are
compared with the float64 reference, which is asked after the last of them. Must not: forbid a cache that is keyed
on all that the answer depends on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from blocklaws.built import Built
from blocklaws.checking import Case, Examination, nearest
from blocklaws.expressions import calibrated, differs, finite
from blocklaws.passes import Pass
from blocklaws.properties.examining import PythonProperty, require, same
from blocklaws.worlds import World, fill

__all__ = ["LAWS", "ReplaysProperty"]


@dataclasses.dataclass(frozen=True)
class _Answer:
    """What the block answered, the world that it was asked about, and what was like an earlier question."""

    world: World
    output: np.ndarray
    like: str


class ReplaysProperty(PythonProperty):
    """Questions that look alike get answers of their own."""

    name = "replays"
    schema: Mapping[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["law"],
        "properties": {
            "law": {"enum": ["refilled-buffer", "look-alikes", "other-parameters", "many-calls"]},
            "calls": {"type": "integer", "minimum": 4, "maximum": 10_000, "description": "for many-calls"},
        },
    }

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Ask the questions of one law, then judge all answers."""
        answers = list(LAWS[case.invariant.arguments["law"]](case, world, base.built))
        max_error, near = 0.0, None
        for answer in answers:
            oracle = Pass(case.subject, answer.world, case.reference)
            exact = oracle.resolve(("reference", "output"))
            recipe = oracle.resolve(("recipe", "output"))
            require(finite(answer.output, f"output, {answer.like}"))
            claim = "calibrated(output, reference.output, recipe.output)"
            judgement = require(calibrated(answer.output, exact, recipe, case.tolerance, claim), answer.like)
            max_error = max(max_error, judgement.difference or 0.0)
            near = nearest(near, judgement.nearness)
        first = answers[0].output
        telling = any(bool(differs(each.output, first)) for each in answers[1:])
        return Examination(telling, max_error=max_error, nearest=near)


def _refilled_buffer(case: Case, world: World, built: Built) -> Iterator[_Answer]:
    """One array, filled anew before each call, as a server does."""
    buffer = np.empty_like(world.input)
    for salt in (0, 1, 2, 0):
        values = fill(world, "input", "fresh", salt) if salt else world.input
        buffer[...] = values
        output, _ = built.forward(buffer, world.position_offset)
        yield _Answer(world.replace(input=values), output, "an input array that is filled anew before each call")


def _look_alikes(case: Case, world: World, built: Built) -> Iterator[_Answer]:
    """Inputs of one shape that agree in much of what a fingerprint might look at."""
    x = world.input
    fresh = fill(world, "input", "fresh", 1)
    middle = x.size // 2
    one = x.copy()
    one.reshape(-1)[middle] = fresh.reshape(-1)[middle]
    inner = fresh.copy()
    inner.reshape(-1)[[0, -1]] = x.reshape(-1)[[0, -1]]
    alike = {
        "the first of several inputs": x,
        "an input with the features of each token in reverse": x[..., ::-1].copy(),
        "an input with other signs": -x,
        "an input that differs in one element": one,
        "an input that agrees with another in its first and last element": inner,
        "the first input again": x,
    }
    for like, values in alike.items():
        output, _ = built.forward(values.copy(), world.position_offset)
        yield _Answer(world.replace(input=values), output, like)


def _other_parameters(case: Case, world: World, built: Built) -> Iterator[_Answer]:
    """The same input to a block of other parameters, and to the first block again."""
    name = "feed_forward.down"
    one = world.parameters[name].copy()
    one.reshape(-1)[-1] += np.asarray(1.0, one.dtype)
    others = {
        "a block of other parameters": {key: fill(world, key, "fresh", 1) for key in world.parameters},
        f"a block with one other element in {name}": {**world.parameters, name: one},
    }
    questions = [("the first of several blocks", world, built)]
    for like, parameters in others.items():
        other = world.replace(parameters=parameters)
        questions.append((f"{like}, asked about the same input", other, case.subject.build(other)))
    questions.append(("the first block again", world, built))
    for like, asked, block in questions:
        output, _ = block.forward(world.input.copy(), world.position_offset)
        yield _Answer(asked, output, like)


def _many_calls(case: Case, world: World, built: Built) -> Iterator[_Answer]:
    """Two inputs by turns, very often; the last answers are judged, and those between must equal the first."""
    inputs = [world.input, fill(world, "input", "fresh", 1)]
    firsts: list[np.ndarray] = []
    for number in range(case.invariant.arguments.get("calls", 200)):
        output, _ = built.forward(inputs[number % 2].copy(), world.position_offset)
        if number < 2:
            firsts.append(output)
            yield _Answer(world.replace(input=inputs[number]), output, "one of the first calls of a block")
            continue
        claim = f"the answer of call {number + 1} of a block"
        require(same(case, output, firsts[number % 2], claim), f"call {number + 1}, an input asked before")


#: Law -> what asks its questions.
LAWS: Mapping[str, Callable[[Case, World, Built], Iterator[_Answer]]] = {
    "refilled-buffer": _refilled_buffer,
    "look-alikes": _look_alikes,
    "other-parameters": _other_parameters,
    "many-calls": _many_calls,
}
