"""The state of a run in a file: every verdict as it is found, so that a run that was killed goes on where it was.

A line of JSON each: first what fixes the run, then the results of one case a line. Must hold: a run that is killed at
any moment leaves a file from which the same run goes on to the same report; a last line that was torn is dropped; a
file of another run (another spec, backend, version, seed ...), or one that two runs would write to, is refused. A file
that cannot be written to any more costs no verdict. Must not: run anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blocklaws
from blocklaws.errors import BlocklawsError
from blocklaws.files import replace_file
from blocklaws.json_checking import first_problem
from blocklaws.report_restoring import result_from
from blocklaws.report_schema import FORMAT, report_schema
from blocklaws.sharding import case_key, plan_digest

if TYPE_CHECKING:
    from blocklaws.report import CaseResult
    from blocklaws.running import Run

__all__ = ["Held", "Journal", "fixed_by"]

Results = dict[int, list["CaseResult"]]


@dataclasses.dataclass(frozen=True)
class Held:
    """Seeds with which everything that was checked held, one after the other, and the examples that were looked at."""

    seeds: int = 0
    examples: int = 0


def fixed_by(run: Run, **options: Any) -> dict[str, Any]:
    """Return what must be the same for a run to go on: what it checks, with what, and how it is asked for."""
    known = run.request["known_failures"]
    return {
        "spec": run.spec.sha256,
        "seed": run.choice.seed,
        "profile": run.choice.profile,
        "versions": {"blocklaws": blocklaws.__version__, **run.versions},
        "cases": plan_digest([run.cases[number] for number in run.numbers]),
        "devices": [subject.device for subject in run.subjects],
        "isolated": [run.request[name] for name in ("isolate", "time_limit", "memory_limit")],
        "files": {name: _digest(name) for name in (*(s.label for s in run.subjects), *([str(known)] if known else []))},
        **options,
    }


def _digest(name: str) -> str:
    """Return a digest of the file that a backend comes from; empty where it is not named by a file."""
    file = name if name.endswith((".yaml", ".yml")) else name.rpartition(":")[0]
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:  # a module; its version is among the versions where it names its packages
        return ""


class Journal:
    """An open file of verdicts.

    Attributes:
        held: what came before the seed that is being looked at.
        last: the results of the last seed that held, by the number of the case; empty where there was none.
        results: the results that there are of this seed.
        problem: why nothing is written any more; empty while all is well.
    """

    def __init__(self, path: Path, run: Run, fixed: Mapping[str, Any]) -> None:
        self.path = path
        self.held = Held()
        self.last: Results = {}
        self.results: Results = {}
        self.problem = ""
        self._fixed = dict(fixed)
        if os.path.exists(path) and not os.path.isfile(path):
            raise BlocklawsError(f"{path}: is no file, and the state of a run must be read again; name one")
        try:
            self._stream = path.open("r+b" if os.path.exists(path) else "x+b")
        except OSError as error:
            raise BlocklawsError(f"cannot write {path}: {error.strerror}") from None
        try:
            _lock(self._stream, path)
            self._read(run)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()

    def add(self, number: int, results: Sequence[CaseResult]) -> None:
        """Keep the results of a case."""
        self.results[number] = list(results)
        self._append(_line(number, results))

    def held_throughout(self, held: Held) -> None:
        """Keep that all cases of this seed are done and none failed; the next seed begins."""
        self.held, self.last, self.results = held, self.results, {}
        lines = [self._header(), json.dumps({"held": dataclasses.asdict(held)})]
        lines += [_line(number, results) for number, results in self.last.items()]
        if self.problem:
            return
        try:
            # What was before is forgotten in one step: a run of a thousand seeds keeps the last one.
            stream = replace_file(self.path, "".join(f"{line}\n" for line in lines).encode())
            _lock(stream, self.path)
            self._stream.close()
            self._stream = stream
        except OSError as error:
            self.problem = f"cannot write {self.path}: {error.strerror}"

    def _header(self) -> str:
        return json.dumps({"blocklaws": blocklaws.__version__, "format": FORMAT, "run": self._fixed})

    def _append(self, line: str) -> None:
        if self.problem:
            return
        try:
            self._stream.write(line.encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            # Half a line may stand there, and nothing may follow it.
            self.problem = f"cannot write {self.path}: {error.strerror}"
            with contextlib.suppress(OSError):
                self._stream.close()

    def _read(self, run: Run) -> None:
        content = self._stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._stream.seek(len(whole))
        if not whole:
            if content and not self._header().encode().startswith(content):
                raise BlocklawsError(f"{self.path}: is no state of a run, and is left as it is; name another file")
            self._stream.truncate()
            self._append(self._header())
            return
        lines = [self._parsed(line, number) for number, line in enumerate(whole.splitlines(), 1)]
        self._check_header(lines[0])
        # Only now: a file that is something else keeps what looks like half a line.
        self._stream.truncate()
        if len(lines) > 1 and "held" in lines[1]:
            self._take_held(lines.pop(1))
        self._take_results(lines[1:], run)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise self._damaged(number, "is no line of the state of a run")
        return data

    def _damaged(self, number: int, what: str) -> BlocklawsError:
        return BlocklawsError(f"{self.path}:{number}: {what}; remove the file to begin anew")

    def _check_header(self, header: Mapping[str, Any]) -> None:
        fixed = header.get("run")
        if header.get("format") != FORMAT or not isinstance(fixed, dict):
            raise BlocklawsError(f"{self.path}: is no state of a run of this blocklaws; name another file")
        now = json.loads(json.dumps(self._fixed))
        if other := [_differing(key, fixed, now) for key in {**now, **fixed} if fixed.get(key) != now.get(key)]:
            raise BlocklawsError(
                f"{self.path}: is the state of another run, which differs in {', '.join(other)}; "
                "name another file, or remove it"
            )

    def _take_held(self, line: Mapping[str, Any]) -> None:
        told = line["held"]
        counts = [told.get(key) if isinstance(told, dict) else None for key in ("seeds", "examples")]
        if not all(type(count) is int and 0 <= count < 2**53 for count in counts):
            raise self._damaged(2, "does not count seeds and examples")
        self.held = Held(**told)

    def _take_results(self, lines: Sequence[Mapping[str, Any]], run: Run) -> None:
        case = {"type": "array", "items": {"$ref": "#/$defs/case"}, "minItems": 1}
        schema = {"$defs": report_schema()["$defs"], "type": "array", "items": case}
        at = 3 if self.held.seeds else 2
        if problem := first_problem([line.get("results") for line in lines], schema):
            raise BlocklawsError(f"{self.path}: is damaged: results.{problem}; remove the file to begin anew")
        for place, line in enumerate(lines, at):
            number = line.get("case")
            if type(number) is not int or number not in run.numbers:
                raise self._damaged(place, f"case {number!r:.40} is none of this run")
            meant = run.cases[number]
            key = (meant.invariant.id, meant.part, meant.kind.name, meant.subject.name, meant.dtype)
            if any(case_key(result) != key for result in line["results"]):
                raise self._damaged(place, f"has results of another case than {number}")
            restored = [result_from(result, f"{self.path}:{place}") for result in line["results"]]
            seeds = {result.seed for result in restored}
            if seeds == {run.choice.seed + self.held.seeds}:
                self.results[number] = restored
            elif self.held.seeds and seeds == {run.choice.seed + self.held.seeds - 1}:
                self.last[number] = restored
            else:
                raise self._damaged(place, f"has results of the seeds {sorted(seeds)}")


def _differing(key: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return what differs: with both values where a reader can tell them apart, or which of several."""
    old, new = there.get(key), here.get(key)
    if isinstance(old, dict) and isinstance(new, dict):
        return f"{key} ({', '.join(f'{name!s:.80}' for name in {**old, **new} if old.get(name) != new.get(name))})"
    plain = all(isinstance(value, int) or (isinstance(value, str) and len(value) < 40) for value in (old, new))
    return f"{key} ({old} there, {new} here)" if plain else key


def _line(number: int, results: Sequence[CaseResult]) -> str:
    data = [{**result.as_dict(), "compilations": result.compilations} for result in results]
    return json.dumps({"case": number, "results": data}, allow_nan=False)


def _lock(stream: io.BufferedRandom, path: Path) -> None:
    """Keep other runs from writing to a file, for as long as it is open.

    Raises:
        BlocklawsError: another run writes to it.
    """
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlocklawsError(f"{path}: another run writes to it; wait for its end, or name another file") from None
    except OSError:  # a file system without locks
        return
