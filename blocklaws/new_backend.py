"""The command ``new-backend``: writes an adapter that verifies at once, to be changed into one's own.

Must hold: the file needs NumPy alone, every invariant that it can be asked holds for it, and no file is ever
overwritten.
"""

from __future__ import annotations

import keyword
import os
from pathlib import Path

from blocklaws.errors import BlocklawsError
from blocklaws.files import write_text

__all__ = ["new_backend"]

_TEMPLATE = '''"""A backend for blocklaws: check it with ``blocklaws verify @FILE@:Backend``.

It is a whole decoder block in NumPy, so it verifies as it stands. Replace what `Block` computes by your own code,
piece by piece, and run the command after each. Nothing has to be inherited or imported from blocklaws.
"""

import math

import numpy as np


class Backend:
    name = "@NAME@"  # shown in reports and test ids
    dtypes = ("float64", "float32")  # also "bfloat16" and "float16", as ml_dtypes arrays
    # multiples = {"d_head": 8, "T": 16}  # what sizes must divide by, if your code needs that

    def supports(self, config):
        """Return None, or a sentence that says why a block of this config cannot be built."""
        if config.further:  # a window, capped scores ...: docs/specs.md lists what a config may ask for
            return f"it has no {', '.join(config.further)}"
        if config.placement == "inside" or config.feed_forward.startswith("geglu"):
            return f"it has no placement {config.placement} with {config.feed_forward}"
        return None

    def build(self, config, parameters, dtype):
        """Return a block. ``parameters`` has a NumPy array for each name; matrices are [in, out]."""
        return Block(config, parameters)


class Block:
    def __init__(self, config, parameters):
        self.config = config
        self.parameters_given = parameters

    def forward(self, x, position_offset=0):
        """Return the output [B, T, d_model]. This is the one method that a block must have."""
        return self.trace(x, position_offset)["output"]

    def trace(self, x, position_offset=0):
        """Return stage -> array, any subset of the stages. Optional: it lets a failure name the stage that is wrong."""
        config = self.config
        if x.ndim != 3 or x.shape[2] != config.d_model:
            raise ValueError(f"input shape {x.shape} is not [B, T, d_model={config.d_model}]")
        positions = position_offset + np.arange(x.shape[1])
        if x.shape[1] == 0 or positions[0] < 0 or positions[-1] >= config.max_positions:
            raise ValueError(f"positions must lie in 0 .. {config.max_positions - 1}, and there must be a token")
        stages = {"input": x}
        if config.placement == "pre":
            after = x + self.attention(self.norm(x, "attention_norm", stages), positions, stages)
            stages["after_attention"] = after
            stages["output"] = after + self.feed_forward(self.norm(after, "feed_forward_norm", stages), stages)
        else:
            after = self.norm(x + self.attention(x, positions, stages), "attention_norm", stages)
            stages["after_attention"] = after
            stages["output"] = self.norm(after + self.feed_forward(after, stages), "feed_forward_norm", stages)
        return stages

    # Optional too: gradients(x, cotangent, position_offset=0), parameters(), forward_cached(x, cache).
    # What a block does not have is reported as unchecked.

    def project(self, x, name):
        weights = self.parameters_given
        return x @ weights[name] + weights[name + "_bias"] if name + "_bias" in weights else x @ weights[name]

    def norm(self, x, name, stages):
        # Statistics over the features of each token, in float64 so that large features do not overflow.
        wide = x.astype(np.float64)
        if self.config.norm == "layer":
            wide = wide - wide.mean(axis=-1, keepdims=True)
        wide = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + self.config.norm_eps)
        wide = wide * self.parameters_given[name + ".gain"] + self.parameters_given.get(name + ".bias", 0)
        stages[name] = wide.astype(x.dtype)
        return stages[name]

    def attention(self, x, positions, stages):
        config = self.config
        query = rotate(split_heads(self.project(x, "attention.query"), config.n_heads), positions, config)
        key = rotate(split_heads(self.project(x, "attention.key"), config.n_kv_heads), positions, config)
        value = split_heads(self.project(x, "attention.value"), config.n_kv_heads)
        stages.update(query=query, key=key, value=value)
        # Query head i reads key/value head i // group.
        group = config.n_heads // config.n_kv_heads
        key, value = np.repeat(key, group, axis=1), np.repeat(value, group, axis=1)
        scores = query @ key.swapaxes(2, 3) / np.sqrt(config.d_head).astype(x.dtype)
        scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)  # no key after its query
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        joined = (weights @ value).swapaxes(1, 2).reshape(*x.shape[:2], config.n_heads * config.d_head)
        branch = self.project(joined, "attention.output")
        stages.update(attention_weights=weights, attention_branch=branch)
        return branch

    def feed_forward(self, x, stages):
        up = self.project(x, "feed_forward.up")
        if self.config.feed_forward == "swiglu":
            up = silu(self.project(x, "feed_forward.gate")) * up
        else:
            up = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}[self.config.feed_forward](up)
        stages["feed_forward_branch"] = self.project(up.astype(x.dtype), "feed_forward.down")
        return stages["feed_forward_branch"]


def split_heads(x, heads):
    """[B, T, heads d_head] -> [B, heads, T, d_head]: each head owns neighbouring columns."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def rotate(x, positions, config):
    """Turn pairs of features by position x base^(-2 i / d_head), the angles in float64."""
    if config.rotary is None:
        return x
    half = config.d_head // 2
    angles = positions[:, None] * config.rotary_base ** (-2 * np.arange(half) / config.d_head)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    interleaved = config.rotary == "interleaved"
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    a, b = x[..., first], x[..., second]
    turned = np.empty_like(x)
    turned[..., first], turned[..., second] = a * cos - b * sin, a * sin + b * cos
    return turned


def sigmoid(x):
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1, small) / (1 + small)


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2)) / 2


def gelu_tanh(x):
    return x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def relu(x):
    return np.maximum(x, 0)
'''


def new_backend(path: Path) -> str:
    """Write the adapter; return the name by which `verify` finds it.

    Raises:
        BlocklawsError: the file exists, is no Python file, or cannot be written.
    """
    if path.suffix != ".py":
        raise BlocklawsError(f"{path} is no Python file; give a name that ends in .py, such as my_backend.py")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise BlocklawsError(
            f"{path.name} cannot be imported: {path.stem!r} is no Python name; use letters, digits and underscores"
        )
    if os.path.exists(path):
        raise BlocklawsError(f"{path} exists already and is left as it is; name another file")
    if not os.path.isdir(path.parent):
        raise BlocklawsError(f"cannot write {path}: there is no folder {path.parent}")
    write_text(path, _TEMPLATE.replace("@FILE@", path.name).replace("@NAME@", path.stem))
    return f"{path}:Backend"
