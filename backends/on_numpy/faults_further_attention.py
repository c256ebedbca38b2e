"""Blocks that get a further choice of the attention branch wrong: capped scores, windows, norms of queries and keys, a
part of each head that is turned, biases on query, key and value.

Must hold: a fault shows in the kinds of block that make its choice; what it computes is right in every other way.
"""

from functools import partial

import numpy as np

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.cache import KeyValues
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.faults_cache import WrongThroughCache
from blocklaws.backends.on_numpy.shapes import (
    Features,
    Frequencies,
    Heads,
    KeyHeads,
    KeyPositions,
    KvHeads,
    Positions,
    QueryHeads,
    QueryPositions,
    Scores,
    Stream,
    Visible,
)
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, chain

# --- capped scores ----------------------------------------------------------------------------------------------------


@fault("softcap-missing")
class _SoftcapMissing(NumpyBlock):
    def cap_scores(self, scores: Scores) -> tuple[Scores, Pullback]:
        return scores, chain()


@fault("softcap-after-mask")
class _SoftcapAfterMask(_SoftcapMissing):
    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        # tanh(-inf) is -1: what was hidden comes back as a score of -c, and nothing hides it again.
        capped, pull_cap = NumpyBlock.cap_scores(self, np.where(visible, scores, -np.inf))
        weights, pull_softmax = super().softmax(capped, np.ones_like(visible))
        return weights, chain(pull_cap, pull_softmax)


@fault("softcap-before-scale")
class _SoftcapBeforeScale(_SoftcapMissing):
    def scores(self, query: QueryHeads, key: KeyHeads) -> tuple[Scores, PullbackOfTwo]:
        scale = self.score_scale()
        products = query @ key.swapaxes(-1, -2)
        capped, pull_cap = NumpyBlock.cap_scores(self, products)

        def pullback(cotangent: Scores, gradients: Gradients) -> tuple[QueryHeads, KeyHeads]:
            to_products = pull_cap(cotangent * scale, gradients)
            return to_products @ key, to_products.swapaxes(-1, -2) @ query

        return self.rounded(capped * scale, pullback)


@fault("softcap-multiplies-scores")
class _SoftcapMultipliesScores(NumpyBlock):
    def cap_scores(self, scores: Scores) -> tuple[Scores, Pullback]:
        cap = self.config.softcap
        if cap is None:
            return super().cap_scores(scores)
        bent = np.tanh(scores / cap)
        slope = bent + scores / cap * (1 - bent * bent)
        return self.rounded(scores * bent, lambda cotangent, _: cotangent * slope)


@fault("softcap-not-multiplied-back")
class _SoftcapNotMultipliedBack(NumpyBlock):
    def cap_scores(self, scores: Scores) -> tuple[Scores, Pullback]:
        cap = self.config.softcap
        if cap is None:
            return super().cap_scores(scores)
        capped, pullback = super().cap_scores(scores)
        return self.rounded(capped / cap, lambda cotangent, gradients: pullback(cotangent / cap, gradients))


# --- windows ----------------------------------------------------------------------------------------------------------


class _OtherWindow(NumpyBlock):
    """A window of another number of keys; as it is, of all there are."""

    def seen(self, window: int) -> int | None:
        """Return how many keys a query sees where the config says ``window``; None: all of them."""
        return None

    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        window, earlier = self.config.window, key_positions <= query_positions[:, None]
        seen = None if window is None else self.seen(window)
        if seen is None:
            return earlier
        return earlier & (key_positions > query_positions[:, None] - seen)


@fault("window-ignored")
class _WindowIgnored(_OtherWindow):
    pass


@fault("window-off-by-one")
class _WindowOffByOne(_OtherWindow):
    def seen(self, window: int) -> int:
        return window + 1


@fault("window-short-by-one")
class _WindowShortByOne(_OtherWindow):
    def seen(self, window: int) -> int:
        return max(window - 1, 1)


@fault("window-fixed")
class _WindowFixed(_OtherWindow):
    def seen(self, window: int) -> int:
        return 3


@fault("window-ignored-in-cache")
class _WindowIgnoredInCache(WrongThroughCache):
    decoder = _WindowIgnored


@fault("window-cache-cut-early")
class _WindowCacheCutEarly(NumpyBlock):
    def extend_cache(self, cache: KeyValues | None, new: KeyValues) -> KeyValues:
        # The last query of the chunk has its whole window; those before it have lost the oldest keys of theirs.
        together = super().extend_cache(cache, new)
        if self.config.window is None:
            return together
        kept = slice(-max(self.config.window, new.key.shape[2]), None)
        return KeyValues(together.key[:, :, kept], together.value[:, :, kept])


# --- norms of queries and keys ----------------------------------------------------------------------------------------


@fault("qk-norm-missing")
class _QkNormMissing(NumpyBlock):
    def norm_heads(self, a: Features, name: str, heads: int) -> tuple[Features, Pullback]:
        return a, chain()


