"""Faults of the heads and the projections: how heads are cut, joined and shared, and which matrix makes what."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import ExplicitAttention


class HeadsNotTransposed(DecoderBlock):
    """[batch, token, heads d_head] read as [batch, heads, token, d_head]."""

    def split_heads(self, a: Tensor, heads: int) -> Tensor:
        return a.reshape(a.shape[0], heads, a.shape[1], self.config.d_head)


class MergeNotTransposed(DecoderBlock):
    """[batch, heads, token, d_head] read as [batch, token, heads d_head]."""

    def merge_heads(self, a: Tensor) -> Tensor:
        return a.reshape(a.shape[0], a.shape[2], a.shape[1] * a.shape[3])


class HeadsInterleaved(DecoderBlock):
    """Columns are dealt to the heads in turn."""

    def split_heads(self, a: Tensor, heads: int) -> Tensor:
        return a.view(*a.shape[:-1], self.config.d_head, heads).permute(0, 3, 1, 2)


class HeadsMergedInReverse(DecoderBlock):
    """The last head comes first."""

    def merge_heads(self, a: Tensor) -> Tensor:
        return super().merge_heads(a.flip(1))


class HeadWeightsShared(DecoderBlock):
    """The first head's queries, for each head."""

    def project_query(self, n: Tensor) -> Tensor:
        return super().project_query(n)[..., : self.config.d_head].repeat(1, 1, self.config.n_heads)


class BatchAndTokensSwapped(DecoderBlock):
    """Each token attends to the same token of the sequences up to its own."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        tokens = query.shape[2]
        sequences = self.positions(query.shape[0], 0)
        # Tokens of earlier calls have no queries here to be paired with.
        query, key, value = (a[:, :, -tokens:].transpose(0, 2) for a in (query, key, value))
        return super().attend(query, key, value, self.visible(sequences, sequences)).transpose(0, 2)


class ValueFromKey(DecoderBlock):
    """n W_k for values."""

    def project_value(self, n: Tensor) -> Tensor:
        return self.project_key(n)


class QueryKeySwapped(DecoderBlock):
    """n W_k for queries, n W_q for keys."""

    def project_query(self, n: Tensor) -> Tensor:
        return super().project_key(n)

    def project_key(self, n: Tensor) -> Tensor:
        return super().project_query(n)


class FusedSplitByGroup(DecoderBlock):
    """The first head's keys are its values, and the reverse."""

    def project_key(self, n: Tensor) -> Tensor:
        width = self.config.d_head
        return torch.cat((super().project_value(n)[..., :width], super().project_key(n)[..., width:]), dim=-1)

    def project_value(self, n: Tensor) -> Tensor:
        width = self.config.d_head
        return torch.cat((super().project_key(n)[..., :width], super().project_value(n)[..., width:]), dim=-1)


class OutputMatrixTransposed(DecoderBlock):
    """a W_o^T; where W_o is not square, its memory read in the other order."""

    def project_output(self, a: Tensor) -> Tensor:
        stored = self.output_projection.weight
        return F.linear(a, stored.T.reshape(stored.shape), self.output_projection.bias)


class OutputProjectionSkipped(DecoderBlock):
    """The joined heads, cut or padded with zeros to d_model."""

    def project_output(self, a: Tensor) -> Tensor:
        return F.pad(a, (0, self.config.d_model - a.shape[-1]))


class QueryBiasMissing(DecoderBlock):
    """n W_q."""

    def project_query(self, n: Tensor) -> Tensor:
        return F.linear(n, self.query_projection.weight)


class ValueBiasMissing(DecoderBlock):
    """n W_v."""

    def project_value(self, n: Tensor) -> Tensor:
        return F.linear(n, self.value_projection.weight)


class OutputBiasMissing(DecoderBlock):
    """a W_o."""

    def project_output(self, a: Tensor) -> Tensor:
        return F.linear(a, self.output_projection.weight)


class KvHeadsTiled(DecoderBlock):
    """Query head i reads head i mod n_kv_heads."""

    def repeat_heads(self, a: Tensor) -> Tensor:
        return a.repeat(1, self.config.group, 1, 1)


class QueryHeadsAveraged(ExplicitAttention):
    """The heads of a group have one query."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        grouped = query.unflatten(1, (self.config.n_kv_heads, self.config.group))  # type: ignore[no-untyped-call]
        return super().scores(grouped.mean(2).repeat_interleave(self.config.group, dim=1), key)


class KvHeadOffByOne(DecoderBlock):
    """Query head i reads head (i + 1) // group."""

    def repeat_heads(self, a: Tensor) -> Tensor:
        heads = torch.arange(1, self.config.n_heads + 1, device=a.device) // self.config.group
        return a.index_select(1, heads.clamp(max=self.config.n_kv_heads - 1))


class OneKvHeadForAll(DecoderBlock):
    """Query head i reads head 0."""

    def repeat_heads(self, a: Tensor) -> Tensor:
        return a[:, :1].repeat(1, self.config.n_heads, 1, 1)


class ValueHeadsTiled(ExplicitAttention):
    """Keys by i // group, values by i mod n_kv_heads."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value[:, :: self.config.group].repeat(1, self.config.group, 1, 1))


class QkvBiasDropped(DecoderBlock):
    """n W_q, n W_k, n W_v."""

    def project_query(self, n: Tensor) -> Tensor:
        return F.linear(n, self.query_projection.weight)

    def project_key(self, n: Tensor) -> Tensor:
        return F.linear(n, self.key_projection.weight)

    def project_value(self, n: Tensor) -> Tensor:
        return F.linear(n, self.value_projection.weight)
