"""What changed from one report to another: what is worse, what is better, what is slower.

Must hold: a case that disappears, or of which nothing is known any more, is as much a regression as one that is newly
violated; what is unchecked is never taken for holding. Where a case was split, its unchecked part is matched with the
case that it comes from. Must not: read files, print, or compare two reports of different kinds.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blocklaws.comparing_faults import fault_changes
from blocklaws.errors import BlocklawsError
from blocklaws.report_changes import Change, Line
from blocklaws.report_reading import StoredReport

__all__ = ["KINDS", "LEAST", "REGRESSIONS", "Comparison", "compare"]

#: What makes the comparison fail.
REGRESSIONS = (
    "newly violated", "newly in error", "newly unchecked", "newly stale", "newly survived", "killed less surely",
    "lost kills", "newly idle", "newly untrue", "gone", "weaker",
)  # fmt: skip
#: Every kind of change, in the order in which they are told.
KINDS = (
    *REGRESSIONS, "slower", "fails in another way", "expected now", "unchecked for another reason", "new", "new kills",
    "newly checked", "mended", "newly killed",
)  # fmt: skip
#: A case is weaker below this share of the examples that it had, or of the share of them that was informative. What
#: Hypothesis draws differs a little from version to version.
LEAST = 0.9
# Below this many seconds, time is noise.
_NOISE = 0.5
_FAILING = ("violated", "error")
_WAS = {"holds": "held", "violated": "was violated", "error": "was in error", "unchecked": "was unchecked"}
_WAS["known"] = "was a known failure"

_Key = tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two reports and the changes between them.

    Attributes:
        old, new: the reports.
        changes: what changed.
        notes: how the two runs differ in what they were asked, which may be why.
        fail_on_slower: whether slower is worse.
    """

    old: StoredReport
    new: StoredReport
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    fail_on_slower: bool = False

    @property
    def regressions(self) -> tuple[str, ...]:
        """The kinds of change that are worse."""
        return (*REGRESSIONS, "slower") if self.fail_on_slower else REGRESSIONS

    @functools.cached_property
    def by_kind(self) -> Mapping[str, list[Change]]:
        """Kind -> its changes, for the kinds that there are, worse ones first."""
        return {kind: found for kind in KINDS if (found := [each for each in self.changes if each.kind == kind])}

    @property
    def worse(self) -> Mapping[str, list[Change]]:
        """The same for what is worse alone."""
        return {kind: changes for kind, changes in self.by_kind.items() if kind in self.regressions}

    @property
    def exit_status(self) -> int:
        """1 when something is worse, 0 otherwise."""
        return int(bool(self.worse))

    def lines(self, changes: Sequence[Change]) -> list[Line]:
        """Return the lines that tell changes of one kind: those that differ in block and dtype alone share one."""
        groups: dict[tuple[str, str, str], list[Change]] = {}
        for change in changes:
            groups.setdefault((change.backend, change.name, change.detail), []).append(change)
        lines = []
        for (backend, name, detail), group in groups.items():
            blocks: dict[str, list[str]] = {}
            for change in group:
                blocks.setdefault(change.block, []).append(change.dtype)
            where = ", ".join(
                f"{block} ({', '.join(dict.fromkeys(dtypes))})" if any(dtypes) else block
                for block, dtypes in blocks.items()
                if block
            )
            on = f" on {backend}" if backend else ""
            what = f"{name}{on}, {where}" if where else f"{name}{on}"
            if id := next((change.id for change in group if change.id), ""):
                detail += f"; {shlex.join(['blocklaws', 'replay', self.new.name, id])}"
            lines.append(Line(what, detail))
        return lines

    @property
    def told(self) -> tuple[str, str]:
        """A sentence about each of the two reports."""
        return _told(self.old), _told(self.new)


def _told(report: StoredReport) -> str:
    data = report.data
    spec = f"blocklaws {data['blocklaws']}, spec {data['spec']['sha256'][:8]}, profile {data['profile']}"
    if report.kind == "verify":
        counts = data["summary"]
        shown = ", ".join(f"{counts[verdict]} {word}" for verdict, word in (
            ("holds", "hold"), ("violated", "violated"), ("error", "in error"), ("unchecked", "unchecked")
        ))  # fmt: skip
        return f"{spec}, seed {data['seed']}: {len(data['cases'])} cases, {shown}"
    alive = sum(rate["share"] < 1 for rate in data["rates"])
    seeds = f"seed {data['seed']}" if data["seeds"] == 1 else f"{data['seeds']} seeds from {data['seed']}"
    return f"{spec}, {seeds}: {len(data['rates'])} faults, score {100 * data['score']:.1f} %, {alive} survived"


