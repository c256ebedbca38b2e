"""A report again from the JSON that one was written as.

Must hold: whatever is missing or is not what a report has is one clear refusal; keys that this version does not know
are left alone, since more may come. Must not: run or import what a report names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from blocklaws.errors import BlocklawsError
from blocklaws.report import VERDICTS, CaseResult, Report

__all__ = ["report_from", "result_from"]

_FIELDS = {field.name: field for field in dataclasses.fields(CaseResult)}
_REQUIRED = tuple(name for name, field in _FIELDS.items() if field.default is field.default_factory)


def report_from(data: Any, source: str = "the report") -> Report:
    """Return the report that ``Report.as_dict`` gave ``data`` for; ``source`` is named in a refusal.

    Raises:
        BlocklawsError: the data is no report.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("blocklaws"), str):
        raise BlocklawsError(f"{source}: is no report of `blocklaws verify` (it has no 'blocklaws' version)")
    if not isinstance(cases := data.get("cases"), list):
        raise BlocklawsError(f"{source}: is no report of `blocklaws verify` (it has no list of 'cases')")
    try:
        return Report(
            version=data["blocklaws"],
            spec=data["spec"],
            seed=data["seed"],
            profile=data["profile"],
            backends=tuple(data["backends"]),
            cases=tuple(result_from(case, f"{source}: cases[{number}]") for number, case in enumerate(cases)),
            stale=tuple(data.get("stale_known_failures", ())),
            invariants=tuple(data.get("invariants", ())),
            meanings={
                told["invariant"]: {key: text for key, text in told.items() if key != "invariant"}
                for told in data.get("meanings", ())
            },
            versions=data.get("versions", {}),
            command=data.get("command", ""),
            not_run=data.get("not_run", 0),
            shard=data.get("shard"),
            campaign=data.get("campaign"),
        )
    except KeyError as missing:
        raise BlocklawsError(f"{source}: is no report of `blocklaws verify` (it has no {missing})") from None


def result_from(data: Any, source: str) -> CaseResult:
    """Return the result that ``CaseResult.as_dict`` gave ``data`` for.

    Raises:
        BlocklawsError: the data is no case of a report.
    """
    if not isinstance(data, Mapping) or (absent := [name for name in _REQUIRED if name not in data]):
        lacks = ", ".join(absent) if isinstance(data, Mapping) else "every key"
        raise BlocklawsError(f"{source}: is no case of a report (it lacks {lacks})")
    if data["verdict"] not in VERDICTS:
        raise BlocklawsError(f"{source}: the verdict {data['verdict']!r} is none of {', '.join(VERDICTS)}")
    known = {name: data[name] for name in _FIELDS if name in data}
    try:
        if known.get("max_error") is not None:
            known["max_error"] = float(known["max_error"])
        if known.get("nearest") is not None:
            difference, allowed = known["nearest"]
            known["nearest"] = (float(difference), float(allowed))
        return CaseResult(**known)
    except (TypeError, ValueError) as error:
        raise BlocklawsError(f"{source}: is damaged: {error}") from None
