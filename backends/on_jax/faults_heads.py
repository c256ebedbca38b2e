"""Faults of the heads and of the projections around them.

Must hold: each class overrides a projection, the splitting, repeating or merging of heads, or what attends to what, and
nothing else. None may fail where the sizes do not happen to fit: what is read in the wrong order is read to its end.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.fault_tools import without
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import Parameters
from blocklaws.backends.on_jax.steps import Steps


@fault("heads-not-transposed")
class HeadsNotTransposed(Steps):
    def split_heads(self, a: jax.Array, heads: int) -> jax.Array:
        return a.reshape(a.shape[0], heads, a.shape[1], self.config.d_head)


@fault("merge-not-transposed")
class MergeNotTransposed(Steps):
    def merge_heads(self, a: jax.Array) -> jax.Array:
        batch, heads, tokens, d_head = a.shape
        return a.reshape(batch, tokens, heads * d_head)


@fault("heads-interleaved")
class HeadsInterleaved(Steps):
    def split_heads(self, a: jax.Array, heads: int) -> jax.Array:
        batch, tokens, _ = a.shape
        return a.reshape(batch, tokens, self.config.d_head, heads).transpose(0, 3, 1, 2)


@fault("heads-merged-in-reverse")
class HeadsMergedInReverse(Steps):
    def merge_heads(self, a: jax.Array) -> jax.Array:
        return super().merge_heads(a[:, ::-1])


@fault("head-weights-shared")
class HeadWeightsShared(Steps):
    def project_query(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        first = super().project_query(parameters, n)[..., : self.config.d_head]
        return jnp.tile(first, self.config.n_heads)


@fault("batch-and-tokens-swapped")
class BatchAndTokensSwapped(Steps):
    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array
    ) -> tuple[jax.Array | None, jax.Array]:
        # The slots of a cache are no batch, and a softmax over no sequences has no maximum.
        if key.shape[2] != query.shape[2] or query.shape[0] == 0:
            return super().attend(query, key, value, visible)
        sequences = jnp.arange(query.shape[0], dtype=jnp.int32)
        query, key, value = query.swapaxes(0, 2), key.swapaxes(0, 2), value.swapaxes(0, 2)
        # The weights have other axes than the stage of that name, so they are not shown.
        return None, super().attend(query, key, value, self.visible(sequences, sequences))[1].swapaxes(0, 2)


@fault("value-from-key")
class ValueFromKey(Steps):
    def project_value(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return self.project_key(parameters, n)


@fault("query-key-swapped")
class QueryKeySwapped(Steps):
    def project_query(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().project_key(parameters, n)

    def project_key(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().project_query(parameters, n)


@fault("fused-split-by-group")
class FusedSplitByGroup(Steps):
    def project_key(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return self._first_of(super().project_value(parameters, n), super().project_key(parameters, n))

    def project_value(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return self._first_of(super().project_key(parameters, n), super().project_value(parameters, n))

    def _first_of(self, first: jax.Array, rest: jax.Array) -> jax.Array:
        """Return the columns of the first head of one and of the other heads of the other."""
        d_head = self.config.d_head
        return jnp.concatenate([first[..., :d_head], rest[..., d_head:]], axis=-1)


@fault("output-matrix-transposed")
class OutputMatrixTransposed(Steps):
    def project_output(self, parameters: Parameters, a: jax.Array) -> jax.Array:
        matrix = parameters["attention.output"]
        # Where it is not square, its transpose is read in the shape that fits.
        return super().project_output({**parameters, "attention.output": matrix.T.reshape(matrix.shape)}, a)


@fault("output-projection-skipped")
class OutputProjectionSkipped(Steps):
    def project_output(self, parameters: Parameters, a: jax.Array) -> jax.Array:
        # Cut, or filled with zeros, to the width of the stream.
        missing = max(0, self.config.d_model - a.shape[-1])
        return jnp.pad(a, ((0, 0), (0, 0), (0, missing)))[..., : self.config.d_model]


@fault("query-bias-missing")
class QueryBiasMissing(Steps):
    def project_query(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().project_query(without(parameters, "attention.query_bias"), n)


@fault("value-bias-missing")
class ValueBiasMissing(Steps):
    def project_value(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().project_value(without(parameters, "attention.value_bias"), n)


@fault("output-bias-missing")
class OutputBiasMissing(Steps):
    def project_output(self, parameters: Parameters, a: jax.Array) -> jax.Array:
        return super().project_output(without(parameters, "attention.output_bias"), a)


@fault("kv-heads-tiled")
class KvHeadsTiled(Steps):
    def repeat_heads(self, a: jax.Array) -> jax.Array:
        return jnp.tile(a, (1, self.config.group, 1, 1))


@fault("query-heads-averaged")
class QueryHeadsAveraged(Steps):
    def scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        batch, _, tokens, d_head = query.shape
        grouped = query.reshape(batch, self.config.n_kv_heads, self.config.group, tokens, d_head)
        return super().scores(self.repeat_heads(jnp.mean(grouped, axis=2)), key)


@fault("kv-head-off-by-one")
class KvHeadOffByOne(Steps):
    def repeat_heads(self, a: jax.Array) -> jax.Array:
        read = (jnp.arange(self.config.n_heads) + 1) // self.config.group
        return a[:, jnp.minimum(read, self.config.n_kv_heads - 1)]


@fault("one-kv-head-for-all")
class OneKvHeadForAll(Steps):
    def repeat_heads(self, a: jax.Array) -> jax.Array:
        return jnp.repeat(a[:, :1], self.config.n_heads, axis=1)


@fault("value-heads-tiled")
class ValueHeadsTiled(Steps):
    def mix(self, weights: jax.Array, value: jax.Array) -> jax.Array:
        group = self.config.group
        return super().mix(weights, jnp.tile(value[:, ::group], (1, group, 1, 1)))


@fault("kv-gradient-wrong-group")
class KvGradientWrongGroup(Steps):
    def repeat_heads(self, a: jax.Array) -> jax.Array:
        # Tiled as far as gradients go: the difference is zero in value.
        tiled = jnp.tile(a, (1, self.config.group, 1, 1))
        return jax.lax.stop_gradient(super().repeat_heads(a) - tiled) + tiled


@fault("qkv-bias-dropped")
class QkvBiasDropped(Steps):
    def project_query(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().project_query(without(parameters, "attention.query_bias"), n)

    def project_key(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().project_key(without(parameters, "attention.key_bias"), n)

    def project_value(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        return super().project_value(without(parameters, "attention.value_bias"), n)
