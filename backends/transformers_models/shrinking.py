"""A config of a published model, made so small that the model can be built on a CPU in a moment, without a download.

Must hold: a size is shrunk by its name, with the field's own words, and the choices of the architecture (its norms, its
activation, its windows, its kinds of layer) stay those that its authors made. What has no rule stays as it is; a model
that is too large then is refused by its number of parameters, and never built.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["ATTEMPTS", "POSITIONS", "VOCABULARY", "Attempt", "shrunk"]

VOCABULARY, WIDTH, HEADS, HEAD, POSITIONS, WINDOW = 64, 32, 4, 8, 64, 4


@dataclasses.dataclass(frozen=True)
class Attempt:
    """Sizes that some architectures ask for and others refuse."""

    layers: int = 2
    kv_heads: int = HEADS // 2


#: Tried in this order: grouped heads where they may be, and as few layers as have every kind of layer.
ATTEMPTS = (Attempt(), Attempt(kv_heads=HEADS), Attempt(4), Attempt(4, HEADS), Attempt(8), Attempt(8, HEADS))

#: (pattern of the whole name, size). The first that fits counts. Token ids of meaning are the first three.
_RULES: tuple[tuple[str, Any], ...] = (
    (r".*vocab_size(_per_layer_input)?|n_tokens|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"pad_token_id", 0),
    (r"bos_token_id|decoder_start_token_id", 1),
    (r"eos_token_id|sep_token_id", 2),
    # BERT and its like are causal where they are told to be decoders, as their own error messages ask.
    (r"is_decoder", True),
    # Kinds of layer are listed a layer: the library fills them in for the number of layers that there are.
    (r"layer_types|layers_block_type", None),
    # Windows and chunks are shorter than the longest example, or nothing of them would be met.
    (r"sliding_window(_size)?|(local_)?(attention_)?window(_size|_len)?|local_attention_window_len", WINDOW),
    (r"attention_chunk_size|(mamba_)?chunk_size|(local|lsh)_attn_chunk_length", WINDOW),
    (r"num_kv_shared_layers", 0),
    (r"hidden_size_per_layer_input|rel_extent", HEAD),
    (r"(num_)?(hidden_layers|layers|decoder_layers|encoder_layers|layer|blocks)|n_layers?", "layers"),
    (r"num_(decoder|encoder)_layers", "layers"),
    (
        r"(swa_)?(num_)?(key_value|kv)_heads?|n_(head_kv|kv_heads?)|num_(attention_)?groups?|multi_query_group_num",
        "kv_heads",
    ),
    (r".*qk_rope_head_dim|rotary_dim", HEAD // 2),
    (r".*(qk_nope|v|qk|index|attention|linear_key|linear_value|mamba|key|value)?_?head_dim|d_head|d_kv", HEAD),
    (r".*lora_rank|time_step_rank|mamba_dt_rank|dt_rank", HEAD),
    (r".*(num|n)_(attention_|linear_key_|linear_value_|mamba_|decoder_attention_|index_)?heads?|n_mamba_heads", HEADS),
    (r"(en|de)coder_attention_heads|n_heads?", HEADS),
    (r"(hidden|d_|n_)?(hidden_size|model|embd|dim|emb_dim|embedding_size|embed_dim)|d_model", WIDTH),
    (r"word_embed_proj_dim|hidden_dim|(shape|pronunciation)_embed_dim", WIDTH),
    (r".*intermediate_size.*|.*ffn?_dim|n_inner|d_ff|.*ffn_hidden_size|d_inner|feed_forward_size", 48),
    (r"shared_expert_.*size", 48),
    (r"max_(position_embeddings|seq_len|target_positions|source_positions)|n_positions|n_ctx|seq_len(gth)?", POSITIONS),
    (r"context_length", POSITIONS),
    (r"(num|n)_(local_|routed_|moe_)?experts|moe_num_experts|ffn_num_experts", 4),
    (r"(moe_)?(num_experts_per_tok(en)?|top_?k|k|topk)|num_selected_experts|moe_top_k", 2),
    (
        r"n_groups?|mamba_n_?groups|topk_group|num_expert_group|n_shared_experts|num_shared_experts|first_k_dense_replace",
        1,
    ),
)
#: Sizes that are applied where the default is None too: there it is no choice, but a size that nobody gave.
_NEEDED = re.compile(
    r"head_dim|num_key_value_heads|num_experts_per_tok|n_(routed|shared)_experts|.*vocab_size|is_decoder"
)

#: What no rule by name can know, for some classes.
_HINTS: Mapping[str, Mapping[str, Any]] = {
    "BambaForCausalLM": {"attn_layer_indices": [1]},
    "DbrxForCausalLM": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0}},
    "DoryForCausalLM": {"num_hidden_layers": 4, "n_input_layers": 1, "n_output_layers": 1, "n_recurrent_layers": 2},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]]},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 16},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"]},
    "LongcatFlashForCausalLM": {"head_dim": HEAD // 2, "zero_expert_num": 2},
    "Mamba2ForCausalLM": {"head_dim": 16},
    "ReformerModelWithLMHead": {
        # Without a seed for its hashes it is no function of its input.
        "axial_pos_embds": False, "hash_seed": 0, "attn_layers": ["local", "lsh"], "attention_head_size": HEAD,
        "num_buckets": 4,
    },
    "XmodForCausalLM": {"default_language": "en_XX"},
    "ZayaForCausalLM": {"num_experts_per_tok": 1},
    "Zamba2ForCausalLM": {"layer_types": ["mamba", "hybrid"]},
}  # fmt: skip


def shrunk(config_class: Any, name: str = "", attempt: Attempt = ATTEMPTS[0]) -> Any:
    """Return a small config of a class, the configs inside it shrunk too.

    Args:
        config_class: a class of configs of transformers.
        name: the class of the model, for what is known of it alone.
        attempt: the sizes that are tried.

    Raises:
        Exception: whatever the class raises for sizes that do not fit it.
    """
    given: dict[str, Any] = {}
    inner = {key: type(getattr(config_class(), key, None)) for key in getattr(config_class, "sub_configs", None) or {}}
    for field, parameter in inspect.signature(config_class.__init__).parameters.items():
        if field == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if field in inner and inner[field] is not type(None):
            given[field] = shrunk(inner[field], "", attempt).to_dict()
        elif (rule := _rule(field)) is not None and _is_size(field, parameter.default):
            given[field] = getattr(attempt, rule[0]) if isinstance(rule[0], str) else rule[0]
    return config_class(**{**given, **_HINTS.get(name, {})})


def _rule(field: str) -> tuple[Any] | None:
    return next(((size,) for pattern, size in _RULES if re.fullmatch(pattern, field)), None)


def _is_size(field: str, default: Any) -> bool:
    """Whether a field is a size that somebody chose: what is None is derived from others, or off."""
    if field.endswith("_token_id") or _NEEDED.fullmatch(field):
        return True
    return isinstance(default, int | float | list | tuple) and not isinstance(default, bool)
