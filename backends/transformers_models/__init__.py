"""The causal language models of Hugging Face transformers, each built small and offline, with random weights.

``transformers-models`` stands for two backends, one for each implementation of attention: ``transformers-eager`` and
``transformers-sdpa``. ``transformers-models:LlamaForCausalLM`` has that one model only.
"""

from __future__ import annotations

from typing import Any

__all__ = ["family"]


def family(chosen: str) -> list[Any]:
    """Return a backend for each implementation of attention, of one model or of all.

    Raises:
        BackendError: transformers is not there, or has no causal model of that name.
    """
    from blocklaws.backends.transformers_models.backend import ATTENTIONS, TransformersModels

    return [TransformersModels(attention, chosen) for attention in ATTENTIONS]
