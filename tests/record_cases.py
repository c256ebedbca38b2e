"""Records how many cases and invariants each built-in backend has, so that none can be lost unseen.

``python tests/record_cases.py`` writes ``recorded_cases.yaml`` anew, after a change of the spec that means to have
other numbers; ``test_spec_guards.py`` reads it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import yaml

from blocklaws.running import prepare
from blocklaws.spec_reading import built_in_spec

RECORD = Path(__file__).with_name("recorded_cases.yaml")
BACKENDS = ("numpy", "torch", "jax")

#: backend -> block -> dtype -> number of cases; backend -> "invariants" -> number of invariants.
Counts = dict[str, dict[str, dict[str, int]]]


def planned(backend: str) -> dict[str, dict[str, int]]:
    """Return block -> dtype (and ``invariants``) -> how many cases a run of the whole spec plans."""
    counts: dict[str, Counter[str]] = {}
    invariants: dict[str, set[str]] = {}
    for case in prepare([backend], blocks=tuple(built_in_spec().blocks)).cases:
        counts.setdefault(case.kind.name, Counter())[case.dtype] += 1
        invariants.setdefault(case.kind.name, set()).add(case.invariant.id)
    return {block: {**count, "invariants": len(invariants[block])} for block, count in counts.items()}


def recorded() -> Counts:
    """Return what was recorded."""
    found: Counts = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return found


def record() -> None:
    """Write the numbers of today."""
    lines = [
        "# How many cases a run of the whole spec plans, by backend, block and dtype, and of how many invariants.",
        "# Written by `python tests/record_cases.py`; a test fails when there are fewer.",
    ]
    for backend in BACKENDS:
        lines.append(f"{backend}:")
        lines += [
            f"  {block}: {{{', '.join(f'{name}: {count}' for name, count in counts.items())}}}"
            for block, counts in planned(backend).items()
        ]
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
