"""Writes the tables of docs/expressions.md from the docstrings of the functions, so that they cannot disagree.

``python -m blocklaws.expressions.reference docs/expressions.md`` brings a file up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from blocklaws.expressions import evaluation  # noqa: F401  imported for the functions it registers
from blocklaws.expressions.registry import FUNCTIONS
from blocklaws.expressions.signatures import GROUPS, SIGNATURES

__all__ = ["MARKERS", "function_tables"]

#: The lines of the document between which the tables stand.
MARKERS = ("<!-- functions: begin -->", "<!-- functions: end -->")


def function_tables() -> str:
    """Return one Markdown table for each group of functions: how it is written, what it gives."""
    parts = []
    for group in GROUPS:
        rows = [
            f"| `{signature.text}` | {_sentence(name)} |"
            for name, signature in SIGNATURES.items()
            if signature.group == group
        ]
        parts.append("\n".join([f"### {group}", "", "| function | gives |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _sentence(name: str) -> str:
    line = (FUNCTIONS[name].call.__doc__ or "").splitlines()[0]
    return line.replace("``", "`").replace("|", "\\|")


def main(path: Path) -> None:
    """Put the tables into a file, between its markers."""
    before, rest = path.read_text(encoding="utf-8").split(MARKERS[0])
    after = rest.split(MARKERS[1])[1]
    path.write_text(f"{before}{MARKERS[0]}\n\n{function_tables()}\n{MARKERS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
