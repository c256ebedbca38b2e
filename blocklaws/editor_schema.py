"""A JSON Schema of spec files, for editors: they complete the words and mark the mistakes while one types.

Must hold: every list of words comes from where the reader of specs has it, so that the schema cannot fall behind; what
the schema accepts the reader may still refuse (an expression is a text here), and what it refuses the reader refuses
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from blocklaws import invariant_reading as reading
from blocklaws import spec_reading
from blocklaws.canonical import PARAMETER_NAMES
from blocklaws.config import CHOICES, DEFAULTS, NUMBERS
from blocklaws.discovery import registered
from blocklaws.spec_reading import built_in_spec
from blocklaws.specification import GIVEN

__all__ = ["spec_schema"]

_TEXT = {"type": "string", "minLength": 1}
_EXPRESSION = {"type": ["string", "number", "boolean"], "description": "an expression; see docs/expressions.md"}


def spec_schema() -> dict[str, Any]:
    """Return the schema, JSON Schema draft 2020-12."""
    spec = built_in_spec()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a spec of blocklaws",
        "description": "What must hold for decoder blocks. An entry with a known id replaces that entry.",
        "oneOf": [{"$ref": "#/$defs/spec"}, {"type": "array", "items": {"$ref": "#/$defs/invariant"}}],
        "$defs": {
            "spec": _object(
                {
                    "extends": {**_TEXT, "description": "'blocklaws', or a spec file beside this one"},
                    "blocks": _mapping("block"),
                    "menus": {
                        "type": "object",
                        "additionalProperties": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/sizes"}},
                    },
                    "profiles": _mapping("profile"),
                    "tolerances": _mapping("tolerance"),
                    "faults": {"type": "array", "items": {"$ref": "#/$defs/fault"}},
                    "invariants": {"type": "array", "items": {"$ref": "#/$defs/invariant"}},
                },
                minimum=1,
            ),
            "id": {"type": "string", "pattern": "^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$"},
            "block": _block(spec.menus),
            "sizes": _object(
                dict.fromkeys(("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model"), _whole(1, 65_536)),
                required=("B", "T", "n_heads", "d_head", "d_ff"),
            ),
            "profile": _object({"says": _TEXT, "examples": _whole(1, 1_000_000)}, required=("says", "examples")),
            "tolerance": _object(
                {word: {"$ref": "#/$defs/reasoned"} for word in ("rtol", "atol", "c", "floor")},
                required=("rtol", "atol", "c", "floor"),
            ),
            "reasoned": _object(
                {"value": {"type": "number", "minimum": 0}, "reason": _TEXT}, required=("value", "reason")
            ),
            "blocks": _blocks(spec.blocks, spec.menus),
            "fault": _fault(spec.tolerances),
            "invariant": _invariant(spec.tolerances, spec.faults),
            "assignments": _assignments(),
        },
    }


def _object(properties: Mapping[str, Any], required: Iterable[str] = (), minimum: int = 0) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": dict(properties)}
    if required := list(required):
        schema["required"] = required
    if minimum:
        schema["minProperties"] = minimum
    return schema


def _mapping(of: str) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"$ref": f"#/$defs/{of}"}}


def _whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _words(known: Iterable[str], open_ended: bool = False) -> dict[str, Any]:
    """A list of words; ``open_ended`` where a spec can add words of its own."""
    word: dict[str, Any] = {"enum": list(known)}
    return {"type": "array", "uniqueItems": True, "items": {"anyOf": [word, _TEXT]} if open_ended else word}


def _block(menus: Iterable[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {"says": _TEXT, "source": _TEXT}
    properties |= {choice: {"enum": list(words)} for choice, words in CHOICES.items()}
    properties |= {
        name: {"type": _number(name), "minimum": low, "maximum": high} for name, (low, high) in NUMBERS.items()
    }
    properties |= {
        "heads": {"anyOf": [{"enum": list(menus)}, _TEXT], "description": "the menu of sizes"},
        "max_positions": _whole(1, 10_000_000),
        "by_default": {"type": "boolean", "description": "whether it is verified where no block is named"},
    }
    assert set(properties) == set(spec_reading._BLOCK_KEYS), "the reader of blocks knows other keys"
    return _object(properties, required=[name for name in properties if name not in (*DEFAULTS, "by_default")])


def _number(choice: str) -> str | list[str]:
    """The type of a choice that is a number; some may be null."""
    kind = "integer" if choice == "window" else "number"
    return [kind, "null"] if DEFAULTS.get(choice, ...) is None else kind


def _blocks(blocks: Iterable[str], menus: Iterable[str]) -> dict[str, Any]:
    choices: dict[str, Any] = {
        name: {"enum": [*words, *([GIVEN] if name in DEFAULTS else [])]} for name, words in CHOICES.items()
    }
    choices |= {
        name: {"anyOf": [{"type": _number(name)}, *([{"const": GIVEN}] if name in DEFAULTS else [])]}
        for name in NUMBERS
    }
    either: dict[str, Any] = {
        name: {"anyOf": [word, {"type": "array", "items": word}]} for name, word in choices.items()
    }
    either["heads"] = {"anyOf": [{"enum": list(menus)}, {"type": "array"}, _TEXT]}
    return {"anyOf": [_words(blocks, open_ended=True), _object(either)]}


def _fault(dtypes: Iterable[str]) -> dict[str, Any]:
    return _object(
        {
            "id": {"$ref": "#/$defs/id"}, "says": _TEXT, "modelled_on": _TEXT, "family": _TEXT, "step": _TEXT,
            "stage": {"type": ["string", "null"]}, "blocks": {"$ref": "#/$defs/blocks"},
            "dtypes": _words(dtypes, open_ended=True), "backends": _words(registered("backends"), open_ended=True),
        },
        required=("id", "says"),
    )  # fmt: skip


def _invariant(dtypes: Iterable[str], faults: Iterable[str]) -> dict[str, Any]:
    patterns = [*reading.PATTERNS, *(pattern for group in reading.PATTERNS.values() for pattern in group)]
    assignments = {"$ref": "#/$defs/assignments"}
    properties: dict[str, Any] = {
        **dict.fromkeys(reading._KEYS, _TEXT),
        "id": {"$ref": "#/$defs/id"},
        "blocks": {"$ref": "#/$defs/blocks"},
        "dtypes": _words(dtypes, open_ended=True),
        "worlds": _words(patterns),
        "pick": {
            "type": "object",
            "additionalProperties": {
                "anyOf": [
                    {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean", "null"]}},
                    {"type": "string", "pattern": r"\.\.|^(permutation|partition)\(.*\)$"},
                ]
            },
        },
        "set": assignments,
        "vary": assignments,
        "variants": {"type": "object", "additionalProperties": assignments},
        "then": {"anyOf": [_EXPRESSION, {"type": "array", "minItems": 1, "items": _EXPRESSION}]},
        **dict.fromkeys(("where", "assume", "informative"), _EXPRESSION),
        "min_informative": {"type": "number", "minimum": 0, "maximum": 1},
        "examples": {"type": "number", "minimum": 0.01, "maximum": 100},
        "refuted_by": _words(faults, open_ended=True),
        "advisory": {"type": "boolean"},
        "property": {"anyOf": [{"enum": list(registered("properties"))}, _TEXT]},
        "with": {"type": "object"},
    }
    schema = _object(properties, required=("id", "says"))
    return {**schema, "anyOf": [{"required": ["then"]}, {"required": ["property"]}]}


def _assignments() -> dict[str, Any]:
    filling = _object(
        {
            **{axis: {"type": ["string", "integer"]} for axis in reading._AXES},
            "by": {"anyOf": [{"enum": list(reading._FILLINGS)}, _TEXT]},
        },
        required=("by",),
    )
    value = {"anyOf": [{"type": ["string", "number", "boolean", "null"]}, filling]}
    return {
        "type": "object",
        "minProperties": 1,
        "properties": dict.fromkeys((*reading.ASSIGNABLE, *PARAMETER_NAMES), value),
        # A pattern of parameters, such as '*_bias'.
        "patternProperties": {r"[*?\[]": value},
        "additionalProperties": False,
    }
