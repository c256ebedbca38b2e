"""Fixtures: worked examples from print, frozen as numbers, each a world of its own and what must come out of it.

A fixture gives sizes, choices that differ from the kind of block, parameters and input; where it gives none they are
drawn. A check is a list of expressions with the values printed for them, of claims, of counts, or a comparison of
gradients. Must hold: a mistake in a file is a `SpecError` with its place.
Must not: evaluate an expression; `blocklaws.properties.fixtures` does.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blocklaws.canonical import PARAMETER_NAMES
from blocklaws.config import CHOICES, NUMBERS
from blocklaws.errors import BlocklawsError, did_you_mean, plain_word
from blocklaws.expressions import Expression, ExpressionError, Vocabulary, parse
from blocklaws.fields import Fields, as_mapping, as_sequence, described
from blocklaws.located_yaml import Place, load
from blocklaws.packaged import packaged_file, packaged_names
from blocklaws.spec_reading import built_in_spec, read_number
from blocklaws.specification import BlockKind, Sizes
from blocklaws.worlds import Recipe, World, as_dtype, make_world

__all__ = [
    "Chain",
    "Fixture",
    "FixtureCheck",
    "Shown",
    "fixture_names",
    "load_fixture",
    "numbers",
    "read_fixture",
    "read_parameters",
]

_SIZES = ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")
_KEYS = (
    "says", "source", "blocks", "sizes", "config", "parameters", "above", "input", "changed", "constants", "checks",
)  # fmt: skip
_CHECK_KEYS = ("digits", "shows", "claims", "counts", "central_differences", "layers", "chain", "set")


@dataclasses.dataclass(frozen=True)
class Shown:
    """An expression and the values that are printed for it."""

    expression: Expression
    values: np.ndarray
    place: Place


@dataclasses.dataclass(frozen=True)
class Chain:
    """The derivative through a chain of equal blocks, or of their attention branches without the skip path."""

    skip: bool
    value: float


@dataclasses.dataclass(frozen=True)
class FixtureCheck:
    """One thing that a fixture shows.

    Attributes:
        digits: how many digits are printed after the point.
        shows: expressions with printed values.
        claims: expressions that must hold.
        counts: pattern of parameter names -> how many numbers they have together.
        coordinates: how many gradient coordinates are compared with central differences; 0 for none.
        step, tolerance: of the central differences.
        layers: how many blocks lie on each other; ``output`` is then the last one's.
        chain: the derivative through the layers.
        set: parameters that this check changes.
    """

    name: str
    place: Place
    digits: int = 6
    shows: tuple[Shown, ...] = ()
    claims: tuple[Expression, ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    coordinates: int = 0
    step: float = 1e-6
    tolerance: float = 2e-5
    layers: int = 1
    chain: Chain | None = None
    set: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """The capabilities that the check needs."""
        expressions = (*(shown.expression for shown in self.shows), *self.claims)
        found = {_need(path) for expression in expressions for path in expression.references}
        found |= {"gradients"} if self.coordinates or self.chain else set()
        found |= {"parameters"} if self.counts else set()
        return frozenset(found - {""})


def _need(path: tuple[str, ...]) -> str:
    head = path[1] if path[0] == "changed" else path[0]
    if head in ("gradient", "parameters"):
        return {"gradient": "gradients"}.get(head, head)
    return "trace" if head == "traced" or (head in Vocabulary().stages and head not in ("input", "output")) else ""


@dataclasses.dataclass(frozen=True)
class Fixture:
    """A worked example.

    Attributes:
        blocks: the kinds of block that it holds for.
        config: choices in which its blocks differ from their kind.
        parameters: pattern of names -> a number, ``"identity"`` or an array; what no pattern names is drawn.
        above: the same for the blocks on top of it, in a stack; those it does not reach are as the first.
        input: [B, T, d_model]; None where it is drawn.
        changed: token -> (feature, amount): what the variant ``changed`` adds to the input.
        constants: names that its expressions may use.
    """

    name: str
    says: str
    source: str
    blocks: tuple[str, ...]
    sizes: Sizes
    config: Mapping[str, Any]
    parameters: Mapping[str, Any]
    above: tuple[Mapping[str, Any], ...]
    input: np.ndarray | None
    changed: tuple[int, int, float] | None
    constants: Mapping[str, np.ndarray]
    checks: Mapping[str, FixtureCheck]
    place: Place

    def check(self, name: str) -> FixtureCheck:
        """Return one check.

        Raises:
            BlocklawsError: there is none of that name.
        """
        if name not in self.checks:
            raise BlocklawsError(
                f"fixture {self.name!r} has no check {name!r}{did_you_mean(name, self.checks)}; "
                f"it has {', '.join(self.checks)}"
            )
        return self.checks[name]

    def misfit(self, kind: BlockKind) -> str:
        """Return why the printed numbers say nothing of a kind of block; empty where they do.

        They were computed with the choices of the built-in kinds and its own; a spec may have changed those of a kind.
        """
        if kind.name not in self.blocks:
            return f"the fixture {self.name} is of {' and '.join(self.blocks)}"
        changed = [
            f"{name} {plain_word(printed)}, and the spec's {kind.name} has {name} {plain_word(kind.choices[name])}"
            for name, printed in built_in_spec().blocks[kind.name].choices.items()
            if name not in self.config and printed != kind.choices[name]
        ]
        return f"the fixture {self.name} was computed with {'; with '.join(changed)}" if changed else ""

    def world(self, kind: BlockKind, dtype: str, set: Mapping[str, Any] | None = None, layer: int = 0) -> World:
        """Return the world for a kind of block; ``set`` changes parameters, ``layer`` counts the blocks below it."""
        kind = dataclasses.replace(kind, choices={**kind.choices, **self.config})
        world = make_world(kind, Recipe(self.sizes, "normal", layer), "float64")
        parameters = dict(world.parameters)
        given = self.above[layer - 1] if 0 < layer <= len(self.above) else self.parameters
        for pattern, value in {**given, **(set or {})}.items():
            for name in fnmatch.filter(parameters, pattern):
                parameters[name] = _filled(value, parameters[name].shape)
        x = world.input if self.input is None else self.input
        return world.replace(parameters=parameters, input=x, cotangent=np.ones_like(x)).astype(dtype)

    def changed_world(self, world: World) -> World:
        """Return the world of the variant ``changed``."""
        assert self.changed is not None
        token, feature, amount = self.changed
        x = world.input.copy()
        x[:, token, feature] = (x[:, token, feature].astype(np.float64) + amount).astype(as_dtype(world.dtype))
        return world.replace(input=x)


def _filled(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(value, str):
        return np.eye(*shape) if len(shape) == 2 else np.ones(shape)
    return np.broadcast_to(np.asarray(value, np.float64), shape).copy()


@functools.cache
def fixture_names() -> tuple[str, ...]:
    """Return the names of the built-in fixtures."""
    return packaged_names("fixtures")


@functools.cache
def load_fixture(name: str) -> Fixture:
    """Return a built-in fixture.

    Raises:
        BlocklawsError: there is none of that name.
        SpecError: its file says something that cannot be meant.
    """
    if name not in fixture_names():
        raise BlocklawsError(
            f"unknown fixture {name!r}{did_you_mean(name, fixture_names())}; there are {', '.join(fixture_names())}"
        )
    with packaged_file("fixtures", name) as path:
        return read_fixture(name, path)


def read_fixture(name: str, path: Path) -> Fixture:
    """Read a fixture's file.

    Raises:
        SpecError: with the place in the file, what is wrong and what was expected.
    """
    what = f"fixture {name!r}"
    root = as_mapping(load(path), Place(str(path), 1, 1), what)
    fields = Fields(root, _KEYS, what)
    sizes = _sizes(fields)
    shape = (sizes.B, sizes.T, sizes.d_model)
    constants = {
        word: numbers(value, at, f"{what}: constants: {word}") for word, value, at in _entries(fields, "constants")
    }
    changed = _changed(fields, sizes)
    vocabulary = Vocabulary(
        sizes=frozenset(("B", "T", "d_model", "norm_eps")),
        picks=frozenset(constants),
        variants=frozenset({"changed"} if changed else ()),
    )
    x = None
    if "input" in fields:
        x = numbers(root["input"], fields.place("input"), f"{what}: input")
        if x.shape != shape:
            fields.refuse("input", f"has shape {x.shape} where the sizes ask for {shape}")
    checks = {key: _check(key, value, at, vocabulary, what) for key, value, at in _entries(fields, "checks")}
    if not checks:
        root.place.refuse(f"{what} has no checks, so it says nothing")
    return Fixture(
        name=name,
        says=fields.text("says"),
        source=fields.text("source"),
        blocks=fields.words("blocks"),
        sizes=sizes,
        config=_config(fields),
        parameters=_parameters(fields, "parameters"),
        above=_above(fields),
        input=x,
        changed=changed,
        constants=constants,
        checks=checks,
        place=root.place,
    )


def _entries(fields: Fields, key: str) -> list[tuple[str, Any, Place]]:
    if key not in fields:
        return []
    mapping = as_mapping(fields.mapping[key], fields.place(key), f"{fields.what}: {key}")
    return [(name, value, mapping.values_at[name]) for name, value in mapping.items()]


def numbers(value: Any, place: Place, what: str) -> np.ndarray:
    """Return a number or nested lists of numbers as a float64 array."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        place.refuse(f"{what} must be a number or nested lists of numbers, all rows of one length")
    return array


