"""A block of one's own, as blocklaws wants to see it: two classes, nothing to inherit and nothing to import.

``blocklaws verify examples/my_block.py:MyBackend`` checks it. Copy this file, put your computation where ``forward``
is, and keep ``trace`` if you can: with it a failure names the first stage that went wrong.

B is the batch, T the number of tokens; arrays of heads are [B, heads, T, d_head].
"""

import numpy as np


class MyBackend:
    """Says what can be built, and builds it."""

    name = "mine"
    dtypes = ("float64", "float32")

    def supports(self, config):
        """Return None for a config that can be built, and otherwise a sentence that says why not."""
        if config.norm != "rms" or config.placement != "pre":
            return f"only an rms norm before each branch, not {config.norm} norm, placement {config.placement}"
        if config.feed_forward != "swiglu" or config.bias:
            return "only swiglu without biases"
        if config.further:
            return f"it has no {', '.join(config.further)}"
        return None

    def build(self, config, parameters, dtype):
        """Return a block; ``parameters`` has a NumPy array for each canonical name, in any float dtype."""
        return MyBlock(config, {name: np.asarray(array, dtype) for name, array in parameters.items()})


class MyBlock:
    """One Llama block (Touvron et al. 2023), with as many key/value heads as the config says."""

    def __init__(self, config, parameters):
        self.config = config
        self.weight = parameters

    def forward(self, x, position_offset=0):
        """Return the output [B, T, d_model] for an input [B, T, d_model] whose first token has the given position."""
        return self.trace(x, position_offset)["output"]

    def trace(self, x, position_offset=0):
        """Return every stage by its canonical name, the output last."""
        self.refuse(x, position_offset)
        config, weight, stage = self.config, self.weight, {"input": x}

        normed = stage["attention_norm"] = self.norm(x, weight["attention_norm.gain"])
        angles = self.angles(position_offset + np.arange(x.shape[1]))
        stage["query"] = self.rotate(self.heads(normed @ weight["attention.query"]), angles)
        stage["key"] = self.rotate(self.heads(normed @ weight["attention.key"]), angles)
        stage["value"] = self.heads(normed @ weight["attention.value"])

        # Query head i reads key/value head i // group, so each key/value head is repeated for its neighbours.
        group = config.n_heads // config.n_kv_heads
        key, value = (np.repeat(stage[name], group, axis=1) for name in ("key", "value"))
        scores = np.einsum("bhqd,bhkd->bhqk", stage["query"], key) / np.sqrt(config.d_head).astype(x.dtype)
        future = np.triu(np.ones(scores.shape[-2:], bool), k=1)
        scores = np.where(future, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = stage["attention_weights"] = weights / weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("bhqk,bhkd->bqhd", weights, value)
        stage["attention_branch"] = (
            mixed.reshape(*x.shape[:2], config.n_heads * config.d_head) @ weight["attention.output"]
        )
        stage["after_attention"] = x + stage["attention_branch"]

        normed = stage["feed_forward_norm"] = self.norm(stage["after_attention"], weight["feed_forward_norm.gain"])
        gate, up = normed @ weight["feed_forward.gate"], normed @ weight["feed_forward.up"]
        stage["feed_forward_branch"] = (silu(gate) * up) @ weight["feed_forward.down"]
        stage["output"] = stage["after_attention"] + stage["feed_forward_branch"]
        return stage

    def refuse(self, x, position_offset):
        """Raise for an input that means nothing, before it becomes numbers that look as if it did."""
        if x.ndim != 3 or x.shape[2] != self.config.d_model:
            raise ValueError(f"input shape {x.shape} is not [B, T, d_model] with d_model={self.config.d_model}")
        last = position_offset + x.shape[1] - 1
        if x.shape[1] == 0 or position_offset < 0 or last >= self.config.max_positions:
            raise ValueError(
                f"positions {position_offset} to {last} are none, or not all in 0 to {self.config.max_positions - 1}"
            )

    def norm(self, x, gain):
        """Divide each token by the root mean square of its own features (Zhang and Sennrich 2019, eq. 4)."""
        # Squares and their sum in float64: in float32 large features overflow and long rows lose digits.
        wide = x.astype(np.float64)
        mean_square = (wide * wide).mean(axis=-1, keepdims=True)
        return (wide / np.sqrt(mean_square + self.config.norm_eps) * gain).astype(x.dtype)

    def heads(self, projected):
        """Split [B, T, heads d_head] into [B, heads, T, d_head]: each head owns neighbouring columns."""
        batch, tokens, width = projected.shape
        return projected.reshape(batch, tokens, width // self.config.d_head, self.config.d_head).swapaxes(1, 2)

    def angles(self, positions):
        """Return the rotary angles [T, d_head / 2] in radians (Su et al. 2021, eq. 15), or None without rotary."""
        if self.config.rotary is None:
            return None
        pair = np.arange(self.config.d_head // 2)
        return positions[:, None] * float(self.config.rotary_base) ** (-2 * pair / self.config.d_head)

    def rotate(self, heads, angles):
        """Turn each pair of features by the angle of its token; which features pair up is a choice of the config."""
        if angles is None:
            return heads
        # The angles are float64: far positions in float32 would be off by whole degrees.
        cos, sin = np.cos(angles).astype(heads.dtype), np.sin(angles).astype(heads.dtype)
        half = heads.shape[-1] // 2
        interleaved = self.config.rotary == "interleaved"
        first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
        a, b = heads[..., first], heads[..., second]
        turned = np.empty_like(heads)
        turned[..., first], turned[..., second] = a * cos - b * sin, a * sin + b * cos
        return turned


def silu(a):
    """Return a * sigmoid(a), with an exponential that cannot overflow (Elfwing et al. 2018)."""
    decay = np.exp(-np.abs(a))
    return a * np.where(a >= 0, 1, decay) / (1 + decay)
