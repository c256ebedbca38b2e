"""A tiny causal language model in NumPy, right and wrong: what the invariants of models are shown to refute."""

from __future__ import annotations

from typing import Any

from blocklaws.backends.tiny_models.backend import TinyModels as TinyModels
from blocklaws.errors import BackendError

__all__ = ["TinyModels", "family"]


def family(chosen: str) -> list[Any]:
    """Return the backend.

    Raises:
        BackendError: a model is chosen by name; there is only one.
    """
    if chosen not in ("", *TinyModels.models):
        raise BackendError(f"backend 'tiny-models:{chosen}': there is only the model {TinyModels.models[0]!r}")
    return [TinyModels()]