def compare(old: StoredReport, new: StoredReport, slower: float = 1.5, fail_on_slower: bool = False) -> Comparison:
    """Return what changed from an old report to a new one.

    Args:
        old, new: the reports, both of `verify` or both of `faults`.
        slower: from which ratio on something is slower.
        fail_on_slower: whether that is worse.

    Raises:
        BlocklawsError: one is a kill matrix and the other is not.
    """
    if old.kind != new.kind:
        raise BlocklawsError(
            f"{old.name} is a report of `{old.kind}` and {new.name} one of `{new.kind}`; compare two of a kind"
        )
    changes = list(fault_changes(old.data, new.data, slower) if old.kind == "faults" else _changes(old, new, slower))
    return Comparison(old, new, tuple(changes), tuple(_notes(old, new)), fail_on_slower)


def _notes(old: StoredReport, new: StoredReport) -> Iterator[str]:
    for key in ("profile", "seed", "seeds", "claims_only", "met_every_invariant", "first_kill"):
        if old.data.get(key) != new.data.get(key):
            yield f"{key}: {old.data.get(key)}, now {new.data.get(key)}"
    if old.data["spec"]["sha256"] != new.data["spec"]["sha256"]:
        yield f"spec: {old.data['spec']['sha256'][:8]}, now {new.data['spec']['sha256'][:8]}"
    for name in sorted({*old.data["versions"], *new.data["versions"]}):
        was, now = (report.data["versions"].get(name, "none") for report in (old, new))
        if was != now:
            yield f"{name}: {was}, now {now}"
    devices = [{one["name"]: one["device"] for one in report.data.get("backends", ())} for report in (old, new)]
    for name in devices[0]:
        if devices[0][name] != devices[1].get(name, devices[0][name]):
            was, now = (devices[place][name] or "the default one" for place in (0, 1))
            yield f"device of {name}: {was}, now {now}"
    for report in (old, new):
        if report.data["not_run"]:
            yield f"{report.name} is of an interrupted run: {report.data['not_run']} more would have been looked at"


# --- cases ---


def _state(case: Mapping[str, Any]) -> str:
    return "known" if case["known"] else str(case["verdict"])


def _change(kind: str, case: Mapping[str, Any], detail: str = "") -> Change:
    part = case["part"].partition(": ")[0]
    name = f"{case['invariant']}[{part}]" if part else case["invariant"]
    failing = kind in ("newly violated", "newly in error", "fails in another way")
    return Change(
        kind, case["backend"], name, case["block"], case["dtype"], detail, case["id"] if failing else ""
    )  # fmt: skip


def _by_case(report: StoredReport) -> dict[_Key, dict[str, Mapping[str, Any]]]:
    """Return (backend, block, dtype, invariant with its part) -> the part with its reason -> result.

    A case of which a block can show some clauses and not others has one result for what was checked and one for each
    reason why the rest was not.
    """
    grouped: dict[_Key, dict[str, Mapping[str, Any]]] = {}
    for case in report.data["cases"]:
        part = case["part"].partition(": ")[0]
        key = (case["backend"], case["block"], case["dtype"], f"{case['invariant']}[{part}]")
        grouped.setdefault(key, {})[case["part"]] = case
    return grouped


def _changes(old: StoredReport, new: StoredReport, slower: float) -> Iterator[Change]:
    before, after = _by_case(old), _by_case(new)
    yield from _whole_backends("gone", before, after)
    yield from _whole_backends("new", after, before)
    shared = {key[0] for key in before} & {key[0] for key in after}
    times: dict[tuple[str, str], list[float]] = {}
    for key, was in before.items():
        if key not in after:
            if key[0] in shared:
                yield from (_change("gone", case, _WAS[_state(case)]) for case in was.values())
            continue
        yield from _matched(was, after[key], times)
    for key, now in after.items():
        if key not in before:
            for case in now.values():
                if _state(case) in _FAILING:
                    yield _fails(case, "a new case")
                elif key[0] in shared:
                    yield _change("new", case, f"{_WAS[_state(case)].replace('was', 'is').replace('held', 'holds')}")
    for sentence in sorted(set(new.data["stale_known_failures"]) - set(old.data["stale_known_failures"])):
        yield Change("newly stale", "", sentence)
    yield from _slower(times, slower)
    yield from _compiled(old, new, slower)


