"""``make conformance``: verify the layers of published libraries, each in an environment of its own.

    python conformance/run.py [LIBRARY ...] [--profile PROFILE] [--dtype DTYPE] [--workers N]

Runs ``blocklaws verify`` on the mapping files of each library (all of ``libraries.yaml`` by default) with
``explanations.yaml`` as its known failures, keeps the reports in ``build/conformance``, and writes docs/conformance.md
from all that are there. Must hold: exit status 0 only if every violation is explained and every explanation that
speaks of a library that ran is needed; 1 if not, and the page is not written; 2 if a library could not be installed or
verified at all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from libraries import HERE, ROOT, ConformanceError, Library, load_libraries
from page import page

REPORTS = ROOT / "build" / "conformance"
PAGE = ROOT / "docs" / "conformance.md"


def verify(library: Library, python: Path, explanations: Path, report: Path, workers: int = 1) -> int:
    """Verify a library's layers with an interpreter, and write the report; return the exit status of the run."""
    command = [str(python), "-m", "blocklaws", "verify"]
    command += [str(Path("backends", "mappings", mapping)) for mapping in library.mappings]
    command += ["--profile", library.profile, "--workers", str(workers), "--json", str(report)]
    command += ["--known-failures", str(explanations), "--no-progress", "--no-isolate"]
    for option, names in (("--block", library.blocks), ("--dtype", library.dtypes)):
        command += [part for name in names for part in (option, name)]
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    variables = {**os.environ, **library.variables}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=variables)
    # Of a run that went as explained the last lines say enough.
    print(done.stdout if done.returncode else "\n".join(done.stdout.splitlines()[-2:]), flush=True)
    print(done.stderr, end="", file=sys.stderr, flush=True)
    return done.returncode


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="verify the layers of published libraries")
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help="default: all")
    parser.add_argument("--profile", help="instead of what libraries.yaml says")
    parser.add_argument("--dtype", action="append", help="instead of all that a mapping supports; may be repeated")
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args(arguments)
    try:
        libraries = load_libraries()
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
            status = verify(
                library, library.python, HERE / "explanations.yaml", REPORTS / f"{name}.json", chosen.workers
            )
            if status not in (0, 1):
                raise ConformanceError(f"{name}: blocklaws verify ended with status {status}")
            failed += [name] if status else []
        if failed:
            print(f"conformance: not as explained: {', '.join(failed)}", file=sys.stderr)
            return 1
        reports = {name: _read(REPORTS / f"{name}.json") for name in libraries if (REPORTS / f"{name}.json").is_file()}
        PAGE.write_text(page(libraries, reports), encoding="utf-8")
        print(f"conformance: wrote {PAGE.relative_to(ROOT)}")
    except ConformanceError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> dict[str, object]:
    data: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
