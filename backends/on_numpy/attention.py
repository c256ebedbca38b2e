"""The attention branch: causal, many heads, key/value heads shared by groups of query heads.

Must hold: a query looks at keys of its own and of earlier positions only, and where there is a window at the last of
them. A hidden key has a weight of exactly zero, whatever finite value it has: hidden scores are replaced, not added to.
Rows are computed by plain matrix products, so that a row does not depend, by as much as a rounding, on what other rows
hold.

Sources: Vaswani et al. 2017, section 3.2; groups, Ainslie et al. 2023 (GQA), section 2.2; windows, Jiang et al. 2023
(Mistral 7B), section 2; capped scores, Gemma Team 2024 (Gemma 2), section 2.
"""

import math
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from blocklaws.backends.on_numpy.cache import Call, KeyValues
from blocklaws.backends.on_numpy.norms import NormSteps
from blocklaws.backends.on_numpy.rotary import RotarySteps
from blocklaws.backends.on_numpy.shapes import (
    Features,
    Heads,
    KeyHeads,
    KeyPositions,
    KvHeads,
    KvKeyHeads,
    Positions,
    QueryHeads,
    QueryPositions,
    Scores,
    Stream,
    Visible,
)
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, PullbackOfTwo, chain

__all__ = ["AttentionSteps"]


