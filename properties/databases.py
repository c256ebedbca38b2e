"""Counterexamples that several runs share, so that what one has found is what the next one looks at first.

They are kept in Hypothesis' example databases (a folder, a Redis server, several at once, read-only ones) as the JSON
that a report has of a counterexample, and the failures of a report or of `.blocklaws/failures` can be read as one. Must
hold: what comes out of a database is data of a stranger: an example that the case could not have drawn is dropped, and
one that holds is forgotten; a database that cannot be reached when a run begins is an error, and one that goes while it
runs costs no verdict. Must not: be asked where nobody named one, or print a password.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from blocklaws.checking import Case
from blocklaws.errors import BlocklawsError, missing_module, one_line
from blocklaws.files import read_json
from blocklaws.json_checking import first_problem
from blocklaws.properties.worlds import could_draw
from blocklaws.specification import Sizes
from blocklaws.stored_failures import CASE_SCHEMA
from blocklaws.worlds import Example

__all__ = ["SharedExamples", "open_databases"]

_READ_ONLY = "readonly:"
_REDIS = ("redis://", "rediss://", "unix://")
_ANSWERS_WITHIN = 5.0
#: Examples of one case that are looked at, and how many and how long ones are read to choose them.
_MOST, _MOST_READ, _LONGEST = 20, 1000, 10_000


@functools.cache
def open_databases(sources: tuple[str, ...]) -> SharedExamples:
    """Return the examples of some databases.

    Args:
        sources: folders, ``redis://HOST:PORT``, reports or folders of failures; ``readonly:`` before one leaves it as
            it is.

    Raises:
        BlocklawsError: one cannot be used.
    """
    opened = [_opened(source) for source in sources]
    return SharedExamples(
        opened[0] if len(opened) == 1 else MultiplexedDatabase(*opened),
        ", ".join(map(_shown, sources)),
        keeps=not all(isinstance(each, ReadOnlyDatabase | _StoredFailures) for each in opened),
    )


def _shown(source: str) -> str:
    """Return a source without the name and the password that an address may have."""
    if not source.removeprefix(_READ_ONLY).startswith(_REDIS):
        return source
    return source.replace(f"{urlsplit(source.removeprefix(_READ_ONLY)).netloc.rpartition('@')[0]}@", "")


def _opened(source: str) -> ExampleDatabase:
    name = source.removeprefix(_READ_ONLY)
    if not name:
        raise BlocklawsError(f"--database {source!r}: names nothing; give a folder, redis://HOST, or a report (.json)")
    if name != source:
        inner = _redis(name) if name.startswith(_REDIS) else _folder(name, write=False)
        return ReadOnlyDatabase(inner)
    return _redis(name) if name.startswith(_REDIS) else _folder(name, write=True)


def _folder(name: str, *, write: bool) -> ExampleDatabase:
    path = Path(name)
    is_folder = os.path.isdir(path)
    if name.endswith(".json") or (is_folder and any(path.glob("*.json"))):
        return _StoredFailures(path)
    if os.path.exists(path) and not is_folder:
        raise BlocklawsError(f"--database {name}: is neither a folder nor a report (.json)")
    if not write and not is_folder:
        raise BlocklawsError(f"--database {_READ_ONLY}{name}: there is no such folder")
    if write:
        try:
            path.mkdir(exist_ok=True)
        except (OSError, ValueError) as error:
            told = error.strerror if isinstance(error, OSError) else error
            raise BlocklawsError(f"--database {name!s:.200}: cannot be made: {told}") from None
        if not os.access(path, os.W_OK):
            raise BlocklawsError(f"--database {name}: cannot be written to; write {_READ_ONLY}{name} to read it only")
    return DirectoryBasedExampleDatabase(path)


def _redis(address: str) -> ExampleDatabase:
    shown = _shown(address)
    try:
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase
    except ImportError as error:
        raise BlocklawsError(f"--database {shown}: {missing_module(error)}") from None
    try:
        client = redis.Redis.from_url(address, socket_timeout=_ANSWERS_WITHIN, socket_connect_timeout=_ANSWERS_WITHIN)
        client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        told = one_line(error, 200)
        raise BlocklawsError(f"--database {shown}: no Redis answers there ({told})") from None
    return RedisExampleDatabase(client, key_prefix=b"blocklaws-example:")


class _StoredFailures(ExampleDatabase):
    """The failures of a report, or those that `verify` stored in a folder, as a database that is only read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._examples: dict[bytes, list[bytes]] = {}
        for file in sorted(path.glob("*.json")) if os.path.isdir(path) else [path]:
            data = read_json(file)
            if not isinstance(data, dict) or not isinstance(data.get("blocklaws"), str):
                raise BlocklawsError(f"--database {path}: {file} is neither a report nor a failure of blocklaws")
            cases = [data["failure"]] if "failure" in data else data.get("cases", ())
            for case in cases if isinstance(cases, list) else ():
                if not first_problem(case, CASE_SCHEMA):
                    name = f"{case['invariant']}[{case['part']}]" if case.get("part") else case["invariant"]
                    key = _key(name, case["block"], case["backend"], case["dtype"])
                    self._examples.setdefault(key, []).append(json.dumps(case["counterexample"]).encode())

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._examples.get(key, [])

    def save(self, key: bytes, value: bytes) -> None:
        """Leave it as it is."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Leave it as it is."""


