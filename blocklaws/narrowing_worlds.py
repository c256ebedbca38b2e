"""Worlds with something taken out of play: the means by which a block that shows no stages is narrowed down.

Must hold: each function returns a new world of coherent shapes and leaves the old one alone; what a world does not have
(a bias, a rotary embedding) is not missed. Must not: build or call a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blocklaws.canonical import parameter_shapes
from blocklaws.errors import ConfigError
from blocklaws.worlds import World

__all__ = [
    "equal_heads",
    "equal_tokens",
    "even_rows",
    "folded_norm",
    "large_even_rows",
    "level_rows",
    "like",
    "one_head",
    "one_sequence",
    "one_token",
    "plain_norm",
    "row_size",
    "scaled",
    "turned_sign",
    "unturned",
    "with_input",
    "without_epsilon",
    "zeroed",
]

# Rows this large have no epsilon to speak of; a power of two, so that scaling rounds nothing.
_LARGE: Mapping[str, float] = {"float64": 2.0**40, "float32": 2.0**20, "bfloat16": 2.0**4, "float16": 2.0**4}


def like(value: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a value in the dtype of another."""
    return np.ascontiguousarray(value).astype(other.dtype)


def with_input(world: World, value: np.ndarray) -> World:
    """Return the world with another input of the same shape, in its dtype."""
    return world.replace(input=like(value, world.input))


def _changed(world: World, change: Callable[[np.ndarray], np.ndarray], *names: str) -> World:
    changed = {name: like(change(old), old) for name, old in world.parameters.items() if name in names}
    return world.replace(parameters={**world.parameters, **changed})


def zeroed(world: World, *names: str) -> World:
    """Return the world with some parameters zero."""
    return _changed(world, np.zeros_like, *names)


def scaled(world: World, factor: float, *names: str) -> World:
    """Return the world with some parameters multiplied."""
    return _changed(world, lambda value: value * factor, *names)


def even_rows(world: World, size: float = 1.0) -> World:
    """Return the world with its rows brought to one root mean square, for a layer norm to mean zero too.

    What a right norm makes of them is what it made of the old ones; statistics along no axis differ. A row without a
    direction of its own becomes a random one.
    """
    rows = world.input.astype(np.float64)
    rows = np.where(np.ptp(rows, axis=-1, keepdims=True) > 0, rows, np.random.default_rng(0).normal(size=rows.shape))
    if world.config.norm == "layer":
        rows = rows - rows.mean(axis=-1, keepdims=True)
    scale = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
    rows = np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0)
    scale = np.sqrt((rows**2).mean(axis=-1, keepdims=True))
    return with_input(world, np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0) * size)


def row_size(world: World) -> float:
    """Return the largest root mean square of a row, about its mean where the norm is a layer norm; never zero."""
    rows = world.input.astype(np.float64)
    rows = rows - rows.mean(axis=-1, keepdims=True) if world.config.norm == "layer" else rows
    return float(np.sqrt((rows**2).mean(axis=-1)).max(initial=0.0)) or 1.0


def level_rows(world: World) -> World:
    """Return the world with features that are all plus or minus one, about as many of each: nothing stands out."""
    signs = np.where(np.arange(world.config.d_model) % 2, -1.0, 1.0)
    rows = np.random.default_rng(0).permuted(np.broadcast_to(signs, world.input.shape), axis=-1)
    return with_input(world, rows)


def large_even_rows(world: World, norm: str, *out: str) -> World:
    """Return the world with even rows that dwarf the epsilon; ``out`` scales the branch, which is not dwarfed then.

    The gain of the norm makes up for what the epsilon took from rows of the old size: what it gives stays the same.
    """
    size = _LARGE[world.dtype]
    return scaled(scaled(even_rows(world, size), _taken(world), f"{norm}.gain"), size, *out)


def _taken(world: World) -> float:
    """Return the size of a normed row of the world's size, below one by what the epsilon adds."""
    size = row_size(world)
    return size / math.sqrt(size**2 + world.config.norm_eps)


