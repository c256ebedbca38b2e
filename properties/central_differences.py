"""Gradients against central differences of the backend's own forward pass.

Must hold: no oracle is asked, so a block whose forward pass is wrong but whose gradients belong to it passes.
Perturbed inputs go along the batch axis, many in one call of a fixed size; a perturbed parameter needs a block of its
own, unless the block takes parameters along the batch axis too (`forward_each`), which is believed where it gives what
``forward`` gives. On small worlds every coordinate is checked alone, on larger ones a coordinate is checked as part of
random directions.
Must not: trust a difference across a kink. Where the two one-sided differences of a block with a ReLU disagree, the
forward pass itself shows the kink; such coordinates are left out and counted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.checking import Case, Examination, nearest
from blocklaws.invariant_reading import PATTERNS
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.examining import PythonProperty, refuted, require, within
from blocklaws.worlds import World

__all__ = ["CentralDifferencesProperty", "Differences", "Settings"]

# Sequences in one call for perturbed inputs: one shape for every example of a size, so that a backend that compiles
# does so once.
_BATCH = 64
_INPUT_COORDINATES = 128
_INPUT_DIRECTIONS = 32
_STREAM = 0xD1FF


@dataclasses.dataclass(frozen=True)
class Settings:
    """Step and tolerance, how many parameters are perturbed one by one at most, and directions where they are more."""

    step: float = 1e-6
    tolerance: float = 2e-5
    coordinates: int = 300
    directions: int = 2


class CentralDifferencesProperty(PythonProperty):
    """What ``gradients`` gives is the slope of ``sum(cotangent * forward(x))``."""

    name = "central-differences"
    capabilities = frozenset({"gradients"})
    schema: Mapping[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "step": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-2},
            "tolerance": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "coordinates": {
                "type": "integer",
                "minimum": 0,
                "maximum": 10_000,
                "description": "a block with at most so many parameters has each of them perturbed alone",
            },
            "directions": {
                "type": "integer",
                "minimum": 1,
                "maximum": 64,
                "description": "random directions for each parameter array of a larger block",
            },
        },
    }

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Compare every gradient that is given with differences."""
        if world.dtype != "float64":
            raise Unavailable(f"differences over a step of 1e-6 say nothing in {world.dtype}; only float64 is checked")
        if world.recipe.pattern not in PATTERNS["gentle"]:
            raise Unavailable("a step of 1e-6 is too short or too long for hostile values")
        settings = Settings(**case.invariant.arguments)
        gradients = base.gradients()
        known = [name for name in ("input", *world.parameters) if name in gradients]
        if not known:
            raise Unavailable("gradients gives neither the input's nor any parameter's")
        differences = Differences(case, world, base.built, settings)
        total = 0
        for name in known:
            shape = world.input.shape if name == "input" else world.parameters[name].shape
            if gradients[name].shape != shape:
                raise refuted(f"gradient.{name}", f"has shape {gradients[name].shape} where {shape} was expected")
            total += differences.compare(name, gradients[name].astype(np.float64))
        return Examination(
            informative=2 * differences.left_out < total, max_error=differences.max_error, nearest=differences.nearest
        )


