"""Worlds: one drawn situation, as a small recipe that a person can read and the arrays that it stands for.

Must hold: a recipe and a dtype determine every array bit for bit, in any process. The structure (sizes, pattern, seed,
offset) is drawn by Hypothesis elsewhere; the arrays are filled here by a seeded generator, because element-wise
strategies cost twelve times more and make a third of the inputs constant. Must not: import Hypothesis or a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from blocklaws.canonical import parameter_shapes
from blocklaws.config import BlockConfig
from blocklaws.specification import BlockKind, Sizes

__all__ = ["Example", "Recipe", "World", "adapted_menu", "as_dtype", "few_lengths", "fill", "make_world"]

_DTYPES: Mapping[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}

# Streams of the generator: adding one must not change what another gives.
_PARAMETERS, _INPUT, _COTANGENT, _FRESH = range(4)

# Magnitudes of the hostile patterns, by dtype where the range of the dtype decides.
_HUGE = {"float64": 1e9, "float32": 1e6, "bfloat16": 1e6, "float16": 250.0}
# In low precision a score of a hundred is rounded by more than a softmax forgives: nothing could be judged there.
_SCORES = {
    "float64": (12.0, 60.0, 250.0),
    "float32": (12.0, 60.0, 250.0),
    "bfloat16": (2.0, 4.0),
    "float16": (2.0, 6.0),
}

# What a score grows with, by whether queries and keys are normed: a norm takes the size of a projection away again.
_SCORE_PARTS = {
    False: ("attention.query", "attention.key", "attention.query_bias", "attention.key_bias"),
    True: tuple(f"attention.{each}_norm.{part}" for each in ("query", "key") for part in ("gain", "bias")),
}


def as_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a dtype's name; low precision comes from ml_dtypes."""
    dtype: np.dtype[Any] = np.dtype(_DTYPES[name])
    return dtype


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The structure of a world: everything but the dtype that its arrays depend on."""

    sizes: Sizes
    pattern: str
    seed: int
    position_offset: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Recipe:
        """Return the recipe of `as_dict`'s data."""
        return Recipe(Sizes(**data["sizes"]), data["pattern"], data["seed"], data["position_offset"])


