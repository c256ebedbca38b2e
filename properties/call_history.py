"""A block has no memory: what it answers depends on the call alone, never on the calls before.

Must hold: between two equal calls lie calls of every other kind that the block can make: other tokens, fewer tokens,
another offset, a trace, gradients, a cache. What is compared is asked directly after a call of another kind with other
tokens of the same shape, because the first call after it is the one that meets what it left: gradients and a trace
after a forward, gradients and a forward after a trace. A second block of the same world makes its calls in another
order, so that a table that is kept from the first call is seen too.
Must not: ask an oracle about values; the block is compared with itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.checking import Case, Examination
from blocklaws.expressions import differs, identical
from blocklaws.passes import Pass
from blocklaws.properties.examining import PythonProperty, as_near, require, same
from blocklaws.worlds import World, fill

__all__ = ["CallHistoryProperty"]


class CallHistoryProperty(PythonProperty):
    """The same call gives the same, whatever was called before, on this block or on another of the same world."""

    name = "call-history"

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Call, call otherwise, call again; then ask a second block in another order."""
        built, calls = base.built, _Calls(case, world)
        first, returned = calls.forward(built)
        gradients = calls.gradients(built)
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
        return Examination(informative=bool(differs(other, first)))

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
        tokens = world.input.shape[1]
        self._fresh = fill(world, "input", "fresh", 1)
        step = case.subject.multiples.get("T", 1)
        self._fewer = tokens // 2 // step * step
        last = world.config.max_positions - tokens
        # The other end of the range where there is one: a table that grows with the positions has to grow.
        self._elsewhere = 0 if world.position_offset else min(last, 7)

    def forward(self, built: Built) -> tuple[np.ndarray, np.ndarray]:
        """Make the call that is compared; return a copy and the array that the block returned."""
        return built.forward(self._world.input.copy(), self._world.position_offset)

    def gradients(self, built: Built) -> dict[str, np.ndarray]:
        """Return the gradients of the compared call, none where the block has none."""
        if "gradients" not in built.capabilities:
            return {}
        world = self._world
        return built.gradients(world.input.copy(), world.cotangent.copy(), world.position_offset)

    def trace_other_tokens(self, built: Built) -> None:
        """Trace other tokens of the shape of the compared call."""
        built.trace(self._fresh.copy(), self._world.position_offset)

    def forward_other_tokens(self, built: Built) -> np.ndarray:
        """Return the output of other tokens of the shape of the compared call."""
        return built.forward(self._fresh.copy(), self._world.position_offset)[0]

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
            built.gradients(self._fresh.copy(), self._world.cotangent.copy(), self._world.position_offset)
        if "forward_cached" in built.capabilities:
            built.forward_cached(self._fresh.copy(), None)
        # Last, since it has the shape of the compared call: where outputs share a buffer, these tokens are now in it.
        other = self.forward_other_tokens(built)
        if other.shape != self._world.input.shape:
            raise BlockRaised(
                "forward", f"returned shape {other.shape} for an input of shape {self._world.input.shape}"
            )
        return other