class Differences:
    """Takes the differences of one world and compares gradients with them.

    Attributes:
        left_out: how many differences were across a kink.
        max_error: the largest difference between a gradient and a slope so far.
        nearest: the (difference, allowed) that came nearest to its bound so far.
    """

    def __init__(self, case: Case, world: World, built: Built, settings: Settings) -> None:
        self.left_out = 0
        self.max_error = 0.0
        self.nearest: tuple[float, float] | None = None
        self._loss_at_world: float | None = None
        self._case, self._world, self._built, self._settings = case, world, built, settings
        self._signed_steps = settings.step * np.array([1.0, -1.0])
        random = np.random.Generator(np.random.PCG64((world.recipe.seed, _STREAM)))
        self._every_parameter = sum(value.size for value in world.parameters.values()) <= settings.coordinates
        self._every_input = world.input.size <= _INPUT_COORDINATES
        self._directions = {"input": _directions(random, world.input, self._every_input, _INPUT_DIRECTIONS)} | {
            name: _directions(random, value, self._every_parameter, settings.directions)
            for name, value in world.parameters.items()
        }

    def compare(self, name: str, gradient: np.ndarray) -> int:
        """Compare one gradient, of the right shape; return how many differences were taken.

        Raises:
            Refuted: it is not the slope.
        """
        directions = self._directions[name]
        at, losses = self._input_losses if name == "input" else self._parameter_losses(name)
        slopes = self._slopes(at, losses)
        got = directions.reshape(len(directions), -1) @ gradient.ravel()
        skipped = np.isnan(slopes)
        self.left_out += int(skipped.sum())
        want = np.where(skipped, got, slopes)
        allowed = self._settings.tolerance * max(1.0, float(np.abs(want).max(initial=0.0)))
        what = f"gradient.{name}"
        if self._every_input if name == "input" else self._every_parameter:
            got, want = got.reshape(gradient.shape), want.reshape(gradient.shape)
        else:
            what += " along random directions"
        judgement = within(got, want, allowed, f"gradient.{name} against central differences")
        self.max_error = max(self.max_error, judgement.difference or 0.0)
        self.nearest = nearest(self.nearest, judgement.nearness)
        require(judgement, f"{what} ({self.left_out} left out at a kink)" if self.left_out else what)
        return len(directions)

    def _slopes(self, at: np.ndarray | float, losses: np.ndarray) -> np.ndarray:
        """Return the central differences of losses [count, 2], NaN where the one-sided ones show a kink."""
        above, below = losses[:, 0], losses[:, 1]
        central = (above - below) / (2 * self._settings.step)
        if self._world.config.feed_forward == "relu":
            bend = np.abs(above - 2 * at + below) / self._settings.step
            central = np.where(bend > self._settings.tolerance * np.maximum(1.0, np.abs(central)), np.nan, central)
        slopes: np.ndarray = central
        return slopes

    # --- the input: one sequence a row of the batch ---

    @functools.cached_property
    def _input_losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each direction, the loss of the sequences that it moves: unmoved [count], moved [count, 2]."""
        world, directions = self._world, self._directions["input"]
        number, sequence = np.nonzero(directions.any(axis=(2, 3)))
        moves = self._signed_steps[:, None, None] * directions[number, sequence][:, None]
        moved = (world.input[sequence][:, None] + moves).reshape(-1, *world.input.shape[1:])
        cotangents = np.concatenate([world.cotangent, np.repeat(world.cotangent[sequence], 2, axis=0)])
        losses = self._in_batches(np.concatenate([world.input, moved]), cotangents)
        at, pairs = losses[: len(world.input)], losses[len(world.input) :].reshape(-1, 2)
        self._loss_at_world = float(at.sum())
        unmoved, both = np.zeros(len(directions)), np.zeros((len(directions), 2))
        np.add.at(unmoved, number, at[sequence])
        np.add.at(both, number, pairs)
        return unmoved, both

    def _in_batches(self, x: np.ndarray, cotangents: np.ndarray) -> np.ndarray:
        """Return the loss of each sequence, from calls of one size: the last is filled up with the first sequence."""
        step = self._case.subject.multiples.get("B", 1)
        size = -(-_BATCH // step) * step
        losses = []
        for start in range(0, len(x), size):
            part = x[start : start + size]
            filled = np.concatenate([part, np.repeat(x[:1], size - len(part), axis=0)])
            output, _ = self._built.forward(filled, self._world.position_offset)
            _require_shape(output, filled)
            losses.append(_losses(output[: len(part)], cotangents[start : start + size]))
        return np.concatenate(losses)

    # --- the parameters: in one call where the block can, else block by block ---

    def _parameter_losses(self, name: str) -> tuple[float, np.ndarray]:
        """Return the loss of the world, and with one parameter moved along each direction, [count, 2]."""
        if self._losses_of_each is not None:
            return self._at_world, self._losses_of_each[name]
        losses = [
            self._loss(self._case.subject.build(self._moved_world(name, sign * direction)))
            for direction in self._directions[name]
            for sign in self._signed_steps
        ]
        return self._at_world, np.reshape(losses, (-1, 2))

    def _moved_world(self, name: str, change: np.ndarray) -> World:
        parameters = self._world.parameters
        return self._world.replace(parameters={**parameters, name: parameters[name] + change})

    @property
    def _at_world(self) -> float:
        """Return the loss of the world; the call that moves the input has told it already."""
        if self._loss_at_world is None:
            self._loss_at_world = self._loss(self._built)
        return self._loss_at_world

    def _loss(self, built: Built) -> float:
        output, _ = built.forward(self._world.input.copy(), self._world.position_offset)
        _require_shape(output, self._world.input)
        return float(_losses(output, self._world.cotangent).sum())

    @functools.cached_property
    def _losses_of_each(self) -> dict[str, np.ndarray] | None:
        """Return name -> losses [count, 2] of all parameters; None where the block takes one set of parameters only."""
        world, batch = self._world, len(self._world.input)
        rows = {name: 2 * len(self._directions[name]) for name in world.parameters}
        count = 1 + sum(rows.values())
        # The first row is unmoved: the call must be the block's own forward pass, or it is not believed.
        start, parameters = 1, {}
        for name, value in world.parameters.items():
            moved = np.repeat(value[None], count, axis=0)
            moves = np.multiply.outer(self._signed_steps, self._directions[name]).swapaxes(0, 1)
            moved[start : start + rows[name]] += moves.reshape(-1, *value.shape)
            parameters[name] = np.repeat(moved, batch, axis=0) if batch > 1 else moved
            start += rows[name]
        x = np.tile(world.input, (count, 1, 1))
        output = self._built.forward_each(x, parameters, world.position_offset)
        if output is None:
            return None
        _require_shape(output, x)
        losses = _losses(output, np.tile(world.cotangent, (count, 1, 1))).reshape(count, batch).sum(axis=1)
        if not abs(losses[0] - self._at_world) <= 1e-12 * (1.0 + float(np.abs(output[:batch]).sum())):
            return None
        ends = np.cumsum(list(rows.values()))
        return {name: part.reshape(-1, 2) for name, part in zip(rows, np.split(losses[1:], ends[:-1]), strict=True)}


def _directions(random: np.random.Generator, value: np.ndarray, each_alone: bool, count: int) -> np.ndarray:
    """Return [n, *shape]: every coordinate's own direction, or unit vectors in which every coordinate takes part."""
    if each_alone:
        return np.eye(value.size).reshape(-1, *value.shape)
    vectors = random.choice((-1.0, 1.0), (count, value.size)) * random.uniform(0.5, 1.0, (count, value.size))
    unit: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).reshape(-1, *value.shape)
    return unit


def _losses(output: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    """Return ``sum(output * cotangent)`` of each sequence."""
    losses: np.ndarray = np.einsum("btf,btf->b", output.astype(np.float64), cotangent)
    return losses


def _require_shape(output: np.ndarray, x: np.ndarray) -> None:
    if output.shape != x.shape:
        raise BlockRaised("forward", f"returned shape {output.shape} for an input of shape {x.shape}")
