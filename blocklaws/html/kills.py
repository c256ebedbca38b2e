"""The kill matrix as a page shows it: every fault with who refutes it, and every invariant with what it refutes.

Must hold: every fault of the matrix has its row, survivors come first, and a rate is over all seeds of the run. Must
not: know more of a matrix than its JSON says.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from blocklaws.html.words import percent

__all__ = ["Family", "FaultRow", "KillView", "Killer", "OnBackend", "kill_view"]

Rows = Sequence[Mapping[str, Any]]

#: The side of a cell of the picture, and the room for the names of families beside it.
_CELL, _MARGIN = 8, 200


@dataclasses.dataclass(frozen=True)
class Killer:
    """One invariant that refuted a fault: in which share of the seeds, and the median of the examples that it took."""

    invariant: str
    share: float
    examples: float


@dataclasses.dataclass(frozen=True)
class OnBackend:
    """One fault on one backend, over all seeds."""

    backend: str
    share: float
    examples: float | None
    stage: str | None
    killers: tuple[Killer, ...]
    """The quickest first."""
    held: tuple[str, ...]
    raised: tuple[tuple[str, str], ...]
    places: tuple[str, ...]
    seconds: float

    @property
    def survived(self) -> bool:
        """Whether some seed left the fault alive."""
        return self.share < 1


@dataclasses.dataclass(frozen=True)
class FaultRow:
    """One fault: what it is, and how it fares on each backend (None where that cannot be given it)."""

    id: str
    anchor: str
    says: str
    stage: str | None
    cells: tuple[OnBackend | None, ...]
    killers: tuple[str, ...]

    @property
    def survived(self) -> bool:
        """Whether the fault is alive in some seed on some backend."""
        return any(cell is not None and cell.survived for cell in self.cells)

    @property
    def misplaced(self) -> tuple[str, ...]:
        """The stages that kills name and that are not the one at fault."""
        named = (cell.stage for cell in self.cells if cell is not None and cell.stage)
        return tuple(dict.fromkeys(stage for stage in named if stage != self.stage))


@dataclasses.dataclass(frozen=True)
class Family:
    """The faults of one family."""

    name: str
    faults: tuple[FaultRow, ...]


@dataclasses.dataclass(frozen=True)
class KillView:
    """Everything that the page of a kill matrix shows."""

    backends: tuple[str, ...]
    families: tuple[Family, ...]
    faults: int
    survivors: tuple[FaultRow, ...]
    invariants: tuple[tuple[str, int, int, tuple[str, ...]], ...]
    """(id, faults refuted, faults met, what is to be said of it)."""
    map: Markup
    seconds: float
    counts: bool
    """Whether a cell counts invariants (one seed) or gives a rate (several)."""


def kill_view(matrix: Mapping[str, Any]) -> KillView:
    """Return the view of a matrix's JSON."""
    rows: Rows = matrix["faults"]
    backends = tuple(dict.fromkeys(str(row["backend"]) for row in rows))
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_place.setdefault((row["backend"], row["fault"]), []).append(row)
    rates = {(rate["backend"], rate["fault"]): rate for rate in matrix["rates"]}
    families: dict[str, list[FaultRow]] = {}
    for number, planted in enumerate(matrix["planted"]):
        cells = tuple(
            _on_backend(backend, by_place[backend, planted["fault"]], rates[backend, planted["fault"]])
            if (backend, planted["fault"]) in by_place
            else None
            for backend in backends
        )
        families.setdefault(planted["family"], []).append(_fault(f"k{number}", planted, cells))
    listed = [fault for faults in families.values() for fault in faults]
    return KillView(
        backends=backends,
        families=tuple(Family(name, tuple(faults)) for name, faults in families.items()),
        faults=len(by_place),
        survivors=tuple(fault for fault in listed if fault.survived),
        invariants=_invariants(matrix, rows),
        map=_map(families, matrix["invariants"], rows),
        seconds=sum(float(row.get("seconds", 0.0)) for row in rows),
        counts=matrix["seeds"] == 1,
    )


def _fault(anchor: str, planted: Mapping[str, Any], cells: tuple[OnBackend | None, ...]) -> FaultRow:
    quickest: dict[str, float] = {}
    for cell in cells:
        for killer in cell.killers if cell is not None else ():
            quickest[killer.invariant] = min(killer.examples, quickest.get(killer.invariant, killer.examples))
    killers = tuple(sorted(quickest, key=lambda id: quickest[id]))
    return FaultRow(planted["fault"], anchor, planted["says"], planted["stage"], cells, killers)


