"""What holds for one block holds for blocks on top of each other, each with weights of its own.

Must hold: everything but the blocks is NumPy in float64: embedding, final norm, tied head and loss are written here by
their definitions, once vectorised and shifted for the blocks under test, once as a plain loop for the float64
reference blocks.
Must not: compile anything new for the backend; all blocks of a stack have one config and one shape.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.canonical import parameter_count
from blocklaws.checking import Case, Examination
from blocklaws.expressions import Vocabulary, calibrated, differs, finite, identical, judge, parse
from blocklaws.jitter import FEW, closely, furthest, jittered, recipe_dtype
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.examining import PythonProperty, refuted, require, same
from blocklaws.subjects import Subject
from blocklaws.worlds import World, as_dtype, few_lengths, fill

__all__ = ["LAWS", "Stack", "StacksProperty"]

_DISTINCT = parse("distinct_storage(parameters)", Vocabulary())
_BRANCH_ENDS = ("attention.output", "attention.output_bias", "feed_forward.down", "feed_forward.down_bias")
_VOCABULARY = 11
_TOKENS = 0x70CE


class StacksProperty(PythonProperty):
    """Blocks compose: prefix invariance, identity, counts and the next-token loss of a stack."""

    name = "stacks"
    schema: Mapping[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["depth", "law"],
        "properties": {
            "depth": {"type": "integer", "minimum": 2, "maximum": 8},
            "law": {"enum": ["prefix", "truncation", "zero-branches", "parameter-count", "loss"]},
        },
    }

    def needs(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return ``parameters`` where they are counted."""
        return frozenset({"parameters"} if arguments["law"] == "parameter-count" else ())

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Check the law of the arguments on a stack of the asked depth."""
        depth = case.invariant.arguments["depth"]
        recipe = world.recipe
        worlds = [world]
        for number in range(1, depth):
            own = case.world(dataclasses.replace(recipe, seed=recipe.seed + 104_729 * number))
            worlds.append(world.replace(parameters=own.parameters))
        return LAWS[case.invariant.arguments["law"]](case, Stack(case.subject, worlds))


class Stack:
    """Blocks of one config and different weights, run one after the other."""

    def __init__(self, subject: Subject, worlds: list[World]) -> None:
        self.worlds = worlds
        self.subject = subject
        self.blocks: list[Built] = [subject.build(world) for world in worlds]

    def inputs(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the input of every block, and the output of the last."""
        stream = [x]
        for world, block in zip(self.worlds, self.blocks, strict=True):
            output, _ = block.forward(stream[-1].copy(), world.position_offset)
            if output.shape != x.shape:
                raise BlockRaised("forward", f"returned shape {output.shape} for an input of shape {x.shape}")
            stream.append(output.astype(x.dtype))
        return stream

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the output of the last block, shaped as ``x``."""
        return self.inputs(x)[-1]

    def input_gradient(self, x: np.ndarray, cotangent: np.ndarray, *, skip: bool = True) -> np.ndarray | None:
        """Return the cotangent pulled back to the input of the first block; None where a block gives no such gradient.

        Without ``skip``, what came straight through each block is taken off again: the derivative of the branches.
        """
        inputs = self.inputs(x)
        for world, block, own in zip(self.worlds[::-1], self.blocks[::-1], inputs[-2::-1], strict=True):
            if "gradients" not in block.capabilities:
                return None
            gradient = block.gradients(own.copy(), cotangent.copy(), world.position_offset).get("input")
            if gradient is None:
                return None
            cotangent = (gradient if skip else gradient - cotangent).astype(x.dtype)
        return cotangent


@dataclasses.dataclass
class _Oracle:
    """What the reference blocks make of an input, and how far rounding may take right blocks from it."""

    case: Case
    stack: Stack
    x: np.ndarray
    read: Callable[[np.ndarray], np.ndarray]
    jittered_worlds: int = FEW

    @functools.cached_property
    def exact(self) -> np.ndarray:
        """What is read from the output of the float64 reference blocks."""
        return self._run(self._worlds("float64"))

    def noise(self) -> np.ndarray:
        """Return how far the recipe in the dtype is from that, where it is furthest.

        Raises:
            Unavailable: the recipe or the reference is not finite.
        """
        if not (np.isfinite(self.exact).all() and np.isfinite(self._recipe).all()):
            raise Unavailable(f"the reference recipe in {self.case.dtype} is not finite on this stack")
        runs = [self._recipe, *(self._jittered(number) for number in range(self.jittered_worlds))]
        noise: np.ndarray = furthest(self.exact, runs, self.case.dtype) - self.exact
        return noise

    @functools.cached_property
    def _recipe(self) -> np.ndarray:
        return self._run(self._worlds(recipe_dtype(self.case.dtype)))

    def _jittered(self, number: int) -> np.ndarray:
        return self._run([jittered(world, number) for world in self._worlds(recipe_dtype(self.case.dtype))])

    def _worlds(self, dtype: str) -> list[World]:
        first, *others = self.stack.worlds
        return [world.astype(dtype) for world in (first.replace(input=self.x), *others)]

    def _run(self, worlds: list[World]) -> np.ndarray:
        rows = Stack(self.case.reference, worlds).forward(worlds[0].input)
        read: np.ndarray = np.asarray(self.read(rows), np.float64)
        return read


def _require_finite(case: Case, stack: Stack, x: np.ndarray, output: np.ndarray) -> None:
    """Refute blocks whose output is not finite where the reference's is: nothing can be held against such an output.

    Raises:
        Refuted: the blocks made what is not finite.
        Unavailable: the reference blocks do so too.
    """
    if not (judgement := finite(output, "the output of the blocks is finite")).holds:
        _Oracle(case, stack, x, lambda rows: rows).noise()
        require(judgement, "the reference blocks are finite here")


def _prefix(case: Case, stack: Stack) -> Examination:
    """Changing the tokens from p on changes no row before p, through all blocks."""
    world = stack.worlds[0]
    p = _cut(world, range(1, world.input.shape[1]))
    changed = world.input.copy()
    changed[:, p:] = fill(world, "input", "fresh", 1)[:, p:]
    before, after = stack.forward(world.input), stack.forward(changed)
    _require_finite(case, stack, world.input, before)
    require(
        same(case, after[:, :p], before[:, :p], "output rows before a changed token"), f"tokens from {p} on changed"
    )
    return Examination(informative=bool(differs(after[:, p:], before[:, p:])))


def _truncation(case: Case, stack: Stack) -> Examination:
    """The first tokens alone give the rows that they give with the others behind them."""
    world = stack.worlds[0]
    step = case.subject.multiples.get("T", 1)
    p = _cut(world, few_lengths(range(step, world.input.shape[1], step)))
    whole, part = stack.forward(world.input)[:, :p], stack.forward(world.input[:, :p])
    _require_finite(case, stack, world.input, whole)
    oracle, want = _Oracle(case, stack, world.input, lambda rows: rows[:, :p]), whole.astype(np.float64)
    claim = "the rows of the first tokens alone"
    judgement = closely((oracle,), lambda: calibrated(part, want, want + oracle.noise(), case.tolerance, claim))
    require(judgement, f"{p} tokens")
    return Examination()


def _cut(world: World, choices: Sequence[int]) -> int:
    """Choose where to cut the tokens by the world's seed."""
    if not choices:
        raise Unavailable("there are too few tokens to cut")
    return choices[world.recipe.seed % len(choices)]


