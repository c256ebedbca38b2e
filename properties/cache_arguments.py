"""What `forward_cached` is given and what it gives: it has the rights and the duties of `forward`.

Must hold: the tokens of a chunk are left as they are, a chunk that is a view (as a slice of a longer input is) counts
by its values, and the output has the dtype of the tokens. Answers are compared closely and not bit for bit, because
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
from blocklaws.properties.examining import PythonProperty, refuted, require
from blocklaws.worlds import World

__all__ = ["CacheArgumentsProperty"]


class CacheArgumentsProperty(PythonProperty):
    """Chunks that are views give what their copies give, and neither is written to."""

    name = "cache-arguments"
    capabilities = frozenset({"forward", "forward_cached"})

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Decode in two chunks: copies, slices of the whole input, and Fortran-ordered copies."""
        step = case.subject.multiples.get("T", 1)
        cut = max(step, world.input.shape[1] // 2 // step * step)
        want = self._decoded(base.built, [world.input[:, :cut].copy(), world.input[:, cut:].copy()])
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
        return Examination(informative=bool(differs(world.input[:, ::-1], world.input)))

    def _decoded(self, built: Built, chunks: list[np.ndarray]) -> np.ndarray:
        """Return the joined outputs of two chunks."""
        outputs: list[np.ndarray] = []
        cache: Any = None
        for chunk in chunks:
            before = chunk.copy()
            output, cache = built.forward_cached(chunk, cache)
            require(identical(chunk, before, "the tokens that forward_cached was given"), "written to")
            if output.dtype != before.dtype:
                raise refuted(
                    "forward_cached gives the dtype of its input",
                    f"the output of a chunk is {output.dtype}, the tokens are {before.dtype}",
                )
            outputs.append(output)
        return np.concatenate(outputs, axis=1)
