"""Writes docs/models.md: ``python docs/models_page.py`` sweeps the causal models of transformers and tells of them.

``python docs/models_page.py REPORT.json`` tells it of a report that ``blocklaws verify transformers-models
--known-failures backends/transformers_models/known.yaml --json REPORT.json`` wrote; that is what ``make conformance``
does. Must hold: every number and every model of the page is read from the report; what the report does not expect is
not called known.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KNOWN = ROOT / "backends" / "transformers_models" / "known.yaml"
PAGE = ROOT / "docs" / "models.md"
KINDS = {
    "defect": "The library contradicts itself",
    "limit": "What is asked is not supported, and no error says so",
    "by design": "Not causal, or not a function of the input alone, by design",
}
Case = Mapping[str, Any]


def main() -> None:
    """Write the page of a report, or of a run that is made now."""
    if len(sys.argv) > 1:
        report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    else:
        from blocklaws.running import verify

        report = verify(
            "transformers-models", known_failures=KNOWN, profile="quick", workers=2,
            progress=lambda done, total, case: print(f"\r{done} of {total}", end="", file=sys.stderr),
        ).as_dict()  # fmt: skip
    PAGE.write_text(page(report), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def page(report: Mapping[str, Any]) -> str:
    """Return the page of a report, as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    cases: Sequence[Case] = report["cases"]
    versions = ", ".join(f"{name} {report['versions'][name]}" for name in ("transformers", "torch", "python"))
    models = {case["block"] for case in cases}
    built = {case["block"] for case in cases if case["verdict"] != "unchecked"}
    failing = {case["block"] for case in cases if case["verdict"] in ("violated", "error")}
    yield from (
        "# The causal models of transformers",
        "",
        "<!-- written by docs/models_page.py -->",
        "",
        "Which causal language models of Hugging Face transformers keep the invariants of `spec/models.yaml`, each",
        "built small, offline and with random weights, as a black box: token ids in, logits out. What is told here is",
        "of the library's code, not of any published weights.",
        "",
        f"Measured with {versions}; profile {report['profile']}, seed {report['seed']}, float32,",
        "attention `eager` and `sdpa`. `make conformance` measures anew and writes this page.",
        "",
        f"Of {len(models)} classes {len(built)} could be built, and {len(built - failing)} of these keep every",
        f"invariant that they can be asked. {len(failing)} do not:",
        "",
    )
    for kind, title in KINDS.items():
        found = [case for case in cases if case["known"].startswith(f"{kind}:")]
        yield from _table(title, [(case, case["known"].partition(": ")[2]) for case in found])
    fresh = [case for case in cases if case["verdict"] in ("violated", "error") and not case["known"]]
    yield from _table("Not known before", [(case, case["reason"]) for case in fresh])
    yield from ("## What was not looked at", "", "| class | attention | why |", "|---|---|---|")
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for case in cases:
        attentions = reasons[case["block"], _short(case["reason"])] if case["verdict"] == "unchecked" else []
        if _attention(case) not in attentions:
            attentions.append(_attention(case))
    for (model, reason), attentions in sorted(reasons.items()):
        yield f"| `{model}` | {', '.join(attentions)} | {reason} |"


def _table(title: str, found: Sequence[tuple[Case, str]]) -> Iterator[str]:
    if not found:
        return
    rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for case, reason in found:
        for column, value in (("models", case["block"]), ("invariants", case["invariant"]), ("on", _attention(case))):
            if value not in rows[reason][column]:
                rows[reason][column].append(value)
    yield from (f"## {title}", "", "| class | invariant | attention | what |", "|---|---|---|---|")
    for reason, row in rows.items():
        names, invariants = (", ".join(f"`{name}`" for name in row[column]) for column in ("models", "invariants"))
        yield f"| {names} | {invariants} | {', '.join(row['on'])} | {_short(reason)} |"
    yield ""


def _attention(case: Case) -> str:
    return str(case["backend"]).removeprefix("transformers-")


def _short(reason: str) -> str:
    text = " ".join(reason.split()).replace("|", "\\|").removeprefix("it cannot be built small: ")
    # A link of a library's message is of no use in a table, and may be cut.
    text = text.partition(" You can install")[0].partition(" You can request")[0].partition(" Please request")[0]
    return text if len(text) <= 180 else text[:177] + "..."


if __name__ == "__main__":
    main()
