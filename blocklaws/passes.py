"""What the names of an expression stand for in one example: the passes of a block over a world and its variants.

Must hold: nothing is computed that no expression asked for, and each call of the block is made once an example; the
float64 reference and the reference recipe of the world's dtype are computed beside it, on copies of their own, and
after the block's calls (`Scope.call_first`): an expected value that does not exist yet cannot be found. Must not:
judge.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.canonical import STAGES
from blocklaws.config import DERIVED_SIZES, BlockConfig
from blocklaws.jitter import FEW, furthest, jittered, recipe_dtype
from blocklaws.subjects import Subject
from blocklaws.worlds import World

__all__ = ["Pass", "Scope", "Unavailable"]


class Unavailable(Exception):
    """The block cannot show what an expression asks for: the example says nothing."""


class Pass:
    """One world through one block. ``build`` is called at most once a pass; ``shared`` reuses another pass's block."""

    def __init__(self, subject: Subject, world: World, reference: Subject | None, shared: Pass | None = None) -> None:
        self.subject = subject
        self.world = world
        self._reference_subject = reference
        self._shared = shared
        self._built: Built | None = None
        self._kept: np.ndarray | None = None
        self._input_given: np.ndarray | None = None
        self._cotangent_given: np.ndarray | None = None
        self._values: dict[str, Any] = {}
        self._oracles: dict[str, Pass] = {}
        #: On how many worlds off by their last bits the recipe runs beside this one (`blocklaws.jitter`).
        self.jittered_worlds = FEW
        #: The lengths of the chunks of each cached pass that was asked for.
        self.chunkings: list[tuple[int, ...]] = []

    @property
    def built(self) -> Built:
        """The block of this pass's world."""
        if self._built is None:
            reason = self.subject.refusal(self.world.config) or self.subject.misfit(self.world)
            if reason is not None:
                raise Unavailable(reason)
            self._built = self._shared.built if self._shared is not None else self.subject.build(self.world)
        return self._built

    def let_go(self) -> None:
        """Let go of the block: what was computed stays, and a further call builds it anew."""
        self._built = None

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self._values:
            try:
                self._values[name] = compute()
            except BlockRaised as error:
                self._values[name] = error
        found = self._values[name]
        if isinstance(found, BlockRaised):
            raise found
        return found

    def computed(self, name: str) -> Any:
        """What has been computed under a name ("output", "trace", ...); None when nothing asked for it or it raised."""
        found = self._values.get(name)
        return None if isinstance(found, BlockRaised) else found

    def output(self) -> np.ndarray:
        """The output of `forward`, copied when it was returned."""
        return self._once("output", self._forward)  # type: ignore[no-any-return]

    def _forward(self) -> np.ndarray:
        self._input_given = self.world.input.copy()
        output, self._kept = self.built.forward(self._input_given, self.world.position_offset)
        return output

    def again(self) -> np.ndarray:
        """The output of a second, equal call."""
        self.output()
        return self._once(  # type: ignore[no-any-return]
            "again", lambda: self.built.forward(self.world.input.copy(), self.world.position_offset)[0]
        )

    def kept(self) -> np.ndarray:
        """The very array that the block returned, as it is now."""
        self.output()
        assert self._kept is not None
        return self._kept

    def stages(self) -> dict[str, np.ndarray]:
        """The stages of `trace`."""
        return self._once(  # type: ignore[no-any-return]
            "trace", lambda: self.built.trace(self.world.input.copy(), self.world.position_offset)
        )

    def gradients(self) -> dict[str, np.ndarray]:
        """What `gradients` gives for the world's cotangent."""

        def compute() -> dict[str, np.ndarray]:
            self._cotangent_given = self.world.cotangent.copy()
            return self.built.gradients(self.world.input.copy(), self._cotangent_given, self.world.position_offset)

        return self._once("gradients", compute)  # type: ignore[no-any-return]

    def parameters(self) -> dict[str, np.ndarray]:
        """What `parameters` gives."""
        return self._once("parameters", self.built.parameters)  # type: ignore[no-any-return]

    def cached(self, lengths: tuple[int, ...]) -> np.ndarray:
        """The outputs of `forward_cached` over consecutive chunks of tokens, joined."""

        def compute() -> np.ndarray:
            outputs, cache, start = [], None, 0
            for length in lengths:
                chunk = self.world.input[:, start : start + length].copy()
                output, cache = self.built.forward_cached(chunk, cache)
                outputs.append(output)
                start += length
            return np.concatenate(outputs, axis=1)

        if f"cached{lengths}" not in self._values:
            self.chunkings.append(lengths)
        return self._once(f"cached{lengths}", compute)  # type: ignore[no-any-return]

    def passed_input(self) -> np.ndarray:
        """The array that `forward` was given, as it is now."""
        self.output()
        assert self._input_given is not None
        return self._input_given

    def passed_cotangent(self) -> np.ndarray:
        """The cotangent that `gradients` was given, as it is now."""
        self.gradients()
        assert self._cotangent_given is not None
        return self._cotangent_given

    def reference(self) -> Pass:
        """The same world through the float64 reference."""
        return self._oracle("float64")

    def recipe(self) -> Pass:
        """The same world through the reference recipe in the world's dtype."""
        return self._oracle(self.world.dtype)

    def _oracle(self, dtype: str) -> Pass:
        if self._reference_subject is None:
            raise Unavailable("there is no reference backend")
        if dtype not in self._oracles:
            self._oracles[dtype] = Pass(self._reference_subject, self.world.astype(dtype), self._reference_subject)
        return self._oracles[dtype]

    def resolve(self, path: tuple[str, ...]) -> Any:
        """Return what a path without a variant stands for."""
        head, rest = path[0], path[1:]
        world = self.world
        if not rest:
            if head == "input":
                return world.input
            if head == "output":
                return self.output()
            if head in STAGES:
                return self._stage(head)
            if head in world.parameters:
                return world.parameters[head]
            if head == "parameters":
                return self.parameters()
            if head == "cotangent":
                return world.cotangent
            return self._word(head)
        if head == "gradient":
            if rest == ("parameters",):
                return {name: value for name, value in self.gradients().items() if name != "input"}
            return self._gradient(rest[0])
        if head == "passed":
            return self._passed(rest[0])
        if head == "given":
            return dict(world.parameters)
        if head == "traced":
            return self._stage("output")
        if head == "again":
            return self.again()
        if head == "kept":
            return self.kept()
        if head == "reference":
            return self._like_the_block(rest, self.reference().resolve(rest))
        if head == "recipe":
            return self._recipe_value(rest)
        raise KeyError(path)

    def _passed(self, name: str) -> Any:
        if name == "input":
            return self.passed_input()
        if name == "cotangent":
            return self.passed_cotangent()
        self.output()
        return self.built.given_parameters

    def _word(self, name: str) -> Any:
        world = self.world
        if name == "B":
            return world.input.shape[0]
        if name == "T":
            return world.input.shape[1]
        if name == "dtype":
            return world.dtype
        if name == "position_offset":
            return world.position_offset
        if name in _CONFIG_WORDS:
            return getattr(world.config, name)
        # A parameter that this kind of block does not have.
        raise Unavailable(f"the block has no {name}")

    def _stage(self, name: str) -> np.ndarray:
        stages = self.stages()
        if name not in stages:
            raise Unavailable(f"trace does not show {name}")
        return stages[name]

    def _gradient(self, name: str) -> np.ndarray:
        if name != "input" and name not in self.world.parameters:
            raise Unavailable(f"the block has no {name}")
        gradients = self.gradients()
        if name not in gradients:
            raise Unavailable(f"gradients does not give {name}")
        return gradients[name]

    def _like_the_block(self, path: tuple[str, ...], value: Any) -> Any:
        """Keep of the reference's gradients those that the block gives: it may give a subset."""
        if path != ("gradient", "parameters"):
            return value
        given = self.gradients()
        return {name: each for name, each in value.items() if name in given}

    def _recipe_value(self, path: tuple[str, ...]) -> Any:
        """Return the recipe's value on this world or on a jittered one, whichever is furthest off."""
        dtype = recipe_dtype(self.world.dtype)
        exact = self._like_the_block(path, self.reference().resolve(path))
        oracles = [self._oracle(dtype), *(self._jittered(dtype, number) for number in range(self.jittered_worlds))]
        runs = [oracle.resolve(path) for oracle in oracles]
        if isinstance(exact, dict):
            return {n: furthest(value, [run[n] for run in runs], self.world.dtype) for n, value in exact.items()}
        return furthest(exact, runs, self.world.dtype)

    def _jittered(self, dtype: str, number: int) -> Pass:
        if (name := f"jittered {number}") not in self._oracles:
            assert self._reference_subject is not None
            world = jittered(self.world.astype(dtype), number)
            self._oracles[name] = Pass(self._reference_subject, world, self._reference_subject)
        return self._oracles[name]


