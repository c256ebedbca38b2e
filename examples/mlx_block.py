"""A block in MLX, on its own kernels: `mx.fast` has the norm, the rotary positions and the attention.

``blocklaws verify examples/mlx_block.py:MlxBackend`` checks it; it needs the package ``mlx``, and on a machine without
Apple's GPU ``mlx-cpu``. MLX differentiates, so all gradients are shown too.

B is the batch, T the number of tokens; heads are [B, heads, T, d_head].
"""

import numpy as np


class MlxBackend:
    """Says what can be built, and builds it."""

    name = "mlx"
    dtypes = ("float32",)
    packages = ("mlx",)  # reports name its version
    # Measured with MLX 0.32 on the CPU: in float64 those four are right to 1e-7, and a matrix product to 1e-16.
    cannot = {  # noqa: RUF012 (a contract of plain attributes)
        "float64": "MLX takes it, but its norm, rotary positions, sigmoid and softmax are no better than float32"
    }

    def supports(self, config):
        """Return None for a config that can be built, and otherwise a sentence that says why not."""
        if config.further:
            return f"it has no {', '.join(config.further)}"
        if (config.norm, config.placement, config.feed_forward, config.bias) != ("rms", "pre", "swiglu", False):
            return "only pre-placed rms norms and swiglu without biases"
        return None

    def build(self, config, parameters, dtype):
        """Return a block; ``parameters`` has a NumPy array for each canonical name."""
        import mlx.core as mx

        return MlxBlock(config, {name: mx.array(array) for name, array in parameters.items()}, mx)


class MlxBlock:
    """One Llama block (Touvron et al. 2023)."""

    def __init__(self, config, weight, mx):
        self.config, self.weight, self.mx = config, weight, mx

    def forward(self, x, position_offset=0):
        """Return the output [B, T, d_model]."""
        return np.array(self.compute(self.mx.array(x), self.weight, position_offset))

    def forward_cached(self, x, cache):
        """Return the output of the next tokens, and the cache for the call after: all keys and values so far."""
        cache = list(cache or ())
        return np.array(self.compute(self.mx.array(x), self.weight, 0, cache)), cache

    def parameters(self):
        """Return the weights by their names."""
        return {name: np.array(array) for name, array in self.weight.items()}

    def gradients(self, x, cotangent, position_offset=0):
        """Return the gradient of sum(output * cotangent) for the input and for every parameter."""
        mx, names = self.mx, list(self.weight)

        def output(x, *weights):
            return self.compute(x, dict(zip(names, weights, strict=True)), position_offset)

        _, found = mx.vjp(output, [mx.array(x), *self.weight.values()], [mx.array(cotangent)])
        return {name: np.array(array) for name, array in zip(["input", *names], found, strict=True)}

    def compute(self, x, weight, offset, cache=None):
        """Return the output; a cache, a list that is empty or has the keys and values so far, is filled anew."""
        mx, config = self.mx, self.config
        if x.ndim != 3 or x.shape[2] != config.d_model:
            raise ValueError(f"input shape {x.shape} is not [B, T, d_model] with d_model={config.d_model}")
        first = offset + (cache[0].shape[2] if cache else 0)
        if x.shape[1] == 0 or first < 0 or first + x.shape[1] > config.max_positions:
            raise ValueError(f"no token, or a position that is not within 0 to {config.max_positions - 1}")

        normed = mx.fast.rms_norm(x, weight["attention_norm.gain"], config.norm_eps)
        query, key, value = (
            mx.unflatten(normed @ weight[f"attention.{name}"], -1, (-1, config.d_head)).swapaxes(1, 2)
            for name in ("query", "key", "value")
        )
        query, key = self.rotate(query, first), self.rotate(key, first)
        if cache:
            key, value = (mx.concatenate(pair, axis=2) for pair in zip(cache, (key, value), strict=True))
        if cache is not None:
            cache[:] = key, value
        # With more keys than queries, "causal" lines up the last of both.
        mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=config.d_head**-0.5, mask="causal")
        x = x + mx.flatten(mixed.swapaxes(1, 2), 2) @ weight["attention.output"]

        normed = mx.fast.rms_norm(x, weight["feed_forward_norm.gain"], config.norm_eps)
        gate, up = normed @ weight["feed_forward.gate"], normed @ weight["feed_forward.up"]
        return x + (gate * mx.sigmoid(gate) * up) @ weight["feed_forward.down"]

    def rotate(self, heads, first):
        """Turn the pairs of features of each token by the angle of its position, the first of which is given."""
        config = self.config
        if config.rotary is None:
            return heads
        interleaved = config.rotary == "interleaved"
        return self.mx.fast.rope(
            heads, config.d_head, traditional=interleaved, base=config.rotary_base, scale=1.0, offset=first
        )
