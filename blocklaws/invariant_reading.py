"""Reads one entry of ``invariants``: its expressions, picks, assignments and what it needs from a block.

Must hold: every name in an expression is known before anything runs, and what an invariant needs from a block follows
from what it mentions. Must not: evaluate anything.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from blocklaws.canonical import PARAMETER_NAMES, STAGES
from blocklaws.config import CHOICES, DEFAULTS, DERIVED_SIZES, NUMBERS, BlockConfig
from blocklaws.errors import SpecError, did_you_mean
from blocklaws.expressions import Expression, ExpressionError, Vocabulary, parse
from blocklaws.fields import Fields, as_mapping, described
from blocklaws.located_yaml import LocatedDict, LocatedList, Place
from blocklaws.specification import GIVEN, Assignment, BlockKind, Chooser, Clause, Fault, Invariant, Pick

__all__ = [
    "ASSIGNABLE",
    "CONFIG_WORDS",
    "PATTERNS",
    "SIZE_WORDS",
    "choose_blocks",
    "needs_of",
    "read_clauses",
    "read_condition",
    "read_invariant",
    "read_picks",
]

#: What an expression may call by its bare name: the axes of the input and every word of the config.
CONFIG_WORDS = tuple(field.name for field in dataclasses.fields(BlockConfig))
SIZE_WORDS = frozenset((*CONFIG_WORDS, *DERIVED_SIZES, "B", "T", "dtype"))

#: What `set` and `vary` may replace besides parameters.
ASSIGNABLE = (
    "input", "position_offset", "cotangent", "n_heads", "n_kv_heads", "norm", "norm_eps", "placement", "residual",
    "residual_scale", "feed_forward", "rotary", "rotary_base", "rotary_fraction", "window", "softcap",
)  # fmt: skip

#: The patterns of values that a world can have; `worlds` of an invariant chooses among them.
PATTERNS: Mapping[str, tuple[str, ...]] = {
    "gentle": ("integers", "normal", "shifted"),
    "hostile": ("tiny", "huge", "zero-rows", "spiky", "far-mean", "extreme-scores"),
}

_KEYS = (
    "id", "says", "why", "source", "family", "blocks", "dtypes", "worlds", "where", "pick", "set", "vary", "variants",
    "assume", "then", "informative", "min_informative", "examples", "refuted_by", "advisory", "property", "with",
    "means",
)  # fmt: skip
_AXES = {"tokens": "token", "batch": "batch", "features": "feature"}
_FILLINGS = ("fresh", "zero", "huge", "tiny")
_RESERVED = SIZE_WORDS | {
    *STAGES, "reference", "recipe", "cached", "again", "kept", "passed", "given", "traced", "gradient", "parameters",
    "position_offset", "cotangent", "True", "False", "None",
}  # fmt: skip


def read_invariant(
    id: str,
    entry: LocatedDict,
    place: Place,
    blocks: Mapping[str, BlockKind],
    dtypes: tuple[str, ...],
    faults: Mapping[str, Fault],
) -> Invariant:
    """Make an `Invariant` of one entry.

    Raises:
        SpecError: with the place in the file, what is wrong, what was expected, and the nearest right word.
    """
    fields = Fields(entry, _KEYS, f"invariant {id!r}")
    picks = read_picks(fields)
    names = frozenset(pick.name for pick in picks)
    plain = Vocabulary(sizes=SIZE_WORDS, picks=names, variants=frozenset())
    variants = _variants(fields, plain)
    vocabulary = Vocabulary(sizes=SIZE_WORDS, picks=names, variants=frozenset(variants))
    chooser = choose_blocks(fields, blocks)
    is_expression = "property" not in fields
    if is_expression and "with" in fields:
        fields.refuse("with", "gives arguments to a property, but the invariant names no 'property'")
    invariant = Invariant(
        id=id,
        says=fields.text("says"),
        why=fields.text("why", ""),
        source=fields.text("source", ""),
        family=fields.text("family", "own"),
        place=place,
        blocks=chooser(blocks),
        chosen_by=chooser,
        dtypes=fields.words("dtypes", dtypes, "dtype") or None,
        worlds=_worlds(fields),
        where=read_condition(fields, "where", Vocabulary(SIZE_WORDS, stages=(), parameters=(), variants=frozenset())),
        assume=read_condition(fields, "assume", vocabulary),
        picks=picks,
        set=_assignments(fields, "set", plain),
        variants=variants,
        clauses=read_clauses(fields, vocabulary, needs_of) if is_expression else (),
        informative=read_condition(fields, "informative", vocabulary),
        min_informative=fields.number("min_informative", 0.9, low=0, high=1),
        examples=fields.number("examples", 1.0, low=0.01, high=100),
        refuted_by=fields.words("refuted_by", faults, "fault"),
        advisory=fields.flag("advisory", False),
        property_name=fields.text("property", "expression"),
        arguments=dict(as_mapping(entry["with"], fields.place("with"), "with")) if "with" in fields else {},
        means=fields.text("means", ""),
    )
    if is_expression:
        _check_variants(fields, invariant)
    return invariant


def _check_variants(fields: Fields, invariant: Invariant) -> None:
    """Refuse a variant that nothing looks at: the invariant would say less than its author thinks."""
    looked_at = [clause.expression for clause in invariant.clauses]
    looked_at += [one for one in (invariant.informative, invariant.assume) if one is not None]
    heads = {path[0] for expression in looked_at for path in expression.references}
    for name in invariant.variants:
        # `kept` is an array after every run, the varied ones included.
        if name not in heads and "kept" not in heads:
            key = "vary" if name == "after" and "vary" in fields else "variants"
            fields.refuse(key, f"no clause looks at the varied run; write {name}.output, for instance")


def choose_blocks(fields: Fields, blocks: Mapping[str, BlockKind]) -> Chooser:
    """Read ``blocks``: a list of names, or a mapping of choices that a block must have; every block when absent."""
    if "blocks" not in fields:
        return Chooser()
    value, place = fields.mapping["blocks"], fields.place("blocks")
    if isinstance(value, LocatedList):
        return Chooser(names=fields.words("blocks", blocks, "block"))
    wanted = as_mapping(value, place, f"{fields.what}: blocks (or a list of block names)")
    known = {**CHOICES, "heads": tuple(dict.fromkeys(kind.heads for kind in blocks.values()))}
    known |= {name: tuple(dict.fromkeys(kind.choices[name] for kind in blocks.values())) for name in NUMBERS}
    known |= {name: (*words, GIVEN) for name, words in known.items() if name in DEFAULTS}
    choices: dict[str, tuple[Any, ...]] = {}
    for key, word in wanted.items():
        if key not in known:
            wanted.keys_at[key].refuse(f"{fields.what}: blocks: unknown choice {key!r}{did_you_mean(key, known)}")
        choices[key] = tuple(word) if isinstance(word, list) else (word,)
        for one in choices[key]:
            if one not in known[key]:
                wanted.values_at[key].refuse(
                    f"{fields.what}: blocks: {key} is never {described(one)}; "
                    f"it is one of {', '.join(map(_as_yaml, known[key]))}"
                )
    chooser = Chooser(choices=choices)
    if not chooser(blocks):
        place.refuse(
            f"{fields.what}: blocks: no block of the spec has all of these choices, so it could never be checked"
        )
    return chooser


def _as_yaml(word: Any) -> str:
    return "null" if word is None else str(word).lower() if isinstance(word, bool) else str(word)


def _parse(text: Any, place: Place, vocabulary: Vocabulary, what: str) -> Expression:
    if isinstance(text, bool | int | float):
        text = repr(text)
    if not isinstance(text, str):
        place.refuse(f"{what} must be an expression (a text), but here is {described(text)}")
    try:
        return parse(text, vocabulary)
    except ExpressionError as error:
        raise SpecError(f"{place.shifted(max(error.column - 1, 0))}: {what}: {error.message}") from None


def read_condition(fields: Fields, key: str, vocabulary: Vocabulary) -> Expression | None:
    """Read an expression that is true or false."""
    if key not in fields:
        return None
    expression = _parse(fields.mapping[key], fields.place(key), vocabulary, f"{fields.what}: {key}")
    if not expression.is_judgement:
        fields.refuse(key, f"{expression.text!r} is a value, not a condition; compare it, as in T >= 2")
    return expression


def read_clauses(
    fields: Fields, vocabulary: Vocabulary, needs_of: Callable[[tuple[str, ...], Vocabulary], frozenset[str]]
) -> tuple[Clause, ...]:
    """Read ``then``: each line a claim about something that is computed; ``needs_of`` says what a name needs."""
    if "then" not in fields:
        fields.mapping.place.refuse(f"{fields.what} has no 'then' (and no 'property'), so it says nothing")
    value, place = fields.mapping["then"], fields.place("then")
    lines = list(zip(value, value.items_at, strict=True)) if isinstance(value, LocatedList) else [(value, place)]
    if not lines:
        place.refuse(f"{fields.what}: then: is an empty list, so it says nothing")
    clauses = []
    for text, at in lines:
        expression = _parse(text, at, vocabulary, f"{fields.what}: then")
        if not expression.is_judgement:
            at.refuse(
                f"{fields.what}: then: {expression.text!r} is a value, not a claim; "
                "compare it, for instance with identical(a, b), close(a, b) or =="
            )
        needs = frozenset().union(*(needs_of(path, vocabulary) for path in expression.references))
        if not needs:
            at.refuse(
                f"{fields.what}: then: {expression.text!r} looks at nothing that a block computes, "
                "so it could never fail"
            )
        clauses.append(Clause(expression, needs, at))
    return tuple(clauses)


def needs_of(path: tuple[str, ...], vocabulary: Vocabulary) -> frozenset[str]:
    """Return what one reference needs: a capability, and of a trace or of gradients the name that must be shown."""
    head, rest = path[0], path[1:]
    if head in vocabulary.variants:
        return needs_of(rest, vocabulary)
    if head == "gradient":
        return frozenset({"gradients", f"gradients:{rest[0]}"})
    if path == ("passed", "cotangent"):
        return frozenset({"gradients"})
    if head in ("output", "again", "kept", "passed"):
        return frozenset({"forward"})
    if head == "traced" or (head in STAGES and head != "input"):
        return frozenset({"trace", "trace:output" if head == "traced" else f"trace:{head}"})
    if head == "cached":
        return frozenset({"forward_cached"})
    if head == "parameters":
        return frozenset({"parameters"})
    return frozenset()


def _worlds(fields: Fields) -> tuple[str, ...]:
    known = (*PATTERNS, *(pattern for group in PATTERNS.values() for pattern in group))
    chosen: list[str] = []
    for word in fields.words("worlds", known, "pattern of values") or tuple(PATTERNS):
        chosen += PATTERNS.get(word, (word,))
    return tuple(dict.fromkeys(chosen))


def read_picks(fields: Fields, sizes: frozenset[str] = SIZE_WORDS) -> tuple[Pick, ...]:
    """Read ``pick``: a range, a list of values or an arrangement for each name."""
    if "pick" not in fields:
        return ()
    mapping = as_mapping(fields.mapping["pick"], fields.place("pick"), f"{fields.what}: pick")
    picks: list[Pick] = []
    for name, value in mapping.items():
        at, what = mapping.values_at[name], f"{fields.what}: pick {name!r}"
        if not name.isidentifier() or name in _RESERVED:
            mapping.keys_at[name].refuse(f"{what}: the name is taken or is no name; use a short word of your own")
        vocabulary = Vocabulary(sizes=sizes, picks=frozenset(pick.name for pick in picks), variants=frozenset())
        if isinstance(value, LocatedList):
            if not value or any(isinstance(item, list | dict) for item in value):
                at.refuse(f"{what}: must be a list of plain values with at least one")
            picks.append(Pick(name, str(list(value)), at, choices=tuple(value)))
        elif isinstance(value, str) and ".." in value:
            low, _, high = value.partition("..")
            high_at = at.shifted(len(low) + 2 + len(high) - len(high.lstrip()))
            picks.append(
                Pick(
                    name, value, at,
                    low=_parse(low.strip(), at, vocabulary, what), high=_parse(high.strip(), high_at, vocabulary, what),
                )
            )  # fmt: skip
        elif isinstance(value, str) and value.endswith(")") and value.partition("(")[0] in ("permutation", "partition"):
            kind, _, count = value[:-1].partition("(")
            picks.append(
                Pick(name, value, at, high=_parse(count, at.shifted(len(kind) + 1), vocabulary, what), arrangement=kind)
            )
        else:
            at.refuse(
                f"{what}: {described(value)} is none of: a range such as '1 .. T-1', a list of values, "
                "'permutation(B)', 'partition(T)'"
            )
    return tuple(picks)


def _variants(fields: Fields, vocabulary: Vocabulary) -> dict[str, tuple[Assignment, ...]]:
    variants: dict[str, tuple[Assignment, ...]] = {}
    if "vary" in fields:
        variants["after"] = _assignments(fields, "vary", vocabulary)
    if "variants" in fields:
        mapping = as_mapping(fields.mapping["variants"], fields.place("variants"), f"{fields.what}: variants")
        for name in mapping:
            if not name.isidentifier() or name in _RESERVED or name in vocabulary.picks or name in variants:
                mapping.keys_at[name].refuse(f"{fields.what}: variants: {name!r} is taken or is no name")
            variants[name] = _assignments(Fields(mapping, tuple(mapping), f"{fields.what}: variants"), name, vocabulary)
    return variants


def _assignments(fields: Fields, key: str, vocabulary: Vocabulary) -> tuple[Assignment, ...]:
    if key not in fields:
        return ()
    mapping = as_mapping(fields.mapping[key], fields.place(key), f"{fields.what}: {key}")
    found = []
    for target, value in mapping.items():
        at, what = mapping.values_at[target], f"{fields.what}: {key}: {target}"
        if target not in ASSIGNABLE and not fnmatch.filter(PARAMETER_NAMES, target):
            mapping.keys_at[target].refuse(
                f"{fields.what}: {key}: unknown target {target!r}"
                f"{did_you_mean(target, (*ASSIGNABLE, *PARAMETER_NAMES))}; "
                f"it is a parameter (or a pattern such as '*_bias') or one of {', '.join(ASSIGNABLE)}"
            )
        if isinstance(value, LocatedDict):
            found.append(_filling(target, value, at, what, vocabulary))
        elif isinstance(value, bool | int | float) or value is None:
            found.append(Assignment(target, at, value=value))
        elif isinstance(value, str) and target in CHOICES and value in CHOICES[target]:
            found.append(Assignment(target, at, by=value))
        else:
            found.append(Assignment(target, at, value=_parse(value, at, vocabulary, what)))
    if not found:
        fields.refuse(key, "is empty")
    return tuple(found)


def _filling(target: str, value: LocatedDict, at: Place, what: str, vocabulary: Vocabulary) -> Assignment:
    """Read ``{tokens: "p:", by: fresh}``: a part of an array and what fills it."""
    fields = Fields(value, (*_AXES, "by"), what)
    axes = [axis for axis in _AXES if axis in fields]
    if len(axes) > 1:
        at.refuse(f"{what}: choose one of {', '.join(_AXES)}, not {' and '.join(axes)}")
    if axes and target not in ("input", "cotangent"):
        at.refuse(f"{what}: {axes[0]!r} chooses a part of the input or the cotangent, not of {target}")
    by = fields.text("by")
    filled: Expression | None = None
    if by not in _FILLINGS:
        try:
            filled = parse(by, vocabulary)
        except ExpressionError as error:
            at.refuse(
                f"{what}: by: {by!r} is neither one of {', '.join(_FILLINGS)} nor an expression: "
                f"{error.message}{did_you_mean(by, _FILLINGS)}"
            )
    selection: Expression | tuple[Expression | None, Expression | None] | None = None
    if axes:
        text, place = str(fields.mapping[axes[0]]), fields.place(axes[0])
        if ":" in text:
            low, _, high = text.partition(":")
            selection = (
                _parse(low.strip(), place, vocabulary, what) if low.strip() else None,
                _parse(high.strip(), place.shifted(len(low) + 1), vocabulary, what) if high.strip() else None,
            )
        else:
            selection = _parse(text, place, vocabulary, what)
    return Assignment(
        target, at, value=filled, by=None if filled is not None else by,
        axis=_AXES[axes[0]] if axes else None, selection=selection,
    )  # fmt: skip
