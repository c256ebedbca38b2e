"""What a kill matrix looks like on a terminal: survivors first, then the faults by family, then what follows from them.

Must hold: every fault has its line, and the exit status says why it is what it is; it reads well without colours and in
100 columns. Must not: decide anything.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from blocklaws.kill_results import Matrix, Rate, Row

__all__ = ["render"]

_STAGE = max(len("attention_weights"), len("stage"))
_EXAMPLES = 4
# Narrower than this, a column of invariants says nothing.
_LEAST_NAMES = 18
# A list longer than this is better read in the JSON.
_MOST_LISTED = 12
_ALL_WELL = "every fault is refuted, every claim that was tried is true, and no invariant is idle"


def render(matrix: Matrix, console: Console) -> None:
    """Print a matrix."""
    for line in _lines(matrix, console.width):
        console.print(line, soft_wrap=True)


def _lines(matrix: Matrix, width: int) -> Iterator[Text]:
    yield from _heading(matrix)
    if matrix.survivors:
        yield Text()
        yield Text(f"survivors: {_count(len(matrix.survivors), 'fault')} that no invariant refuted", "bold red")
        for backend, fault in matrix.survivors[:_MOST_LISTED]:
            yield from _survivor(matrix, backend, fault, width)
        if others := matrix.survivors[_MOST_LISTED:]:
            yield Text(f"  and {len(others)} more: those without a count in the matrix", "red")
    yield Text()
    yield from _table(matrix, width)
    yield Text()
    yield from _summary(matrix, width)


def _heading(matrix: Matrix) -> Iterator[Text]:
    plan = matrix.plan
    seeds = f"seed {plan.seed}" if plan.seeds == 1 else f"seeds {plan.seed} to {plan.seed + plan.seeds - 1}"
    others = [label for label in plan.backends if not plan.meets_every(label)]
    where = "" if len(others) == len(plan.backends) else f" on {', '.join(others)}"
    met = f"; a fault meets only the invariants that claim it{where}" if others else ""
    yield Text(
        f"kill matrix: {_count(len({fault for _, fault in matrix.by_fault}), 'fault')}, "
        f"{_count(len(matrix.tried), 'invariant')}, profile {plan.profile}, {seeds}{met}",
        "bold",
    )


def _survivor(matrix: Matrix, backend: str, fault: str, width: int) -> Iterator[Text]:
    rows, rate = matrix.by_fault[backend, fault], matrix.rates[backend, fault]
    where = "; ".join(
        ", ".join(dict.fromkeys(names)) for names in zip(*((row.block, row.dtype) for row in rows), strict=True)
    )
    some = f", alive in {100 * (1 - rate.share):.0f} % of the seeds" if rate.share else ""
    yield Text(f"  {fault} on {backend} ({where}){some}", "red")
    alive = [row for row in rows if row.survived]
    yield from _told("is", matrix.spec.faults[fault].says, width)
    met = tuple(dict.fromkeys(name for row in alive for name in row.held))
    yield from _told("met", _listed(met) if met else "no invariant at all", width)
    raised = dict(pair for row in alive for pair in row.raised)
    if raised:
        name, reason = next(iter(raised.items()))
        more = f" (and in {len(raised) - 1} more)" if len(raised) > 1 else ""
        yield from _told("raised", f"which refutes nothing, in {name}: {reason}{more}", width)


def _told(label: str, text: str, width: int) -> list[Text]:
    lines = textwrap.wrap(text, max(40, width - 13), break_long_words=False, break_on_hyphens=False)
    return [Text(f"    {label if not number else '':<8} {line}") for number, line in enumerate(lines)]


def _table(matrix: Matrix, width: int) -> Iterator[Text]:
    faults = [id for id in matrix.spec.faults if any(fault == id for _, fault in matrix.by_fault)]
    backends = matrix.backends
    first = 2 + max(map(cell_len, faults))
    columns = [max(cell_len(name), 5) for name in backends]
    names = width - first - sum(2 + column for column in columns) - (2 + _EXAMPLES) - (2 + _STAGE) - 2
    cells = "rates" if matrix.plan.seeds > 1 else "counts"
    yield from _legend(cells, matrix)
    if names < _LEAST_NAMES:
        yield from _narrow(matrix, faults, backends)
        return
    heads = "".join(f"  {name:>{column}}" for name, column in zip(backends, columns, strict=True))
    yield Text(f"{'fault':<{first}}{heads}  {'refuted by':<{names}}  {'ex.':>{_EXAMPLES}}  stage", "bold")
    family = None
    for fault in faults:
        if matrix.spec.faults[fault].family != family:
            family = matrix.spec.faults[fault].family
            yield Text(family, "dim")
        line = Text(f"  {fault:<{first - 2}}")
        for backend, column in zip(backends, columns, strict=True):
            line.append("  ").append_text(_cell(matrix, backend, fault, column))
        killers = _quickest(row for backend in backends for row in matrix.by_fault.get((backend, fault), ()))
        least = [
            rate.examples for backend in backends if (rate := matrix.rates.get((backend, fault))) and rate.examples
        ]
        examples = f"{min(least):g}" if least else ""
        line.append(f"  {_fitting(killers, names):<{names}}  {examples:>{_EXAMPLES}}  ")
        line.append_text(_stage(matrix, fault)).rstrip()
        yield line


def _legend(cells: str, matrix: Matrix) -> Iterator[Text]:
    told = {
        "counts": "under a backend: how many invariants refuted the fault there",
        "rates": "under a backend: in how many of the seeds the fault was refuted there",
    }[cells]
    yield Text(f"{told}; - it cannot be given the fault", "dim")
    median = "median of the " if matrix.plan.seeds > 1 else ""
    yield Text(
        f"refuted by: the quickest first; ex.: {median}examples until the quickest kill; stage: the first to diverge",
        "dim",
    )
    if matrix.localised[0] < matrix.localised[1]:
        yield Text("! the kills name this stage and not the one at fault", "dim")


def _narrow(matrix: Matrix, faults: Sequence[str], backends: Sequence[str]) -> Iterator[Text]:
    for fault in faults:
        line = Text(f"{fault}:")
        for backend in backends:
            line.append(f" {backend} ").append_text(_cell(matrix, backend, fault, 0))
        yield line


def _cell(matrix: Matrix, backend: str, fault: str, width: int) -> Text:
    rows = matrix.by_fault.get((backend, fault))
    if rows is None:
        return Text(f"{'-':>{width}}", "dim")
    rate: Rate = matrix.rates[backend, fault]
    if matrix.plan.seeds > 1:
        # Rounded down: 100 % means every seed.
        text = f"{int(1000 * rate.share) / 10:g} %"
    else:
        text = str(len({kill.invariant for row in rows for kill in row.kills}))
    return Text(f"{text:>{width}}", "green" if rate.share == 1 else "bold red")


def _quickest(rows: Iterable[Row]) -> list[str]:
    """Return who refuted, those first that needed the fewest examples."""
    least: dict[str, int] = {}
    for row in rows:
        for kill in row.kills:
            least[kill.invariant] = min(kill.examples, least.get(kill.invariant, kill.examples))
    return sorted(least, key=lambda name: least[name])


def _fitting(names: Sequence[str], width: int) -> str:
    """Return as many names as fit, and how many more there are."""
    for shown in range(len(names), 0, -1):
        more = f" + {len(names) - shown}" if shown < len(names) else ""
        text = ", ".join(names[:shown]) + more
        if cell_len(text) <= width:
            return text
    if not names:
        return ""
    more = f" + {len(names) - 1}" if len(names) > 1 else ""
    return f"{names[0][: width - len(more) - 3]}...{more}"


def _stage(matrix: Matrix, fault: str) -> Text:
    found = [matrix.stages[backend, fault] for backend in matrix.backends if (backend, fault) in matrix.stages]
    wrong = [named for named, expected in found if named != expected]
    if wrong:
        return Text(f"! {wrong[0]}", "yellow")
    return Text(found[0][1] if found else "")


def _summary(matrix: Matrix, width: int) -> Iterator[Text]:
    total, alive = len(matrix.by_fault), len(matrix.survivors)
    every = " in every seed" if matrix.plan.seeds > 1 else ""
    yield Text(
        f"score {100 * matrix.score:.1f} %: {total - alive} of {_count(total, 'fault')} refuted{every}"
        + (f", counted on each of {', '.join(matrix.backends)}" if len(matrix.backends) > 1 else ""),
        "bold",
    )
    right, of = matrix.localised
    if of:
        yield Text(
            f"localised {100 * right / of:.1f} %: the stage at fault is named for {right} of {of} that show in a stage"
        )
        missed = [
            f"{fault} on {backend} (at fault {expected}, named {named})"
            for (backend, fault), (named, expected) in matrix.stages.items()
            if named != expected
        ]
        yield from _entries(missed)
    if not matrix.plan.faults:
        # Of a few faults an invariant may well refute none.
        yield from _names("idle, they refuted no fault that they met", matrix.idle, width, "bold red")
    yield from _list(
        "untrue, the invariant names the fault and did not refute it",
        [f"{id}: {fault} on {backend}" for backend, id, fault in matrix.untrue], "bold red",
    )  # fmt: skip
    yield from _list("weak, the claim came true in some seeds only", _weak(matrix), "yellow")
    if not matrix.plan.first_kill:
        yield from _list(
        "untried, the invariant names the fault and could not meet it",
        [f"{id}: {fault}" for id, fault in matrix.unmet], "yellow",
    )  # fmt: skip
    yield from _list("unproven, they name no fault (refuted_by)", _unproven(matrix), "yellow")
    yield from _names(
        "unearned, each fault that they refute is refuted without an oracle by another one too",
        matrix.unearned,
        width,
        "",
    )
    yield Text(f"exit status {matrix.exit_status}: {_why(matrix)}", "bold red" if matrix.exit_status else "green")


def _weak(matrix: Matrix) -> list[str]:
    shares = {claim: rate.share for claim, rate in matrix.claims.items() if rate is not None}
    return [
        f"{id}: {fault} on {backend} ({100 * shares[backend, id, fault]:.0f} %)" for backend, id, fault in matrix.weak
    ]


def _unproven(matrix: Matrix) -> list[str]:
    """Say of an invariant that names no fault which ones it could name."""
    return [
        f"{id} (refuted {_listed(sorted(kills), 3)})" if (kills := matrix.kills_of(id)) else id
        for id in matrix.unproven
    ]


def _list(title: str, entries: Sequence[str], style: str) -> Iterator[Text]:
    if entries:
        yield Text(f"{title} ({len(entries)}):", style)
        yield from _entries(entries)


def _entries(entries: Sequence[str]) -> Iterator[Text]:
    for entry in entries[:_MOST_LISTED]:
        yield Text(f"  {entry}")
    if len(entries) > _MOST_LISTED:
        yield Text(f"  and {len(entries) - _MOST_LISTED} more; --json has them all")


def _names(title: str, names: Sequence[str], width: int, style: str) -> Iterator[Text]:
    if names:
        yield Text(f"{title} ({len(names)}):", style)
        for line in textwrap.wrap(", ".join(names), max(40, width - 2), break_long_words=False, break_on_hyphens=False):
            yield Text(f"  {line}")


def _why(matrix: Matrix) -> str:
    if matrix.not_run:
        return f"interrupted; {_count(matrix.not_run, 'more fault')} would have been planted"
    if matrix.problems:
        return "; ".join(matrix.problems)
    notes = []
    if matrix.survivors:
        notes.append("the chosen invariants leave faults alive, which others may refute")
    if matrix.untrue or (matrix.idle and not matrix.plan.faults):
        notes.append("what is idle or untrue here may be neither where nothing is left out")
    return "; ".join(notes) or _ALL_WELL


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