def _on_backend(backend: str, rows: Rows, rate: Mapping[str, Any]) -> OnBackend:
    seeds = {row["seed"] for row in rows}
    examples: dict[str, dict[int, int]] = {}
    for row in rows:
        for invariant, needed in row["examples_to_kill"].items():
            first = examples.setdefault(invariant, {})
            first[row["seed"]] = min(needed, first.get(row["seed"], needed))
    killers = [
        Killer(invariant, len(found) / len(seeds), statistics.median(found.values()))
        for invariant, found in examples.items()
    ]
    return OnBackend(
        backend=backend,
        share=float(rate["share"]),
        examples=rate["examples"],
        stage=rate.get("stage"),
        killers=tuple(sorted(killers, key=lambda killer: (killer.examples, -killer.share))),
        held=tuple(dict.fromkeys(id for row in rows for id in row["held"] if id not in examples)),
        raised=tuple(dict(reversed([tuple(pair) for row in rows for pair in row["raised"]])).items()),
        places=tuple(dict.fromkeys(f"{row['block']} in {row['dtype']}" for row in rows)),
        seconds=sum(float(row.get("seconds", 0.0)) for row in rows),
    )


def _invariants(matrix: Mapping[str, Any], rows: Rows) -> tuple[tuple[str, int, int, tuple[str, ...]], ...]:
    killed: dict[str, set[str]] = {}
    met: dict[str, set[str]] = {}
    for row in rows:
        for id in row["killed_by"]:
            killed.setdefault(id, set()).add(row["fault"])
        for id in (*row["killed_by"], *row["held"], *(id for id, _ in row["raised"])):
            met.setdefault(id, set()).add(row["fault"])
    untrue: dict[str, list[str]] = {}
    for backend, id, fault in matrix["declared_but_not_refuted"]:
        untrue.setdefault(id, []).append(f"claims {fault}, which it did not refute on {backend}")
    weak: dict[str, list[str]] = {}
    for claim in matrix["weak_claims"]:
        told = f"refutes {claim['fault']} on {claim['backend']} in {percent(claim['share'])} of the seeds only"
        weak.setdefault(claim["invariant"], []).append(told)
    found = []
    for id in matrix["invariants"]:
        notes = ["idle: refuted nothing"] if id in matrix["idle_invariants"] else []
        notes += untrue.get(id, []) + weak.get(id, [])
        notes += ["unproven: names no fault"] if id in matrix["unproven_invariants"] else []
        notes += ["unearned: others refute the same without an oracle"] if id in matrix["unearned_invariants"] else []
        found.append((id, len(killed.get(id, ())), len(met.get(id, ())), tuple(notes)))
    return tuple(found)


def _map(families: Mapping[str, Sequence[FaultRow]], invariants: Sequence[str], rows: Rows) -> Markup:
    """Return the whole matrix as one small picture: faults down by family, invariants across."""
    killed = {(row["fault"], id) for row in rows for id in row["killed_by"]}
    met = {(row["fault"], id) for row in rows for id in (*row["held"], *(id for id, _ in row["raised"]))} - killed
    squares, dots, lines, names = [], [], [], []
    right, y = _MARGIN + len(invariants) * _CELL, 0
    for family, faults in families.items():
        lines.append(f"M0 {y}H{right}")
        names.append(Markup('<text x="0" y="{}">{}</text>').format(y + 12, family))
        for fault in faults:
            for column, id in enumerate(invariants):
                x = _MARGIN + column * _CELL
                if (fault.id, id) in killed:
                    squares.append(f"M{x + 1} {y + 1}h6v6h-6z")
                elif (fault.id, id) in met:
                    dots.append(f"M{x + 3} {y + 3}h2v2h-2z")
            y += _CELL
        y += max(0, 2 * _CELL - len(faults) * _CELL)  # room for the name
    lines += [f"M0 {y}H{right}", f"M{_MARGIN} 0V{y}"]
    described = (
        f"{sum(map(len, families.values()))} faults down and {len(invariants)} invariants across, in the order of the "
        f"tables; a square where the invariant refuted the fault ({len(killed)} of {len(killed) + len(met)} that met), "
        "a dot where it did not."
    )
    return Markup(
        '<svg class="map" role="img" aria-labelledby="map-t" aria-describedby="map-d" viewBox="0 -1 {0} {1}" '
        'width="{0}" height="{1}"><title id="map-t">The kill matrix</title><desc id="map-d">{2}</desc>'
        '<path class="line" d="{3}"/>{4}<path class="killed" d="{5}"/><path class="met" d="{6}"/></svg>'
    ).format(right, y + 2, described, "".join(lines), Markup("").join(names), "".join(squares), "".join(dots))
