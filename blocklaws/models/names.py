"""The names that an invariant of models may say. Must not import NumPy: specs are read before it is."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NEEDS", "PICKS", "SIZES"]

#: What an expression may call by its bare name. ``ordinary`` is the number of ids that may be drawn.
SIZES = frozenset({"B", "T", "vocabulary", "ordinary"})

#: A run besides that of the example itself -> the picks that it follows. `runs` makes them.
PICKS: Mapping[str, tuple[str, ...]] = {
    "changed": ("p", "shift"),  # the ids from token p on moved by `shift` among the ordinary ones
    "cut": ("p",),  # the first p tokens alone
    "alone": (),  # each sequence by itself
    "padded": ("padding",),  # the first sequence behind that much padding, the others behind as much text
    "stepped": ("p",),  # through the cache: p tokens, then one by one
    "chunked": ("chunks",),  # through the cache, in chunks
    "repeated": (),  # a second, equal call
}
#: A run -> the capability that it needs.
NEEDS: Mapping[str, str] = {"stepped": "logits_cached", "chunked": "logits_cached", "padded": "padding"}
