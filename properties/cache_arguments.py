"""What `forward_cached` is given and what it gives: it has the rights and the duties of `forward`.

Must hold: the tokens of a chunk are left as they are, a chunk that is a view (as a slice of a longer input is) counts
by its values, the output has the dtype of the tokens and stays what it is, and a sequence begins and goes on as it
would have, whatever else the block is asked before a chunk. Answers are compared closely and not bit for bit, because
another order in memory is a fair reason for another order of summation; a block that refuses a view has not answered
wrongly.
Must not: use a cache twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.checking import Case, Examination
from blocklaws.expressions import close, differs, identical
from blocklaws.passes import Pass
from blocklaws.properties.examining import PythonProperty, require, require_dtype, require_parameters_as_given
from blocklaws.worlds import World

__all__ = ["CacheArgumentsProperty"]


class CacheArgumentsProperty(PythonProperty):
    """Chunks that are views give what their copies give, neither is written to, and other calls do not come between."""

    name = "cache-arguments"
    capabilities = frozenset({"forward", "forward_cached"})

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Decode in two chunks: copies, slices of the whole input, and Fortran-ordered copies."""
        step = case.subject.multiples.get("T", 1)
        cut = max(step, world.input.shape[1] // 2 // step * step)
        returned: list[np.ndarray] = []
        want = self._decoded(base.built, [world.input[:, :cut].copy(), world.input[:, cut:].copy()], returned=returned)
        other = world.input[:, ::-1]
        self._decoded(base.built, [other[:, :cut].copy(), other[:, cut:].copy()])
        kept = np.concatenate(returned, axis=1)
        require(identical(kept, want, "the outputs that forward_cached returned"), "a later call wrote into them")
        for name, chunks in {
            "slices of one input": [world.input.copy()[:, :cut], world.input.copy()[:, cut:]],
            "Fortran-ordered chunks": [
                np.asfortranarray(world.input[:, :cut]),
                np.asfortranarray(world.input[:, cut:]),
            ],
        }.items():
            try:
                got = self._decoded(base.built, chunks)
            except BlockRaised:
                continue
            require(close(got, want, case.tolerance, 1.0, f"the outputs of {name}"), name)
        got = self._decoded(base.built, [world.input[:, :cut].copy(), world.input[:, cut:].copy()], world)
        name = "chunks with other calls before each"
        require(close(got, want, case.tolerance, 1.0, f"the outputs of {name}"), name)
        require_parameters_as_given(base.built, world, "forward_cached, or a call before it")
        return Examination(informative=bool(differs(world.input[:, ::-1], world.input)))

    def _decoded(
        self,
        built: Built,
        chunks: list[np.ndarray],
        others: World | None = None,
        returned: list[np.ndarray] | None = None,
    ) -> np.ndarray:
        """Return the joined outputs of two chunks; before each, make other calls about a world if one is given.

        The arrays that the block returned, of which these are copies, are put into ``returned``.
        """
        outputs: list[np.ndarray] = []
        cache: Any = None
        for chunk in chunks:
            if others is not None:
                _ask_others(built, others)
            before = chunk.copy()
            output, kept, cache = built.forward_cached_kept(chunk, cache)
            if returned is not None:
                returned.append(kept)
            require(identical(chunk, before, "the tokens that forward_cached was given"), "written to")
            require_dtype("the output of a chunk", output, before)
            outputs.append(output)
        return np.concatenate(outputs, axis=1)


def _ask_others(built: Built, world: World) -> None:
    """Make a call of every other kind that takes tokens, of other tokens and at another place than the cache is at."""
    x, cotangent = world.input[:, ::-1], world.cotangent
    offset = min(world.position_offset + 7, world.config.max_positions - x.shape[1])
    if "trace" in built.capabilities:
        built.trace(x.copy(), offset)
    if "gradients" in built.capabilities:
        built.gradients(x.copy(), cotangent.copy(), offset)
    built.forward(x.copy(), offset)
