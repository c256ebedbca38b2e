"""A right block in plain NumPy, written from the mathematics: the honest part of every adapter in this folder.

It has ``forward`` alone and computes in float64. It imports nothing of the package, so that it also runs where the
reference cannot be imported. Each step can be overridden.
"""

from __future__ import annotations

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[float])


class Block:
    """The block of a config, by its definition."""

    def __init__(self, config, parameters, dtype):
        self.config, self.dtype = config, np.dtype(dtype)
        self.p = {name: value.astype(np.float64) for name, value in parameters.items()}

    def forward(self, x, position_offset=0):
        return self.compute(np.asarray(x).astype(np.float64), position_offset).astype(self.dtype)

    def compute(self, x, offset):
        if self.config.placement == "pre":
            x = x + self.attention(self.norm(x, "attention_norm"), offset)
            return x + self.feed_forward(self.norm(x, "feed_forward_norm"))
        x = self.norm(x + self.attention(x, offset), "attention_norm")
        return self.norm(x + self.feed_forward(x), "feed_forward_norm")

    def norm(self, x, name):
        if self.config.norm == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps)
        return x * self.p[f"{name}.gain"] + self.p.get(f"{name}.bias", 0.0)

    def linear(self, x, name):
        return x @ self.p[name] + self.p.get(f"{name}_bias", 0.0)

    def heads(self, x, name, count):
        batch, tokens, _ = x.shape
        return self.linear(x, f"attention.{name}").reshape(batch, tokens, count, -1).transpose(0, 2, 1, 3)

    def attention(self, x, offset):
        config = self.config
        query = self.turn(self.heads(x, "query", config.n_heads), offset)
        key = self.turn(self.heads(x, "key", config.n_kv_heads), offset).repeat(config.group, 1)
        value = self.heads(x, "value", config.n_kv_heads).repeat(config.group, 1)
        mixed = self.mix(query / math.sqrt(config.d_head), key, value)
        return self.linear(mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1), "attention.output")

    def mix(self, query, key, value):
        tokens = query.shape[2]
        scores = query @ key.swapaxes(-1, -2)
        scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ value

    def turn(self, x, offset):
        rotary, width = self.config.rotary, self.config.d_head
        if rotary is None:
            return x
        positions = offset + np.arange(x.shape[2])[:, None]
        angles = positions * self.config.rotary_base ** (-np.arange(0, width, 2) / width)
        first, second = (
            (slice(None, None, 2), slice(1, None, 2))
            if rotary == "interleaved"
            else (slice(None, width // 2), slice(width // 2, None))
        )
        turned = np.empty_like(x)
        a, b = x[..., first], x[..., second]
        turned[..., first] = a * np.cos(angles) - b * np.sin(angles)
        turned[..., second] = a * np.sin(angles) + b * np.cos(angles)
        return turned

    def feed_forward(self, x):
        up = self.linear(x, "feed_forward.up")
        if self.config.feed_forward == "swiglu":
            gate = self.linear(x, "feed_forward.gate")
            return self.linear(gate / (1 + np.exp(-gate)) * up, "feed_forward.down")
        if self.config.feed_forward == "relu":
            return self.linear(np.maximum(up, 0), "feed_forward.down")
        return self.linear(up * (1 + _erf(up / math.sqrt(2))) / 2, "feed_forward.down")


class Backend:
    """What every adapter here is built from; a subclass names its own block."""

    dtypes = ("float32",)
    block = Block

    @property
    def name(self):
        return type(self).__name__

    def build(self, config, parameters, dtype):
        return self.block(config, parameters, dtype)


def adapter(block):
    """Make a backend of a block's class, under its name."""
    return type(block.__name__, (Backend,), {"block": block, "__doc__": block.__doc__, "__module__": block.__module__})
