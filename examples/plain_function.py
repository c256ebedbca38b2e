"""The shortest way in: one function of the input, the parameters and the config.

``blocklaws verify examples/plain_function.py:block`` checks it on every kind of block. A function has no position
offset, no trace and no gradients, so the invariants that need them are reported as unchecked.

B is the batch, T the number of tokens; arrays of heads are [B, heads, T, d_head].
"""

import math

import numpy as np


def block(x, parameters, config):
    """Return the output [B, T, d_model] of one decoder block for an input [B, T, d_model], in the input's dtype."""
    if x.ndim != 3 or x.shape[2] != config.d_model:
        raise ValueError(f"input shape {x.shape} is not [B, T, d_model] with d_model={config.d_model}")
    if not 1 <= x.shape[1] <= config.max_positions:
        raise ValueError(f"T={x.shape[1]} is not between 1 and max_positions={config.max_positions}")
    get = {name: np.asarray(array, x.dtype) for name, array in parameters.items()}.get

    def project(rows, name):
        """Return rows W + b; a block without biases has no such parameter, and adds nothing."""
        return rows @ get(name) + get(f"{name}_bias", 0)

    def norm(rows, name):
        # Squares and their sum in float64: in float32 large features overflow and long rows lose digits.
        wide = rows.astype(np.float64)
        if config.norm == "layer":
            wide = wide - wide.mean(axis=-1, keepdims=True)
        wide = wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + config.norm_eps)
        return (wide * get(f"{name}.gain") + get(f"{name}.bias", 0)).astype(x.dtype)

    def attention(rows):
        query, key, value = (
            project(rows, f"attention.{name}").reshape(*x.shape[:2], heads, config.d_head).swapaxes(1, 2)
            for name, heads in (("query", config.n_heads), ("key", config.n_kv_heads), ("value", config.n_kv_heads))
        )
        query, key = rotate(query, config), rotate(key, config)
        key, value = (np.repeat(heads, config.n_heads // config.n_kv_heads, axis=1) for heads in (key, value))
        scores = query @ key.swapaxes(2, 3) / np.sqrt(config.d_head).astype(x.dtype)
        weights = softmax(np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf))
        return project(
            (weights @ value).swapaxes(1, 2).reshape(*x.shape[:2], config.n_heads * config.d_head), "attention.output"
        )

    def feed_forward(rows):
        up = project(rows, "feed_forward.up")
        if config.feed_forward == "swiglu":
            up = ACTIVATIONS["silu"](project(rows, "feed_forward.gate")) * up
        else:
            up = ACTIVATIONS[config.feed_forward](up)
        return project(up.astype(x.dtype), "feed_forward.down")

    if config.placement == "pre":
        x = x + attention(norm(x, "attention_norm"))
        return x + feed_forward(norm(x, "feed_forward_norm"))
    x = norm(x + attention(x), "attention_norm")
    return norm(x + feed_forward(x), "feed_forward_norm")


def rotate(heads, config):
    """Turn pairs of features by position x base^(-2 i / d_head) (Su et al. 2021, eq. 34)."""
    if config.rotary is None:
        return heads
    tokens, width = heads.shape[2:]
    angles = np.arange(tokens)[:, None] * float(config.rotary_base) ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles).astype(heads.dtype), np.sin(angles).astype(heads.dtype)
    if config.rotary == "interleaved":
        a, b = heads[..., 0::2], heads[..., 1::2]
        return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(heads.shape)
    a, b = np.split(heads, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def softmax(scores):
    """Return weights over the last axis that sum to one; the maximum is subtracted, so nothing overflows."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sigmoid(a):
    """Return 1 / (1 + exp(-a)) without an overflow on either side."""
    decay = np.exp(-np.abs(a))
    return np.where(a >= 0, 1, decay) / (1 + decay)


ACTIVATIONS = {
    "silu": lambda a: a * sigmoid(a),
    # erfc keeps its relative accuracy where 1 + erf would be a difference of two numbers near one.
    "gelu": lambda a: a * np.vectorize(math.erfc, otypes=[float])(-a / math.sqrt(2)) / 2,
    "gelu_tanh": lambda a: a * sigmoid(math.sqrt(8 / math.pi) * (a + 0.044715 * a * a * a)),
    "relu": lambda a: np.maximum(a, 0),
}
