"""A block has no memory: what it answers depends on the call alone, never on the calls before; and no call leaves
anything in what it was given.

Must hold: between two equal calls lie calls of every other kind that the block can make: other tokens, fewer tokens,
another offset, a trace, gradients, a cache. What is compared is asked directly after a call of another kind with other
tokens of the same shape, because the first call after it is the one that meets what it left: gradients and a trace
after a forward, gradients and a forward after a trace. A second block of the same world makes its calls in another
order, so that a table that is kept from the first call is seen too; on it every kind of call is then asked about,
each right after one of another kind, and over the examples every kind after every kind.
Must not: ask an oracle about values; the block is compared with itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.checking import Case, Examination
from blocklaws.expressions import differs, identical
from blocklaws.passes import Pass
from blocklaws.properties.examining import (
    PythonProperty,
    as_near,
    lent,
    refuted,
    require,
    require_parameters_as_given,
    same,
)
from blocklaws.worlds import World, fill

__all__ = ["CallHistoryProperty"]

# The kinds of call, in the order in which a block is first asked: whatever a cache leaves behind comes last.
_KINDS = ("forward", "gradients", "trace", "parameters", "forward_cached")


class CallHistoryProperty(PythonProperty):
    """The same call gives the same, whatever was called before, on this block or on another of the same world, and
    what the block was given is as it was.
    """

    name = "call-history"

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Call, call otherwise, call again; then ask a second block in another order."""
        built, calls = base.built, _Calls(case, world)
        first, returned = calls.forward(built)
        kinds = [kind for kind in _KINDS if kind == "forward" or kind in built.capabilities]
        answers = {kind: calls.ask(built, kind) for kind in kinds}
        gradients = answers.get("gradients", {})
        other = calls.something_else(built)
        require(identical(returned, first, "an output once returned"), "a later call wrote into it")
        # Before forward is asked again: gradients may use what a forward left, and here those are other tokens.
        self._compare_gradients(case, gradients, calls.gradients(built), "after a forward of other tokens, asked twice")
        again, _ = calls.forward(built)
        require(same(case, again, first, "the same call again"), "after calls of other kinds")

        second = case.subject.build(world)
        calls.something_else(second)
        answered, _ = calls.forward(second)
        require(same(case, answered, first, "a second block's answer"), "a second block, called in another order")
        if "trace" in built.capabilities:
            if gradients:
                calls.trace_other_tokens(built)
                self._compare_gradients(case, gradients, calls.gradients(built), "right after a trace of other tokens")
            calls.trace_other_tokens(second)
            answered, _ = calls.forward(second)
            require(same(case, answered, first, "the same call again"), "right after a trace of other tokens")
            calls.forward_other_tokens(built)
            self._compare_trace(case, base, first)
        self._ask_each(case, second, calls, kinds, answers)
        for each in (built, second):
            require_parameters_as_given(each, world, f"one of {', '.join(kinds)}")
        return Examination(informative=bool(differs(other, first)))

    def _ask_each(
        self,
        case: Case,
        built: Built,
        calls: _Calls,
        kinds: Sequence[str],
        answers: Mapping[str, Mapping[str, np.ndarray]],
    ) -> None:
        """Ask about every kind of call, each right after another kind, of other tokens and at another offset."""
        # All pairs at once would be five times the calls; the seed of a world says which fifth it is.
        turn = calls.seed % len(kinds)
        for place, before in enumerate(kinds):
            asked = kinds[(place + turn) % len(kinds)]
            calls.ask_otherwise(built, before)
            again = calls.ask(built, asked)
            if set(again) != set(answers[asked]):
                shown = f"{', '.join(again)}, where it gave {', '.join(answers[asked])} at first"
                raise refuted(f"{asked} gives the same again", f"right after {before}, {asked} gives {shown}")
            for name, value in again.items():
                got, want = _without_common_overflow(value, answers[asked][name])
                what = name if asked == name else f"{asked}[{name!r}]"
                require(same(case, got, want, f"{what} again"), f"{what}, right after {before} of other tokens")

    def _compare_gradients(
        self, case: Case, first: Mapping[str, np.ndarray], again: Mapping[str, np.ndarray], when: str
    ) -> None:
        """Require that gradients are those of the first time, name by name; that each is given is asked elsewhere."""
        for name, value in again.items():
            if name in first:
                got, want = _without_common_overflow(value, first[name])
                require(same(case, got, want, f"gradient.{name} again"), f"gradient.{name}, {when}")

    def _compare_trace(self, case: Case, base: Pass, output: np.ndarray) -> None:
        """Require that ``trace`` shows the output of ``forward``, as nearly as two compilations of one recipe can."""
        shown = base.stages().get("output")
        if shown is None:
            return
        require(as_near(case, base, shown, output, "the output that trace shows"), "trace and forward")