@fault("qk-norm-after-rotary")
class _QkNormAfterRotary(_QkNormMissing):
    def queries(self, n: Stream, positions: Positions) -> tuple[Heads, Pullback]:
        return self._normed(*super().queries(n, positions), "attention.query_norm")

    def keys(self, n: Stream, positions: Positions) -> tuple[KvHeads, Pullback]:
        return self._normed(*super().keys(n, positions), "attention.key_norm")

    def _normed(self, turned: Heads, pullback: Pullback, name: str) -> tuple[Heads, Pullback]:
        batch, heads, tokens, width = turned.shape
        beside = turned.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)
        normed, pull_norm = NumpyBlock.norm_heads(self, beside, name, heads)
        split, pull_split = self.split_heads(normed, heads)

        def pull_beside(cotangent: Features, _: Gradients) -> Heads:
            return cotangent.reshape(batch, tokens, heads, width).transpose(0, 2, 1, 3)

        return split, chain(pullback, pull_beside, pull_norm, pull_split)


class _GainRepeated(NumpyBlock):
    """Norms of queries and keys by other statistics than their gain is wide."""

    def norm_heads(self, a: Features, name: str, heads: int) -> tuple[Features, Pullback]:
        batch, tokens, width = a.shape
        apart = self.normed_apart(heads)
        rows = a.reshape(batch, tokens * apart, width // apart)
        core, pull_core = self.standardize(rows, self.config.norm_eps)
        # The gain is applied as the right block applies it.
        right = heads if self.config.qk_norm == "head" else 1
        affine = core.reshape(batch, tokens * right, width // right)
        value, pull_affine = self.affine(affine, name)

        def pullback(cotangent: Features, gradients: Gradients) -> Features:
            to_core = pull_affine(cotangent.reshape(affine.shape), gradients)
            return pull_core(to_core.reshape(rows.shape), gradients).reshape(cotangent.shape)

        return value.reshape(a.shape), pullback


@fault("qk-norm-over-all-heads")
class _QkNormOverAllHeads(_GainRepeated):
    def normed_apart(self, heads: int) -> int:
        return 1


@fault("qk-norm-per-head")
class _QkNormPerHead(_GainRepeated):
    def normed_apart(self, heads: int) -> int:
        return heads


@fault("qk-norm-on-values")
class _QkNormOnValues(NumpyBlock):
    def project_value(self, n: Stream) -> tuple[Features, Pullback]:
        value, pull_value = super().project_value(n)
        batch, tokens, width = value.shape
        apart = self.normed_apart(self.config.n_kv_heads)
        rows = value.reshape(batch, tokens * apart, width // apart)
        core, pull_core = self.standardize(rows, self.config.norm_eps)
        return core.reshape(value.shape), chain(pull_value, partial(self.pull_norm_heads, pull_core, rows.shape))


@fault("qk-gain-shared")
class _QkGainShared(NumpyBlock):
    def norm_key(self, a: Features) -> tuple[Features, Pullback]:
        return self.norm_heads(a, "attention.query_norm", self.config.n_kv_heads)


# --- a part of each head that is turned -------------------------------------------------------------------------------


class _OtherRotaryFraction(NumpyBlock):
    """Another share of each head is turned; as it is, all of it."""

    @property
    def turned(self) -> int:
        return self.config.d_head

    def rotary_frequencies(self) -> Frequencies:
        exponents = -np.arange(0, self.turned, 2) / self.turned
        frequencies: np.ndarray = self.config.rotary_base**exponents
        return frequencies.astype(self.precision.computing)

    def rotary_pairs(self) -> tuple[slice, slice]:
        if self.config.rotary == "interleaved":
            return slice(0, self.turned, 2), slice(1, self.turned, 2)
        half = self.turned // 2
        return slice(None, half), slice(half, self.turned)


@fault("rotary-fraction-ignored")
class _RotaryFractionIgnored(_OtherRotaryFraction):
    pass


@fault("rotary-fraction-fixed")
class _RotaryFractionFixed(_OtherRotaryFraction):
    @property
    def turned(self) -> int:
        return 2 * max(1, self.config.d_head // 4)


@fault("rotary-fraction-exponent-by-d-head")
class _RotaryFractionExponentByDHead(NumpyBlock):
    def rotary_frequencies(self) -> Frequencies:
        exponents = -np.arange(0, self.config.d_rotary, 2) / self.config.d_head
        frequencies: np.ndarray = self.config.rotary_base**exponents
        return frequencies.astype(self.precision.computing)


@fault("rotary-turns-last-features")
class _RotaryTurnsLastFeatures(NumpyBlock):
    def rotary_pairs(self) -> tuple[slice, slice]:
        first, second = super().rotary_pairs()
        away = self.config.d_head - self.config.d_rotary
        return self._moved(first, away), self._moved(second, away)

    def _moved(self, part: slice, away: int) -> slice:
        return slice((part.start or 0) + away, part.stop + away, part.step)


@fault("rotary-fraction-pairs-across-head")
class _RotaryFractionPairsAcrossHead(NumpyBlock):
    def rotary_pairs(self) -> tuple[slice, slice]:
        pairs, half = self.config.d_rotary // 2, self.config.d_head // 2
        return slice(None, pairs), slice(half, half + pairs)


# --- biases on query, key and value -----------------------------------------------------------------------------------


@fault("qkv-bias-dropped")
class _QkvBiasDropped(NumpyBlock):
    def has(self, name: str) -> bool:
        return super().has(name) and name not in (
            "attention.query_bias",
            "attention.key_bias",
            "attention.value_bias",
        )
