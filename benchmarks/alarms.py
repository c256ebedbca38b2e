"""False alarms: right backends over many fresh seeds, and how often one of them was accused.

A kind of block and a dtype are looked at with all seeds before the next, in one process, so that what compiles is
compiled once. A line is kept for each seed of each, so that a measure that was stopped goes on where it was, and
several make one table:

    python benchmarks/alarms.py numpy --seeds 200 --keep alarms.jsonl
    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python benchmarks/alarms.py torch jax --every-block --keep alarms.jsonl
    python benchmarks/power.py --alarms alarms.jsonl --write

With more threads than cores, let those that wait sleep: spinning, they took ten times as long.

Nothing here knows which backends are right: an accusation is printed with what it says. One that a file of known
failures explains is counted beside the violated, not among them:

    python benchmarks/alarms.py backends/mappings/flax_attention.yaml --known-failures conformance/explanations.yaml
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from blocklaws.processes import Processes, cores
from blocklaws.running import Run, prepare
from blocklaws.spec_reading import load_spec

HEADS = (
    "spec", "backend", "kinds of block", "profile", "threads", "invariants", "seeds", "cases", "violated", "explained",
    "in error", "unchecked",
)  # fmt: skip

#: A line may be of a whole seed.
WHOLE = ("", "")

#: What makes two lines speak of the same thing; the seed is what differs.
Kind = tuple[str, str, str, str, str, str]


def kind_of(line: dict[str, Any]) -> Kind:
    """Return what a line measured, whatever its seed."""
    return (
        line["spec"],
        line["backend"],
        line["blocks"],
        line["profile"],
        line["threads"],
        line.get("invariants", "all"),
    )


def threads() -> str:
    """Return the number of threads that the frameworks may use, as the environment says it."""
    return os.environ.get("OMP_NUM_THREADS", str(cores()))


class Part(NamedTuple):
    """What is planned once for all seeds: a backend in one kind of block and dtype."""

    backend: str
    block: str
    dtype: str
    profile: str
    invariants: tuple[str, ...]
    isolate: bool
    known_failures: Path | None


class Outcome(NamedTuple):
    """What a seed came to: the cases of each verdict, those violated that were explained, and what was not."""

    summary: dict[str, int]
    explained: int
    failures: list[str]


@functools.lru_cache(maxsize=1)
def planned(part: Part) -> Run:
    """Plan the run of a part, once for all seeds."""
    return prepare(
        [part.backend],
        blocks=[part.block],
        dtypes=[part.dtype],
        profile=part.profile,
        invariants=part.invariants,
        # Built-in backends run in the process of the harness in any case.
        isolate=None if part.isolate else False,
        known_failures=part.known_failures,
    )


def verified(part: Part, seed: int) -> Outcome:
    """Verify a part with one seed."""
    run = planned(part).with_seed(seed)
    report = run.report(dict(run.results()))
    return Outcome(
        summary=dict(report.summary),
        explained=sum(case.verdict == "violated" and bool(case.known) for case in report.cases),
        failures=[
            f"{failure.name} on {failure.backend}, {part.block}, {part.dtype}: {failure.reason}"
            for failure in report.failures
        ],
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines that were kept; the last one may have been cut."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def measured(asked: argparse.Namespace, kept: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a line for each seed that was asked for and is not among those kept, of each kind of block and dtype."""
    spec = load_spec()
    every = tuple(spec.blocks) if asked.every_block else tuple(asked.block)
    kinds = "all" if asked.every_block else ", ".join(every) or "default"
    for backend in asked.backends:
        same: dict[str, Any] = {
            "spec": spec.sha256[:8],
            "backend": backend,
            "blocks": kinds,
            "profile": asked.profile,
            "threads": threads(),
            "invariants": ", ".join(asked.invariant) or "all",
        }
        ids = tuple(asked.invariant)
        cases = prepare([backend], blocks=every, profile=asked.profile, invariants=ids).cases
        done = {(line["seed"], part_of(line)) for line in kept if kind_of(line) == kind_of(same)}
        processes = Processes(asked.workers)
        tasks: dict[Future[Any], dict[str, Any]] = {}
        try:
            for block, dtype in dict.fromkeys((case.kind.name, case.dtype) for case in cases):
                part = Part(backend, block, dtype, asked.profile, ids, not asked.no_isolate, asked.known_failures)
                for seed in range(asked.first, asked.first + asked.seeds):
                    if not done & {(seed, (block, dtype)), (seed, WHOLE)}:
                        task = processes.submit_in((block, dtype), verified, part, seed)
                        tasks[task] = {**same, "seed": seed, "block": block, "dtype": dtype}
            for task in as_completed(tasks):
                yield {**tasks[task], **task.result()._asdict()}
        finally:
            processes.kill()


def part_of(line: dict[str, Any]) -> tuple[str, str]:
    """Return which kind of block and dtype a line looked at; `WHOLE` where nothing is said."""
    return line.get("block", ""), line.get("dtype", "")


def rows(lines: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row of the table for each thing measured."""
    together: dict[Kind, list[dict[str, Any]]] = {}
    parts: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    for line in lines:
        together.setdefault(kind_of(line), []).append(line)
        parts.setdefault((line["backend"], line["blocks"]), set()).add(part_of(line))
    for what, its in together.items():
        looked: dict[int, set[tuple[str, str]]] = {}
        counts: Counter[str] = Counter()
        explained = 0
        for line in its:
            looked.setdefault(line["seed"], set()).add(part_of(line))
            counts.update(line["summary"])
            explained += line.get("explained", 0)
        # A seed counts that was looked at in all of what others were: a measure may have been stopped in the middle.
        every = parts[what[1], what[2]] - {WHOLE}
        seeds = sum(WHOLE in found or found == every for found in looked.values())
        total = sum(counts.values())
        violated = counts["violated"] - explained
        yield (*what, seeds, total, violated, explained, counts["error"], counts["unchecked"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("backends", nargs="*", default=["numpy"], metavar="BACKEND")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--block", action="append", default=[], metavar="KIND", help="only this one; may be repeated")
    parser.add_argument("--every-block", action="store_true", help="the kinds of block too that a run must ask for")
    parser.add_argument("--invariant", action="append", default=[], metavar="ID", help="only this one; may be repeated")
    parser.add_argument("--no-isolate", action="store_true", help="code of others in the worker itself: half the time")
    parser.add_argument(
        "--known-failures", type=Path, metavar="FILE", help="what is expected of a backend, with reasons"
    )
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--keep", type=Path, metavar="FILE", help="a line for each seed is added here")
    asked = parser.parse_args(arguments)
    lines = read(asked.keep) if asked.keep else []
    for line in measured(asked, list(lines)):
        lines.append(line)
        what = f"{line['backend']}, {line['block']}, {line['dtype']}, seed {line['seed']}"
        print(f"{what}: {line['summary']}", *line["failures"], sep="\n  ", flush=True)
        if asked.keep:
            with asked.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    print("\n" + " | ".join(HEADS))
    for row in rows(lines):
        print(" | ".join(map(str, row)))
    sys.exit(any(line["failures"] for line in lines))


if __name__ == "__main__":
    main()