def _sizes(fields: Fields) -> Sizes:
    if "sizes" not in fields:
        fields.mapping.place.refuse(f"{fields.what} has no 'sizes', which it must have")
    inner = Fields(as_mapping(fields.mapping["sizes"], fields.place("sizes"), "sizes"), _SIZES, f"{fields.what}: sizes")
    found = {
        name: inner.number(name, low=1, high=4096)
        for name in _SIZES
        if name in inner or name in ("B", "T", "n_heads", "d_head", "d_ff")
    }
    found.setdefault("n_kv_heads", found["n_heads"])
    found.setdefault("d_model", found["n_heads"] * found["d_head"])
    return Sizes(**{name: int(value) for name, value in found.items()})


def _config(fields: Fields) -> dict[str, Any]:
    if "config" not in fields:
        return {}
    mapping = as_mapping(fields.mapping["config"], fields.place("config"), f"{fields.what}: config")
    inner = Fields(mapping, (*CHOICES, *NUMBERS), f"{fields.what}: config")
    return {
        word: read_number(inner, word, (0, float("inf"))) if word in NUMBERS else inner.word(word, CHOICES[word])
        for word in mapping
    }


def _parameters(fields: Fields, key: str) -> dict[str, Any]:
    return read_parameters(fields.mapping[key], fields.place(key), f"{fields.what}: {key}") if key in fields else {}


