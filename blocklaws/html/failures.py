"""The failures of a run, those of one cause together, with everything that leads to the cause.

Must hold: no failing case is left out: each is shown in full, or is a row among the others of its cause, or its cause
is a row, and the page says how many those are. Must not: compute anything about a block; what is not in the report is
not shown.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from blocklaws.causes import Cause, causes
from blocklaws.failure_text import (
    NOT_DETERMINISTIC,
    changed_text,
    config_text,
    is_named,
    snippet,
    verify_command,
    world_text,
)
from blocklaws.html.diagram import block_diagram
from blocklaws.html.planes import difference_plane, value_plane, weights_plane, where
from blocklaws.report import CaseResult, Report

__all__ = [
    "MOST_IN_FULL",
    "Failure",
    "Failures",
    "Lead",
    "StageRow",
    "leads",
    "shown_failures",
    "stage_rows",
    "weights_of_both",
]

#: So many failures are shown in full: one of each cause first, then one of each other invariant that it refutes.
MOST_IN_FULL = 24

_WEIGHTS = "attention_weights"


@dataclasses.dataclass(frozen=True)
class Lead:
    """Which stage most failures of a backend name first: where to look."""

    backend: str
    stage: str
    named: int
    failures: int


@dataclasses.dataclass(frozen=True)
class StageRow:
    """One stage beside the reference's: the row of the report, its state, and its heat map."""

    stage: str
    state: str
    row: Mapping[str, Any]
    shape: str
    at: str
    plane: Markup
    where: str


@dataclasses.dataclass(frozen=True)
class Failure:
    """One failure in full."""

    anchor: str
    result: CaseResult
    others: tuple[CaseResult, ...]
    """The other cases of its cause, where it is the one that stands for it."""
    what: str
    """What they share, to be read after their number."""
    like: str
    """The invariant of the failure that stands for its cause, where that is another one."""
    why: str
    means: str
    experiments: tuple[str, ...]
    """What the stage was narrowed down by."""
    stages: tuple[StageRow, ...]
    """Those that the block shows, or none but its output."""
    note: str
    diagram: Markup
    first: StageRow | None
    """The first stage with a heat map."""
    sides: tuple[Markup, ...]
    """What the block and the reference have there."""
    after: tuple[StageRow, ...]
    """The stages with a heat map after the first."""
    weights: tuple[Markup, ...]
    weights_where: str
    config: str
    world: str
    replay: str
    command: str
    python: str
    flaky: bool


@dataclasses.dataclass(frozen=True)
class Failures:
    """The failures in full, cause by cause, and the causes beyond them."""

    full: tuple[Failure, ...]
    brief: tuple[tuple[str, Cause], ...]
    """(anchor, cause) of each that is not shown in full."""
    anchors: Mapping[int, str]
    """The ``id()`` of each failing case -> the anchor of what tells most of it."""
    invariants: int
    backends: tuple[str, ...]


def leads(report: Report) -> tuple[Lead, ...]:
    """Return where to look first, for each backend with failures that name a stage."""
    found = []
    for name in dict.fromkeys(case.backend for case in report.failures):
        failing = [case for case in report.failures if case.backend == name]
        stages = Counter(case.stage for case in failing if case.stage)
        for stage, named in stages.most_common(1):
            found.append(Lead(name, str(stage), named, len(failing)))
    return tuple(found)


def shown_failures(report: Report) -> Failures:
    """Return the failures of a report, in its order."""
    found = causes(report.failures)
    full: list[Failure] = []
    anchors: dict[int, str] = {}
    left = MOST_IN_FULL - len(found)
    for number, cause in enumerate(found):
        anchor = f"f{number}"
        anchors |= {id(case): anchor for case in (cause.smallest, *cause.others)}
        if number >= MOST_IN_FULL:
            continue
        full.append(_failure(anchor, cause.smallest, report, cause))
        by_invariant: dict[str, list[CaseResult]] = {}
        for case in cause.others:
            by_invariant.setdefault(case.name, []).append(case)
        by_invariant.pop(cause.smallest.name, None)
        for place, cases in enumerate(list(by_invariant.values())[: max(0, left)]):
            own = f"{anchor}-{place}"
            anchors |= {id(case): own for case in cases}
            full.append(_failure(own, cases[0], report, like=cause.smallest.name))
            left -= 1
    return Failures(
        full=tuple(full),
        brief=tuple((f"f{number}", cause) for number, cause in enumerate(found) if number >= MOST_IN_FULL),
        anchors=anchors,
        invariants=len({case.invariant for case in report.failures}),
        backends=tuple(dict.fromkeys(case.backend for case in report.failures)),
    )


