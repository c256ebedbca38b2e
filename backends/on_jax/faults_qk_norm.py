"""Faults of the norms of queries and keys: whether, when, over which features and with whose gain they are normed.

Must hold: each class overrides `norm_query`, `norm_key` or `norm_heads`, or norms something else than these two.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages, wide
from blocklaws.backends.on_jax.steps import Steps


@fault("qk-norm-missing")
class QkNormMissing(Steps):
    def norm_heads(self, parameters: Parameters, name: str, a: jax.Array) -> jax.Array:
        return a


@dataclasses.dataclass(frozen=True)
class _NormsLate(Steps):
    """The steps of one call, which have its parameters at hand where queries and keys are turned."""

    parameters: Parameters = dataclasses.field(default_factory=dict)

    def norm_query(self, parameters: Parameters, query: jax.Array) -> jax.Array:
        return query

    def norm_key(self, parameters: Parameters, key: jax.Array) -> jax.Array:
        return key

    def turn(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        query, key, value = super().turn(query, key, value, positions)
        query = super().norm_query(self.parameters, self.merge_heads(query))
        key = super().norm_key(self.parameters, self.merge_heads(key))
        return self.split_heads(query, self.config.n_heads), self.split_heads(key, self.config.n_kv_heads), value


@fault("qk-norm-after-rotary")
class QkNormAfterRotary(Steps):
    def attention(
        self, parameters: Parameters, n: jax.Array, offset: jax.Array, cache: KeyValues | None
    ) -> tuple[Stages, KeyValues | None]:
        return _NormsLate(self.config, parameters).attention(parameters, n, offset, cache)


@fault("qk-norm-over-all-heads")
class QkNormOverAllHeads(Steps):
    def norm_heads(self, parameters: Parameters, name: str, a: jax.Array) -> jax.Array:
        heads = a.shape[-1] // self.config.d_head
        repeated = {each: jnp.tile(value, heads) for each, value in parameters.items() if each.startswith(name)}
        return Steps(self.config.replace(qk_norm="width")).norm_heads(repeated, name, a)


@fault("qk-norm-per-head")
class QkNormPerHead(Steps):
    def norm_heads(self, parameters: Parameters, name: str, a: jax.Array) -> jax.Array:
        heads = a.reshape(*a.shape[:-1], a.shape[-1] // self.config.d_head, self.config.d_head)
        standard = self.standardize(heads, self.config.norm_eps).reshape(a.shape)
        bias = parameters.get(f"{name}.bias")
        scaled = standard * wide(parameters[f"{name}.gain"])
        return (scaled if bias is None else scaled + wide(bias)).astype(a.dtype)


@fault("qk-norm-on-values")
class QkNormOnValues(Steps):
    def project_value(self, parameters: Parameters, n: jax.Array) -> jax.Array:
        value = super().project_value(parameters, n)
        return self.norm_heads({"plain.gain": jnp.ones((), n.dtype)}, "plain", value)


@fault("qk-gain-shared")
class QkGainShared(Steps):
    def norm_key(self, parameters: Parameters, key: jax.Array) -> jax.Array:
        return self.norm_query(parameters, key)