def read_parameters(value: Any, place: Place, what: str) -> dict[str, Any]:
    """Read what parameters are: pattern of names -> a number, an array or ``identity``."""
    mapping, found = as_mapping(value, place, what), {}
    for pattern, filling in mapping.items():
        at = mapping.values_at[pattern]
        if not fnmatch.filter(PARAMETER_NAMES, pattern):
            at.refuse(f"{what}: {pattern}: no parameter has such a name{did_you_mean(pattern, PARAMETER_NAMES)}")
        if isinstance(filling, str) and filling != "identity":
            at.refuse(f"{what}: {pattern} must be a number, an array or 'identity', but here is {described(filling)}")
        found[pattern] = filling if isinstance(filling, str) else numbers(filling, at, f"{what}: {pattern}")
    return found


def _above(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    if "above" not in fields:
        return ()
    blocks = as_sequence(fields.mapping["above"], fields.place("above"), f"{fields.what}: above")
    return tuple(
        read_parameters(block, at, f"{fields.what}: above") for block, at in zip(blocks, blocks.items_at, strict=True)
    )


def _changed(fields: Fields, sizes: Sizes) -> tuple[int, int, float] | None:
    if "changed" not in fields:
        return None
    mapping = as_mapping(fields.mapping["changed"], fields.place("changed"), f"{fields.what}: changed")
    inner = Fields(mapping, ("token", "feature", "add"), f"{fields.what}: changed")
    token = inner.number("token", low=0, high=sizes.T - 1)
    return int(token), int(inner.number("feature", low=0, high=sizes.d_model - 1)), float(inner.number("add"))


def _check(name: str, value: Any, place: Place, vocabulary: Vocabulary, what: str) -> FixtureCheck:
    what = f"{what}: check {name!r}"
    mapping = as_mapping(value, place, what)
    fields = Fields(mapping, _CHECK_KEYS, what)
    differences: dict[str, float] = {}
    if "central_differences" in fields:
        inner_mapping = as_mapping(mapping["central_differences"], fields.place("central_differences"), what)
        inner = Fields(inner_mapping, ("coordinates", "step", "tolerance"), f"{what}: central_differences")
        differences = {key: inner.number(key, low=0) for key in ("coordinates", "step", "tolerance")}
    chain = None
    if "chain" in fields:
        inner = Fields(as_mapping(mapping["chain"], fields.place("chain"), what), ("skip", "value"), f"{what}: chain")
        chain = Chain(inner.flag("skip", True), float(inner.number("value")))
    claims: tuple[Expression, ...] = ()
    if "claims" in fields:
        lines = as_sequence(mapping["claims"], fields.place("claims"), f"{what}: claims")
        claims = tuple(_parsed(text, at, vocabulary, what) for text, at in zip(lines, lines.items_at, strict=True))
    found = FixtureCheck(
        name=name,
        place=place,
        digits=int(fields.number("digits", 6, low=0, high=16)),
        shows=tuple(
            Shown(_parsed(text, at, vocabulary, what), numbers(printed, at, f"{what}: shows: {text}"), at)
            for text, printed, at in _entries(fields, "shows")
        ),
        claims=claims,
        counts=_counts(fields),
        coordinates=int(differences.get("coordinates", 0)),
        step=differences.get("step", 1e-6),
        tolerance=differences.get("tolerance", 2e-5),
        layers=int(fields.number("layers", 1, low=1, high=16)),
        chain=chain,
        set=_parameters(fields, "set"),
    )
    if not (found.shows or found.claims or found.counts or found.coordinates or found.chain):
        place.refuse(f"{what} says nothing: give it shows, claims, counts, central_differences or chain")
    return found


def _counts(fields: Fields) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pattern, value, at in _entries(fields, "counts"):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            at.refuse(f"{fields.what}: counts: {pattern}: must be a whole number, but here is {described(value)}")
        counts[pattern] = value
    return counts


def _parsed(text: Any, place: Place, vocabulary: Vocabulary, what: str) -> Expression:
    if not isinstance(text, str):
        place.refuse(f"{what}: an expression is a text, but here is {described(text)}")
    try:
        return parse(text, vocabulary)
    except ExpressionError as error:
        place.refuse(f"{what}: {text!r}: {error.message}")
