"""Replay: one stored example is examined again, without a search.

Must hold: an example that the case could not have drawn is refused; a replay tells the same failure in the same words
as the run that found it. Must not: draw an example.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blocklaws
from blocklaws.errors import BackendError, BlocklawsError
from blocklaws.failure_text import shown_place
from blocklaws.files import write_text
from blocklaws.json_checking import first_problem
from blocklaws.stored_failures import CASE_SCHEMA

if TYPE_CHECKING:
    from blocklaws.checking import Case
    from blocklaws.report import CaseResult
    from blocklaws.running import Run
    from blocklaws.saved_world import SavedWorld
    from blocklaws.specification import Pick
    from blocklaws.worlds import Example, World

__all__ = ["as_test", "examine", "replay", "world_of"]

#: No array of a small world has more elements.
_MOST_ELEMENTS = 2**26


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
    isolate: bool | None = None,
    world: SavedWorld | None = None,
) -> CaseResult:
    """Examine one example of one case, and return its result.

    Args:
        backend: as in `blocklaws.verify`.
        invariant, block, dtype, part: which case.
        example: the world and the picks, as a report's ``counterexample`` has them.
        spec: a spec file, a loaded spec, or None for the built-in one.
        device: where torch and jax compute.
        name: which backend is meant, where a mapping file or a family of models stands for several.
        isolate: as in `blocklaws.verify`: how it ran when it failed.
        world: arrays to take instead of those that the example's recipe gives.

    Raises:
        BlocklawsError: there is no such case, or the example does not fit it.
    """
    from blocklaws.built import BlockRaised
    from blocklaws.checking import Examination, Failure, Outcome
    from blocklaws.planning import properties_of
    from blocklaws.report import result_of

    run, case = _prepared(backend, invariant, block, dtype, part, spec, device, name, isolate)
    chosen = _example_of(example, case)
    if world is not None:
        case = world.given_to(case, chosen.recipe)
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


def _prepared(
    backend: Any,
    invariant: str,
    block: str,
    dtype: str,
    part: str = "",
    spec: Any = None,
    device: str | None = None,
    name: str | None = None,
    isolate: bool | None = None,
) -> tuple[Run, Case]:
    """Return the one case that is meant, and the run that it would be a part of."""
    from blocklaws.running import prepare

    run = prepare(
        [backend], spec=spec, blocks=[block], dtypes=[dtype], invariants=[invariant], device=device, isolate=isolate
    )
    cases = [case for case in run.cases if case.part == part and name in (None, case.subject.name)]
    if not cases:
        raise BlocklawsError(f"there is no case of {invariant!r} with the part {part!r} on backend {name or backend!r}")
    return run, cases[0]


def _example_of(example: Mapping[str, Any], case: Case) -> Example:
    """Return the example of a report, checked: one that the case could have drawn."""
    from blocklaws.models.case import ModelCase
    from blocklaws.worlds import Example

    if isinstance(case, ModelCase):
        return case.example_of(example)
    _check_example(example, case)
    return Example.from_dict(example)


def _check_example(example: Mapping[str, Any], case: Case) -> None:
    """Refuse an example that the case could not have drawn."""
    from blocklaws.errors import did_you_mean
    from blocklaws.invariant_reading import PATTERNS

    if problem := first_problem(_plain(example), CASE_SCHEMA["properties"]["counterexample"]):
        raise BlocklawsError(f"example: {problem}")
    patterns = [pattern for group in PATTERNS.values() for pattern in group]
    if example["pattern"] not in patterns:
        raise BlocklawsError(
            f"example: unknown pattern {example['pattern']!r:.100}{did_you_mean(example['pattern'], patterns)}"
        )
    _check_sizes(example["sizes"], case)
    picks = {pick.name: pick for pick in case.invariant.picks}
    if set(example["picks"]) != set(picks):
        raise BlocklawsError(
            f"example: invariant {case.invariant.id!r} picks {sorted(picks) or 'nothing'}, "
            f"but the example has {sorted(example['picks'])[:9] or 'nothing'}; the spec has changed since"
        )
    for name, pick in picks.items():
        if not _could_be_picked(_plain(example["picks"][name]), pick):
            raise BlocklawsError(f"example: {name} = {example['picks'][name]!r:.60} is nothing that {pick.text} gives")


def _check_sizes(sizes: Mapping[str, int], case: Case) -> None:
    from blocklaws.canonical import parameter_shapes
    from blocklaws.specification import Sizes

    config = case.kind.config(Sizes(**sizes))
    B, T = sizes["B"], sizes["T"]
    shapes = [(B, T, config.d_model), (B, T, config.d_ff), (B, config.n_heads, T, T)]
    shapes += [(B, T, config.n_heads, config.d_head), *parameter_shapes(config).values()]
    for shape in shapes:
        elements = 1
        for size in shape:
            elements *= size
        if elements > _MOST_ELEMENTS:
            raise BlocklawsError(f"example: an array of {' x '.join(map(str, shape))} is in no small world")


def _could_be_picked(value: Any, pick: Pick) -> bool:
    """Whether a value has the form of what a pick draws; the expressions of the spec judge the rest."""
    if pick.choices:
        return any(type(value) is type(choice) and value == choice for choice in _plain(pick.choices))
    if pick.arrangement is None:
        return type(value) is int and abs(value) <= 2**31
    if not isinstance(value, list) or not all(type(entry) is int and 0 <= entry <= 2**16 for entry in value):
        return False
    return pick.arrangement != "permutation" or sorted(value) == list(range(len(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _arguments(case: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {"invariant": case["invariant"], "block": case["block"], "dtype": case["dtype"]}
    for key, name in (("part", "part"), ("spec_file", "spec"), ("device", "device"), ("isolate", "isolate")):
        if case.get(key):
            arguments[name] = case[key]
    if case["label"].endswith((".yaml", ".yml")) or "ids" in case["counterexample"]:
        arguments["name"] = case["backend"]
    return arguments


def _check_named(case: Mapping[str, Any]) -> None:
    if case["label"].startswith("<"):
        raise BlocklawsError(
            f"backend {case['label']} was given as an object, which cannot be found by a name; run its program again"
        )


def replay(case: Mapping[str, Any], world: SavedWorld | None = None) -> CaseResult:
    """Examine the example of a case that `read_failure` returned, or with the arrays of a saved world."""
    _check_named(case)
    return examine(case["label"], **_arguments(case), example=case["counterexample"], world=world)


def world_of(case: Mapping[str, Any]) -> World:
    """Return the world of a case that `read_failure` returned, with the arrays that its recipe gives.

    Raises:
        BlocklawsError: there is no such case any more, or the example does not fit it.
    """
    from blocklaws.worlds import Example

    _check_named(case)
    _, prepared = _prepared(case["label"], **_arguments(case))
    if "ids" in case["counterexample"]:
        raise BlocklawsError("a whole model has no world to save: its example is the ids, which the report has")
    _check_example(case["counterexample"], prepared)
    return prepared.world(Example.from_dict(case["counterexample"]).recipe)


def as_test(case: Mapping[str, Any], result: CaseResult, path: Path | str) -> None:
    """Write a pytest file that stands alone and fails for as long as the example fails.

    Raises:
        BlocklawsError: the file exists already, or cannot be written.
    """
    if os.path.exists(path):
        raise BlocklawsError(f"{path}: exists already and is left as it is; name another file")
    given = {**_arguments(case), "example": case["counterexample"]}
    arguments = "".join(f"        {name}={value!r},\n" for name, value in given.items())
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
