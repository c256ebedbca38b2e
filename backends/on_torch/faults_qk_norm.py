"""Faults of the norms of queries and keys: whether, when, over which features and with whose gain they are normed."""

from __future__ import annotations

from torch import Tensor, nn

from blocklaws.backends.on_torch.decoder import DecoderBlock


class QkNormMissing(DecoderBlock):
    """Queries and keys as they are projected."""

    def norm_heads(self, a: Tensor, affine: nn.Module) -> Tensor:
        return a


class QkNormAfterRotary(DecoderBlock):
    """Turned, then normed."""

    def norm_query(self, query: Tensor) -> Tensor:
        return query

    def norm_key(self, key: Tensor) -> Tensor:
        return key

    def rotate_query(self, query: Tensor, angles: Tensor) -> Tensor:
        turned = self.merge_heads(super().rotate_query(query, angles))
        return self.split_heads(super().norm_query(turned), self.config.n_heads)

    def rotate_key(self, key: Tensor, angles: Tensor) -> Tensor:
        turned = self.merge_heads(super().rotate_key(key, angles))
        return self.split_heads(super().norm_key(turned), self.config.n_kv_heads)


class QkNormOverAllHeads(DecoderBlock):
    """One scale for all heads of a token, and the gain of a head for each."""

    def norm_heads(self, a: Tensor, affine: nn.Module) -> Tensor:
        standard = self.standardize(a, self.config.norm_eps)
        heads = standard.view(*a.shape[:-1], a.shape[-1] // self.config.d_head, self.config.d_head)
        normed: Tensor = affine(heads)
        return normed.to(a.dtype).view(a.shape)


class QkNormPerHead(DecoderBlock):
    """A scale for each head of a token, and the gain of all of them."""

    def norm_heads(self, a: Tensor, affine: nn.Module) -> Tensor:
        heads = a.view(*a.shape[:-1], a.shape[-1] // self.config.d_head, self.config.d_head)
        normed: Tensor = affine(self.standardize(heads, self.config.norm_eps).view(a.shape))
        return normed.to(a.dtype)


class QkNormOnValues(DecoderBlock):
    """Values are standardized as queries and keys are."""

    def project_value(self, n: Tensor) -> Tensor:
        return self.norm_heads(super().project_value(n), nn.Identity())


class QkGainShared(DecoderBlock):
    """Keys are normed as queries."""

    def norm_key(self, key: Tensor) -> Tensor:
        return self.norm_query(key)
