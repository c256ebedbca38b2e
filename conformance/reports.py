"""What the runs in the environment of a library left in ``build/conformance``: verdicts, models and tests.

Must hold: what is read of a library is of its last run, all of it; where that run was broken off, a part is missing and
the library counts as not run.
"""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libraries import ConformanceError, Library

__all__ = ["LibraryReport", "Reports", "Tests"]


@dataclasses.dataclass(frozen=True)
class Tests:
    """How many tests passed, did not, and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


@dataclasses.dataclass(frozen=True)
class LibraryReport:
    """What one library's run left.

    Attributes:
        verdicts: the report of ``blocklaws verify`` on its layers.
        models: that on its whole models; None where it names none.
        tests: the counts of its tests; None where it names none.
    """

    verdicts: Mapping[str, Any]
    models: Mapping[str, Any] | None = None
    tests: Tests | None = None


class Reports:
    """The files of all libraries in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def verdicts(self, name: str) -> Path:
        """The report on the layers of a library."""
        return self.folder / f"{name}.json"

    def models(self, name: str) -> Path:
        """The report on its whole models."""
        return self.folder / f"{name}.models.json"

    def tests(self, name: str) -> Path:
        """The JUnit XML of its tests."""
        return self.folder / f"{name}.tests.xml"

    def forget(self, name: str) -> None:
        """Remove what an earlier run of a library left."""
        for path in (self.verdicts(name), self.models(name), self.tests(name)):
            path.unlink(missing_ok=True)

    def read(self, libraries: Mapping[str, Library]) -> dict[str, LibraryReport]:
        """Return what there is of each library whose last run came to its end."""
        return {name: found for name, library in libraries.items() if (found := self._of(library)) is not None}

    def _of(self, library: Library) -> LibraryReport | None:
        wanted = {
            self.verdicts(library.name): True,
            self.models(library.name): bool(library.models),
            self.tests(library.name): bool(library.tests),
        }
        if not all(path.is_file() for path, asked in wanted.items() if asked):
            return None
        return LibraryReport(
            _json(self.verdicts(library.name)),
            _json(self.models(library.name)) if library.models else None,
            self.read_tests(self.tests(library.name)) if library.tests else None,
        )

    @staticmethod
    def read_tests(path: Path) -> Tests:
        """Return the counts of a JUnit XML file.

        Raises:
            ConformanceError: it is none, as where pytest was killed while it wrote it.
        """
        try:
            suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
        except ElementTree.ParseError as error:
            raise ConformanceError(f"{path.name}: not a report of pytest: {error}") from None
        total, failures, errors, skipped = (
            sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
        )
        return Tests(total - failures - errors - skipped, failures + errors, skipped)


def _json(path: Path) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
