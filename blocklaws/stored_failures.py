"""Failures in files: what a run stores for `replay`, and how a failure is found again by what a user names.

Must hold: what a file says is checked before it is used, so that a damaged or a foreign one is one clear line; where
a file has several failures, none is chosen for the user. Must not: import NumPy before a saved world is read, or run
anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blocklaws
from blocklaws.errors import BlocklawsError
from blocklaws.files import read_json, write_json, write_text
from blocklaws.json_checking import first_problem

if TYPE_CHECKING:
    from blocklaws.report import CaseResult, Report

__all__ = ["CASE_SCHEMA", "FAILURES", "check_case", "read_failure", "store_failure", "store_failures"]

#: Where `verify` keeps the failures of a run, below the working directory.
FAILURES = Path(".blocklaws") / "failures"
_ID = re.compile(r"[0-9a-f]{4,64}\Z")

_TEXT, _INTEGER = {"type": "string", "maxLength": 4096}, {"type": "integer", "minimum": 0, "maximum": 2**63}
_SIZE = {"type": "integer", "minimum": 0, "maximum": 65_536}
_SIZES = ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")
_WORLD: Mapping[str, Any] = {
    "required": ["sizes", "pattern", "seed", "position_offset", "picks"],
    "additionalProperties": False,
    "properties": {
        "sizes": {
            "type": "object",
            "required": list(_SIZES),
            "additionalProperties": False,
            "properties": dict.fromkeys(_SIZES, _SIZE),
        },
        "pattern": _TEXT,
        "seed": _INTEGER,
        "position_offset": _INTEGER,
        "picks": {"type": "object"},
    },
}
CASE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["invariant", "block", "backend", "label", "dtype", "counterexample"],
    "properties": {
        **dict.fromkeys(
            ("invariant", "part", "block", "backend", "label", "dtype", "spec_file", "device", "id"), _TEXT
        ),
        "isolate": {"type": "boolean"},
        "counterexample": {
            "type": "object",
            # Of a whole model: token ids, which its case checks.
            "if": {"required": ["ids"]},
            "then": {"required": ["picks"], "properties": {"ids": {"type": "array"}, "picks": {"type": "object"}}},
            "else": _WORLD,
        },
    },
}


def store_failures(report: Report, folder: Path = FAILURES) -> str | None:
    """Write a file for each failure that can be replayed; return why that was impossible, or None.

    A folder that cannot be written to is no reason to lose a report.
    """
    for case in report.cases:
        if problem := store_failure(case, str(report.spec["sha256"]), folder):
            return problem
    return None


def store_failure(case: CaseResult, spec_sha256: str, folder: Path = FAILURES) -> str | None:
    """Write the file of one failure; return why that was impossible, or None."""
    if case.counterexample is None or case.label.startswith("<"):
        return None
    data = {"blocklaws": blocklaws.__version__, "format": 1, "spec": {"sha256": spec_sha256}, "failure": case.as_dict()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ignore = folder.parent / ".gitignore"
        if not os.path.exists(ignore):
            write_text(ignore, "*\n")
        write_json(folder / f"{case.id}.json", data)
    except OSError as error:
        return f"failures are not stored in {folder}: {error.strerror}"
    except BlocklawsError as error:
        return f"failures are not stored in {folder}: {error}"
    return None


def read_failure(source: str, case_id: str | None = None) -> dict[str, Any]:
    """Return the failing case that ``source`` names: an id, a failure file, or a report.

    Args:
        source: the id that `verify` printed (its beginning is enough), or a file.
        case_id: which failure of the file; needed where it has several.

    Raises:
        BlocklawsError: it is none of these, has no such failure, or has several.
    """
    path = Path(source)
    if _ID.match(source) and not os.path.exists(path):
        path = _stored(source)
    data = read_json(path)
    if not isinstance(data, dict) or not isinstance(data.get("blocklaws"), str):
        raise BlocklawsError(f"{path}: is neither a report nor a failure of blocklaws (it has no 'blocklaws' version)")
    cases = [data["failure"]] if "failure" in data else data.get("cases")
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise BlocklawsError(f"{path}: has no list of 'cases' and no 'failure', so there is nothing to replay")
    failing = [case for case in cases if case.get("counterexample") is not None]
    if not failing:
        raise BlocklawsError(f"{path}: no case of this report has a counterexample, so there is nothing to replay")
    return check_case(_chosen(failing, path, case_id), path)


def _stored(id: str) -> Path:
    stored = sorted(path.stem for path in FAILURES.glob(f"{id}*.json"))
    if not stored:
        raise BlocklawsError(
            f"there is no failure {id!r} in {FAILURES}; replay in the folder where `blocklaws verify` ran, "
            "or give its report: blocklaws replay REPORT.json ID"
        )
    if len(stored) > 1:
        raise BlocklawsError(f"{id!r} is the beginning of several failures: {', '.join(stored)}")
    return FAILURES / f"{stored[0]}.json"


def _chosen(failing: Sequence[dict[str, Any]], path: Path, case_id: str | None) -> dict[str, Any]:
    if case_id is None:
        if len(failing) == 1:
            return failing[0]
        raise BlocklawsError(
            f"{path}: has {len(failing)} failures; name one by its id, as in: blocklaws replay {path} "
            f"{failing[0].get('id')!s:.64} (or {_listed(failing[1:])})"
        )
    found = [case for case in failing if str(case.get("id", "")).startswith(case_id)]
    if not found:
        raise BlocklawsError(f"{path}: has no failing case {case_id!r}; it has {_listed(failing)}")
    if len(found) > 1:
        raise BlocklawsError(f"{path}: {case_id!r} is the beginning of several failures: {_listed(found)}")
    return found[0]


def _listed(cases: Sequence[Mapping[str, Any]], most: int = 6) -> str:
    ids = [f"{case.get('id')!s:.64}" for case in cases[:most]]
    return ", ".join(ids) + (f" and {len(cases) - most} more" if len(cases) > most else "")


def check_case(case: Any, path: Path | str) -> dict[str, Any]:
    """Return a case that has what a replay needs.

    Raises:
        BlocklawsError: it has not.
    """
    if problem := first_problem(case, CASE_SCHEMA):
        raise BlocklawsError(f"{path}: the case is damaged: {problem}")
    checked: dict[str, Any] = case
    return checked
