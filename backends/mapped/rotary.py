"""Rotary positions for a layer whose pairs lie otherwise than the block's, and the tables for a layer that takes them.

Must hold: turning pairs (2i, 2i+1) and turning pairs (i, i + d_head/2) are the same computation after the features of
each head are re-ordered, for query and key alike (their product does not change). So a block of one layout is verified
on a layer of the other by re-ordering the columns of query and key weights, and the query and key stages and gradients
back.
Source: Su et al. 2021 (RoFormer), equation 34.
"""

from __future__ import annotations

import numpy as np

from blocklaws.backends.mapped.operations import Array
from blocklaws.config import BlockConfig

__all__ = ["LAYOUTS", "ROTATED", "cos_sin", "feature_order", "reorder", "restore"]

LAYOUTS = ("half", "interleaved")

#: The parameters whose columns are re-ordered, head by head.
ROTATED = ("attention.query", "attention.query_bias", "attention.key", "attention.key_bias")


def feature_order(config: BlockConfig, layout: str | None) -> Array | None:
    """Return, for each feature of a head of the layer, which feature of the block's head it is; None for no change."""
    if config.rotary is None or layout is None or config.rotary == layout:
        return None
    turned, rest = np.arange(config.d_rotary), np.arange(config.d_rotary, config.d_head)
    # From interleaved, row i of a table of pairs is pair i; from half, row 0 has the first of each.
    table = turned.reshape(-1, 2) if layout == "half" else turned.reshape(2, -1)
    return np.concatenate([table.T.reshape(-1), rest])


def reorder(array: Array, order: Array | None) -> Array:
    """Return ``array`` [..., heads d_head] with the features of each head in the layer's order."""
    if order is None:
        return array
    heads = array.reshape(*array.shape[:-1], -1, len(order))
    return heads[..., order].reshape(array.shape)


def restore(array: Array, order: Array | None) -> Array:
    """Return ``array`` [..., heads d_head] with the features of each head back in the block's order."""
    return array if order is None else reorder(array, np.argsort(order))


def cos_sin(config: BlockConfig, layout: str | None, positions: Array) -> tuple[Array, Array]:
    """Return cosine and sine of each turned feature's angle, two arrays [1, token, d_rotary] in float64.

    Where the block has no rotary positions the angles of all d_head features are zero, which turns nothing.
    """
    width = config.d_head if config.rotary is None else config.d_rotary
    if config.rotary is None:
        frequencies = np.zeros(width // 2 + width % 2)
    else:
        frequencies = config.rotary_base ** (-2.0 * np.arange(width // 2) / width)
    angles = positions[:, None].astype(np.float64) * frequencies
    if (layout or config.rotary) == "interleaved":
        angles = np.repeat(angles, 2, axis=-1)
    else:
        angles = np.concatenate([angles, angles], axis=-1)
    angles = angles[None, :, :width]
    return np.cos(angles), np.sin(angles)