def _zero_branches(case: Case, stack: Stack) -> Examination:
    """Blocks whose branches return zero are the identity, and so is the gradient through them."""
    if stack.worlds[0].config.placement != "pre":
        raise Unavailable("with the norm after the addition, a block without branches is no identity")
    worlds = [
        world.replace(
            parameters={name: np.zeros_like(a) if name in _BRANCH_ENDS else a for name, a in world.parameters.items()}
        )
        for world in stack.worlds
    ]
    identity, world = Stack(stack.subject, worlds), worlds[0]
    require(identical(identity.forward(world.input), world.input, "the output of blocks without branches"))
    gradient = identity.input_gradient(world.input, world.cotangent)
    if gradient is not None:
        require(identical(gradient, world.cotangent, "the gradient through blocks without branches"))
    return Examination()


def _parameter_count(case: Case, stack: Stack) -> Examination:
    """A stack has depth times the parameters of a block, and no two blocks share one."""
    listed = {
        f"block {number}: {name}": array
        for number, block in enumerate(stack.blocks)
        for name, array in block.parameters().items()
    }
    want = len(stack.blocks) * parameter_count(stack.worlds[0].config)
    got = sum(array.size for array in listed.values())
    if got != want:
        raise refuted(
            "the parameter count of the stack", f"got {got} numbers where {want} were expected", got=got, want=want
        )
    require(judge(_DISTINCT, {("parameters",): listed}, case.tolerance))
    return Examination()


