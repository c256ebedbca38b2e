"""The canonical names: which parameters and which stages a config has, in which order and shape.

Must hold: this is the only place that lists them; adapters, worlds, specs and reports read it here. These names and
shapes are the contract that other people's adapters depend on. Must not import NumPy.
"""

from __future__ import annotations

import functools

from blocklaws.config import BlockConfig

__all__ = [
    "CAPABILITIES",
    "DTYPES",
    "PARAMETER_NAMES",
    "STAGES",
    "one_array",
    "parameter_count",
    "parameter_shapes",
    "stage_order",
    "stage_shapes",
]

#: Every stage a block can show, in the order of the computation.
STAGES = (
    "input",
    "attention_norm",
    "query",
    "key",
    "value",
    "attention_weights",
    "attention_branch",
    "after_attention",
    "feed_forward_norm",
    "feed_forward_branch",
    "output",
)

#: Every dtype that a backend may name; bfloat16 is that of ml_dtypes.
DTYPES = ("float64", "float32", "bfloat16", "float16")

#: What a built block can do; each is a method of that name, found by presence.
CAPABILITIES = ("forward", "trace", "gradients", "parameters", "forward_cached", "forward_by")

#: Every parameter that some block has, in canonical order.
PARAMETER_NAMES = (
    "attention_norm.gain",
    "attention_norm.bias",
    "attention.query",
    "attention.query_bias",
    "attention.key",
    "attention.key_bias",
    "attention.value",
    "attention.value_bias",
    "attention.output",
    "attention.output_bias",
    "attention.query_norm.gain",
    "attention.query_norm.bias",
    "attention.key_norm.gain",
    "attention.key_norm.bias",
    "feed_forward_norm.gain",
    "feed_forward_norm.bias",
    "feed_forward.gate",
    "feed_forward.up",
    "feed_forward.up_bias",
    "feed_forward.down",
    "feed_forward.down_bias",
)

_QKV_BIASES = ("attention.query_bias", "attention.key_bias", "attention.value_bias")


def stage_order(config: BlockConfig) -> tuple[str, ...]:
    """Return the stages in the order in which a block of this placement computes them.

    In a post-norm block each norm comes after its branch and its addition, and gives the stage that ends its half (see
    `one_array`); inside, between the branch and the addition.
    """
    if config.placement == "pre":
        return STAGES
    late = ("attention_norm", "after_attention", "feed_forward_branch", "feed_forward_norm", "output")
    return (*(stage for stage in STAGES if stage not in late), *late)


def one_array(placement: str) -> dict[str, str]:
    """Return the stages that the equations make another stage too: the norms of a post-norm block end its halves.

    Each is told by the name of the norm, which comes first in `stage_order`.
    """
    return {"attention_norm": "after_attention", "feed_forward_norm": "output"} if placement == "post" else {}


def parameter_shapes(config: BlockConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every parameter of a block, in canonical order; matrices are [in, out].

    A layer norm has a gain and a bias, an rms norm a gain; ``config.bias`` gives biases to the four attention
    projections and to up and down of a feed-forward without a gate, or to query, key and value alone. The norms of
    queries and keys are of the config's kind; a head's is shared by all heads.
    """
    queries, keys = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    normed = {None: (0, 0), "head": (config.d_head, config.d_head), "width": (queries, keys)}[config.qk_norm]
    return dict(_shapes(config.norm, config.gated, config.bias, config.d_model, queries, keys, config.d_ff, normed))


@functools.lru_cache(maxsize=1024)
def _shapes(
    norm: str, gated: bool, bias: bool | str, model: int, queries: int, keys: int, inner: int,
    normed: tuple[int, int],
) -> tuple[tuple[str, tuple[int, ...]], ...]:  # fmt: skip
    """Return (name, shape) of every parameter; asked several times an example, of few kinds of block."""
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm.gain": (model,),
        "attention_norm.bias": (model,),
        "attention.query": (model, queries),
        "attention.query_bias": (queries,),
        "attention.key": (model, keys),
        "attention.key_bias": (keys,),
        "attention.value": (model, keys),
        "attention.value_bias": (keys,),
        "attention.output": (queries, model),
        "attention.output_bias": (model,),
        "attention.query_norm.gain": (normed[0],),
        "attention.query_norm.bias": (normed[0],),
        "attention.key_norm.gain": (normed[1],),
        "attention.key_norm.bias": (normed[1],),
        "feed_forward_norm.gain": (model,),
        "feed_forward_norm.bias": (model,),
        "feed_forward.gate": (model, inner),
        "feed_forward.up": (model, inner),
        "feed_forward.up_bias": (inner,),
        "feed_forward.down": (inner, model),
        "feed_forward.down_bias": (model,),
    }
    absent = set()
    if norm == "rms":
        absent |= {name for name in shapes if name.endswith("_norm.bias")}
    if normed == (0, 0):
        absent |= {name for name in shapes if name.startswith(("attention.query_norm", "attention.key_norm"))}
    if gated:
        absent |= {"feed_forward.up_bias", "feed_forward.down_bias"}
    else:
        absent.add("feed_forward.gate")
    if bias is not True:
        absent |= {name for name in shapes if name.endswith("_bias") and not (bias == "qkv" and name in _QKV_BIASES)}
    return tuple((name, shape) for name, shape in shapes.items() if name not in absent)


def parameter_count(config: BlockConfig) -> int:
    """Return the number of scalar parameters of a block."""
    count = 0
    for shape in parameter_shapes(config).values():
        size = 1
        for length in shape:
            size *= length
        count += size
    return count


def stage_shapes(config: BlockConfig, batch: int, tokens: int, keys: int | None = None) -> dict[str, tuple[int, ...]]:
    """Return stage -> shape for an input of ``batch`` sequences of ``tokens`` tokens.

    ``keys`` is the number of key positions of the attention weights, ``tokens`` when there is no cache.
    """
    stream = (batch, tokens, config.d_model)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(STAGES, stream)
    shapes["query"] = (batch, config.n_heads, tokens, config.d_head)
    shapes["key"] = shapes["value"] = (batch, config.n_kv_heads, tokens, config.d_head)
    shapes["attention_weights"] = (batch, config.n_heads, tokens, tokens if keys is None else keys)
    return shapes
