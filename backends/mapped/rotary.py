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
ROTATED = (
    "attention.query", "attention.query_bias", "attention.key", "attention.key_bias",
    "attention.query_norm.gain", "attention.query_norm.bias", "attention.key_norm.gain", "attention.key_norm.bias",
)  # fmt: skip


def feature_order(config: BlockConfig, layout: str | None) -> Array | None:
    """Return, for each feature of a head of the layer, which feature of the block's head it is; None for no change."""
    if config.rotary is None or layout is None or config.rotary == layout:
        return None
    # From pairs beside each other to first and second halves, or back; what is not turned stays behind them.
    pairs = np.arange(config.d_rotary).reshape((-1, 2) if layout == "half" else (2, -1))
    return np.concatenate([pairs.T.reshape(-1), np.arange(config.d_rotary, config.d_head)])


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
    """Return cosine and sine of each feature's angle, two arrays [1, token, d_rotary] in float64.

    Where the block has no rotary positions they are d_head wide and the angles zero, which turns nothing.
    """
    width = config.d_head if config.rotary is None else config.d_rotary
    pairs = np.arange((width + 1) // 2)
    frequencies = 0.0 * pairs if config.rotary is None else config.rotary_base ** (-2.0 * pairs / width)
    angles = positions[:, None].astype(np.float64) * frequencies
    if (layout or config.rotary) == "interleaved":
        angles = np.repeat(angles, 2, axis=-1)
    else:
        angles = np.concatenate([angles, angles], axis=-1)
    angles = angles[None, :, :width]
    return np.cos(angles), np.sin(angles)
