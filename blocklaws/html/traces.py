"""Traces of one world as a page: the diagram, the stages beside the reference's, and what lies outside its bound.

Must hold: the stages are drawn and judged as those of a failure are. Must not: compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from blocklaws.failure_text import config_text
from blocklaws.html.diagram import block_diagram
from blocklaws.html.failures import StageRow, stage_rows, weights_of_both
from blocklaws.html.planes import where
from blocklaws.tracing import traced_world_text

__all__ = ["TraceView", "trace_views"]


@dataclasses.dataclass(frozen=True)
class TraceView:
    """One trace, ready to be shown."""

    anchor: str
    data: Mapping[str, Any]
    first: str | None
    """The first stage outside its bound, in the order of the computation."""
    shown: bool
    """Whether the block shows more than its output."""
    stages: tuple[StageRow, ...]
    note: str
    diagram: Markup
    weights: tuple[Markup, ...]
    weights_where: str
    config: str
    world: str


def trace_views(traces: Sequence[Mapping[str, Any]]) -> tuple[TraceView, ...]:
    """Return what a page shows of some traces, each as `tracing.trace_world` gives it."""
    return tuple(_view(f"t{number}", data) for number, data in enumerate(traces))


def _view(anchor: str, data: Mapping[str, Any]) -> TraceView:
    table = data["table"] or {"rows": (), "note": ""}
    rows = table["rows"]
    first = next((str(row["stage"]) for row in rows if row.get("within") is False), None)
    stages = stage_rows(anchor, rows, first)
    weights = next((row["plane"] for row in rows if row["stage"] == "attention_weights" and "plane" in row), None)
    return TraceView(
        anchor=anchor,
        data=data,
        first=first,
        shown=len([row for row in stages if row.state != "unseen"]) > 1,
        stages=stages,
        note=table["note"],
        diagram=block_diagram(data["config"], {row.stage: row.state for row in stages}, f"{anchor}-d"),
        weights=weights_of_both(anchor, weights) if weights else (),
        weights_where=where(weights) if weights else "",
        config=config_text(data["config"]),
        world=traced_world_text(data),
    )
