"""Gradients against central differences of the backend's own forward pass.

Must hold: no oracle is asked, so a block whose forward pass is wrong but whose gradients belong to it passes.
Perturbed inputs go along the batch axis, many in one call of a fixed size; a perturbed parameter needs a block of its
own, unless the block takes parameters along the batch axis too (`forward_each`), which is believed where it gives what
``forward`` gives. On small worlds every coordinate is checked alone, on larger ones a coordinate is checked as part of random
directions.
Must not: trust a difference across a kink. Where the two one-sided differences of a block with a ReLU disagree, the
forward pass itself shows the kink; such coordinates are left out and counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from blocklaws.checking import Case, Examination
from blocklaws.expressions import Judgement
from blocklaws.invariant_reading import PATTERNS
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.examining import PythonProperty, refuted, require, within
from blocklaws.subjects import BlockRaised, Built
from blocklaws.worlds import World

__all__ = ["CentralDifferencesProperty", "Differences", "Settings"]

# Sequences in one call for perturbed inputs: one shape for every example of a size, so that a backend that compiles
# does so once.
_BATCH = 64
_INPUT_COORDINATES = 128
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
        return Examination(informative=2 * differences.left_out < total, max_error=differences.max_error)


class Differences:
    """Takes the differences of one world and compares gradients with them."""

    def __init__(self, case: Case, world: World, built: Built, settings: Settings) -> None:
        self._case, self._world, self._built, self._settings = case, world, built, settings
        self._kinked = world.config.feed_forward == "relu"
        self._every_parameter = sum(value.size for value in world.parameters.values()) <= settings.coordinates
        self._random = np.random.Generator(np.random.PCG64((world.recipe.seed, _STREAM)))
        self._at_world: float | None = None
        self.left_out = 0
        self.max_error = 0.0

    def compare(self, name: str, gradient: np.ndarray) -> int:
        """Compare one gradient; return how many differences were taken.

        Raises:
            Refuted: it is not the slope.
        """
        if name == "input":
            alone = gradient.size <= _INPUT_COORDINATES
            directions = np.eye(gradient.size) if alone else self._directions(gradient.size, _INPUT_COORDINATES // 4)
            slopes = self._input_slopes(directions.reshape(-1, *gradient.shape))
        else:
            alone = self._every_parameter
            directions = np.eye(gradient.size) if alone else self._directions(gradient.size, self._settings.directions)
            slopes = self._parameter_slopes(name, directions.reshape(-1, *gradient.shape))
        got = directions @ gradient.ravel()
        skipped = np.isnan(slopes)
        self.left_out += int(skipped.sum())
        want = np.where(skipped, got, slopes)
        allowed = self._settings.tolerance * max(1.0, float(np.abs(want).max(initial=0.0)))
        if alone:
            got, want = got.reshape(gradient.shape), want.reshape(gradient.shape)
        judgement = within(got, want, allowed, f"gradient.{name} against central differences")
        self.max_error = max(self.max_error, judgement.difference or 0.0)
        require(judgement, self._said(name, alone, judgement))
        return len(directions)

    def _said(self, name: str, alone: bool, judgement: Judgement) -> str:
        text = f"gradient.{name}" if alone else f"gradient.{name} along random directions"
        return f"{text} ({self.left_out} left out at a kink)" if self.left_out else text

    def _directions(self, size: int, count: int) -> np.ndarray:
        """Return unit vectors in which every coordinate takes part, [count, size]."""
        signs = self._random.choice((-1.0, 1.0), (count, size))
        vectors = signs * self._random.uniform(0.5, 1.0, (count, size))
        unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit

    def _slope(self, above: float, at: float, below: float) -> float:
        """Return the central difference, or NaN where the one-sided ones show a kink."""
        step = self._settings.step
        forwards, backwards = (above - at) / step, (at - below) / step
        central = (above - below) / (2 * step)
        kink = self._settings.tolerance * max(1.0, abs(central))
        return float("nan") if self._kinked and abs(forwards - backwards) > kink else central

    def _parameter_slopes(self, name: str, directions: np.ndarray) -> np.ndarray:
        """Return the slope along each direction [count, *shape]: in one call where the block can, else block by block."""
        if self._at_world is None:
            self._at_world = self._loss(self._built)
        step = self._settings.step
        changes = np.stack([step * directions, -step * directions], axis=1)
        losses = self._losses_of_each(name, changes.reshape(-1, *directions.shape[1:]))
        if losses is None:
            losses = np.array([self._loss(self._rebuilt(name, change)) for pair in changes for change in pair])
        return np.array([self._slope(above, self._at_world, below) for above, below in losses.reshape(-1, 2)])

    def _losses_of_each(self, name: str, changes: np.ndarray) -> np.ndarray | None:
        """Return the loss under each change of a parameter, or None where the block takes one set of parameters only."""
        world = self._world
        assert self._at_world is not None
        # The first is unchanged: the call must be the block's own forward pass, or it is not believed.
        parameters = world.parameters[name] + np.concatenate([np.zeros_like(changes[:1]), changes])
        batch, count = len(world.input), len(parameters)
        x = np.tile(world.input, (count, 1, 1))
        output = self._built.forward_each(x, {name: np.repeat(parameters, batch, axis=0)}, world.position_offset)
        if output is None:
            return None
        losses = (
            self._losses(output, x.shape, np.tile(world.cotangent, (count, 1, 1))).reshape(count, batch).sum(axis=1)
        )
        believed = abs(losses[0] - self._at_world) <= 1e-12 * (1.0 + float(np.abs(output[:batch]).sum()))
        return losses[1:] if believed else None

    def _rebuilt(self, name: str, change: np.ndarray) -> Built:
        parameters = {**self._world.parameters, name: self._world.parameters[name] + change}
        return self._case.subject.build(self._world.replace(parameters=parameters))

    def _loss(self, built: Built) -> float:
        output, _ = built.forward(self._world.input.copy(), self._world.position_offset)
        return float(self._losses(output, self._world.input.shape, self._world.cotangent).sum())

    def _input_slopes(self, directions: np.ndarray) -> np.ndarray:
        """Return the slope along each direction [count, B, T, d_model], from sequences perturbed side by side."""
        world, step = self._world, self._settings.step
        # A direction is taken apart into the sequences that it moves: one sequence a row of the batch.
        rows = [(i, b) for i, each in enumerate(directions) for b in range(len(each)) if each[b].any()]
        moved = [world.input[b] + sign * step * directions[i, b] for i, b in rows for sign in (1.0, -1.0)]
        cotangents = [world.cotangent[b] for _, b in rows for _ in range(2)]
        losses = np.array(list(self._batched([*world.input, *moved], [*world.cotangent, *cotangents])))
        at, pairs = losses[: len(world.input)], losses[len(world.input) :].reshape(-1, 2)
        sums = np.zeros((len(directions), 3))
        for (i, b), (above, below) in zip(rows, pairs, strict=True):
            sums[i] += above, at[b], below
        return np.array([self._slope(*each) for each in sums])

    def _batched(self, inputs: list[np.ndarray], cotangents: list[np.ndarray]) -> Iterator[float]:
        step = self._case.subject.multiples.get("B", 1)
        size = -(-_BATCH // step) * step
        for start in range(0, len(inputs), size):
            x, cotangent = inputs[start : start + size], cotangents[start : start + size]
            batch = np.stack([*x, *[inputs[0]] * (size - len(x))])
            output, _ = self._built.forward(batch.copy(), self._world.position_offset)
            yield from self._losses(output, batch.shape, np.stack(cotangent))

    @staticmethod
    def _losses(output: np.ndarray, shape: tuple[int, ...], cotangent: np.ndarray) -> np.ndarray:
        """Return ``sum(output * cotangent)`` of each sequence that has a cotangent; the rest is padding."""
        if output.shape != shape:
            raise BlockRaised("forward", f"returned shape {output.shape} for an input of shape {shape}")
        losses: np.ndarray = (output[: len(cotangent)].astype(np.float64) * cotangent).sum(axis=(1, 2))
        return losses
