"""The reports of all shards of one run, joined to the report that the run would have given as a whole.

Must hold: what is merged was one run: the same spec, seed, profile, versions, backends and cases, every shard once and
complete; anything else is refused, with the file and what is wrong with it. But for the seconds, the result is the
unsplit report. Must not: run anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blocklaws.errors import BlocklawsError
from blocklaws.report import Report
from blocklaws.report_reading import StoredReport, read_report
from blocklaws.report_restoring import report_from
from blocklaws.sharding import case_key

__all__ = ["merge"]

#: What must be the same in all: key of the JSON -> how it is called.
_SAME = {
    "blocklaws": "version of blocklaws", "spec": "spec", "seed": "seed", "profile": "profile", "versions": "versions",
    "invariants": "spec",
}  # fmt: skip
#: The same of the shards themselves.
_SAME_RUN = {"of": "number of shards", "cases": "number of cases", "plan": "plan of cases", "command": "command"}


def merge(files: Sequence[Path]) -> Report:
    """Return the report of the run whose shards the files are.

    Raises:
        BlocklawsError: they are not the shards of one run, or not all of them.
    """
    shards = sorted((_read(file) for file in files), key=lambda stored: int(stored.data["shard"]["first"]))
    first = shards[0]
    for other in shards[1:]:
        _check_same(first, other)
    _check_whole(shards)
    backends = []
    for place, backend in enumerate(first.data["backends"]):
        compiled = sum(shard.data["backends"][place].get("compilations", 0) for shard in shards)
        backends.append({**backend, **({"compilations": compiled} if compiled else {})})
    reports = [report_from(dict(shard.data), shard.name) for shard in shards]
    return dataclasses.replace(
        reports[0],
        backends=tuple(backends),
        cases=tuple(case for report in reports for case in report.cases),
        meanings={id: told for report in reports for id, told in report.meanings.items()},
        stale=_stale([shard.data["shard"]["known"] for shard in shards]),
        command=first.data["shard"]["command"],
        shard=None,
    )


def _read(file: Path) -> StoredReport:
    stored = read_report(file)
    if stored.kind != "verify":
        raise BlocklawsError(f"{file}: is a report of `{stored.kind}`; the shards of `verify` can be merged")
    if stored.data.get("shard") is None:
        raise BlocklawsError(f"{file}: is the report of a whole run; `verify --shard I/N` writes what can be merged")
    shard = stored.data["shard"]
    if left := stored.data["not_run"]:
        raise BlocklawsError(f"{file}: has a gap: {left} cases of shard {_name(shard)} were not run; run it again")
    if len({case_key(case) for case in stored.data["cases"]}) != shard["end"] - shard["first"]:
        raise BlocklawsError(f"{file}: is damaged: it has not the cases of shard {_name(shard)}")
    return stored


def _name(shard: Mapping[str, Any]) -> str:
    return f"{shard['number']}/{shard['of']}"


def _check_same(first: StoredReport, other: StoredReport) -> None:
    pairs = [(first.data[key], other.data[key], named) for key, named in _SAME.items()]
    pairs += [(first.data["shard"][key], other.data["shard"][key], named) for key, named in _SAME_RUN.items()]
    plain = [[{**each, "compilations": 0} for each in stored.data["backends"]] for stored in (first, other)]
    for one, two, named in [*pairs, (*plain, "backends")]:
        if one != two:
            values = f" ({one!r:.60} and {two!r:.60})" if isinstance(one, str | int) else ""
            raise BlocklawsError(
                f"{first.name} and {other.name} are not of one run: they differ in the {named}{values}"
            )


def _check_whole(shards: Sequence[StoredReport]) -> None:
    end = 0
    before = ""
    for stored in shards:
        shard = stored.data["shard"]
        if shard["first"] < end:
            raise BlocklawsError(
                f"{before} and {stored.name} overlap: both have case {shard['first']}; "
                "give each shard once, all split by the same --timings"
            )
        _check_gap(end, shard["first"], shard["of"], shards)
        end, before = shard["end"], stored.name
    _check_gap(end, shards[0].data["shard"]["cases"], shards[0].data["shard"]["of"], shards)


def _check_gap(end: int, start: int, of: int, shards: Sequence[StoredReport]) -> None:
    if start == end:
        return
    there = {stored.data["shard"]["number"] for stored in shards}
    absent = ", ".join(f"{number}/{of}" for number in range(1, of + 1) if number not in there)
    what = f"of shard {absent}" if absent else f"that has cases {end} to {start - 1}; split all by the same --timings"
    raise BlocklawsError(f"there is a gap: no file is given {what}")


def _stale(shards: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[str, ...]:
    """Return what is said of the entries of the known-failures file: one is unmatched that no shard has matched."""
    sentences: list[str] = []
    for entry in zip(*shards, strict=True):
        if not any(told["matched"] for told in entry):
            sentences += [entry[0]["unmatched"]] * bool(entry[0]["unmatched"])
        sentences += [sentence for told in entry for sentence in told["holding"]]
    return tuple(sentences)
