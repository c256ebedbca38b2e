"""How strong the spec is: kill rates over fresh seeds, the faults that are hardest to see, localisation, false alarms.

Without options a small measure is made and printed. `docs/power.md` was made with matrices that had been measured
before (`blocklaws faults numpy --claims --seeds 30 --seed 1000 --json numpy.json`), since those take long:

    python benchmarks/power.py --matrix numpy.json --matrix torch.json --full full.json --alarms alarms.jsonl --write

`--write` puts the tables between the two marks of docs/power.md; the text around them is written by hand. A row of the
false alarms stays on the page until the same is measured again: each took hours.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import alarms
import yaml

from blocklaws.kill_matrix import run_faults
from blocklaws.spec_reading import load_spec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "power.md"
REPORTS = ROOT / "tests" / "bug_report_kinds.yaml"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HARDEST = 12

#: The cells of a row of the false alarms that say what was measured.
WHAT = alarms.HEADS.index("seeds")

Matrix = dict[str, Any]


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def rates(matrices: Sequence[Matrix]) -> Iterator[str]:
    """Yield how surely the faults are refuted, a line a matrix."""
    yield "## Kill rates"
    yield ""
    rows = []
    for matrix in matrices:
        shares = [rate["share"] for rate in matrix["rates"]]
        right, of = matrix["localised"]["right"], matrix["localised"]["of"]
        planted = len(shares) * matrix["seeds"]
        killed = round(sum(share * matrix["seeds"] for share in shares))
        rows.append(
            (
                matrix["rates"][0]["backend"], len(shares), matrix["seeds"], f"{killed} of {planted}",
                f"{100 * min(shares):g} %", len(matrix["declared_but_not_refuted"]), len(matrix["weak_claims"]),
                f"{right} of {of} ({100 * right / of:.1f} %)",
            )
        )  # fmt: skip
    heads = ("backend", "faults", "seeds", "refuted", "least sure fault", "untrue claims", "weak claims", "localised")
    yield from table(heads, rows)
    profile, first = matrices[0]["profile"], matrices[0]["seed"]
    yield (
        f"Profile {profile}, seeds from {first} on, each fault against the invariants that claim it. A fault counts in "
        "a seed when one of them refutes it there. Weak: the claim came true in fewer than nine of ten seeds. "
        "Localised: most kills of the fault name the stage at which it was planted."
    )
    yield ""


def hardest(matrices: Sequence[Matrix]) -> Iterator[str]:
    """Yield the faults that need the most examples."""
    yield "## The hardest to see"
    yield ""
    needed: dict[str, dict[str, float]] = {}
    for matrix in matrices:
        for rate in matrix["rates"]:
            needed.setdefault(rate["fault"], {})[rate["backend"]] = rate["examples"] or float("inf")
    backends = [matrix["rates"][0]["backend"] for matrix in matrices]
    order = sorted(needed, key=lambda fault: -statistics.mean(needed[fault].values()))[:HARDEST]
    rows = [
        (f"`{fault}`", *(f"{needed[fault][name]:g}" if name in needed[fault] else "-" for name in backends))
        for fault in order
    ]
    yield "Median of the examples that the quickest kill of a seed took; the default profile looks at 24."
    yield ""
    yield from table(("fault", *backends), rows)


def weak(matrices: Sequence[Matrix]) -> Iterator[str]:
    """Yield the claims that come true in some seeds only."""
    found = [claim for matrix in matrices for claim in matrix["weak_claims"]]
    if found:
        yield "Weak claims:"
        yield ""
        rows = [
            (f"`{claim['invariant']}`", f"`{claim['fault']}`", claim["backend"], f"{100 * claim['share']:.0f} %")
            for claim in found
        ]
        yield from table(("invariant", "fault", "backend", "seeds"), rows)


def earned(full: Matrix) -> Iterator[str]:
    """Yield what the full matrix says: who refutes most, and who refutes nothing that others do not."""
    yield "## Every fault against every invariant"
    yield ""
    backend, profile = full["faults"][0]["backend"], full["profile"]
    # A run of several backends tries every invariant on the first alone.
    faults = [row for row in full["faults"] if row["backend"] == backend]
    killers = Counter(name for row in faults for name in row["killed_by"])
    most = ", ".join(f"`{name}` ({count})" for name, count in killers.most_common(5))
    per_fault: dict[str, set[str]] = {}
    for row in faults:
        per_fault.setdefault(row["fault"], set()).update(row["killed_by"])
    counts = [len(names) for names in per_fault.values()]
    only = {next(iter(names)) for names in per_fault.values() if len(names) == 1}
    yield (
        f"On {backend}, profile {profile}, seed {full['seed']}: {len(per_fault)} faults meet {len(killers)} "
        f"invariants. A fault is refuted by {statistics.median(counts):g} of them in the median, by {min(counts)} at "
        f"least. Most faults are refuted by {most}. "
        f"The only one to refute some fault: {', '.join(f'`{name}`' for name in sorted(only)) or 'none'}."
    )
    yield ""
    if unearned := full["unearned_invariants"]:
        yield (
            f"Unearned, which is shown and not failed: each fault that these {len(unearned)} refute is refuted without "
            f"an oracle by another invariant too: {', '.join(f'`{name}`' for name in unearned)}."
        )
        yield ""


def rows_on_page(page: str) -> list[tuple[str, ...]]:
    """Return the rows of the false alarms that the page has."""
    head = "| " + " | ".join(alarms.HEADS) + " |"
    _, _, below = page.partition(head)
    table = below.partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table]


def false_alarms(files: Sequence[Path], page: str) -> Iterator[str]:
    """Yield how often right backends were accused over fresh seeds (`benchmarks/alarms.py`), and what the page has."""
    lines = [line for file in files for line in alarms.read(file)]
    rows = {row[:WHAT]: row for row in rows_on_page(page)}
    rows |= {row[:WHAT]: row for row in alarms.rows(lines)}
    if not rows:
        return
    yield "## False alarms"
    yield ""
    yield (
        "Right backends over fresh seeds, all invariants. Default kinds of block are those of a run that names none; "
        "the dtypes are all that the backend has. Threads: `OMP_NUM_THREADS`. Explained: violations that are in "
        "`conformance/explanations.yaml`, each checked by hand (docs/conformance.md)."
    )
    yield ""
    yield from table(alarms.HEADS, list(rows.values()))
    if accused := [line for line in lines if line["failures"]]:
        yield ""
        for line in accused:
            yield f"- Spec {line['spec']}, seed {line['seed']}: {'; '.join(line['failures'])}"
        yield ""


def reports() -> Iterator[str]:
    """Yield which public reports the faults tell."""
    known = yaml.safe_load(REPORTS.read_text(encoding="utf-8"))
    modelled: dict[str, list[str]] = {}
    for fault in load_spec().faults.values():
        modelled.setdefault(fault.modelled_on, []).append(fault.id)
    for report, fault in known["same_mistake"].items():
        modelled.setdefault(report, []).append(fault)
    yield "## The reports behind the faults"
    yield ""
    rows = []
    for kind, its in known["kinds"].items():
        faults = dict.fromkeys(fault for report in its for fault in modelled.get(report, ()))
        told = sum(report in modelled for report in its)
        rows.append((kind, f"{told} of {len(its)}", ", ".join(f"`{fault}`" for fault in faults) or "none"))
    yield from table(("kind of mistake", "reports told", "faults"), rows)
    yield "Reports that no fault tells, and why:"
    yield ""
    reasons: dict[str, list[str]] = {}
    for report, reason in known["not_told"].items():
        reasons.setdefault(reason, []).append(report)
    for reason, which in reasons.items():
        yield f"- {', '.join(which)}: {reason}."
    yield ""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--matrix", action="append", default=[], type=Path, help="of `faults --claims --json`")
    parser.add_argument("--full", type=Path, help="of `faults --json`, without --claims")
    parser.add_argument("--alarms", action="append", default=[], type=Path, help="of benchmarks/alarms.py --keep")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help="into docs/power.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not given, and print or write the tables."""
    asked = parse(arguments)
    matrices = [json.loads(path.read_text(encoding="utf-8")) for path in asked.matrix]
    if not matrices:
        matrices = [run_faults(["numpy"], claims_only=True, seed=asked.seed, seeds=2).as_dict()]
    lines = [*rates(matrices), *hardest(matrices), *weak(matrices)]
    if asked.full:
        lines += earned(json.loads(asked.full.read_text(encoding="utf-8")))
    page = PAGE.read_text(encoding="utf-8")
    lines += false_alarms(asked.alarms, page)
    lines += reports()
    text = "\n".join(lines).rstrip() + "\n"
    if not asked.write:
        print(text)
        return
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
