"""An answer is computed for the values that are asked about, not kept from another question that looks alike.

Must hold: the questions look alike by what a cache could be keyed on: the address of the input, its shape, its sum,
its first or last elements, a sample of it, its bytes without the shape, its values rounded to a few decimals, the input
without the parameters, the number of calls. The answers are compared with the float64 reference, which is asked after
the last of them, and where a wrong one could hide in the reference's bound, with a block that was asked nothing else.
Must not: forbid a cache that is keyed on all that the answer depends on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from blocklaws.built import Built
from blocklaws.checking import Case, Examination, nearest
from blocklaws.expressions import differs, finite
from blocklaws.passes import Pass
from blocklaws.properties.examining import PythonProperty, require, same
from blocklaws.recipe_bound import within_bound
from blocklaws.worlds import World, fill

__all__ = ["LAWS", "ReplaysProperty"]

#: Tokens of all sequences together, up to which an input is also asked about in another shape: backends that compile
#: pay for each shape.
_FEW_TOKENS = 12
#: How far above a whole number two elements lie that are one when they are rounded to three decimals, or cut off there.
#: Both on one side: minus zero has other bytes than zero.
_ROUNDED_ALIKE = (1e-4, 4e-4)
#: How far above a whole number one lies whose last bits are all zero: two units there are lost by any rounding.
_FEW_BITS = 0.25


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
            require(finite(answer.output, f"output, {answer.like}"))
            judgement = require(within_bound(oracle, "output", answer.output, case.tolerance), answer.like)
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
    for like, asked in [*_in_another_shape(case, world), *_rounded_alike(world)]:
        output, _ = built.forward(asked.input.copy(), asked.position_offset)
        unused, _ = case.subject.build(asked).forward(asked.input.copy(), asked.position_offset)
        require(same(case, output, unused, "the answer of a block that was asked nothing else"), like)
        yield _Answer(asked, output, like)


def _in_another_shape(case: Case, world: World) -> Iterator[tuple[str, World]]:
    """Yield the input, then its bytes as [T, B, d_model], or as one sequence where B is T; nothing for long inputs.

    Both at one offset, which leaves room for the number of tokens of either.
    """
    batch, tokens, width = world.input.shape
    shape = (tokens, batch, width) if batch != tokens else (1, batch * tokens, width)
    room = world.config.max_positions - shape[1]
    if batch * tokens > _FEW_TOKENS or shape == world.input.shape or room < 0:
        return
    asked = world.replace(position_offset=min(world.position_offset, room))
    reshaped = asked.replace(input=world.input.reshape(shape), cotangent=world.cotangent.reshape(shape))
    if case.subject.misfit(reshaped) is None:
        yield "the first input once more", asked
        yield f"an input of the same bytes in the shape {shape}", reshaped


def _rounded_alike(world: World) -> Iterator[tuple[str, World]]:
    """Yield inputs two of which round to one, where the dtype tells them apart: in float64 and float32."""
    if world.dtype not in ("float64", "float32"):
        return
    place = int(np.abs(world.input).argmin())
    # The smallest number has the finest rounding of its own; around a whole one, any number of decimals agrees.
    whole = np.round(world.input.reshape(-1)[place])
    few = whole + np.asarray(_FEW_BITS, whole.dtype)
    pairs = {
        "to three decimals": [whole + above for above in _ROUNDED_ALIKE],
        "but for the last two bits of one element": [few, few + 2 * np.spacing(few)],
    }
    for how, pair in pairs.items():
        for which, element in zip(("first", "second"), pair, strict=True):
            values = world.input.copy()
            values.reshape(-1)[place] = element
            yield f"the {which} of two inputs that are the same {how}", world.replace(input=values)


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
