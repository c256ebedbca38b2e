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

from blocklaws.errors import SpecError
from blocklaws.fields import Fields, as_mapping
from blocklaws.located_yaml import LocatedDict, Place, load

__all__ = ["ROOT", "ConformanceError", "Library", "load_libraries"]

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "conformance"

MAPPINGS = ROOT / "backends" / "mappings"
TESTS = ROOT / "tests"

_KEYS = (
    "says", "install", "constraints", "versions", "mappings", "backends", "models", "tests", "named", "profile",
    "blocks", "dtypes", "variables",
)  # fmt: skip


class ConformanceError(Exception):
    """The command cannot do what it was asked; one sentence."""


@dataclasses.dataclass(frozen=True)
class Library:
    """One entry of ``libraries.yaml``; its comments say what each key means."""

    name: str
    says: str
    install: tuple[str, ...]
    versions: tuple[str, ...]
    mappings: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    models: str = ""
    tests: tuple[str, ...] = ()
    named: str = ""
    constraints: bool = True
    profile: str = "survey"
    blocks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """What ``blocklaws verify`` is given: its mapping files, then its other backends."""
        return [*(str(Path("backends", "mappings", file)) for file in self.mappings), *self.backends]

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
        ConformanceError: the file is no YAML, an entry has an unknown key, lacks one or has one of the wrong kind,
            names a file that is not there, or installs something without its exact version; with the place.
    """
    try:
        data = as_mapping(load(path), Place(str(path), 1, 1), "the libraries")
        return {name: _library(name, as_mapping(data[name], data.values_at[name], name)) for name in data}
    except SpecError as error:
        raise ConformanceError(str(error)) from None


def _library(name: str, entry: LocatedDict) -> Library:
    fields = Fields(entry, _KEYS, name)
    for key in ("install", "versions"):
        if key not in fields:
            entry.place.refuse(f"{name} has no {key!r}, which it must have")
    library = Library(
        name, says=fields.text("says"), install=fields.words("install", what="package"),
        versions=fields.words("versions", what="package"), mappings=fields.words("mappings", what="file"),
        backends=fields.words("backends", what="backend"), models=fields.text("models", ""),
        tests=fields.words("tests", what="file"), named=fields.text("named", ""),
        constraints=fields.flag("constraints", True), profile=fields.text("profile", "survey"),
        blocks=fields.words("blocks", what="block"), dtypes=fields.words("dtypes", what="dtype"),
        variables=_texts(fields, "variables"),
    )  # fmt: skip
    for requirement in library.install:
        if "==" not in requirement:
            fields.refuse("install", f"{requirement!r} has no exact version; write name==version")
    if not (library.mappings or library.backends):
        entry.place.refuse(f"{name} has neither 'mappings' nor 'backends': nothing would be verified")
    if library.named and not library.tests:
        fields.refuse("named", "chooses among 'tests', and there are none")
    for key, folder in (("mappings", MAPPINGS), ("tests", TESTS)):
        for file in getattr(library, key):
            if not (folder / file).is_file():
                fields.refuse(key, f"{folder.relative_to(ROOT)} has no {file!r}")
    return library


def _texts(fields: Fields, key: str) -> Mapping[str, str]:
    if key not in fields:
        return {}
    texts = as_mapping(fields.mapping[key], fields.place(key), f"{fields.what}: {key}")
    for name, value in texts.items():
        if not isinstance(value, str):
            texts.values_at[name].refuse(f"{fields.what}: {key}: {name} must be a text; write it in quotes")
    return dict(texts)
