"""The norms of a block: those of its two halves, and those of its queries and keys.

Must hold: the statistics of a token are taken over its own features alone, in float32 at least; the epsilon is inside
the root; each norm has a gain (and, for a layer norm, a bias) of its own. The norms of queries and keys are the same
two, of a head or of all heads side by side.

Sources: rms norm, Zhang and Sennrich 2019, equation 4; layer norm, Ba, Kiros and Hinton 2016, equations 3 and 4; norms
of queries and keys, Dehghani et al. 2023 (ViT-22B), section 2.
"""

from functools import partial

import numpy as np

from blocklaws.backends.on_numpy.shapes import Features, Numbers, Stream
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, Steps, accumulate, chain

__all__ = ["NormSteps"]


class NormSteps(Steps):
    """The norms and the core that they share."""

    def average(self, x: Stream) -> Numbers:
        """Return what the statistics of a token are: means over its features, [batch, token, 1]."""
        mean: np.ndarray = np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1]
        return mean

    def standardize(self, x: Stream, eps: float) -> tuple[Stream, Pullback]:
        """Return ``x / sqrt(mean(x^2) + eps)``, for a layer norm of ``x - mean(x)``: no gain and no bias yet."""
        if self.config.norm == "layer":
            x = x - self.average(x)
        root = np.sqrt(self.average(x * x) + eps)
        core = x / root
        return self.rounded(core, partial(self.pull_standardize, core, root))

    def pull_standardize(self, core: Stream, root: Numbers, cotangent: Stream, _: Gradients) -> Stream:
        """Return the cotangent of ``x``.

        ``d core_i / d x_j = (delta_ij - core_i core_j / d_model) / root``, and centring is its own transpose.
        """
        result: np.ndarray = (cotangent - core * self.average(core * cotangent)) / root
        return result - self.average(result) if self.config.norm == "layer" else result

    def affine(self, core: Stream, norm: str) -> tuple[Stream, Pullback]:
        """Return ``core * gain + bias`` with the parameters of the norm of that name."""
        value = core * self.parameter(f"{norm}.gain")
        if self.has(f"{norm}.bias"):
            value = value + self.parameter(f"{norm}.bias")
        return self.rounded(value, partial(self.pull_affine, core, norm))

    def pull_affine(self, core: Stream, norm: str, cotangent: Stream, gradients: Gradients) -> Stream:
        """Return the cotangent of ``core``; add the gradients of the gain and of the bias."""
        accumulate(gradients, f"{norm}.gain", (cotangent * core).sum((0, 1)))
        if self.has(f"{norm}.bias"):
            accumulate(gradients, f"{norm}.bias", cotangent.sum((0, 1)))
        result: np.ndarray = cotangent * self.parameter(f"{norm}.gain")
        return result

    def norm(self, x: Stream, name: str) -> tuple[Stream, Pullback]:
        """Return the norm of that name, such as ``attention_norm``, of each row."""
        core, pull_core = self.standardize(x, self.config.norm_eps)
        value, pull_affine = self.affine(core, name)
        return value, chain(pull_core, pull_affine)

    def attention_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        """Return the norm of the attention half."""
        return self.norm(x, "attention_norm")

    def feed_forward_norm(self, x: Stream) -> tuple[Stream, Pullback]:
        """Return the norm of the feed-forward half."""
        return self.norm(x, "feed_forward_norm")

    def norm_query(self, a: Features) -> tuple[Features, Pullback]:
        """Return the queries normed, where the config asks for it: projected, not turned yet."""
        return self.norm_heads(a, "attention.query_norm", self.config.n_heads)

    def norm_key(self, a: Features) -> tuple[Features, Pullback]:
        """Return the keys normed, where the config asks for it: projected, not turned yet."""
        return self.norm_heads(a, "attention.key_norm", self.config.n_kv_heads)

    def norm_heads(self, a: Features, name: str, heads: int) -> tuple[Features, Pullback]:
        """Return the norm of that name over each head's features, or over those of all heads together."""
        if self.config.qk_norm is None:
            return a, chain()
        batch, tokens, width = a.shape
        apart = self.normed_apart(heads)
        rows = a.reshape(batch, tokens * apart, width // apart)
        normed, pull_norm = self.norm(rows, name)
        return normed.reshape(a.shape), partial(self.pull_norm_heads, pull_norm, rows.shape)

    def pull_norm_heads(
        self, pull_norm: Pullback, rows: tuple[int, ...], cotangent: Features, gradients: Gradients
    ) -> Features:
        """Return the cotangent of the projected queries or keys."""
        return pull_norm(cotangent.reshape(rows), gradients).reshape(cotangent.shape)

    def normed_apart(self, heads: int) -> int:
        """Return into how many rows, each with statistics of its own, the features of a token are parted."""
        return heads if self.config.qk_norm == "head" else 1
