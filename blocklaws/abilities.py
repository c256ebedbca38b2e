"""What the blocks of a backend can do, and the sentences about what they cannot.

Must hold: what is missing is named, with the backend's own reason where it gives one. Must not: call a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

__all__ = ["Abilities"]


@dataclasses.dataclass(frozen=True)
class Abilities:
    """What a block of one kind can do, found by calling it once on the smallest world.

    Attributes:
        shown: capabilities by name, and what a trace and gradients give: ``trace:query``, ``gradients:input`` ...
        offsets: whether it takes a position offset.
        cannot: the backend's own words for why it cannot show something, by its name.
    """

    shown: frozenset[str]
    offsets: bool
    cannot: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def no_offset(self) -> str:
        """The sentence about a block that takes no position offset."""
        return self._with_reasons("the block takes no position offset", ["position_offset"])

    def missing(self, needs: frozenset[str]) -> str:
        """Say what of ``needs`` the block cannot show; empty when nothing is missing."""
        lacking = needs - self.shown
        if methods := sorted(need for need in lacking if ":" not in need):
            return self._with_reasons(f"the block has no {' and no '.join(methods)}", methods)
        sentences = []
        for method, verb in (("trace", "does not show"), ("gradients", "does not give")):
            if names := sorted(need.partition(":")[2] for need in lacking if need.startswith(f"{method}:")):
                sentences.append(self._with_reasons(f"{method} {verb} {', '.join(names)}", names))
        return "; ".join(sentences)

    def _with_reasons(self, sentence: str, names: Sequence[str]) -> str:
        reasons = dict.fromkeys(self.cannot[name] for name in names if name in self.cannot)
        return f"{sentence} ({'; '.join(reasons)})" if reasons else sentence
