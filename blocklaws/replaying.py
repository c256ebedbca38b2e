"""Replay: one stored example is examined again, without a search.

Must hold: what a failure file or a report says is checked before it is used, so that a damaged or a foreign JSON is
one clear line; a replay tells the same failure in the same words as the run that found it. Must not: draw an example.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blocklaws
from blocklaws.errors import BackendError, BlocklawsError
from blocklaws.failure_text import shown_place
from blocklaws.files import read_json, write_json, write_text

if TYPE_CHECKING:
    from blocklaws.report import CaseResult, Report

__all__ = ["FAILURES", "as_test", "examine", "read_failure", "replay", "store_failure", "store_failures"]

#: Where `verify` keeps the failures of a run, below the working directory.
FAILURES = Path(".blocklaws") / "failures"
_ID = re.compile(r"[0-9a-f]{4,64}\Z")

_TEXT, _INTEGER = {"type": "string", "maxLength": 4096}, {"type": "integer", "minimum": 0, "maximum": 2**63}
_SIZE = {"type": "integer", "minimum": 0, "maximum": 65_536}
_SIZES = ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")
_CASE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["invariant", "block", "backend", "label", "dtype", "counterexample"],
    "properties": {
        **dict.fromkeys(
            ("invariant", "part", "block", "backend", "label", "dtype", "spec_file", "device", "id"), _TEXT
        ),
        "isolate": {"type": "boolean"},
        "counterexample": {
            "type": "object",
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
        },
    },
}


def examine(
    backend: Any,
    *,
    invariant: str,
    block: str,
    dtype: str,
    example: Mapping[str, Any],
    part: str = "",
    spec: Any = None,
    device: str | None = None,
    name: str | None = None,
    isolate: bool = False,
) -> CaseResult:
    """Examine one example of one case, and return its result.

    Args:
        backend: as in `blocklaws.verify`.
        invariant, block, dtype, part: which case.
        example: the world and the picks, as a report's ``counterexample`` has them.
        spec: a spec file, a loaded spec, or None for the built-in one.
        device: where torch and jax compute.
        name: which backend is meant, where a mapping file stands for several.
        isolate: whether the backend runs in a process of its own, as it did when it failed.

    Raises:
        BlocklawsError: there is no such case, or the example does not fit it.
    """
    from blocklaws.built import BlockRaised
    from blocklaws.checking import Case, Examination, Failure, Outcome
    from blocklaws.planning import properties_of
    from blocklaws.report import result_of
    from blocklaws.running import prepare
    from blocklaws.worlds import Example

    run = prepare(
        [backend], spec=spec, blocks=[block], dtypes=[dtype], invariants=[invariant], device=device, isolate=isolate
    )
    cases = [case for case in run.cases if case.part == part and name in (None, case.subject.name)]
    if not cases:
        raise BlocklawsError(f"there is no case of {invariant!r} with the part {part!r} on backend {name or backend!r}")
    case: Case = cases[0]
    _check_example(example, case)
    chosen = Example.from_dict(example)
    property = properties_of([case.invariant])[case.invariant.property_name]

    def outcome() -> Outcome:
        try:
            parts = case.split()
            checkable = next((each for each, unchecked in parts if not unchecked), None)
            if checkable is None:
                return Outcome("unchecked", parts[0][1])
            examination: Examination = property.examine(checkable, chosen)
        except (BlockRaised, BackendError) as error:
            return Outcome("error", str(error))
        except BlocklawsError as error:
            return Outcome("error", shown_place(str(error)), spec_mistake=True)
        if examination.failed:
            failure = Failure(chosen, examination, 1)
            if examination.raised is not None:
                return Outcome("error", examination.raised, 1, 1, failure=failure)
            assert examination.judgement is not None
            return Outcome("violated", examination.judgement.detail, 1, 1, failure=failure)
        if examination.void is not None:
            return Outcome("unchecked", examination.void, 1)
        return Outcome("holds", "", 1, int(examination.informative), examination.max_error, examination.nearest)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a run
        return result_of(case, outcome(), 0.0, run.spec_file)


def _check_example(example: Mapping[str, Any], case: Any) -> None:
    """Refuse an example that the case could not have drawn."""
    import jsonschema

    from blocklaws.errors import did_you_mean
    from blocklaws.invariant_reading import PATTERNS

    try:
        jsonschema.validate(_plain(example), _CASE_SCHEMA["properties"]["counterexample"])
    except jsonschema.ValidationError as error:
        where = ".".join(str(part) for part in ("example", *error.absolute_path))
        raise BlocklawsError(f"{where}: {error.message}") from None
    patterns = [pattern for group in PATTERNS.values() for pattern in group]
    if example["pattern"] not in patterns:
        raise BlocklawsError(
            f"example: unknown pattern {example['pattern']!r}{did_you_mean(example['pattern'], patterns)}"
        )
    sizes = example["sizes"]
    if sizes["B"] * sizes["T"] * sizes["d_model"] > 2**26:
        raise BlocklawsError(f"example: an input of {sizes['B']} x {sizes['T']} x {sizes['d_model']} is no small world")
    picks = {pick.name for pick in case.invariant.picks}
    if set(example["picks"]) != picks:
        raise BlocklawsError(
            f"example: invariant {case.invariant.id!r} picks {sorted(picks) or 'nothing'}, "
            f"but the example has {sorted(example['picks']) or 'nothing'}; the spec has changed since"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


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
        if not ignore.exists():
            write_text(ignore, "*\n")
        write_json(folder / f"{case.id}.json", data)
    except OSError as error:
        return f"failures are not stored in {folder}: {error.strerror}"
    except BlocklawsError as error:
        return f"failures are not stored in {folder}: {error}"
    return None


def read_failure(source: str, case_id: str | None = None) -> dict[str, Any]:
    """Return the failing case that ``source`` names: an id, a failure file, or a report.

    Raises:
        BlocklawsError: it is none of these, or has no such case.
    """
    path = Path(source)
    if _ID.match(source) and not path.exists():
        stored = sorted(path.stem for path in FAILURES.glob(f"{source}*.json"))
        if not stored:
            raise BlocklawsError(
                f"there is no failure {source!r} in {FAILURES}; replay in the folder where `blocklaws verify` ran, "
                "or give its report: blocklaws replay REPORT.json --case ID"
            )
        if len(stored) > 1:
            raise BlocklawsError(f"{source!r} is the beginning of several failures: {', '.join(stored)}")
        path = FAILURES / f"{stored[0]}.json"
    data = read_json(path)
    if not isinstance(data, dict) or not isinstance(data.get("blocklaws"), str):
        raise BlocklawsError(f"{path}: is neither a report nor a failure of blocklaws (it has no 'blocklaws' version)")
    cases = [data["failure"]] if "failure" in data else data.get("cases")
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise BlocklawsError(f"{path}: has no list of 'cases' and no 'failure', so there is nothing to replay")
    failing = [case for case in cases if case.get("counterexample") is not None]
    if case_id is not None:
        failing = [case for case in failing if str(case.get("id", "")).startswith(case_id)]
        if not failing:
            raise BlocklawsError(f"{path}: has no failing case {case_id!r}; each has its id in the key 'id'")
    if not failing:
        raise BlocklawsError(f"{path}: no case of this report has a counterexample, so there is nothing to replay")
    return _checked(failing[0], path)


def _checked(case: dict[str, Any], path: Path) -> dict[str, Any]:
    import jsonschema

    try:
        jsonschema.validate(case, _CASE_SCHEMA)
    except jsonschema.ValidationError as error:
        where = ".".join(str(part) for part in error.absolute_path)
        message = error.message if len(error.message) <= 200 else error.message[:197] + "..."
        raise BlocklawsError(f"{path}: the case is damaged: {where + ': ' if where else ''}{message}") from None
    return case


def _arguments(case: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {"invariant": case["invariant"], "block": case["block"], "dtype": case["dtype"]}
    for key, name in (("part", "part"), ("spec_file", "spec"), ("device", "device"), ("isolate", "isolate")):
        if case.get(key):
            arguments[name] = case[key]
    if case["label"].endswith((".yaml", ".yml")):
        arguments["name"] = case["backend"]
    return {**arguments, "example": case["counterexample"]}


def replay(case: Mapping[str, Any]) -> CaseResult:
    """Examine the example of a case that `read_failure` returned."""
    if case["label"].startswith("<"):
        raise BlocklawsError(
            f"backend {case['label']} was given as an object, which cannot be found by a name; run its program again"
        )
    return examine(case["label"], **_arguments(case))


def as_test(case: Mapping[str, Any], result: CaseResult, path: Path | str) -> None:
    """Write a pytest file that stands alone and fails for as long as the example fails.

    Raises:
        BlocklawsError: the file exists already, or cannot be written.
    """
    if Path(path).exists():
        raise BlocklawsError(f"{path}: exists already and is left as it is; name another file")
    arguments = "".join(f"        {name}={value!r},\n" for name, value in _arguments(case).items())
    said = result.says.replace("\\", "").replace('"', "'")
    name = re.sub(r"\W+", "_", f"{case['invariant']}_{case['block']}_{case['dtype']}")
    write_text(
        path,
        f'"""{result.name} on {case["backend"]}, {result.verdict} under blocklaws {blocklaws.__version__}.\n\n'
        f'{said}\n"""\n\n'
        "from blocklaws.failure_text import failure_text\n"
        "from blocklaws.replaying import examine\n\n\n"
        f"def test_{name}():\n"
        "    result = examine(\n"
        f"        {case['label']!r},\n{arguments}"
        "    )\n"
        '    assert result.verdict == "holds", failure_text(result)\n',
    )
