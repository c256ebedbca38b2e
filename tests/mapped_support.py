"""What the tests of mapping files share: kinds of block, what is compared, how far two arrays are apart."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocklaws.backends.mapped import load_mapping
from blocklaws.canonical import parameter_shapes
from blocklaws.config import BlockConfig

MAPPINGS = Path(str(files("blocklaws.backends.mappings")))
LLAMA = (MAPPINGS / "hf_llama.yaml").read_text(encoding="utf-8")
ENCODER = (MAPPINGS / "torch_encoder.yaml").read_text(encoding="utf-8")


def needs(*modules: str) -> pytest.MarkDecorator:
    """Return the mark of a test of a layer whose library may not be here; ``make conformance`` runs all of them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} is not installed")


needs_torch = needs("torch")
needs_llama = needs("torch", "transformers")

#: The first word of a mapping file -> what its layer needs.
NEEDS = {
    "equinox": needs("jax", "equinox"),
    "flax": needs("jax", "flax"),
    "hf": needs_llama,
    "keras": needs("jax", "keras_hub"),
    "litgpt": needs("torch", "litgpt"),
    "llms": needs("torch", "llms_from_scratch"),
    "mlx": needs("mlx", "mlx_lm"),
    "torch": needs_torch,
}


#: What each kind of block differs in; sizes differ from each other so that a transpose shows.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"rotary": "interleaved", "n_kv_heads": 2},
    "llama-gqa": {"rotary": "half", "n_heads": 4, "n_kv_heads": 2, "rotary_base": 500000.0},
    "interleaved-gqa": {"rotary": "interleaved", "n_heads": 4, "n_kv_heads": 2},
    "plain": {"rotary": None, "n_kv_heads": 2},
    "biased": {"rotary": "half", "n_kv_heads": 1, "bias": True},
    "gpt": {"norm": "layer", "feed_forward": "gelu", "bias": True, "d_head": 4},
    "gpt-tanh": {"norm": "layer", "feed_forward": "gelu_tanh", "bias": True, "d_head": 4},
    "mistral": {"rotary": "half", "n_heads": 4, "n_kv_heads": 2, "window": 3},
    "qwen2": {"rotary": "half", "n_heads": 4, "n_kv_heads": 2, "bias": "qkv"},
    "qwen3": {"rotary": "half", "n_heads": 4, "n_kv_heads": 2, "qk_norm": "head"},
    "qwen3-eps": {"rotary": "half", "n_heads": 4, "n_kv_heads": 2, "qk_norm": "head", "norm_eps": 1e-6},
    "square": {"rotary": "half", "n_heads": 4, "n_kv_heads": 2, "d_head": 2},
    "neox": {
        "norm": "layer",
        "feed_forward": "gelu",
        "bias": True,
        "d_head": 4,
        "rotary": "half",
        "rotary_fraction": 0.5,
        "residual": "parallel",
    },
    "gemma": {"feed_forward": "geglu_tanh", "rotary": "half", "n_heads": 4, "n_kv_heads": 2},
    "olmo2": {"placement": "inside", "rotary": "half", "qk_norm": "width"},
    "granite": {"rotary": "half", "n_heads": 4, "n_kv_heads": 2, "residual_scale": 0.25},
    "softcapped": {"feed_forward": "geglu", "rotary": "half", "softcap": 2.0},
    "original": {"norm": "layer", "feed_forward": "relu", "bias": True, "d_head": 4, "placement": "post"},
}
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2, "bfloat16": 2e-1}


def config_of(kind: str) -> BlockConfig:
    base: dict[str, Any] = {
        "block": kind,
        "d_model": 8,
        "n_heads": 2,
        "n_kv_heads": 2,
        "d_head": 6,
        "d_ff": 10,
        "norm": "rms",
        "norm_eps": 1e-5,
        "placement": "pre",
        "feed_forward": "swiglu",
        "rotary": None,
        "rotary_base": 10000.0,
        "bias": False,
        "max_positions": 512,
    }
    return BlockConfig(**(base | KINDS[kind]))


def parameters_of(config: BlockConfig) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(11)
    return {
        name: random.normal(size=shape) / np.sqrt(shape[0] if len(shape) > 1 else 1)
        for name, shape in parameter_shapes(config).items()
    }


def inputs_of(config: BlockConfig) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(12)
    return random.normal(size=(3, 5, config.d_model)), random.normal(size=(3, 5, config.d_model))


def far(left: Any, right: Any) -> float:
    """Return the largest difference relative to the largest value of ``right`` (at least one)."""
    left, right = np.asarray(left).astype(np.float64), np.asarray(right)
    assert left.shape == right.shape
    return float(np.max(np.abs(left - right)) / max(1.0, np.max(np.abs(right))))


def variant(path: Path, name: str) -> Any:
    [found] = [
        backend for backend in load_mapping(path) if "[" not in backend.name or backend.name.endswith(f"[{name}]")
    ]
    return found
