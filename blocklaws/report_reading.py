"""Reads a report that `verify` or `faults` wrote, for whoever needs all of it.

Must hold: what is returned has the form that the schema publishes and agrees with itself (its counts, its names), so
that nobody who reads on has to look; anything else is one line that says where it is wrong. Must not: import NumPy.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blocklaws.errors import BlocklawsError
from blocklaws.files import read_json
from blocklaws.json_checking import first_problem
from blocklaws.report_schema import FORMAT, report_schema

__all__ = ["StoredReport", "read_report"]


@dataclasses.dataclass(frozen=True)
class StoredReport:
    """A report from a file.

    Attributes:
        name: what the file was called.
        kind: ``verify`` or ``faults``.
        data: the JSON, as the schema describes it.
    """

    name: str
    kind: str
    data: Mapping[str, Any]


def read_report(path: Path | str) -> StoredReport:
    """Read a report.

    Raises:
        BlocklawsError: the file cannot be read, or is no report of this format.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not isinstance(data.get("blocklaws"), str):
        raise BlocklawsError(f"{path}: is no report of blocklaws (it has no 'blocklaws' version)")
    if "failure" in data:
        raise BlocklawsError(
            f"{path}: is one stored failure and no report; `blocklaws replay` takes it, and "
            "`blocklaws verify ... --json FILE` writes a report"
        )
    kinds = [kind for kind, key in (("verify", "cases"), ("faults", "faults")) if key in data]
    if len(kinds) != 1:
        raise BlocklawsError(
            f"{path}: is no report of blocklaws: `verify` writes 'cases' and `faults` writes 'faults', and it has "
            + ("both" if kinds else "neither")
        )
    if (version := data.get("format")) != FORMAT or isinstance(version, bool):
        raise BlocklawsError(
            f"{path}: has the format {version!r:.40}, and this blocklaws reads format {FORMAT}; make the report anew, "
            "or read it with the version that wrote it"
        )
    if problem := first_problem(data, report_schema(kinds[0])):
        raise BlocklawsError(f"{path}: is damaged: {problem}")
    (_check_cases if kinds == ["verify"] else _check_rows)(data, path)
    return StoredReport(str(path), kinds[0], data)


def _check_cases(data: Mapping[str, Any], path: Path | str) -> None:
    seen: set[tuple[str, ...]] = set()
    names = {backend["name"] for backend in data["backends"]}
    for number, case in enumerate(data["cases"]):
        key = tuple(case[name] for name in ("invariant", "part", "block", "backend", "dtype"))
        if key in seen:
            raise BlocklawsError(f"{path}: is damaged: cases.{number}: the same case stands there twice")
        seen.add(key)
        if case["backend"] not in names:
            raise BlocklawsError(f"{path}: is damaged: cases.{number}: its backend is not among 'backends'")
        if case["informative"] > case["examples"]:
            raise BlocklawsError(
                f"{path}: is damaged: cases.{number}: more of its examples are informative than it has"
            )
    counts = Counter(case["verdict"] for case in data["cases"])
    if any(counts[verdict] != data["summary"][verdict] for verdict in ("holds", "violated", "unchecked", "error")):
        raise BlocklawsError(f"{path}: is damaged: summary: it does not count what stands in 'cases'")


def _check_rows(data: Mapping[str, Any], path: Path | str) -> None:
    seen: set[tuple[Any, ...]] = set()
    for number, row in enumerate(data["faults"]):
        key = tuple(row[name] for name in ("fault", "backend", "block", "dtype", "seed"))
        if key in seen:
            raise BlocklawsError(f"{path}: is damaged: faults.{number}: the same fault stands there twice")
        seen.add(key)
        if set(row["examples_to_kill"]) != set(row["killed_by"]):
            raise BlocklawsError(f"{path}: is damaged: faults.{number}: 'killed_by' and 'examples_to_kill' disagree")
    rated = {(rate["backend"], rate["fault"]) for rate in data["rates"]}
    if rated != {(row["backend"], row["fault"]) for row in data["faults"]} or len(rated) != len(data["rates"]):
        raise BlocklawsError(f"{path}: is damaged: rates: they are not those of what stands in 'faults'")
