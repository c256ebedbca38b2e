"""Where in a mapping file each stage comes from: what to look at when a stage is wrong.

Must hold: of a stage it tells the rule that shows it, the parameters and sections that make it, and those of the stages
before it that the mapping does not show, since their mistakes are seen here first; last what all stages come from: the
inputs that are passed, `build` and `forward`. Must not import a framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Named
from pathlib import Path
from typing import TYPE_CHECKING

from blocklaws.backends.mapped.reader import Node
from blocklaws.canonical import STAGES

if TYPE_CHECKING:
    from blocklaws.backends.mapped.schema import Mapping

__all__ = ["stages_at"]

#: stage -> the stages that it is computed from, wherever the norms stand; a norm may come before a branch or after it.
_FROM: Named[str, tuple[str, ...]] = {
    "query": ("attention_norm",),
    "key": ("attention_norm",),
    "value": ("attention_norm",),
    "attention_weights": ("query", "key"),
    "attention_branch": ("attention_weights", "value"),
    "after_attention": ("attention_branch", "attention_norm"),
    "feed_forward_norm": ("after_attention",),
    "feed_forward_branch": ("feed_forward_norm",),
    "output": ("feed_forward_branch", "feed_forward_norm"),
}
#: stage -> how the names of its parameters begin.
_PARAMETERS: Named[str, str] = {
    "attention_norm": "attention_norm.",
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "attention_branch": "attention.output",
    "feed_forward_norm": "feed_forward_norm.",
    "feed_forward_branch": "feed_forward.",
}
#: stage -> the sections of the file that it follows.
_SECTIONS: Named[str, tuple[str, ...]] = {"query": ("rotary",), "key": ("rotary",), "attention_weights": ("mask",)}


def stages_at(mapping: Mapping) -> dict[str, tuple[str, ...]]:
    """Return stage -> where it comes from, as ``mask (layer.yaml:12)``, the likeliest first."""
    shown = {rule.stage: rule.node for rule in mapping.stages}
    found = {}
    for stage in STAGES[1:]:
        rule = [(f"the rule of the stage {stage}", shown[stage])] if stage in shown else []
        together: dict[str, dict[str, None]] = {}
        for what, node in [*rule, *_origins(mapping, stage, shown), *_of_all(mapping)]:
            line = f"{Path(node.place.file).name}:{node.place.line}"
            together.setdefault(line, {})[what] = None
        found[stage] = tuple(f"{', '.join(names)} ({line})" for line, names in together.items())
    return found


def _of_all(mapping: Mapping) -> Iterator[tuple[str, Node]]:
    """Yield what every stage comes from: epsilon, scale and base are built, positions and tables are passed."""
    used = set(mapping.passing.call.names())
    for name in reversed(list(mapping.inputs)):
        used |= set(mapping.inputs[name].names()) if name in used else set()
    yield from ((f"inputs.{name}", value.node) for name, value in mapping.inputs.items() if name in used)
    yield from ((section, mapping.node.value[section]) for section in ("build", "forward"))


def _origins(mapping: Mapping, stage: str, shown: Named[str, Node]) -> Iterator[tuple[str, Node]]:
    """Yield what makes a stage, and what makes those before it that are not shown."""
    begin = _PARAMETERS.get(stage)
    for name, node in mapping.parameters.places() if begin is not None else ():
        if name.startswith(begin or ""):
            yield name, node
    for section in _SECTIONS.get(stage, ()):
        if section in mapping.node.value:
            yield section, mapping.node.value[section]
    for before in _FROM.get(stage, ()):
        if before not in shown:
            yield from _origins(mapping, before, shown)