def _without_common_overflow(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both, with zeros where neither is finite: a gradient may overflow where the output does not, each time."""
    if got.shape != want.shape:
        return got, want
    kept = np.isfinite(got.astype(np.float64)) | np.isfinite(want.astype(np.float64))
    return np.where(kept, got, np.zeros_like(got)), np.where(kept, want, np.zeros_like(want))


class _Calls:
    """The calls of one world: the one that is compared, and others beside it."""

    def __init__(self, case: Case, world: World) -> None:
        self._world = world
        self.seed = world.recipe.seed
        tokens = world.input.shape[1]
        self._fresh = fill(world, "input", "fresh", 1)
        step = case.subject.multiples.get("T", 1)
        self._fewer = tokens // 2 // step * step
        last = world.config.max_positions - tokens
        # The other end of the range where there is one: a table that grows with the positions has to grow.
        self._elsewhere = 0 if world.position_offset else min(last, 7)

    def forward(self, built: Built) -> tuple[np.ndarray, np.ndarray]:
        """Make the call that is compared; return a copy and the array that the block returned."""
        with lent("forward", self._world.input) as (x,):
            return built.forward(x, self._world.position_offset)

    def gradients(self, built: Built) -> dict[str, np.ndarray]:
        """Return the gradients of the compared call, none where the block has none."""
        return self.ask(built, "gradients") if "gradients" in built.capabilities else {}

    def ask(self, built: Built, kind: str) -> dict[str, np.ndarray]:
        """Make a call of one kind that is compared; return what it gives by name."""
        return self._ask(built, kind, self._world.input, self._world.position_offset)

    def ask_otherwise(self, built: Built, kind: str) -> None:
        """Make a call of one kind about other tokens of the same shape, and at another offset if it takes one."""
        self._ask(built, kind, self._fresh, 0 if built.at_offset_zero_only else self._elsewhere)

    def _ask(self, built: Built, kind: str, tokens: np.ndarray, offset: int) -> dict[str, np.ndarray]:
        if kind == "parameters":
            return {name: value.copy() for name, value in built.parameters().items()}
        arrays = (tokens, self._world.cotangent) if kind == "gradients" else (tokens,)
        with lent(kind, *arrays) as (x, *rest):
            if kind == "forward":
                return {kind: built.forward(x, offset)[0]}
            if kind == "forward_cached":
                return {kind: built.forward_cached(x, None)[0]}
            return built.gradients(x, rest[0], offset) if rest else built.trace(x, offset)

    def trace_other_tokens(self, built: Built) -> None:
        """Trace other tokens of the shape of the compared call."""
        self._ask(built, "trace", self._fresh, self._world.position_offset)

    def forward_other_tokens(self, built: Built) -> np.ndarray:
        """Return the output of other tokens of the shape of the compared call."""
        return self._ask(built, "forward", self._fresh, self._world.position_offset)["forward"]

    def something_else(self, built: Built) -> np.ndarray:
        """Make one call of every other kind, the shortest first; return the output of other tokens."""
        offset = 0 if built.at_offset_zero_only else self._elsewhere
        if self._fewer:
            built.forward(self._fresh[:, : self._fewer].copy(), self._world.position_offset)
        if offset != self._world.position_offset:
            built.forward(self._world.input.copy(), offset)
        if "trace" in built.capabilities:
            self.trace_other_tokens(built)
        if "gradients" in built.capabilities:
            self._ask(built, "gradients", self._fresh, self._world.position_offset)
        if "forward_cached" in built.capabilities:
            self._ask(built, "forward_cached", self._fresh, 0)
        # Last, since it has the shape of the compared call: where outputs share a buffer, these tokens are now in it.
        other = self.forward_other_tokens(built)
        if other.shape != self._world.input.shape:
            raise BlockRaised(
                "forward", f"returned shape {other.shape} for an input of shape {self._world.input.shape}"
            )
        return other