def folded_norm(world: World, norm: str) -> World | None:
    """Return the world with a norm of gain one, its gain (and bias, where there is room) in what reads it.

    All that is computed from the norm keeps its values, so only a mistake of gain or bias goes. None where a gain is
    zero, which nothing divides by.
    """
    gain = world.parameters[f"{norm}.gain"].astype(np.float64)
    if not gain.all():
        return None
    readers = ("query", "key", "value") if norm == "attention_norm" else ("gate", "up")
    names = [f"{'attention' if norm == 'attention_norm' else 'feed_forward'}.{reader}" for reader in readers]
    names = [name for name in names if name in world.parameters]
    parameters = dict(world.parameters)
    bias = world.parameters.get(f"{norm}.bias")
    room = bias is not None and all(f"{name}_bias" in parameters for name in names)
    for name in names:
        matrix = world.parameters[name].astype(np.float64)
        parameters[name] = like(gain[:, None] * matrix, world.parameters[name])
        if bias is not None and room:
            old = world.parameters[f"{name}_bias"]
            parameters[f"{name}_bias"] = like(old.astype(np.float64) + bias.astype(np.float64) @ matrix, old)
    parameters[f"{norm}.gain"] = np.ones_like(world.parameters[f"{norm}.gain"])
    if bias is not None:
        parameters[f"{norm}.bias"] = np.zeros_like(bias) if room else like(bias.astype(np.float64) / gain, bias)
    return world.replace(parameters=parameters)


def plain_norm(world: World, norm: str) -> World:
    """Return the world with a norm of gain one and bias zero."""
    return zeroed(_changed(world, np.ones_like, f"{norm}.gain"), f"{norm}.bias")


def without_epsilon(world: World, norm: str) -> World | None:
    """Return the world with an epsilon of zero and even rows of its size, none of which needs one.

    The gain of the norm makes up for the epsilon: what it gives stays the same.
    """
    even = scaled(even_rows(world, row_size(world)), _taken(world), f"{norm}.gain")
    return _configured(even, norm_eps=0.0)


def turned_sign(world: World, norm: str) -> World:
    """Return the world with the signs of the input and of a norm's gain turned: what the norm gives stays the same."""
    return scaled(with_input(world, -world.input), -1.0, f"{norm}.gain")


def equal_tokens(world: World) -> World:
    """Return the world with the first token everywhere: whatever weights sum to one mix them alike."""
    return with_input(world, np.repeat(world.input[:, :1], world.input.shape[1], axis=1))


def one_token(world: World) -> World:
    """Return the world with its first token alone, at position 0: its only key is itself, and nothing is turned."""
    first = slice(None), slice(0, 1)
    return world.replace(
        input=np.ascontiguousarray(world.input[first]),
        cotangent=np.ascontiguousarray(world.cotangent[first]),
        position_offset=0,
    )


def one_sequence(world: World) -> World:
    """Return the world with its last sequence alone."""
    return world.replace(input=world.input[-1:].copy(), cotangent=world.cotangent[-1:].copy())


def equal_heads(world: World, *projections: str) -> World:
    """Return the world in which every head of some projections is a copy of the first."""
    width = world.config.d_head
    names = [name for each in projections for name in (f"attention.{each}", f"attention.{each}_bias")]

    def copied(value: np.ndarray) -> np.ndarray:
        return np.tile(value[..., :width], value.shape[-1] // width)

    world = _changed(world, copied, *(name for name in names if "output" not in name))
    if "output" in projections:
        world = _changed(world, lambda value: np.tile(value[:width], (len(value) // width, 1)), "attention.output")
    return world


def unturned(world: World) -> World | None:
    """Return the world without rotary embedding; None where there is none."""
    return _configured(world, rotary=None) if world.config.rotary is not None else None


def one_head(world: World) -> World | None:
    """Return the world with one head, the first columns of every projection; None where there is only one."""
    changed = _configured(world, n_heads=1, n_kv_heads=1) if world.config.n_heads > 1 else None
    if changed is None:
        return None
    cut = {}
    for name, shape in parameter_shapes(changed.config).items():
        cut[name] = np.ascontiguousarray(world.parameters[name][tuple(slice(length) for length in shape)])
    return changed.replace(parameters=cut)


def _configured(world: World, **changes: Any) -> World | None:
    try:
        return world.replace(config=world.config.replace(**changes))
    except ConfigError:
        return None