_CONFIG_WORDS = frozenset((*DERIVED_SIZES, *(field.name for field in dataclasses.fields(BlockConfig))))


@dataclasses.dataclass
class Scope:
    """Resolves every path of an invariant's expressions: picks, the base pass, and its variants by name."""

    base: Pass
    variants: Mapping[str, Pass]
    picks: Mapping[str, Any]

    def call_first(self, paths: Iterable[tuple[str, ...]]) -> None:
        """Make the calls of the block that some paths need, and none of the reference.

        What raises here, or cannot be shown, does so again where it is asked for.
        """
        for path in paths:
            head = path[1] if path[0] in self.variants and len(path) > 1 else path[0]
            if head not in ("reference", "recipe"):
                with contextlib.suppress(BlockRaised, Unavailable, KeyError):
                    self(path)

    def __call__(self, path: tuple[str, ...]) -> Any:
        """Return the value of a path."""
        if path[0] in self.picks:
            return self.picks[path[0]]
        at, rest = (self.variants[path[0]], path[1:]) if path[0] in self.variants else (self.base, path)
        if rest[0] == "kept":
            # "As it is after every pass has run": an array that a later call overwrites is seen only then.
            for each in (self.base, *self.variants.values()):
                each.output()
        if rest[0] == "cached":
            chunks = self.picks.get("chunks")
            return at.cached(tuple(chunks) if chunks else (1,) * at.world.input.shape[1])
        return at.resolve(rest)
