"""Which libraries are verified: ``libraries.yaml``, checked, and an environment for each.

Must hold: an environment is made anew when what it is made of changes, and holds blocklaws from this checkout and what
the library's entry pins; nothing is installed without a version.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ROOT", "ConformanceError", "Library", "load_libraries"]

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "conformance"

_REQUIRED = {"says", "install", "versions", "mappings"}
_OPTIONAL = {"constraints", "profile", "blocks", "dtypes", "variables"}


class ConformanceError(Exception):
    """The command cannot do what it was asked; one sentence."""


@dataclasses.dataclass(frozen=True)
class Library:
    """One entry of ``libraries.yaml``; its comments say what each key means."""

    name: str
    says: str
    install: tuple[str, ...]
    versions: tuple[str, ...]
    mappings: tuple[str, ...]
    constraints: bool = True
    profile: str = "quick"
    blocks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def environment(self) -> Path:
        """The folder of its virtual environment."""
        return ROOT / f".venv-conformance-{self.name}"

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.environment / "bin" / "python"

    def prepare(self) -> None:
        """Make the environment, unless it is there and was made of the same.

        Raises:
            ConformanceError: pip could not install it.
        """
        wanted = "\n".join([*self.install, *(path.read_text(encoding="utf-8") for path in self._made_of())])
        stamp, digest = self.environment / "made-of", hashlib.sha256(wanted.encode()).hexdigest()
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
            return
        print(f"{self.name}: installing {', '.join(self.install)}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(self.environment)], self.name)
        pinned = ["-c", str(ROOT / "constraints.txt")] if self.constraints else []
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        _run([*pip, *pinned, "-e", str(ROOT), *self.install], self.name)
        stamp.write_text(digest, encoding="utf-8")

    def _made_of(self) -> list[Path]:
        return [ROOT / "pyproject.toml", *([ROOT / "constraints.txt"] if self.constraints else [])]


def _run(command: Sequence[str], name: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConformanceError(f"{name}: {' '.join(command[1:4])} failed: {done.stderr.strip()[-500:]}")


def load_libraries(path: Path = HERE / "libraries.yaml") -> dict[str, Library]:
    """Read the libraries.

    Raises:
        ConformanceError: an entry has an unknown key, lacks one, or installs something without its exact version.
    """
    data: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    libraries = {}
    for name, entry in data.items():
        unknown, missing = set(entry) - _REQUIRED - _OPTIONAL, _REQUIRED - set(entry)
        if unknown or missing:
            wrong = f"unknown keys {sorted(unknown)}, missing keys {sorted(missing)}"
            raise ConformanceError(f"{path.name}: {name}: {wrong}")
        for requirement in entry["install"]:
            if "==" not in requirement:
                wrong = f"{requirement!r} has no exact version; write name==version"
                raise ConformanceError(f"{path.name}: {name}: {wrong}")
        libraries[name] = Library(
            name, **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        )
    return libraries
