"""The values of an input, and of a cotangent, count, not how they lie in memory: in ``forward``, ``trace`` and
``gradients``.

Must hold: each layout is a view that equals the contiguous array value for value, and what lies between and around its
elements is filled with numbers that would show; they must be there afterwards. Answers are compared closely and not
bit for bit, because another order in memory is a fair reason for another order of summation; a block that refuses a
layout with an error has not answered wrongly.
Must not: copy a view before the block gets it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised
from blocklaws.checking import Case, Examination
from blocklaws.expressions import close, differs, identical
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.examining import (
    PythonProperty,
    as_near,
    may_turn_a_relu,
    noise_of_gradients,
    refuted,
    require,
    within,
)
from blocklaws.worlds import World

__all__ = ["LAYOUTS", "OF_OTHER_CALLS", "MemoryLayoutsProperty"]

# What fills the gaps; a small whole number exists in every dtype.
_FILLER = 3


def _every_second(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    def view(x: np.ndarray) -> np.ndarray:
        shape = list(x.shape)
        shape[axis] *= 2
        spaced = np.full(shape, _FILLER, x.dtype)
        window = spaced[(*(slice(None),) * axis, slice(None, None, 2))]
        window[...] = x
        return window

    return view


def _backwards(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.flip(np.flip(x, axis).copy(), axis)


def _inside(x: np.ndarray) -> np.ndarray:
    """A window in a larger array, with a margin on every side."""
    larger = np.full([length + 2 for length in x.shape], _FILLER, x.dtype)
    larger[1:-1, 1:-1, 1:-1] = x
    return larger[1:-1, 1:-1, 1:-1]


def _at_byte(offset: int) -> Callable[[np.ndarray], np.ndarray]:
    def view(x: np.ndarray) -> np.ndarray:
        raw = np.zeros(x.nbytes + 2 * x.itemsize, np.uint8)
        window = raw[offset : offset + x.nbytes].view(x.dtype).reshape(x.shape)
        window[...] = x
        return window

    return view


def _read_only(x: np.ndarray) -> np.ndarray:
    frozen = x.copy()
    frozen.flags.writeable = False
    return frozen


#: Name -> what makes a view that equals a C-contiguous array.
LAYOUTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "tokens-first": lambda x: x.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "features-first": lambda x: x.transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "every-second-sequence": _every_second(0),
    "every-second-token": _every_second(1),
    "every-second-feature": _every_second(2),
    "sequences-backwards": _backwards(0),
    "tokens-backwards": _backwards(1),
    "features-backwards": _backwards(2),
    "inside-a-larger-array": _inside,
    "one-element-in": lambda x: _at_byte(x.itemsize)(x),
    "one-byte-in": _at_byte(1),
    "read-only": _read_only,
}


#: The layouts that ``trace`` and ``gradients`` are handed: one in another order, one with gaps.
OF_OTHER_CALLS = ("fortran", "every-second-feature")
#: The worlds in which they are. In the others another order of summation moves the last digits of the statistics of a
#: norm or of a score, and with them a float32 gradient by thousands of times as much.
CONDITIONED = ("normal", "shifted")


class MemoryLayoutsProperty(PythonProperty):
    """Any call of a view gives what it gives of the contiguous copy, and what the view looks at is left as it was."""

    name = "memory-layouts"
    schema: Mapping[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "layouts": {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": list(LAYOUTS)}},
        },
    }

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Hand every layout to ``forward``, and then some to ``trace`` and ``gradients``."""
        contiguous = base.output()
        taken: dict[str, bool] = {}
        layouts = case.invariant.arguments.get("layouts", LAYOUTS)
        for name in layouts:
            with _laid_out(world.input, name, "layout", "an input") as view:
                try:
                    output, _ = base.built.forward(view, world.position_offset)
                except BlockRaised:
                    continue
                taken[name] = bool(np.array_equal(output, contiguous, equal_nan=True))
                claim = f"the output of an input laid out {name}"
                judgement = close(output, contiguous, case.tolerance, 1.0, claim)
                if not judgement.holds:
                    # Another order in memory may sum in another order. Where a softmax is hard, the last digits of the
                    # scores decide what the output is, and the recipe's own error says how much.
                    judgement = as_near(case, base, output, contiguous, claim)
                require(judgement, f"layout {name}")
        # Read in the wrong order, an input whose rows are all alike would not show it.
        reordered = world.input.transpose(2, 1, 0).ravel()
        if not taken:
            raise Unavailable("the block refuses every layout but the contiguous one")
        if world.recipe.pattern in CONDITIONED:
            if "trace" in base.built.capabilities:
                self._check_trace(case, world, base, [name for name in OF_OTHER_CALLS if name in taken])
            if "gradients" in base.built.capabilities:
                self._check_gradients(case, world, base, [name for name in OF_OTHER_CALLS if name in layouts], taken)
        return Examination(informative=bool(differs(reordered, world.input.ravel())))

    def _check_trace(self, case: Case, world: World, base: Pass, layouts: Sequence[str]) -> None:
        """Hand some layouts of the input to ``trace``."""
        for name in layouts:
            contiguous = base.stages()
            with _laid_out(world.input, name, "trace, layout", "an input of trace") as view:
                try:
                    stages = base.built.trace(view, world.position_offset)
                except BlockRaised:
                    continue
                for stage, value in contiguous.items():
                    claim = f"the stage {stage} of an input laid out {name}"
                    if stage not in stages:
                        raise refuted(claim, f"trace, layout {name}: trace does not show {stage}, as it did before")
                    judgement = close(stages[stage], value, case.tolerance, 1.0, claim)
                    if not judgement.holds and stage in base.reference().stages():
                        judgement = as_near(case, base, stages[stage], value, claim, stage)
                    require(judgement, f"trace, layout {name}")

    def _check_gradients(
        self, case: Case, world: World, base: Pass, layouts: Sequence[str], taken: Mapping[str, bool]
    ) -> None:
        """Hand some layouts of the cotangent to ``gradients``, each beside an input in another one that it takes.

        Args:
            case, world, base: what is checked.
            layouts: of the cotangent.
            taken: the layouts of the input that ``forward`` takes, and whether its output was the same to the last bit.
        """
        if not layouts:
            return
        # What overflows says nothing of a layout.
        contiguous = {name: value for name, value in base.gradients().items() if np.isfinite(_wide(value)).all()}
        # In the scale of all: a gradient that is zero in exact arithmetic is the rounding noise of the others.
        scale = max((float(np.abs(_wide(value)).max(initial=0.0)) for value in contiguous.values()), default=0.0)
        allowed = case.tolerance.atol + case.tolerance.rtol * scale
        for name in layouts:
            # Two orders at once: one call tells of both, and a block that reads one by the other's strides is seen.
            beside = next((other for other in OF_OTHER_CALLS if other != name and other in taken), "contiguous")
            told = f"input layout {beside}, cotangent layout {name}"
            with (
                _laid_out(world.cotangent, name, "cotangent layout", "a cotangent") as cotangent,
                _laid_out(world.input, beside, "input layout", "an input of gradients") as x,
            ):
                try:
                    gradients = base.built.gradients(x, cotangent, world.position_offset)
                except BlockRaised:
                    continue
                for of, value in contiguous.items():
                    claim = f"gradient.{of} for an input laid out {beside} and a cotangent laid out {name}"
                    if of not in gradients:
                        raise refuted(claim, f"{told}: gradients does not give {of}, as it did before")
                    judgement = within(gradients[of], value, allowed, claim)
                    if not judgement.holds:
                        if not taken.get(beside, True) and may_turn_a_relu(case, base):
                            continue
                        # In half precision a norm of few features makes of the last digits of its row a tenth of a
                        # gradient, and the recipe's own error says so.
                        bound = allowed + noise_of_gradients(case, base)
                        judgement = within(gradients[of], value, bound, claim)
                    require(judgement, told)


@contextlib.contextmanager
def _laid_out(array: np.ndarray, name: str, told: str, what: str) -> Iterator[np.ndarray]:
    """Give a view of an array's values to hand to a call, and look at all of its memory when the call is done.

    Raises:
        Refuted: the call wrote into it, or into what lies between and around its elements.
    """
    view = LAYOUTS[name](array) if name != "contiguous" else array.copy()
    around = _owner(view)
    before = around.copy()
    yield view
    claim = f"the memory around {what} laid out {name}"
    require(identical(around, before, claim), f"{told} {name}: written to")


def _wide(value: np.ndarray) -> np.ndarray:
    return np.asarray(value, np.float64)


def _owner(view: np.ndarray) -> np.ndarray:
    """Return the array whose memory a view looks at, gaps and margins included."""
    owner = view
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner
