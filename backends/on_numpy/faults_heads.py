"""Blocks whose projections or heads are wrong: how heads are split, merged and repeated, and which matrix is read."""

from functools import partial

import numpy as np
from jaxtyping import Int

from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.cache import Call, KeyValues
from blocklaws.backends.on_numpy.fault_registry import fault
from blocklaws.backends.on_numpy.shapes import (
    Features,
    Heads,
    KeyHeads,
    KvKeyHeads,
    Numbers,
    QueryHeads,
    Scores,
    Stream,
)
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, chain

HeadIndex = Int[np.ndarray, " head"]

# --- splitting and merging --------------------------------------------------------------------------------------------


@fault("heads-not-transposed")
class _HeadsNotTransposed(NumpyBlock):
    def split_heads(self, a: Features, heads: int) -> tuple[Heads, Pullback]:
        batch, tokens, width = a.shape
        return a.reshape(batch, heads, tokens, width // heads), self.pull_split_heads

    def pull_split_heads(self, cotangent: Heads, _: Gradients) -> Features:
        batch, heads, tokens, width = cotangent.shape
        return cotangent.reshape(batch, tokens, heads * width)


@fault("merge-not-transposed")
class _MergeNotTransposed(NumpyBlock):
    def merge_heads(self, a: Heads) -> tuple[Features, Pullback]:
        batch, heads, tokens, width = a.shape
        return a.reshape(batch, tokens, heads * width), lambda cotangent, _: cotangent.reshape(a.shape)


@fault("heads-interleaved")
class _HeadsInterleaved(NumpyBlock):
    def split_heads(self, a: Features, heads: int) -> tuple[Heads, Pullback]:
        batch, tokens, width = a.shape
        return a.reshape(batch, tokens, width // heads, heads).transpose(0, 3, 1, 2), self.pull_split_heads

    def pull_split_heads(self, cotangent: Heads, _: Gradients) -> Features:
        batch, heads, tokens, width = cotangent.shape
        return cotangent.transpose(0, 2, 3, 1).reshape(batch, tokens, heads * width)


@fault("heads-merged-in-reverse")
class _HeadsMergedInReverse(NumpyBlock):
    def merge_heads(self, a: Heads) -> tuple[Features, Pullback]:
        return super().merge_heads(a[:, ::-1])

    def pull_merge_heads(self, cotangent: Features, gradients: Gradients) -> Heads:
        return super().pull_merge_heads(cotangent, gradients)[:, ::-1]


@fault("batch-and-tokens-swapped")
class _BatchAndTokensSwapped(NumpyBlock):
    def attention(self, n: Stream, call: Call) -> tuple[Stream, Pullback]:
        batch = len(n)
        if batch == 0:
            return super().attention(n, call)
        swapped = Call(self.positions(batch, int(call.positions[0])))
        branch, pullback = super().attention(n.swapaxes(0, 1), swapped)
        # The stages between have the shapes of a swapped batch, which no other block has: they are not shown.
        call.stages["attention_branch"] = branch.swapaxes(0, 1)
        assert swapped.present is not None
        key, value = swapped.present.key.swapaxes(0, 2), swapped.present.value.swapaxes(0, 2)
        call.present = self.extend_cache(call.past, KeyValues(key, value))
        return branch.swapaxes(0, 1), lambda cotangent, gradients: pullback(
            cotangent.swapaxes(0, 1), gradients
        ).swapaxes(0, 1)


# --- which matrix is read ---------------------------------------------------------------------------------------------


@fault("head-weights-shared")
class _HeadWeightsShared(NumpyBlock):
    def project_query(self, n: Stream) -> tuple[Features, Pullback]:
        value, pullback = super().project_query(n)
        heads, width = self.config.n_heads, self.config.d_head

        def pull_tiled(cotangent: np.ndarray, _: Gradients) -> np.ndarray:
            result = np.zeros_like(cotangent)
            result[..., :width] = cotangent.reshape(*cotangent.shape[:-1], heads, width).sum(-2)
            return result

        return np.tile(value[..., :width], heads), chain(pullback, pull_tiled)


@fault("value-from-key")
class _ValueFromKey(NumpyBlock):
    def project_value(self, n: Stream) -> tuple[Features, Pullback]:
        return self.linear(n, "attention.key")


@fault("query-key-swapped")
class _QueryKeySwapped(NumpyBlock):
    def project_query(self, n: Stream) -> tuple[Features, Pullback]:
        return self.linear(n, "attention.key")

    def project_key(self, n: Stream) -> tuple[Features, Pullback]:
        return self.linear(n, "attention.query")


@fault("fused-split-by-group")
class _FusedSplitByGroup(NumpyBlock):
    def project_key(self, n: Stream) -> tuple[Features, Pullback]:
        return self._first_head_from(n, "attention.key", "attention.value")

    def project_value(self, n: Stream) -> tuple[Features, Pullback]:
        return self._first_head_from(n, "attention.value", "attention.key")

    def _first_head_from(self, n: Stream, name: str, other: str) -> tuple[Features, Pullback]:
        value, pullback = self.linear(n, name)
        first, pull_first = self.linear(n, other)
        from_other = np.arange(value.shape[-1]) < self.config.d_head

        def pull_joined(cotangent: np.ndarray, gradients: Gradients) -> np.ndarray:
            return pullback(cotangent * ~from_other, gradients) + pull_first(cotangent * from_other, gradients)

        return np.where(from_other, first, value), pull_joined


@fault("output-matrix-transposed")
class _OutputMatrixTransposed(NumpyBlock):
    def project_output(self, a: Features) -> tuple[Stream, Pullback]:
        # A matrix that is not square is read as if it had been stored as [out, in].
        stored = self.parameter("attention.output")
        matrix = stored.reshape(stored.shape[::-1]).T
        value = a @ matrix
        if self.has("attention.output_bias"):
            value = value + self.parameter("attention.output_bias")

        def pullback(cotangent: np.ndarray, gradients: Gradients) -> np.ndarray:
            super(_OutputMatrixTransposed, self).pull_linear(a, "attention.output", cotangent, gradients)
            gradient = gradients["attention.output"]
            gradients["attention.output"] = gradient.T.reshape(gradient.shape)
            result: np.ndarray = cotangent @ matrix.T
            return result

        return self.rounded(value, pullback)


@fault("output-projection-skipped")
class _OutputProjectionSkipped(NumpyBlock):
    def project_output(self, a: Features) -> tuple[Stream, Pullback]:
        # Where the widths differ, what is missing is zero and what is too much is cut.
        return _resized(a, self.config.d_model), lambda cotangent, _: _resized(cotangent, a.shape[-1])


def _resized(a: Numbers, width: int) -> Numbers:
    result = np.zeros((*a.shape[:-1], width), a.dtype)
    common = min(width, a.shape[-1])
    result[..., :common] = a[..., :common]
    return result


class _BiasIgnored(NumpyBlock):
    ignored: str

    def has(self, name: str) -> bool:
        return super().has(name) and name != self.ignored


@fault("query-bias-missing")
class _QueryBiasMissing(_BiasIgnored):
    ignored = "attention.query_bias"


@fault("value-bias-missing")
class _ValueBiasMissing(_BiasIgnored):
    ignored = "attention.value_bias"


@fault("output-bias-missing")
class _OutputBiasMissing(_BiasIgnored):
    ignored = "attention.output_bias"


# --- which key/value head a query head reads --------------------------------------------------------------------------


class _HeadsRead(NumpyBlock):
    def heads_read(self) -> HeadIndex:
        """Return the key/value head that each query head reads."""
        return np.arange(self.config.n_heads) % self.config.n_kv_heads

    def repeat_heads(self, a: KvKeyHeads) -> tuple[KeyHeads, Pullback]:
        return self.rounded(a[:, self.heads_read()], partial(_pull_heads_read, self.heads_read(), a.shape[1]))


def _pull_heads_read(read: HeadIndex, heads: int, cotangent: KeyHeads, _: Gradients) -> KvKeyHeads:
    batch, _heads, keys, width = cotangent.shape
    result = np.zeros((batch, heads, keys, width), cotangent.dtype)
    # Some heads may be read more than once, which fancy assignment would count once.
    np.add.at(result.swapaxes(0, 1), read, cotangent.swapaxes(0, 1))
    return result


@fault("kv-heads-tiled")
class _KvHeadsTiled(_HeadsRead):
    pass


@fault("kv-head-off-by-one")
class _KvHeadOffByOne(_HeadsRead):
    def heads_read(self) -> HeadIndex:
        shifted = (np.arange(self.config.n_heads) + 1) // self.config.group
        return np.minimum(shifted, self.config.n_kv_heads - 1)


@fault("one-kv-head-for-all")
class _OneKvHeadForAll(_HeadsRead):
    def heads_read(self) -> HeadIndex:
        return np.zeros(self.config.n_heads, int)


@fault("value-heads-tiled")
class _ValueHeadsTiled(NumpyBlock):
    def mix(self, weights: Scores, value: KeyHeads) -> tuple[QueryHeads, PullbackOfTwo]:
        # The values come repeated: every group-th head is one of its own.
        read = np.arange(self.config.n_heads) % self.config.n_kv_heads * self.config.group
        mixed, pullback = super().mix(weights, value[:, read])

        def pull_tiled(cotangent: np.ndarray, gradients: Gradients) -> tuple[np.ndarray, np.ndarray]:
            to_weights, to_value = pullback(cotangent, gradients)
            return to_weights, _pull_heads_read(read, self.config.n_heads, to_value, gradients)

        return mixed, pull_tiled


@fault("query-heads-averaged")
class _QueryHeadsAveraged(NumpyBlock):
    def scores(self, query: QueryHeads, key: KeyHeads) -> tuple[Scores, PullbackOfTwo]:
        return super().scores(self._averaged(query), key)

    def pull_scores(
        self, query: QueryHeads, key: KeyHeads, scale: float, cotangent: Scores, gradients: Gradients
    ) -> tuple[QueryHeads, KeyHeads]:
        to_query, to_key = super().pull_scores(query, key, scale, cotangent, gradients)
        return self._averaged(to_query), to_key

    def _averaged(self, query: QueryHeads) -> QueryHeads:
        batch, heads, tokens, width = query.shape
        grouped = query.reshape(batch, heads // self.config.group, self.config.group, tokens, width)
        return np.repeat(grouped.mean(2), self.config.group, axis=1)
