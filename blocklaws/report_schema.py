"""The JSON Schema of what `verify` and `faults` write with ``--json``: `blocklaws schema report` prints it.

Must hold: every key that is written is described and required, so that a report which lost one is refused; keys that
this version does not know are allowed, for a later one may write more under the same format. The number of the format
(`FORMAT`, the key ``format``) grows when a key goes or changes its meaning. Must not: import NumPy or the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FORMAT", "report_schema"]

#: The version of the format; the files carry it.
FORMAT = 1

_TEXT = {"type": "string"}
_NAME = {"type": "string", "minLength": 1}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**63}
_SECONDS = {"type": "number", "minimum": 0, "maximum": 1e12}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_NAMES = {"type": "array", "items": _NAME}
_DTYPE = {"enum": ["float64", "float32", "bfloat16", "float16"]}
# JSON has no infinities and no NaN.
_ERROR = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1e308}, {"type": "null"}, {"enum": ["inf", "nan"]}],
    "description": "the largest difference that a claim of closeness saw; null where none was made",
}
_NEAREST = {
    "anyOf": [
        {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": ["number", "string"]}},
        {"type": "null"},
    ],
    "description": "[difference, allowed] of the comparison that came nearest to its bound",
}
_SIZES = ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")


def _object(properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties), **more}


_IDS = {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1, "items": _COUNT}}
_COUNTEREXAMPLE = {
    "anyOf": [
        _object(
            {
                "sizes": _object(dict.fromkeys(_SIZES, _COUNT)),
                "pattern": _NAME,
                "seed": _COUNT,
                "position_offset": _COUNT,
                "picks": {"type": "object"},
            }
        ),
        _object({"ids": {**_IDS, "description": "token ids of a whole model"}, "picks": {"type": "object"}}),
    ]
}

_VALUE = {"anyOf": [{"type": "number"}, {"type": "null"}, {"enum": ["inf", "-inf", "nan"]}]}
_ELEMENT = _object(
    {
        "of": {**_TEXT, "description": "the parameter that was compared, where there were several"},
        "axes": _NAMES,
        "at": {"type": "array", "items": _COUNT},
        **dict.fromkeys(("got", "want"), _VALUE),
        **dict.fromkeys(("difference", "allowed"), _ERROR),
        "wrong": _COUNT,
        "total": _COUNT,
    },
    description="the element that is furthest off",
)
_INDICES = {"type": "array", "items": _COUNT}
_NUMBERS = {"type": "array", "items": {"type": "array", "items": _VALUE}}
_PLANE = _object(
    {"axes": _NAMES, "at": _INDICES, "from": _INDICES, "of": _INDICES, "got": _NUMBERS, "want": _NUMBERS},
    description="the last two axes of the block's and the reference's array, around the worst element",
)
_STAGE = {
    "type": "object",
    "required": ["stage", "shape"],
    "properties": {
        "stage": _NAME,
        "shape": {"anyOf": [_INDICES, {"type": "null"}], "description": "null where the block does not show it"},
        "expected_shape": {**_INDICES, "description": "there where the shape is wrong"},
        **dict.fromkeys(("max", "reference_max", "difference", "allowed"), _ERROR),
        "at": _INDICES,
        "within": {"type": ["boolean", "null"], "description": "whether it lies within its bound"},
        "plane": _PLANE,
        "plane_left_out": _FLAG,
    },
}
_STAGES = _object(
    {
        "pass": {**_TEXT, "description": "which run of the block; empty for the first"},
        "note": _TEXT,
        "rows": {"type": "array", "items": _STAGE},
    },
    description="the stages of a failure beside the reference's",
)

_CASE = _object(
    {
        "invariant": _NAME,
        "part": {**_TEXT, "description": "which clauses of the invariant; after ': ', why they are unchecked"},
        "block": _NAME,
        "backend": _NAME,
        "label": {**_TEXT, "description": "what the backend was named by; <...> where an object was given"},
        "dtype": _DTYPE,
        "verdict": {"enum": ["holds", "violated", "unchecked", "error"]},
        "reason": _TEXT,
        "says": _TEXT,
        "location": {**_TEXT, "description": "file:line of the invariant"},
        "examples": {**_COUNT, "description": "worlds that were looked at"},
        "informative": {**_COUNT, "description": "those of them in which the claim could have failed"},
        "seconds": _SECONDS,
        "max_error": _ERROR,
        "nearest": _NEAREST,
        "stage": {"type": ["string", "null"], "description": "the first that diverges; several are joined by 'or'"},
        "pattern": {**_TEXT, "description": "which elements are wrong"},
        "claim": {**_TEXT, "description": "the claim that failed"},
        "clause_at": {**_TEXT, "description": "file:line of that claim"},
        "worst": {**_TEXT, "description": "the element that is furthest off"},
        "element": {"anyOf": [{"$ref": "#/$defs/element"}, {"type": "null"}]},
        "divergence": _TEXT,
        "how": {**_TEXT, "description": "how the stage was found: 'traced', or 'narrowed: ...'"},
        "acts_like": {
            "type": "object",
            "additionalProperties": _TEXT,
            "description": "the known faults that give what the block gave, and what each says",
        },
        "made_by": {**_TEXT, "description": "where the backend says that the stage comes from"},
        "stages": {"anyOf": [{"$ref": "#/$defs/stages"}, {"type": "null"}]},
        "examples_to_fail": _COUNT,
        "unproven": {**_FLAG, "description": "whether the invariant names no fault that would refute it"},
        "spec_mistake": _FLAG,
        "known": {**_TEXT, "description": "the reason why this failure is expected; empty where none is"},
        "config": {"type": "object", "description": "of the first pass"},
        "config_changes": {
            "type": "object",
            "additionalProperties": {"type": "object"},
            "description": "pass -> what its config has otherwise; for the empty name, what the invariant set for all",
        },
        "counterexample": {"anyOf": [{"$ref": "#/$defs/counterexample"}, {"type": "null"}]},
        "seed": _COUNT,
        "profile": _NAME,
        "spec_file": _TEXT,
        "device": _TEXT,
        "isolate": _FLAG,
        "id": {"type": "string", "pattern": "^([0-9a-f]{10})?$", "description": "for replay; empty where it holds"},
        "replay": _TEXT,
    },
    allOf=[
        {
            "if": {"properties": {"verdict": {"const": "violated"}}},
            "then": {"properties": {"counterexample": {"$ref": "#/$defs/counterexample"}, "reason": _NAME}},
        },
        {
            "if": {"properties": {"verdict": {"enum": ["holds", "unchecked"]}}},
            "then": {"properties": {"counterexample": {"type": "null"}, "id": {"const": ""}}},
        },
        {
            "if": {"properties": {"verdict": {"enum": ["unchecked", "error"]}}},
            "then": {"properties": {"reason": {**_NAME, "description": "why nothing is known"}}},
        },
    ],
)

_BACKEND = _object(
    {
        "name": _NAME,
        "label": _TEXT,
        "dtypes": {"type": "array", "items": _DTYPE, "minItems": 1},
        "device": _TEXT,
        "deterministic": _FLAG,
    }
)
# It is there where a backend compiles, and says how often.
_BACKEND["properties"]["compilations"] = {**_COUNT, "description": "programs that the backend compiled in this run"}

_BACKEND["properties"]["never_met"] = {
    **_NAMES,
    "description": "what the backend says that it supports and no block of this run has, as 'feed_forward relu'",
}

_COMMON: Mapping[str, Any] = {
    "blocklaws": {**_NAME, "description": "the version that wrote the file"},
    "format": {"const": FORMAT, "description": "the version of this format"},
    "versions": {"type": "object", "additionalProperties": _TEXT},
    "spec": _object({"sha256": _SHA256, "sources": {"type": "array", "items": _TEXT}}),
    "seed": _COUNT,
    "profile": _NAME,
}

_VERIFY = _object(
    {
        **_COMMON,
        "command": {**_TEXT, "description": "what repeats the run; empty where an object was verified"},
        "backends": {"type": "array", "items": _BACKEND, "minItems": 1},
        "invariants": {**_NAMES, "description": "those of the spec, in its order"},
        "meanings": {
            "type": "array",
            "items": _object({"invariant": _NAME, "family": _TEXT, "why": _TEXT, "means": _TEXT}),
        },
        "cases": {"type": "array", "items": {"$ref": "#/$defs/case"}},
        "stale_known_failures": {"type": "array", "items": _TEXT},
        "not_run": {**_COUNT, "description": "cases that an interrupt left out"},
        "summary": _object(dict.fromkeys(("holds", "violated", "unchecked", "error"), _COUNT)),
    }
)

# Written for a part of a run alone, and so not required.
_VERIFY["properties"]["shard"] = _object(
    {
        "number": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "description": "which, counted from 1"},
        "of": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "description": "how many shards there are"},
        "first": {**_COUNT, "description": "the number of its first case in the whole run, counted from 0"},
        "end": {**_COUNT, "description": "the number after that of its last case"},
        "cases": {**_COUNT, "description": "how many cases the whole run has"},
        "plan": {**_SHA256, "description": "digest of which cases these are"},
        "command": {**_TEXT, "description": "what repeats the whole run"},
        "known": {
            "type": "array",
            "items": _object({"matched": _FLAG, "unmatched": _TEXT, "holding": {"type": "array", "items": _TEXT}}),
            "description": "for each entry of the known-failures file, what the whole run needs to know of it",
        },
    },
    description="which part of a run this is of; `blocklaws merge` joins them",
)

_VERIFY["properties"]["campaign"] = _object(
    {
        "first": {**_COUNT, "description": "the first seed"},
        "held": {**_COUNT, "description": "with how many seeds, from the first on, everything that was checked held"},
        "examples": {**_COUNT, "description": "how many examples that were"},
    },
    description="what a run until something fails has behind it; the cases are those of one seed",
)

_FAULT = _object(
    {
        "fault": _NAME,
        "backend": _NAME,
        "block": _NAME,
        "dtype": _DTYPE,
        "seed": _COUNT,
        "killed_by": _NAMES,
        "survived": _FLAG,
        "examples_to_kill": {"type": "object", "additionalProperties": _COUNT},
        "stages": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "held": _NAMES,
        "raised": {"type": "array", "items": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}},
        "seconds": _SECONDS,
    },
    allOf=[
        {
            "if": {"properties": {"survived": {"const": True}}},
            "then": {"properties": {"killed_by": {"maxItems": 0}}},
            "else": {"properties": {"killed_by": {"minItems": 1}}},
        }
    ],
)

_FAULTS = _object(
    {
        **_COMMON,
        "faults": {"type": "array", "items": {"$ref": "#/$defs/fault"}},
        "score": {**_SHARE, "description": "share of the faults that are killed in every seed"},
        "idle_invariants": _NAMES,
        "declared_but_not_refuted": {
            "type": "array",
            "items": {"type": "array", "items": _NAME, "minItems": 3, "maxItems": 3},
            "description": "[backend, invariant, fault]",
        },
        "declared_but_not_tried": {
            "type": "array",
            "items": {"type": "array", "items": _NAME, "minItems": 2, "maxItems": 2},
            "description": "[invariant, fault]",
        },
        "unearned_invariants": _NAMES,
        "unproven_invariants": _NAMES,
        "rates": {
            "type": "array",
            "items": _object(
                {
                    "fault": _NAME,
                    "backend": _NAME,
                    "share": {**_SHARE, "description": "share of the seeds in which the fault was killed"},
                    "examples": {
                        "anyOf": [_SECONDS, {"type": "null"}],
                        "description": "median of the examples until the quickest kill",
                    },
                    "stage": {"type": ["string", "null"], "description": "the stage that most kills name"},
                }
            ),
        },
        "planted": {
            "type": "array",
            "items": _object({"fault": _NAME, "family": _TEXT, "says": _TEXT, "stage": {"type": ["string", "null"]}}),
        },
        "invariants": {**_NAMES, "description": "those that met a fault"},
        "command": {**_TEXT, "description": "what repeats the run"},
        "weak_claims": {
            "type": "array",
            "items": _object({"backend": _NAME, "invariant": _NAME, "fault": _NAME, "share": _SHARE}),
        },
        "localised": _object({"right": _COUNT, "of": _COUNT}),
        "seeds": {"type": "integer", "minimum": 1, "maximum": 2**63},
        "claims_only": _FLAG,
        "first_kill": _FLAG,
        "met_every_invariant": {
            **_NAMES,
            "description": "the backends whose faults met every invariant; others, claims",
        },
        "not_run": {**_COUNT, "description": "faults that an interrupt left out"},
        "problems": {"type": "array", "items": _TEXT},
        "exit_status": {"enum": [0, 1, 2, 130]},
    }
)


def report_schema(kind: str | None = None) -> dict[str, Any]:
    """Return the schema, JSON Schema draft 2020-12: of both kinds of report, or of ``verify`` or ``faults`` alone."""
    both = {"oneOf": [{"$ref": "#/$defs/verify"}, {"$ref": "#/$defs/faults"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:blocklaws:report:{FORMAT}",
        "title": f"a report of blocklaws, format {FORMAT}",
        **(both if kind is None else {"$ref": f"#/$defs/{kind}"}),
        "$defs": {
            "verify": _VERIFY,
            "case": _CASE,
            "counterexample": _COUNTEREXAMPLE,
            "element": _ELEMENT,
            "stages": _STAGES,
            "faults": _FAULTS,
            "fault": _FAULT,
        },
    }
