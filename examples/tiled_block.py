"""A block with sizes of its own: attention in tiles, as a kernel computes it, and no other sizes than whole tiles.

``blocklaws verify examples/tiled_block.py:TiledBackend`` checks it. ``multiples`` tells blocklaws what the sizes must
divide by, so that it draws blocks that this one can run; what is refused all the same is reported as unchecked.

The softmax is taken tile after tile with a running maximum and a running sum (Milakov and Gimelshein 2018, algorithm 3;
Dao et al. 2022, algorithm 1), so the scores of all tokens are never in memory at once.
"""

import numpy as np

#: Tokens in a tile, and what the width of a head must divide by.
TILE, LANES = 16, 8


class TiledBackend:
    """Builds blocks whose sizes are whole tiles."""

    name = "tiled"
    dtypes = ("float32",)
    multiples = {"d_head": LANES, "T": TILE}  # noqa: RUF012 (a contract of plain attributes, not a class to inherit)

    def supports(self, config):
        """Return None for a config that can be built, and otherwise a sentence that says why not."""
        if (config.norm, config.placement, config.feed_forward, config.bias) != ("rms", "pre", "swiglu", False):
            return "only pre-placed rms norms and swiglu without biases"
        if config.rotary == "interleaved":
            return "pairs of neighbouring features do not fit the lanes; only half-split rotary positions, or none"
        if config.further:
            return f"the kernel has no {', '.join(config.further)}"
        return None

    def build(self, config, parameters, dtype):
        """Return a block, or raise where a size is not a whole number of tiles."""
        if config.d_head % LANES:
            raise ValueError(f"d_head={config.d_head} must be a multiple of {LANES}")
        return TiledBlock(config, {name: np.asarray(array, dtype) for name, array in parameters.items()})


class TiledBlock:
    """A block that can only be run: no trace, no gradients, no cache."""

    def __init__(self, config, parameters):
        self.config = config
        self.weight = parameters

    def forward(self, x, position_offset=0):
        """Return the output [B, T, d_model]; T must be a multiple of the tile."""
        config, weight = self.config, self.weight
        if x.ndim != 3 or x.shape[2] != config.d_model:
            raise ValueError(f"input shape {x.shape} is not [B, T, d_model] with d_model={config.d_model}")
        batch, tokens, _ = x.shape
        if tokens == 0 or tokens % TILE:
            raise ValueError(f"T={tokens} must be a positive multiple of {TILE}")
        if position_offset < 0 or position_offset + tokens > config.max_positions:
            raise ValueError(f"positions must lie in 0 to {config.max_positions - 1}")

        normed = self.norm(x, weight["attention_norm.gain"])
        query, key, value = (
            (normed @ weight[f"attention.{name}"]).reshape(batch, tokens, heads, config.d_head).swapaxes(1, 2)
            for name, heads in (("query", config.n_heads), ("key", config.n_kv_heads), ("value", config.n_kv_heads))
        )
        query, key = self.rotate(query, position_offset), self.rotate(key, position_offset)
        mixed = self.attend(query, key, value).swapaxes(1, 2).reshape(batch, tokens, config.n_heads * config.d_head)
        x = x + mixed @ weight["attention.output"]

        normed = self.norm(x, weight["feed_forward_norm.gain"])
        gate = normed @ weight["feed_forward.gate"]
        decay = np.exp(-np.abs(gate))
        gate = gate * np.where(gate >= 0, 1, decay) / (1 + decay)
        return x + (gate * (normed @ weight["feed_forward.up"])) @ weight["feed_forward.down"]

    def attend(self, query, key, value):
        """Return the mixed values [B, n_heads, T, d_head], tile by tile; keys of a later tile are never read."""
        batch, heads, tokens, width = query.shape
        group = heads // key.shape[1]
        # The heads of a group get an axis of their own, beside the one key/value head that they share.
        query = query.reshape(batch, key.shape[1], group, tokens, width) / np.sqrt(width).astype(query.dtype)
        key, value = key[:, :, None], value[:, :, None]
        mixed = np.empty_like(query)
        inside = np.tri(TILE, dtype=bool)
        for start in range(0, tokens, TILE):
            rows = slice(start, start + TILE)
            top = np.full((*query.shape[:3], TILE, 1), -np.inf, query.dtype)
            total = np.zeros_like(top)
            gathered = np.zeros_like(query[..., rows, :])
            for first in range(0, start + TILE, TILE):
                columns = slice(first, first + TILE)
                scores = query[..., rows, :] @ key[..., columns, :].swapaxes(-1, -2)
                if first == start:
                    scores = np.where(inside, scores, -np.inf)
                # What was gathered under an earlier, smaller maximum is scaled down to the new one.
                new_top = np.maximum(top, scores.max(axis=-1, keepdims=True))
                weights, shrink = np.exp(scores - new_top), np.exp(top - new_top)
                total = total * shrink + weights.sum(axis=-1, keepdims=True)
                gathered = gathered * shrink + weights @ value[..., columns, :]
                top = new_top
            mixed[..., rows, :] = gathered / total
        return mixed.reshape(batch, heads, tokens, width)

    def norm(self, x, gain):
        """Divide each token by the root mean square of its own features."""
        # Squares and their sum in float64: in float32 large features overflow and long rows lose digits.
        wide = x.astype(np.float64)
        mean_square = (wide * wide).mean(axis=-1, keepdims=True)
        return (wide / np.sqrt(mean_square + self.config.norm_eps) * gain).astype(x.dtype)

    def rotate(self, heads, position_offset):
        """Turn feature i with feature i + d_head / 2; angles in float64, since far positions need it."""
        if self.config.rotary is None:
            return heads
        tokens, width = heads.shape[2:]
        positions = position_offset + np.arange(tokens)[:, None]
        angles = positions * float(self.config.rotary_base) ** (-np.arange(0, width, 2) / width)
        cos, sin = np.cos(angles).astype(heads.dtype), np.sin(angles).astype(heads.dtype)
        a, b = np.split(heads, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
