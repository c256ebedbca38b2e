"""Faults of ``visible``: which keys a query may look at.

Must hold: positions are compared and not places in an array, so an offset or a cache shifts nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import CallAware


def _own(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return key_positions == query_positions.unsqueeze(-1)


class MaskOffByOne(DecoderBlock):
    """key <= query + 1."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return super().visible(query_positions + 1, key_positions)


class SelfHidden(DecoderBlock):
    """key < query; the first token has nothing else to see than itself."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        earlier = super().visible(query_positions - 1, key_positions)
        return earlier | (_own(query_positions, key_positions) & (key_positions == key_positions[0]))


class MaskMissing(DecoderBlock):
    """Always."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return torch.ones_like(super().visible(query_positions, key_positions))


class MaskInverted(DecoderBlock):
    """key >= query."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return key_positions >= query_positions.unsqueeze(-1)


class MaskMissingInLastHead(DecoderBlock):
    """Always, in the last head."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        # [1, n_heads, query, key]
        visible = super().visible(query_positions, key_positions).repeat(1, self.config.n_heads, 1, 1)
        visible[:, -1] = True
        return visible


class MaskMissingInLaterBatches(CallAware):
    """Always, in every sequence after the first."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        # [batch, 1, query, key]
        visible = super().visible(query_positions, key_positions).repeat(self.source.shape[0], 1, 1, 1)
        visible[1:] = True
        return visible


class WindowNeverAsked(DecoderBlock):
    """query - 1 <= key <= query."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return super().visible(query_positions, key_positions) & (key_positions >= query_positions.unsqueeze(-1) - 1)


class LongContextTruncated(DecoderBlock):
    """query - 16 < key <= query."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return super().visible(query_positions, key_positions) & (key_positions > query_positions.unsqueeze(-1) - 16)


class PartialKeyBlockDropped(DecoderBlock):
    """Only keys in full blocks of four, and a query's own."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        keys = len(key_positions)
        in_full_block = torch.arange(keys, device=key_positions.device) < keys // 4 * 4
        return super().visible(query_positions, key_positions) & (in_full_block | _own(query_positions, key_positions))


class FirstTokenHidden(DecoderBlock):
    """Not the first key, except for its own query."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        later = key_positions != key_positions[0]
        return super().visible(query_positions, key_positions) & (later | _own(query_positions, key_positions))


class WindowIgnored(DecoderBlock):
    """key <= query."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return key_positions <= query_positions.unsqueeze(-1)


class WindowOffByOne(DecoderBlock):
    """query - w <= key <= query."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        visible, window = super().visible(query_positions, key_positions), self.config.window
        return visible if window is None else visible | (key_positions == query_positions.unsqueeze(-1) - window)


class WindowShortByOne(DecoderBlock):
    """query - w + 1 < key <= query, and a query's own."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        visible, window = super().visible(query_positions, key_positions), self.config.window
        if window is None:
            return visible
        shorter = key_positions > query_positions.unsqueeze(-1) - window + 1
        return visible & (shorter | _own(query_positions, key_positions))


class WindowFixed(DecoderBlock):
    """query - 3 < key <= query."""

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        back = query_positions.unsqueeze(-1) - key_positions
        return (back >= 0) & (back < 3)
