"""The causal mask in the forms that layers take it.

Must hold: query position >= key position is visible, within the window of a block that has one, in every form; the
harness makes the mask, so that a layer is told exactly what its mapping says. Must not import a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.reader import Node

__all__ = ["FORMS", "Mask", "parse_mask"]

#: form -> what the layer is given as ``$mask``.
FORMS: Mapping[str, str] = {
    "builtin": "nothing: the layer is causal by itself",
    "keep": "true where a query may look at a key",
    "hide": "true where it may not",
    "additive": "added to the scores: 0 where it may look, minus infinity where not",
    "additive_lowest": "the same with the lowest finite number of the dtype instead of minus infinity",
}

_AXES = ("batch", "heads", "tokens", "keys")


@dataclasses.dataclass(frozen=True)
class Mask:
    """One form of mask and its axes: words of batch, heads, tokens, keys, or 1 for an axis of length one."""

    form: str
    axes: tuple[str | int, ...] = ("tokens", "keys")

    def array(
        self,
        offset: int,
        batch: int,
        heads: int,
        tokens: int,
        dtype: np.dtype[np.generic],
        window: int | None = None,
    ) -> Array:
        """Return the mask of queries at offset .. offset + tokens - 1 over the keys at 0 .. offset + tokens - 1.

        With a window a query looks at the last ``window`` keys alone, the one at its own position included.
        """
        keys = offset + tokens
        queries = (offset + np.arange(tokens))[:, None]
        visible = queries >= np.arange(keys)
        if window is not None:
            visible &= np.arange(keys) > queries - window
        mask: Array
        if self.form == "keep":
            mask = visible
        elif self.form == "hide":
            mask = ~visible
        else:
            # NumPy's own finfo does not know bfloat16.
            finite = float(ml_dtypes.finfo(dtype).min)
            lowest = finite if self.form == "additive_lowest" else -np.inf
            mask = np.where(visible, 0.0, lowest).astype(dtype)
        lengths = {"batch": batch, "heads": heads, "tokens": tokens, "keys": keys}
        order = [axis for axis in self.axes if axis in ("tokens", "keys")]
        if order == ["keys", "tokens"]:
            mask = mask.T
        mask = mask.reshape([lengths[axis] if axis in ("tokens", "keys") else 1 for axis in map(str, self.axes)])
        return np.ascontiguousarray(np.broadcast_to(mask, [lengths.get(str(axis), 1) for axis in self.axes]))


def parse_mask(node: Node) -> Mask:
    """Read a ``mask:`` section: a form, or ``{form: ..., axes: [...]}``."""
    if isinstance(node.value, str):
        return Mask(node.word("mask", FORMS))
    entries = node.fields("mask", ("form", "axes"), ("form",))
    form = entries["form"].word("mask.form", FORMS)
    if "axes" not in entries:
        return Mask(form)
    axes: list[str | int] = []
    for item in entries["axes"].items("mask.axes"):
        axes.append(1 if item.value == 1 and item.value is not True else item.word("mask.axes", _AXES))
    named = [axis for axis in axes if axis != 1]
    if len(set(named)) != len(named) or not {"tokens", "keys"} <= set(named):
        entries["axes"].refuse("mask.axes: expected 'tokens' and 'keys' once each, others at most once")
    return Mask(form, tuple(axes))