def _failure(anchor: str, result: CaseResult, report: Report, cause: Cause | None = None, like: str = "") -> Failure:
    table = result.stages or {"rows": (), "note": "", "pass": ""}
    told = report.meanings.get(result.invariant, {})
    stages = stage_rows(anchor, table["rows"], result.stage if result.how == "traced" else None)
    mapped = [row for row in stages if row.plane]
    first = mapped[0].stage if mapped else ""
    weights = next((row["plane"] for row in table["rows"] if row["stage"] == _WEIGHTS and "plane" in row), None)
    states = {row.stage: row.state for row in stages} | {
        stage: "suspect" for stage in (result.stage or "").split(" or ") if _is_narrowed(result)
    }
    named = is_named(result)
    return Failure(
        anchor=anchor,
        result=result,
        others=cause.others if cause is not None else (),
        what=cause.what if cause is not None else "",
        like=like,
        why=told.get("why", ""),
        means=told.get("means", ""),
        experiments=tuple(result.how.removeprefix("narrowed: ").split("; ")) if _is_narrowed(result) else (),
        stages=stages if [row for row in stages if row.row["shape"] is not None][:-1] else stages[-1:],
        note=table["note"],
        diagram=_diagram(result, table["pass"], states, f"{anchor}-d"),
        first=mapped[0] if mapped else None,
        sides=_sides(anchor, mapped[0]) if mapped else (),
        after=tuple(mapped[1:]),
        weights=weights_of_both(anchor, weights) if weights and first != _WEIGHTS else (),
        weights_where=where(weights) if weights else "",
        config=config_text(result.config) + changed_text(result.config_changes) if result.config else "",
        world=world_text(result.counterexample) if result.counterexample is not None else "",
        replay=result.replay if named else "",
        command=verify_command(result) if named else "",
        python=snippet(result),
        flaky=result.reason.endswith(NOT_DETERMINISTIC),
    )


def _diagram(result: CaseResult, name: str, states: Mapping[str, str], anchor: str) -> Markup:
    """Return the diagram of the pass whose stages are shown; of nothing that is no block."""
    config = {**result.config, **(result.config_changes.get(name, {}) if name else {})}
    return block_diagram(config, states, anchor) if config.get("placement") in ("pre", "post", "inside") else Markup()


def stage_rows(anchor: str, rows: Sequence[Mapping[str, Any]], first: str | None) -> tuple[StageRow, ...]:
    """Return the rows of a stage table for a page; ``first`` is the first stage outside its bound, if known."""
    found = []
    for number, row in enumerate(rows):
        stage, plane = str(row["stage"]), row.get("plane") if row.get("within") is False else None
        found.append(
            StageRow(
                stage=stage,
                state=_state(first, row),
                row=row,
                shape=" × ".join(str(length) for length in row["shape"]) if row["shape"] is not None else "",
                at=", ".join(str(index) for index in row.get("at", ())),
                plane=difference_plane(plane, f"|difference| in {stage}", f"{anchor}-s{number}") if plane else Markup(),
                where=where(plane) if plane else "",
            )
        )
    return tuple(found)


def _state(first: str | None, row: Mapping[str, Any]) -> str:
    if row["shape"] is None:
        return "unseen"
    if row.get("within") is None:
        return "unknown"
    if row["within"]:
        return "within"
    return "first" if row["stage"] == first else "outside"


def _is_narrowed(result: CaseResult) -> bool:
    return result.how.startswith("narrowed")


def weights_of_both(anchor: str, plane: Mapping[str, Any]) -> tuple[Markup, ...]:
    """Return the attention weights of the block and of the reference, what is hidden told apart."""
    return (
        weights_plane(plane, "got", "The block", f"{anchor}-wg"),
        weights_plane(plane, "want", "The reference", f"{anchor}-ww"),
    )


def _sides(anchor: str, first: StageRow) -> tuple[Markup, ...]:
    plane = first.row["plane"]
    if first.stage == _WEIGHTS:
        return weights_of_both(anchor, plane)
    both = (
        value_plane(plane, "got", "The block"),
        value_plane(plane, "want", "The reference"),
    )
    return both if all(both) else ()