def _whole_backends(
    kind: str, cases: Mapping[_Key, Mapping[str, Any]], others: Mapping[_Key, Mapping[str, Any]]
) -> Iterator[Change]:
    """Yield one change for a backend that only one of the reports has, and not one for each of its cases."""
    for name in dict.fromkeys(key[0] for key in cases):
        if not any(key[0] == name for key in others):
            count = sum(len(found) for key, found in cases.items() if key[0] == name)
            yield Change(kind, name, "everything", detail=f"{count} cases")


def _matched(
    was: Mapping[str, Mapping[str, Any]],
    now: Mapping[str, Mapping[str, Any]],
    times: dict[tuple[str, str], list[float]],
) -> Iterator[Change]:
    for part, case in was.items():
        if part in now:
            yield from _both(case, now[part], times)
    left = [case for part, case in was.items() if part not in now]
    unmatched = [case for case in left if case["verdict"] == "unchecked"]
    lost = False
    for part, case in now.items():
        if part in was:
            continue
        if _state(case) in _FAILING:
            yield _fails(case, "a part that was not there")
        elif case["verdict"] == "unchecked" and unmatched:
            yield _change("unchecked for another reason", case, f"{unmatched.pop(0)['reason']} -> {case['reason']}")
        elif case["verdict"] == "unchecked":
            lost = True
            yield _change("newly unchecked", case, case["reason"])
        else:
            yield _change("newly checked", case)
    yield from (_change("newly checked", case, f"was: {case['reason']}") for case in unmatched)
    if not lost:
        yield from (_change("gone", case, _WAS[_state(case)]) for case in left if case["verdict"] != "unchecked")


def _fails(case: Mapping[str, Any], was: str) -> Change:
    kind = "newly violated" if case["verdict"] == "violated" else "newly in error"
    stage = f"; diverges first at {case['stage']}" if case["stage"] else ""
    why = f"; {case['reason']}" if case["verdict"] == "error" else stage
    return _change(kind, case, f"{was}{why}")


def _both(
    old: Mapping[str, Any], new: Mapping[str, Any], times: dict[tuple[str, str], list[float]]
) -> Iterator[Change]:
    was, now = _state(old), _state(new)
    if was == now == "holds":
        yield from _weaker(old, new)
    if was == now and old["examples"] and new["examples"]:
        total = times.setdefault((new["backend"], new["invariant"]), [0.0, 0.0])
        total[0] += old["seconds"]
        total[1] += new["seconds"]
    if was == now:
        if now == "unchecked" and old["reason"] != new["reason"]:
            yield _change("unchecked for another reason", new, f"{old['reason']} -> {new['reason']}")
    elif now in _FAILING:
        if was in _FAILING:
            yield _change("fails in another way", new, f"{_WAS[was]}, now {now}")
        else:
            yield _fails(new, _WAS[was])
    elif now == "known":
        yield _change("expected now", new, f"{_WAS[was]}; expected, for {new['known']}")
    elif now == "unchecked":
        yield _change("newly unchecked", new, f"{_WAS[was]}; {new['reason']}")
    else:
        yield _change("newly checked" if was == "unchecked" else "mended", new, _WAS[was])


def _weaker(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    if new["examples"] < LEAST * old["examples"]:
        yield _change("weaker", new, f"{old['examples']} -> {new['examples']} examples")
    elif new["informative"] * old["examples"] < LEAST * old["informative"] * new["examples"]:
        was, now = (f"{case['informative']} of {case['examples']}" for case in (old, new))
        yield _change("weaker", new, f"{was} -> {now} examples could have failed")


def _compiled(old: StoredReport, new: StoredReport, ratio: float) -> Iterator[Change]:
    """Yield the backends that compile more programs: what costs them most of their time, and is no noise."""
    before = {backend["name"]: backend.get("compilations", 0) for backend in old.data["backends"]}
    for backend in new.data["backends"]:
        was, now = before.get(backend["name"], 0), backend.get("compilations", 0)
        if was and now > ratio * was:
            yield Change("slower", backend["name"], "compiling", detail=f"{was} -> {now} programs")


def _slower(times: Mapping[tuple[str, str], Sequence[float]], ratio: float) -> Iterator[Change]:
    totals: dict[str, list[float]] = {}
    for (backend, _), (was, now) in times.items():
        total = totals.setdefault(backend, [0.0, 0.0])
        total[0] += was
        total[1] += now
    named = [(backend, "all invariants", total) for backend, total in totals.items()]
    named += [(backend, invariant, list(total)) for (backend, invariant), total in times.items()]
    for backend, name, (was, now) in named:
        if now > ratio * was and now - was > _NOISE:
            yield Change("slower", backend, name, detail=f"{was:.1f} s -> {now:.1f} s")