class AttentionSteps(NormSteps, RotarySteps):
    """The steps of the attention branch, each with its pullback."""

    # --- projections and heads ---------------------------------------------------------------------------------------

    def project_query(self, n: Stream) -> tuple[Features, Pullback]:
        """Return ``n W_q + b``, all query heads side by side."""
        return self.linear(n, "attention.query")

    def project_key(self, n: Stream) -> tuple[Features, Pullback]:
        """Return ``n W_k + b``, all key/value heads side by side."""
        return self.linear(n, "attention.key")

    def project_value(self, n: Stream) -> tuple[Features, Pullback]:
        """Return ``n W_v + b``, all key/value heads side by side."""
        return self.linear(n, "attention.value")

    def project_output(self, a: Features) -> tuple[Stream, Pullback]:
        """Return ``a W_o + b`` for the joined heads."""
        return self.linear(a, "attention.output")

    def split_heads(self, a: Features, heads: int) -> tuple[Float[np.ndarray, "batch {heads} token d_head"], Pullback]:
        """Return the heads as an axis: head i is columns ``i d_head`` to ``(i + 1) d_head``."""
        batch, tokens, width = a.shape
        value = a.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)
        return value, self.pull_split_heads

    def pull_split_heads(self, cotangent: Heads, _: Gradients) -> Features:
        """Return the cotangents of the heads, side by side."""
        batch, heads, tokens, width = cotangent.shape
        return cotangent.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)

    def merge_heads(self, a: Heads) -> tuple[Features, Pullback]:
        """Return the heads side by side, in order."""
        batch, heads, tokens, width = a.shape
        value = a.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)
        return value, self.pull_merge_heads

    def pull_merge_heads(self, cotangent: Features, _: Gradients) -> Heads:
        """Return the cotangent of each query head."""
        batch, tokens, width = cotangent.shape
        heads = self.config.n_heads
        return cotangent.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)

    def repeat_heads(self, a: KvKeyHeads) -> tuple[KeyHeads, Pullback]:
        """Return the key or value that each query head reads: query head i reads head ``i // group``."""
        value = a if self.config.group == 1 else np.repeat(a, self.config.group, axis=1)
        return self.rounded(value, self.pull_repeat_heads)

    def pull_repeat_heads(self, cotangent: KeyHeads, _: Gradients) -> KvKeyHeads:
        """Return the cotangent of each key/value head: the sum over the query heads of its group."""
        batch, heads, keys, width = cotangent.shape
        grouped = cotangent.reshape(batch, heads // self.config.group, self.config.group, keys, width)
        result: np.ndarray = grouped.sum(2)
        return result

    # --- positions and cache -----------------------------------------------------------------------------------------

    def positions(self, tokens: int, offset: int) -> Int[np.ndarray, "{tokens}"]:
        """Return the positions of the tokens of this call."""
        return np.arange(offset, offset + tokens)

    def queries(self, n: Stream, positions: Positions) -> tuple[Heads, Pullback]:
        """Return the queries: projected, normed, split and turned."""
        projected, pull_project = self.project_query(n)
        normed, pull_norm = self.norm_query(projected)
        split, pull_split = self.split_heads(normed, self.config.n_heads)
        turned, pull_turn = self.place(split, positions)
        return turned, chain(pull_project, pull_norm, pull_split, pull_turn)

    def keys(self, n: Stream, positions: Positions) -> tuple[KvHeads, Pullback]:
        """Return the keys of this call: projected, normed, split and turned."""
        projected, pull_project = self.project_key(n)
        normed, pull_norm = self.norm_key(projected)
        split, pull_split = self.split_heads(normed, self.config.n_kv_heads)
        turned, pull_turn = self.place(split, positions)
        return turned, chain(pull_project, pull_norm, pull_split, pull_turn)

    def values(self, n: Stream, positions: Positions) -> tuple[KvHeads, Pullback]:
        """Return the values of this call: projected and split; their positions do not matter."""
        projected, pull_project = self.project_value(n)
        value, pull_split = self.split_heads(projected, self.config.n_kv_heads)
        return value, chain(pull_project, pull_split)

    def extend_cache(self, cache: KeyValues | None, new: KeyValues) -> KeyValues:
        """Return all keys and values so far: those of earlier calls, then those of this one."""
        if cache is None:
            return new
        return KeyValues(np.concatenate((cache.key, new.key), axis=2), np.concatenate((cache.value, new.value), axis=2))

    # --- scores, weights and their mixture ---------------------------------------------------------------------------

    def score_scale(self) -> float:
        """Return what a score is multiplied by: ``1 / sqrt(d_head)``."""
        return 1 / math.sqrt(self.config.d_head)

    def scores(self, query: QueryHeads, key: KeyHeads) -> tuple[Scores, PullbackOfTwo]:
        """Return the scaled products of each query with each key."""
        scale = self.score_scale()
        return self.rounded((query @ key.swapaxes(-1, -2)) * scale, partial(self.pull_scores, query, key, scale))

    def pull_scores(
        self, query: QueryHeads, key: KeyHeads, scale: float, cotangent: Scores, _: Gradients
    ) -> tuple[QueryHeads, KeyHeads]:
        """Return the cotangents of the queries and of the keys."""
        scaled = cotangent * scale
        return scaled @ key, scaled.swapaxes(-1, -2) @ query

    def cap_scores(self, scores: Scores) -> tuple[Scores, Pullback]:
        """Return ``c tanh(scores / c)`` for the config's softcap c, and the scores as they are where it has none."""
        cap = self.config.softcap
        if cap is None:
            return scores, chain()
        bent = np.tanh(scores / cap)
        return self.rounded(cap * bent, partial(self.pull_cap_scores, bent))

    def pull_cap_scores(self, bent: Scores, cotangent: Scores, _: Gradients) -> Scores:
        """Return the cotangent of the scores: the slope of ``c tanh(s / c)`` is ``1 - tanh^2``."""
        result: np.ndarray = cotangent * (1 - bent * bent)
        return result

    def visible(self, query_positions: QueryPositions, key_positions: KeyPositions) -> Visible:
        """Return True where a query may look at a key: at its own position and at earlier ones, within the window."""
        seen: np.ndarray = key_positions <= query_positions[:, None]
        if self.config.window is not None:
            seen &= key_positions > query_positions[:, None] - self.config.window
        return seen

    def softmax(self, scores: Scores, visible: Visible) -> tuple[Scores, Pullback]:
        """Return the weights of the visible keys, which sum to one; hidden keys have exactly zero."""
        shown = np.where(visible, scores, -np.inf)
        # With the maximum subtracted no exponential is above one, and a hidden one is exp(-inf) = 0.
        exponentials = np.exp(shown - shown.max(-1, keepdims=True))
        weights = exponentials / exponentials.sum(-1, keepdims=True)
        return self.rounded(weights, partial(self.pull_softmax, weights))

    def pull_softmax(self, weights: Scores, cotangent: Scores, _: Gradients) -> Scores:
        """Return the cotangent of the scores: ``w (g - sum(w g))``, zero for a hidden key."""
        weighted = weights * cotangent
        result: np.ndarray = weighted - weights * weighted.sum(-1, keepdims=True)
        return result

    def mix(self, weights: Scores, value: KeyHeads) -> tuple[QueryHeads, PullbackOfTwo]:
        """Return the mixture of the values by the weights."""
        return self.rounded(weights @ value, partial(self.pull_mix, weights, value))

    def pull_mix(
        self, weights: Scores, value: KeyHeads, cotangent: QueryHeads, _: Gradients
    ) -> tuple[Scores, KeyHeads]:
        """Return the cotangents of the weights and of the values."""
        return cotangent @ value.swapaxes(-1, -2), weights.swapaxes(-1, -2) @ cotangent

    def attention(self, n: Stream, call: Call) -> tuple[Stream, Pullback]:
        """Return the branch; the keys and values of earlier calls come from ``call`` and all so far are left there."""
        query, pull_query = self.queries(n, call.positions)
        key, pull_key = self.keys(n, call.positions)
        value, pull_value = self.values(n, call.positions)
        call.stages.update(query=query, key=key, value=value)
        call.present = self.extend_cache(call.past, KeyValues(key, value))
        repeated_key, pull_repeat_key = self.repeat_heads(call.present.key)
        repeated_value, pull_repeat_value = self.repeat_heads(call.present.value)
        # Keys are consecutive and the last one is this call's last token.
        end = int(call.positions[-1]) + 1
        key_positions = np.arange(end - repeated_key.shape[2], end)
        scores, pull_scores = self.scores(query, repeated_key)
        capped, pull_cap = self.cap_scores(scores)
        weights, pull_softmax = self.softmax(capped, self.visible(call.positions, key_positions))
        mixed, pull_mix = self.mix(weights, repeated_value)
        merged, pull_merge = self.merge_heads(mixed)
        branch, pull_output = self.project_output(merged)
        call.stages.update(attention_weights=weights, attention_branch=branch)
        pull_fork = partial(
            _pull_attention,
            pull_query,
            chain(pull_key, pull_repeat_key),
            chain(pull_value, pull_repeat_value),
            pull_scores,
            chain(pull_cap, pull_softmax),
            pull_mix,
        )
        return self.rounded(branch, chain(pull_fork, pull_merge, pull_output))


def _pull_attention(
    pull_query: Pullback,
    pull_key: Pullback,
    pull_value: Pullback,
    pull_scores: PullbackOfTwo,
    pull_softmax: Pullback,
    pull_mix: PullbackOfTwo,
    cotangent: Heads,
    gradients: Gradients,
) -> Stream:
    to_weights, to_value = pull_mix(cotangent, gradients)
    to_query, to_key = pull_scores(pull_softmax(to_weights, gradients), gradients)
    return pull_query(to_query, gradients) + pull_key(to_key, gradients) + pull_value(to_value, gradients)
