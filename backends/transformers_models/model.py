"""One built model of transformers as token ids in, logits out, called as `generate` calls it.

Must hold: positions follow the attention mask where the model takes positions, as `generate` gives them; the cache is
whatever the last call returned under one of the library's names for it. Must not: hand over anything that a user of
`forward` would not.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from blocklaws.backends.transformers_models.shrinking import POSITIONS, VOCABULARY

__all__ = ["Model"]

#: What the library's models call their cache, in their outputs and as an argument.
CACHES = ("past_key_values", "cache_params", "state", "mems")

Array = np.ndarray[Any, Any]


class Model:
    """A built model."""

    vocabulary, reserved, padding, max_tokens = VOCABULARY, 3, 0, POSITIONS // 2

    def __init__(self, model: Any) -> None:
        self._model = model
        self._takes = set(inspect.signature(model.forward).parameters)

    def logits(self, ids: Array, attention_mask: Array | None = None) -> Array:
        """Return the logits [B, T, vocabulary] of ids [B, T]; the mask [B, T] is 0 at padding."""
        given: dict[str, Any] = {}
        if attention_mask is not None:
            mask = torch.from_numpy(attention_mask)
            given["attention_mask"] = mask
            if "position_ids" in self._takes:
                given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if "use_cache" in self._takes:
            given["use_cache"] = False
        return self._run(ids, given).logits.detach().numpy()  # type: ignore[no-any-return]

    def logits_cached(self, ids: Array, cache: Any) -> tuple[Array, Any]:
        """Return the logits of the next tokens, and the cache: how many tokens it has, its name, and what it is."""
        past, name, kept = cache or (0, None, None)
        given: dict[str, Any] = {"use_cache": True} if "use_cache" in self._takes else {}
        if name is not None:
            given[name] = kept
        positions = torch.arange(past, past + ids.shape[1])
        if "position_ids" in self._takes:
            given["position_ids"] = positions.expand(ids.shape)
        if "cache_position" in self._takes:
            given["cache_position"] = positions
        returned = self._run(ids, given)
        found = [name for name in CACHES if getattr(returned, name, None) is not None and name in self._takes]
        if not found:
            raise ValueError("use_cache=True gives no cache that forward takes")
        return returned.logits.detach().numpy(), (past + ids.shape[1], found[0], getattr(returned, found[0]))

    def _run(self, ids: Array, given: dict[str, Any]) -> Any:
        with torch.no_grad():
            return self._model(input_ids=torch.from_numpy(ids), return_dict=True, **given)
