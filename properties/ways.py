"""Whatever other way a block offers to compute its forward gives what ``forward`` gives.

Must hold: every way of the block is asked about every example, between two calls of ``forward``, which must agree to
the last bit: a mode that is not switched back is seen too. Two programs of one recipe round differently, so the ways
are judged as a second run of the recipe would be: by the reference recipe's own error, in the dtype under test. A way
leaves its input as it is and keeps its dtype, as ``forward`` does.
Must not: know which ways there are; a block names its own.
"""

from __future__ import annotations

from blocklaws.checking import Case, Examination
from blocklaws.expressions import differs
from blocklaws.passes import Pass
from blocklaws.properties.examining import PythonProperty, as_near, lent, require, require_dtype, same
from blocklaws.worlds import World

__all__ = ["WaysProperty"]


class WaysProperty(PythonProperty):
    """Each of a block's other ways, such as compiled, eager or training, agrees with ``forward``."""

    name = "ways"
    capabilities = frozenset({"forward", "forward_by"})

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Ask every way, then ``forward`` again."""
        built, output = base.built, base.output()
        for way in built.ways:
            with lent(f"the way {way!r}", world.input) as (x,):
                given = built.forward_by(way, x, world.position_offset)
            require_dtype(f"the output by the way {way!r}", given, world.input)
            require(as_near(case, base, given, output, f"the output by the way {way!r}"), f"{way} and forward")
            again, _ = built.forward(world.input.copy(), world.position_offset)
            require(same(case, again, output, "forward again"), f"forward, after the way {way!r}")
        return Examination(informative=bool(differs(output, world.input)))
