"""Writes files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from blocklaws.errors import BlocklawsError

__all__ = ["read_json", "write_json", "write_text"]

_MAX_JSON = 200_000_000


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically.

    Raises:
        BlocklawsError: the place cannot be written to.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe is written to, never replaced.
            path.write_text(text, encoding="utf-8")
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise BlocklawsError(f"cannot write {path}: {error.strerror}") from None


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
        if not path.is_file():
            raise BlocklawsError(f"{path}: there is no such file")
        if path.stat().st_size > _MAX_JSON:
            raise BlocklawsError(f"{path}: is larger than {_MAX_JSON:,} bytes; that is no report of blocklaws")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BlocklawsError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BlocklawsError(f"{path}: is not JSON: {' '.join(str(error).split())[:120]}") from None
