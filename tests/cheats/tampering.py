"""Adapters that replace what judges them. Run these in a process that ends with them."""

from __future__ import annotations

import gc
import sys

import numpy as np
from honest import Block, adapter

SHARED = {}


def _holds(*arguments, **options):
    from blocklaws.expressions import Judgement

    return Judgement(True, "fine", total=1)


@adapter
class ReplacesJudgements(Block):
    """Replaces the judgements by ones that always hold."""

    def forward(self, x, position_offset=0):
        judgements = sys.modules.get("blocklaws.expressions.judgements")
        for name in ("identical", "close", "calibrated", "finite"):
            if judgements is not None:
                setattr(judgements, name, _holds)
        return np.zeros_like(x)


@adapter
class ReplacesTheLanguage(Block):
    """Replaces functions of the expression language in their registry."""

    def forward(self, x, position_offset=0):
        registry = sys.modules.get("blocklaws.expressions.registry")
        if registry is not None:
            always = registry.Function("identical", _holds, 0, True)
            for name in ("identical", "close", "calibrated", "finite"):
                registry.FUNCTIONS[name] = always
        return np.zeros_like(x)


@adapter
class ReplacesCode(Block):
    """Leaves every name as it is and swaps the code behind one."""

    def forward(self, x, position_offset=0):
        judgements = sys.modules.get("blocklaws.expressions.judgements")
        if judgements is not None:

            def judge_elements(context, a, b, difference, allowed, **more):
                return _holds()

            judging = sys.modules["blocklaws.expressions.judging"]
            judging.judge_elements.__code__ = judge_elements.__code__
        return np.zeros_like(x)


@adapter
class ReplacesNumpy(Block):
    """Replaces what NumPy compares with."""

    def forward(self, x, position_offset=0):
        np.array_equal = np.allclose = lambda *arguments, **options: True
        np.isfinite = lambda a, *rest, **options: np.ones(np.shape(a), bool)
        return np.zeros_like(x)


@adapter
class ReplacesTheReference(Block):
    """Replaces the block that it is compared with by itself."""

    def forward(self, x, position_offset=0):
        reference = sys.modules.get("blocklaws.backends.on_numpy.backend")
        if reference is not None:
            reference.NumpyBackend.build = lambda self, config, parameters, dtype: ReplacesTheReference.block(
                config, parameters, dtype
            )
        return np.zeros_like(x)

    def trace(self, x, position_offset=0):
        return {}


@adapter
class SharesState(Block):
    """Makes the reference leave its answers in a table that both can see, and gives them out."""

    def forward(self, x, position_offset=0):
        module = sys.modules.get("blocklaws.backends.on_numpy.block")
        if module is not None and not SHARED:
            right = module.NumpyBlock.forward

            def forward(self, x, *rest, **options):
                y = right(self, x, *rest, **options)
                SHARED[x.shape] = y
                return y

            module.NumpyBlock.forward = forward
            SHARED["planted"] = True
        return np.array(SHARED.get(x.shape, x), dtype=x.dtype)


@adapter
class WidensTolerances(Block):
    """Finds the tolerances of the spec in memory and makes them wide."""

    done = False

    def forward(self, x, position_offset=0):
        if not self.done:
            WidensTolerances.block.done = True
            for thing in gc.get_objects():
                if type(thing).__name__ == "Tolerance":
                    for name in ("rtol", "atol", "c", "floor"):
                        object.__setattr__(thing, name, 1e30)
        return np.zeros_like(x)


@adapter
class SwallowsFailures(Block):
    """Replaces the search by one to which everything holds, and what would notice it."""

    def forward(self, x, position_offset=0):
        running = sys.modules.get("blocklaws.running")
        if running is not None:
            checking = sys.modules["blocklaws.checking"]
            checking.Examination.failed = property(lambda self: False)
            running.tampering.found = lambda: ""
            running.find_search = lambda: lambda case, property: checking.Outcome("holds")
        return np.zeros_like(x)