# --- a small language model around the blocks ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Model:
    """Embedding [vocabulary, d_model], tied to the head, and the gain of the final norm [d_model]; float64."""

    embedding: np.ndarray
    gain: np.ndarray
    norm: str
    eps: float

    def embed(self, ids: np.ndarray, dtype: str) -> np.ndarray:
        """Return the first block's input, [B, T, d_model]."""
        stream: np.ndarray = self.embedding[ids].astype(as_dtype(dtype))
        return stream

    def logits(self, stream: np.ndarray) -> np.ndarray:
        """Return [B, T, vocabulary]: the final norm, then the embedding again."""
        x = stream.astype(np.float64)
        if self.norm == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        normed = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.gain
        logits: np.ndarray = normed @ self.embedding.T
        return logits

    def shifted_loss(self, stream: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the cross-entropy of each next token, [B, T - 1]: no logits of the last row, no first id."""
        logits = self.logits(stream)[:, :-1]
        logits = logits - logits.max(axis=-1, keepdims=True)
        log_probability = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return -np.take_along_axis(log_probability, ids[:, 1:, None], axis=-1)[..., 0]

    def defined_loss(self, stream: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the same by its definition, one token at a time: -log p(token p + 1 | tokens 0 .. p)."""
        batch, tokens = ids.shape
        terms = np.empty((batch, tokens - 1))
        logits = self.logits(stream)
        for b in range(batch):
            for p in range(tokens - 1):
                row = logits[b, p]
                terms[b, p] = np.log(np.sum(np.exp(row - row[ids[b, p + 1]])))
        return terms


def _loss(case: Case, stack: Stack) -> Examination:
    """The shifted next-token loss of a small model around the blocks equals its definition, and is shifted rightly."""
    world = stack.worlds[0]
    batch, tokens, width = world.input.shape
    if tokens < 2:
        raise Unavailable("one token has no next token")
    random = np.random.Generator(np.random.PCG64((world.recipe.seed, _TOKENS)))
    model = _Model(
        embedding=random.normal(size=(_VOCABULARY, width)),
        gain=np.asarray(random.uniform(0.5, 1.5, width)),
        norm=world.config.norm,
        eps=world.config.norm_eps,
    )
    ids = random.integers(0, _VOCABULARY, (batch, tokens))
    terms = model.shifted_loss(stack.forward(model.embed(ids, case.dtype)), ids)

    # The reference blocks see the values that the blocks under test see: the embedding rounded to the dtype.
    oracle = _Oracle(case, stack, model.embed(ids, case.dtype), lambda rows: model.defined_loss(rows, ids))
    exact, claim = oracle.exact, "the next-token loss"
    require(closely((oracle,), lambda: calibrated(terms, exact, exact + oracle.noise(), case.tolerance, claim)))

    last = ids.copy()
    last[:, -1] = (ids[:, -1] + 1) % _VOCABULARY
    changed = model.shifted_loss(stack.forward(model.embed(last, case.dtype)), last)
    claim = "the loss of earlier targets under a changed last token"
    require(same(case, changed[:, :-1], terms[:, :-1], claim))
    require(differs(changed[:, -1], terms[:, -1], "the loss of the changed last target"))
    return Examination()


#: Law -> its check.
LAWS: Mapping[str, Callable[[Case, Stack], Examination]] = {
    "prefix": _prefix,
    "truncation": _truncation,
    "zero-branches": _zero_branches,
    "parameter-count": _parameter_count,
    "loss": _loss,
}
