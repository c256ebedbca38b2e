"""``make conformance``: verify the layers of published libraries, each in an environment of its own.

    python conformance/run.py [LIBRARY ...] [--profile PROFILE] [--dtype DTYPE] [--workers N]

For each library (all of ``libraries.yaml`` by default) it runs ``blocklaws verify`` on its mapping files and backends,
with ``explanations.yaml`` as known failures, then the whole models and the tests that need its environment. It keeps
what they report in ``build/conformance``, and writes docs/conformance.md and docs/models.md from all that is there.
Must hold: exit status 0 only if every violation is explained, every explanation is needed, and every test ran and
passed; 1 if not, and no page is written; 2 if a library could not be installed or verified at all.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from libraries import HERE, ROOT, ConformanceError, Library, load_libraries
from page import page
from reports import LibraryReport, Reports

from blocklaws.known_failures import KnownFailures

REPORTS = ROOT / "build" / "conformance"
EXPLANATIONS = HERE / "explanations.yaml"
PAGE = ROOT / "docs" / "conformance.md"
MODELS_PAGE = ROOT / "docs" / "models_page.py"


def verify(library: Library, names: Sequence[str], python: Path, expected: Path, report: Path, workers: int = 1) -> int:
    """Verify backends with an interpreter, and write the report; return the exit status of the run.

    Args:
        names: what ``blocklaws verify`` takes.
        expected: a file of known failures.
    """
    command = [str(python), "-m", "blocklaws", "verify", *names]
    command += ["--profile", library.profile, "--workers", str(workers), "--json", str(report)]
    command += ["--known-failures", str(expected), "--no-progress", "--no-isolate"]
    for option, chosen in (("--block", library.blocks), ("--dtype", library.dtypes)):
        command += [part for name in chosen for part in (option, name)]
    return _told(library, command, report, lines=2)


def run_tests(library: Library, python: Path, report: Path) -> int:
    """Run the tests of a library with an interpreter, and write the report; return 0 if all ran and passed, else 1.

    A skipped test is one that did not find what the environment was made for.
    """
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    command += [str(Path("tests", file)) for file in library.tests]
    command += ["-k", library.named] if library.named else []
    status = _told(library, command, report, lines=1)
    skipped = Reports.read_tests(report).skipped if report.is_file() else 0
    if skipped and not status:
        tests = "1 test was" if skipped == 1 else f"{skipped} tests were"
        print(f"{tests} skipped in the environment of {library.name}, which should have what they need")
    return 1 if status or skipped else 0


def _told(library: Library, command: Sequence[str], report: Path, lines: int) -> int:
    """Run a command; show all that it printed, or only the last lines where it went as it should."""
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    variables = {**os.environ, **library.variables}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=variables)
    print(done.stdout if done.returncode else "\n".join(done.stdout.splitlines()[-lines:]), flush=True)
    print(done.stderr, end="", file=sys.stderr, flush=True)
    return done.returncode


def run(library: Library, reports: Reports, workers: int) -> bool:
    """Run all that an entry names, in its environment; return whether it went as explained.

    Raises:
        ConformanceError: it could not be verified at all.
    """
    reports.forget(library.name)
    statuses = [verify(library, library.names, library.python, EXPLANATIONS, reports.verdicts(library.name), workers)]
    if library.models:
        known = ROOT / "backends" / library.models.replace("-", "_") / "known.yaml"
        models = dataclasses.replace(library, blocks=())
        statuses += [verify(models, [library.models], library.python, known, reports.models(library.name), workers)]
    if bad := [status for status in statuses if status not in (0, 1)]:
        raise ConformanceError(f"{library.name}: blocklaws verify ended with status {bad[0]}")
    if library.tests:
        statuses += [run_tests(library, library.python, reports.tests(library.name))]
    return not any(statuses)


def of_nothing(explanations: KnownFailures, found: Mapping[str, LibraryReport]) -> list[str]:
    """Say which explanations are of a backend that no library has; the others a run itself judges, as it needs them."""
    names = [backend["name"] for one in found.values() for backend in one.verdicts["backends"]]
    return [
        f"{entry.place}: no library has a backend {entry.backend!r}; remove the entry"
        for entry in explanations.entries
        if not entry.names_one_of(names)
    ]


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="verify the layers of published libraries")
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help="default: all")
    parser.add_argument("--profile", help="instead of what libraries.yaml says")
    parser.add_argument("--dtype", action="append", help="instead of all that a mapping supports; may be repeated")
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args(arguments)
    try:
        libraries, reports = load_libraries(), Reports(REPORTS)
        for name in chosen.libraries:
            if name not in libraries:
                raise ConformanceError(f"unknown library {name!r}; libraries.yaml has {', '.join(libraries)}")
        failed = []
        for name in chosen.libraries or libraries:
            library = libraries[name]
            if chosen.profile:
                library = dataclasses.replace(library, profile=chosen.profile)
            if chosen.dtype:
                library = dataclasses.replace(library, dtypes=tuple(chosen.dtype))
            library.prepare()
            print(f"== {name}", flush=True)
            failed += [] if run(library, reports, chosen.workers) else [name]
        if failed:
            print(f"conformance: not as explained: {', '.join(failed)}", file=sys.stderr)
            return 1
        found = reports.read(libraries)
        if len(found) == len(libraries) and (stale := of_nothing(KnownFailures.load(EXPLANATIONS), found)):
            print(f"conformance: {stale[0]}", file=sys.stderr)
            return 1
        PAGE.write_text(page(libraries, found), encoding="utf-8")
        print(f"conformance: wrote {PAGE.relative_to(ROOT)}")
        for library in libraries.values():
            if library.models and reports.models(library.name).is_file():
                subprocess.run([sys.executable, str(MODELS_PAGE), str(reports.models(library.name))], check=True)
    except ConformanceError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