@dataclasses.dataclass(frozen=True)
class Example:
    """What one examination looks at: a recipe and the values of the invariant's picks."""

    recipe: Recipe
    picks: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {**self.recipe.as_dict(), "picks": dict(self.picks)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Example:
        """Return the example of `as_dict`'s data."""
        return Example(Recipe.from_dict(data), dict(data["picks"]))


@dataclasses.dataclass(frozen=True)
class World:
    """One situation: config, parameters, input [B, T, d_model], position offset and cotangent, in one dtype."""

    config: BlockConfig
    dtype: str
    recipe: Recipe
    parameters: Mapping[str, np.ndarray]
    input: np.ndarray
    cotangent: np.ndarray
    position_offset: int = 0

    def replace(self, **changes: Any) -> World:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def astype(self, dtype: str) -> World:
        """Return the same world in another dtype: the values are those of this world, rounded if they must be."""
        if dtype == self.dtype:
            return self
        to = as_dtype(dtype)
        return self.replace(
            dtype=dtype,
            parameters={name: value.astype(to) for name, value in self.parameters.items()},
            input=self.input.astype(to),
            cotangent=self.cotangent.astype(to),
        )


def adapted_menu(menu: tuple[Sizes, ...], multiples: Mapping[str, int]) -> tuple[Sizes, ...]:
    """Return the menu with every size rounded up to what a backend's sizes must divide by.

    ``multiples`` may name B, T, n_heads, n_kv_heads, d_head, d_ff and d_model. d_model stays n_heads d_head where it
    was; a multiple of d_model is reached by widening the heads.
    """
    if not multiples:
        return menu
    adapted = []
    for sizes in menu:
        changed = {
            name: -(-getattr(sizes, name) // multiples.get(name, 1)) * multiples.get(name, 1)
            for name in ("B", "T", "n_kv_heads", "d_head", "d_ff")
        }
        group = sizes.n_heads // sizes.n_kv_heads
        heads = changed["n_kv_heads"] * group
        while heads % multiples.get("n_heads", 1):
            heads += changed["n_kv_heads"]
        width, step = changed["d_head"], multiples.get("d_head", 1)
        tied = sizes.d_model == sizes.n_heads * sizes.d_head
        while tied and (heads * width) % multiples.get("d_model", 1):
            width += step
        model = (
            heads * width if tied else -(-sizes.d_model // multiples.get("d_model", 1)) * multiples.get("d_model", 1)
        )
        changed |= {"n_heads": heads, "d_head": width, "d_model": model}
        adapted.append(dataclasses.replace(sizes, **changed))
    if multiples.get("T", 1) > 1:
        # A truncated input must have an admissible length too, so there has to be one twice as long.
        adapted.append(dataclasses.replace(adapted[0], T=2 * multiples["T"]))
    return tuple(dict.fromkeys(adapted))


def few_lengths(lengths: Sequence[int]) -> list[int]:
    """Return the middle and the last of some numbers of tokens.

    Each is a shape of its own to a backend that compiles: these stand for all, wherever tokens are cut off.
    """
    return sorted({lengths[(len(lengths) - 1) // 2], lengths[-1]}) if lengths else []


def make_world(kind: BlockKind, recipe: Recipe, dtype: str) -> World:
    """Fill the arrays of a recipe.

    Matrices have deviation 1/sqrt(fan_in), so that a planted mistake moves the output by its own size; gains and
    biases are random and differ between the two norms.
    """
    config = kind.config(recipe.sizes)
    to = as_dtype(dtype)
    shape = (recipe.sizes.B, recipe.sizes.T, config.d_model)
    parameters = _parameters(config, recipe, dtype)
    x = _tokens(shape, recipe.pattern, dtype, _generator(recipe.seed, _INPUT))
    generator = _generator(recipe.seed, _COTANGENT)
    cotangent = (
        generator.integers(1, 4, shape).astype(float) if recipe.pattern == "integers" else generator.normal(size=shape)
    )
    return World(
        config=config,
        dtype=dtype,
        recipe=recipe,
        parameters={name: value.astype(to) for name, value in parameters.items()},
        input=x.astype(to),
        cotangent=cotangent.astype(to),
        position_offset=recipe.position_offset,
    )


def fill(world: World, target: str, by: str, salt: int) -> np.ndarray:
    """Return new values for a whole array of a world: ``fresh``, ``zero``, ``huge`` or ``tiny``.

    ``salt`` tells fillings of one world apart. ``target`` is ``input``, ``cotangent`` or a parameter.
    """
    generator = _generator(world.recipe.seed, _FRESH + salt)
    like = {"input": world.input, "cotangent": world.cotangent}.get(target)
    if like is None:
        like = world.parameters[target]
    if by == "zero":
        return np.zeros_like(like)
    if by in ("huge", "tiny"):
        values = _tokens(like.shape, by, world.dtype, generator)
    elif target == "input":
        values = _tokens(like.shape, world.recipe.pattern, world.dtype, generator)
    elif target == "cotangent":
        values = generator.normal(size=like.shape)
    else:
        values = _parameters(
            world.config, dataclasses.replace(world.recipe, seed=world.recipe.seed + 7919 + salt), world.dtype
        )[target]
    return values.astype(like.dtype)


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64((seed, stream)))


def _parameters(config: BlockConfig, recipe: Recipe, dtype: str) -> dict[str, np.ndarray]:
    generator = _generator(recipe.seed, _PARAMETERS)
    parameters: dict[str, np.ndarray] = {}
    for name, shape in parameter_shapes(config).items():
        if recipe.pattern == "integers":
            # Small integers make a counterexample that a person can follow; gains of one would hide a missing gain.
            if name.endswith("gain"):
                parameters[name] = generator.integers(1, 4, shape).astype(float)
            else:
                # Few enough are nonzero that sums stay small: integers that saturate every softmax show nothing.
                kept = generator.random(shape) < min(1.0, 6 / shape[0])
                parameters[name] = np.where(kept, generator.integers(-1, 2, shape), 0).astype(float)
        elif name.endswith("gain"):
            # Some gains are negative: a block that takes their magnitude, or squares them, is right on positive ones.
            parameters[name] = generator.uniform(0.5, 1.5, shape) * np.where(generator.random(shape) < 0.25, -1.0, 1.0)
        elif len(shape) == 1:
            parameters[name] = generator.normal(0.0, 0.5, shape)
        else:
            parameters[name] = generator.normal(0.0, shape[0] ** -0.5, shape)
    if recipe.pattern == "extreme-scores":
        factor = generator.choice(_SCORES[dtype])
        for name in _SCORE_PARTS[config.qk_norm is not None]:
            if name in parameters:
                parameters[name] = parameters[name] * factor
    return parameters


def _tokens(shape: tuple[int, ...], pattern: str, dtype: str, generator: np.random.Generator) -> np.ndarray:
    if pattern == "integers":
        return generator.integers(-3, 4, shape).astype(float)
    x = generator.normal(size=shape)
    if pattern == "shifted":
        # Rows with a mean of their own: what tells a layer norm from an rms norm.
        return x * generator.uniform(0.5, 2.0) + generator.normal(0.0, 2.0, (*shape[:-1], 1))
    if pattern == "far-mean":
        # A mean far from zero beside a small spread: mean(x^2) - mean(x)^2 has no digits left.
        return x + float(generator.choice((300.0, 1000.0)))
    if pattern == "tiny":
        return x * float(generator.choice((1e-2, 1e-3, 1e-4)))
    if pattern == "huge":
        return x * _HUGE[dtype]
    if pattern == "zero-rows":
        kinds = generator.integers(0, 3, (*shape[:-1], 1))
        if generator.integers(0, 4) == 0:
            return np.zeros_like(x)
        # Zero rows, constant rows and ordinary ones side by side.
        return np.where(kinds == 0, 0.0, np.where(kinds == 1, x[..., :1], x))
    if pattern == "spiky":
        spike = np.arange(shape[-1]) == generator.integers(0, shape[-1], (*shape[:-1], 1))
        return np.where(spike, x * _HUGE[dtype] ** 0.5, x)
    return x