def _key(name: str, block: str, backend: str, dtype: str) -> bytes:
    return hashlib.sha256(json.dumps([name, block, backend, dtype]).encode()).hexdigest().encode()


class SharedExamples:
    """The counterexamples of cases, in an example database."""

    def __init__(self, database: ExampleDatabase, name: str, *, keeps: bool) -> None:
        self._database = database
        self._name = name
        self._keeps = keeps
        self._gone = False

    def of(self, case: Case, sizes: Sequence[Sizes], offsets: bool) -> list[tuple[bytes, Example]]:
        """Return the examples of a case that it could have drawn, plainest first, each with what it is kept as."""
        found: list[tuple[bytes, Example]] = []
        for value in self._values(case):
            if (example := _read(value, case, sizes, offsets)) is None:
                self.forget(case, value)
            else:
                found.append((value, example))
        patterns = list(case.invariant.worlds)

        def plain(entry: tuple[bytes, Example]) -> tuple[Any, ...]:
            recipe = entry[1].recipe
            return sizes.index(recipe.sizes), patterns.index(recipe.pattern), recipe.seed, entry[0]

        return sorted(found, key=plain)[:_MOST]

    def keep(self, case: Case, example: Example) -> None:
        """Keep what has failed."""
        value = json.dumps(example.as_dict()).encode()
        self._try(lambda: self._save(_key_of(case), value))

    def _save(self, key: bytes, value: bytes) -> None:
        self._database.save(key, value)
        # Hypothesis says nothing of a folder that it cannot write to: its own examples can be found again.
        if self._keeps and value not in self._database.fetch(key):
            raise OSError("what was saved is not there; is there room for it?")

    def forget(self, case: Case, value: bytes) -> None:
        """Forget what holds now, or was never drawn."""
        self._try(lambda: self._database.delete(_key_of(case), value))

    def _values(self, case: Case) -> list[bytes]:
        found = self._try(lambda: list(itertools.islice(self._database.fetch(_key_of(case)), _MOST_READ)))
        return sorted(value for value in found or [] if isinstance(value, bytes))

    def _try(self, action: Any) -> Any:
        """Return what an action on the database gives; None from the first one on that fails."""
        if self._gone:
            return None
        try:
            return action()
        except Exception as error:  # whatever an engine raises: OSError, RedisError ...
            self._gone = True
            told = one_line(error, 200)
            print(
                f"blocklaws: the database {self._name} cannot be used any more ({told}); the run goes on without it",
                file=sys.stderr,
            )
            return None


def _key_of(case: Case) -> bytes:
    return _key(case.name, case.kind.name, case.subject.name, case.dtype)


def _read(value: bytes, case: Case, sizes: Sequence[Sizes], offsets: bool) -> Example | None:
    """Return an example that a case could have drawn; None where it could not."""
    if len(value) > _LONGEST:
        return None
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if first_problem(data, CASE_SCHEMA["properties"]["counterexample"]):
        return None
    example = Example.from_dict(data)
    if not could_draw(case, sizes, offsets, example):
        return None
    return Example(example.recipe, {pick.name: example.picks[pick.name] for pick in case.invariant.picks})
