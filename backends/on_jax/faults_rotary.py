"""Faults of the rotary positions: which pairs, which angles, which positions, and what is turned.

Must hold: each class overrides a step between `positions` and `turn`, and nothing else.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from blocklaws.backends.on_jax.fault_tools import rounded
from blocklaws.backends.on_jax.faults import fault
from blocklaws.backends.on_jax.numerics import wide
from blocklaws.backends.on_jax.steps import Steps


class _OtherLayout(Steps):
    @property
    def layout(self) -> Literal["interleaved", "half"] | None:
        return "half" if self.config.rotary == "interleaved" else "interleaved"


@fault("rotary-layout-swapped")
class RotaryLayoutSwapped(_OtherLayout):
    pass


@fault("rotary-layout-fixed")
class RotaryLayoutFixed(Steps):
    @property
    def layout(self) -> Literal["interleaved", "half"] | None:
        return "half"


@fault("rotary-angles-mispaired")
class RotaryAnglesMispaired(Steps):
    def rotate_pairs(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        by_feature = _OtherLayout(self.config).join_pairs(angles, angles).astype(wide(a).dtype)
        of_first, of_second = self.split_pairs(by_feature)
        first, second = self.split_pairs(wide(a))
        return self.join_pairs(
            first * jnp.cos(of_first) - second * jnp.sin(of_first),
            first * jnp.sin(of_second) + second * jnp.cos(of_second),
        ).astype(a.dtype)


@fault("rotary-frequency-off-by-one")
class RotaryFrequencyOffByOne(Steps):
    def rotary_frequencies(self) -> jax.Array:
        return super().rotary_frequencies() * float(self.config.rotary_base ** (2 / self.config.d_rotary))


@fault("rotary-base-fixed")
class RotaryBaseFixed(Steps):
    def rotary_frequencies(self) -> jax.Array:
        return Steps(self.config.replace(rotary_base=10000.0)).rotary_frequencies()


@fault("rotary-positions-over-heads")
class RotaryPositionsOverHeads(Steps):
    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        heads = jnp.arange(a.shape[1], dtype=jnp.int32)
        return super().rotate(a, self.rotary_angles(heads)[:, None, :])


@fault("value-rotated")
class ValueRotated(Steps):
    def turn(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        query, key, value = super().turn(query, key, value, positions)
        return query, key, self.rotate(value, self.rotary_angles(positions))


@fault("rotary-missing")
class RotaryMissing(Steps):
    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        return a


@fault("rotary-key-not-turned")
class RotaryKeyNotTurned(Steps):
    def turn(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        return super().turn(query, key, value, positions)[0], key, value


@fault("rotary-backwards")
class RotaryBackwards(Steps):
    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        return super().rotate(a, -angles)


@fault("rotary-key-backwards")
class RotaryKeyBackwards(Steps):
    def turn(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        turned = super().turn(query, key, value, positions)[0]
        return turned, self.rotate(key, -self.rotary_angles(positions)), value


@fault("rotary-sine-missing")
class RotarySineMissing(Steps):
    def rotate_pairs(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        cosine = jnp.cos(angles).astype(wide(a).dtype)
        first, second = self.split_pairs(wide(a))
        return self.join_pairs(first * cosine, second * cosine).astype(a.dtype)


@fault("rotary-angles-in-half")
class RotaryAnglesInHalf(Steps):
    def rotary_angles(self, positions: jax.Array) -> jax.Array:
        half = jnp.bfloat16
        position = rounded(positions[:, None].astype(jnp.float32), half)
        return rounded(position * rounded(self.rotary_frequencies().astype(jnp.float32), half), half)


@fault("rotary-frequencies-rounded")
class RotaryFrequenciesRounded(Steps):
    def rotary_frequencies(self) -> jax.Array:
        return rounded(super().rotary_frequencies(), jnp.bfloat16)


@fault("rotary-offset-ignored")
class RotaryOffsetIgnored(Steps):
    def positions(self, tokens: int, offset: jax.Array) -> jax.Array:
        return super().positions(tokens, jnp.zeros_like(offset))

    def positions_in_cache(self, tokens: int, offset: jax.Array) -> jax.Array:
        return super().positions(tokens, offset)


@fault("positions-from-one")
class PositionsFromOne(Steps):
    def positions(self, tokens: int, offset: jax.Array) -> jax.Array:
        return super().positions(tokens, offset) + 1


@fault("rotary-partial")
class RotaryPartial(Steps):
    def rotary_frequencies(self) -> jax.Array:
        frequencies = super().rotary_frequencies()
        turned = max(1, frequencies.size // 2)
        return jnp.where(jnp.arange(frequencies.size) < turned, frequencies, 0)


@fault("rotary-exponent-by-d-model")
class RotaryExponentByDModel(Steps):
    def rotary_frequencies(self) -> jax.Array:
        pair = jnp.arange(self.config.d_rotary // 2, dtype=jnp.float64)
        return self.config.rotary_base ** (-2.0 * pair / self.config.d_model)


@fault("positions-capped")
class PositionsCapped(Steps):
    def positions(self, tokens: int, offset: jax.Array) -> jax.Array:
        return jnp.minimum(super().positions(tokens, offset), 31)


@fault("cache-position-restarts")
class CachePositionRestarts(Steps):
    def positions_in_cache(self, tokens: int, offset: jax.Array) -> jax.Array:
        return super().positions(tokens, jnp.zeros_like(offset))


@fault("cache-query-position-zero")
class CacheQueryPositionZero(Steps):
    def turn_in_cache(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        from_zero = self.turn(query, key, value, positions - positions[0])[0]
        return from_zero, *self.turn(query, key, value, positions)[1:]


@fault("cache-keys-not-turned")
class CacheKeysNotTurned(Steps):
    def turn_in_cache(
        self, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        return self.turn(query, key, value, positions)[0], key, value


@fault("rotary-fraction-ignored")
class RotaryFractionIgnored(Steps):
    def rotary_frequencies(self) -> jax.Array:
        return Steps(self.config.replace(rotary_fraction=1.0)).rotary_frequencies()

    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        return self.rotate_pairs(a, angles)


@fault("rotary-fraction-fixed")
class RotaryFractionFixed(Steps):
    def rotary_frequencies(self) -> jax.Array:
        return Steps(self.config.replace(rotary_fraction=0.5)).rotary_frequencies()

    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        return Steps(self.config.replace(rotary_fraction=0.5)).rotate(a, angles)


@fault("rotary-fraction-exponent-by-d-head")
class RotaryFractionExponentByDHead(Steps):
    def rotary_frequencies(self) -> jax.Array:
        pair = jnp.arange(self.config.d_rotary // 2, dtype=jnp.float64)
        return self.config.rotary_base ** (-2.0 * pair / self.config.d_head)


@fault("rotary-turns-last-features")
class RotaryTurnsLastFeatures(Steps):
    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        stay = self.config.d_head - self.config.d_rotary
        return jnp.concatenate([a[..., :stay], self.rotate_pairs(a[..., stay:], angles)], axis=-1)


@fault("rotary-fraction-pairs-across-head")
class RotaryFractionPairsAcrossHead(Steps):
    def rotate(self, a: jax.Array, angles: jax.Array) -> jax.Array:
        # Every pair of the head, of which those without an angle stand still.
        still = (self.config.d_head - self.config.d_rotary) // 2
        return self.rotate_pairs(a, jnp.pad(angles, ((0, 0), (0, still))))
