"""Writes files so that a reader never sees half of one, and reads the JSON of strangers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from blocklaws.errors import BlocklawsError, one_line

__all__ = ["check_writable", "read_json", "replace_file", "write_all", "write_bytes", "write_json", "write_text"]

_MAX_JSON = 200_000_000
#: More digits than a number of a report has: a seed has forty at most.
_MAX_DIGITS = 1000


def check_writable(*files: Path | None) -> None:
    """Refuse a file that cannot be written, before a run of minutes and not after it; and one that is named twice."""
    seen: set[Path] = set()
    for file in files:
        if file is None:
            continue
        if os.path.isdir(file):  # an empty name is this folder
            raise BlocklawsError(f"cannot write {file}: Is a directory")
        if not os.path.isdir(file.parent):
            raise BlocklawsError(f"cannot write {file}: there is no folder {file.parent}")
        if not os.access(file if os.path.exists(file) else file.parent, os.W_OK):
            raise BlocklawsError(f"cannot write {file}: permission denied")
        try:
            os.stat(file)
        except FileNotFoundError:
            pass
        except OSError as error:  # a name that no file can have, or links that lead to each other
            raise BlocklawsError(f"cannot write {str(file)!r:.100}: {error.strerror}") from None
        if not os.path.exists(file) or os.path.isfile(file):
            _try_beside(file)
        if (place := file.resolve()) in seen and not (os.path.exists(file) and not os.path.isfile(file)):
            raise BlocklawsError(f"{file} is named for two files; give each a name of its own")
        seen.add(place)


def _beside(file: Path) -> tuple[int, str]:
    """Make a file in the folder of another and return its handle and its path; it takes a part of the other's name."""
    return tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:40]}.")


def _try_beside(file: Path) -> None:
    """Make a file where the new content will be gathered: a mount refuses it whatever its permissions say."""
    try:
        handle, temporary = _beside(file)
    except OSError as error:
        raise BlocklawsError(f"cannot write {file}: {error.strerror}") from None
    os.close(handle)
    os.unlink(temporary)


def write_all(files: Iterable[tuple[Path | None, Callable[[Path], None]]]) -> list[str]:
    """Write each file that was asked for; return why some could not be written."""
    problems = []
    for file, write in files:
        if file is not None:
            try:
                write(file)
            except BlocklawsError as error:
                problems.append(str(error))
    return problems


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically, as UTF-8.

    Raises:
        BlocklawsError: the place cannot be written to.
    """
    # A lone half of a pair, which a backend's message may have, has no place in UTF-8.
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        BlocklawsError: the place cannot be written to.
    """
    path = Path(path)
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            # A device or a pipe is written to, never replaced.
            path.write_bytes(content)
        else:
            replace_file(path, content).close()
    except OSError as error:
        raise BlocklawsError(f"cannot write {path}: {error.strerror}") from None


def replace_file(path: Path, content: bytes) -> io.BufferedRandom:
    """Put a file with some content in the place of what is there, in one step; return it, open at its end.

    Raises:
        OSError: the place cannot be written to, and is as it was.
    """
    handle, temporary = _beside(path)
    stream = os.fdopen(handle, "w+b")
    try:
        stream.write(content)
        stream.flush()
        # Some file systems say only here that there is no room.
        os.fsync(handle)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            stream.close()
        os.unlink(temporary)
        raise
    return stream


def write_json(path: Path | str, data: Any) -> None:
    """Write data as JSON, atomically."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON file.

    Raises:
        BlocklawsError: it is not there, too large, or not JSON.
    """
    path = Path(path)
    try:
        if os.path.isdir(path):
            raise BlocklawsError(f"{path}: is a folder, not a file")
        if not os.path.exists(path):
            raise BlocklawsError(f"{path}: there is no such file")
        with path.open("rb") as stream:
            # A pipe has no size that could be asked for, as in `blocklaws compare <(git show ...) new.json`.
            content = stream.read(_MAX_JSON + 1)
        if len(content) > _MAX_JSON:
            raise BlocklawsError(f"{path}: is larger than {_MAX_JSON:,} bytes; that is no report of blocklaws")
        text = content.decode("utf-8")
        return json.loads(text, parse_constant=_no_number, parse_int=_integer, object_pairs_hook=_once_each)
    except OSError as error:
        raise BlocklawsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BlocklawsError(f"{path}: is not JSON: it is not text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise BlocklawsError(f"{path}: is not JSON: {one_line(error, 120)}") from None


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits is none of ours")
    return int(digits)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, of which a reader must not have to guess which of two values is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if any(name == each[0] for each in pairs[:number]))
        raise ValueError(f"the key {twice!r:.60} stands twice in one object")
    return found
