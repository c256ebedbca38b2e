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
CACHES = ("cache", "past_key_values", "cache_params", "state", "mems")

Array = np.ndarray[Any, Any]


class Model:
    """A built model."""

    vocabulary, reserved, padding, max_tokens = VOCABULARY, 3, 0, POSITIONS // 2

    def __init__(self, model: Any) -> None:
        self._model = model
        self._takes = set(inspect.signature(model.forward).parameters)
        if not self._cache_of(self._run(np.full((1, 2), self.reserved), self._caching())):
            self.logits_cached = None  # type: ignore[assignment, method-assign]  # a capability is found by presence

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
        given = self._caching()
        if name is not None:
            given[name] = kept
        positions = torch.arange(past, past + ids.shape[1])
        if "position_ids" in self._takes:
            given["position_ids"] = positions.expand(ids.shape)
        if "cache_position" in self._takes:
            given["cache_position"] = positions
        returned = self._run(ids, given)
        name = self._cache_of(returned)
        return returned.logits.detach().numpy(), (past + ids.shape[1], name, getattr(returned, name))

    def _caching(self) -> dict[str, Any]:
        return {"use_cache": True} if "use_cache" in self._takes else {}

    def _cache_of(self, returned: Any) -> str:
        """Return the name of the cache in an output, one that ``forward`` takes; empty where there is none."""
        names = (name for name in CACHES if getattr(returned, name, None) is not None and name in self._takes)
        return next(names, "")

    def _run(self, ids: Array, given: dict[str, Any]) -> Any:
        # So small a model is slower on several threads, a hundred times where the cores are busy.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                return self._model(input_ids=torch.from_numpy(ids), return_dict=True, **given)
        finally:
            torch.set_num_threads(threads)
