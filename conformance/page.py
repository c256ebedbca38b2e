"""docs/conformance.md: what the reports of all libraries say, as one page.

Must hold: the page says nothing that is in no report; every violation stands there with its explanation, and a case of
which nothing is known is not counted among those that hold. Nothing of a time or a machine is on it: the same versions
write the same page.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from libraries import ConformanceError, Library
from reports import LibraryReport

__all__ = ["page"]

_SHORT = {"float64": "64", "float32": "32", "bfloat16": "b16", "float16": "16"}

_HEAD = """\
# Conformance

What published implementations of decoder blocks keep of the invariants, by their mapping files; with them two of our
examples, and our own backends on the oldest versions that we take. `make conformance` writes this page: it makes an
environment for each library, verifies its layers on the CPU (profile `{profile}`, seed {seed}, spec `{spec}`), runs
there [the tests that need it](#tests-and-whole-models), and fails when a violation has no explanation or an explanation
no violation, or when a test fails or is skipped. What a verdict rests on, and what it does not show, is in
[reports.md](reports.md#what-a-verdict-rests-on) and
[writing-a-backend.md](writing-a-backend.md#what-holds-does-not-show).

{cases} cases: {holds} hold, {violated} violated (and explained below), of {unchecked} nothing is known. A case is one
invariant on one kind of block in one dtype; the tables of the libraries say in which dtypes it holds, as 64, 32, 16
(float64, float32, float16) and b16 (bfloat16). **Bold** is violated, with the number of its explanation. A dash says
that nothing was checked: the mapping says why, under `cannot` and `supports`. Kinds of block that a layer is not are
left out.
"""


@dataclasses.dataclass
class _Explanations:
    """The explanations that the reports needed, numbered as they are met."""

    numbers: dict[str, int] = dataclasses.field(default_factory=dict)
    cases: Counter[str] = dataclasses.field(default_factory=Counter)
    where: dict[str, dict[str, None]] = dataclasses.field(default_factory=dict)

    def note(self, case: Mapping[str, Any]) -> None:
        """Count one violated case."""
        reason = case["known"]
        self.numbers.setdefault(reason, len(self.numbers) + 1)
        self.cases[reason] += 1
        self.where.setdefault(reason, {})[f"{case['backend']} {case['dtype']}"] = None


def page(libraries: Mapping[str, Library], found: Mapping[str, LibraryReport]) -> str:
    """Return the page.

    Args:
        libraries: by name, in the order of the page.
        found: name of the library -> its reports, all of one spec, profile and seed. A library without them is named as
            such.

    Raises:
        ConformanceError: there is no report, two are of different specs, a violation is unexplained, or a test did not
            pass.
    """
    missing = [name for name in libraries if name not in found]
    libraries = {name: library for name, library in libraries.items() if name in found}
    if not libraries:
        raise ConformanceError("there is no report; run a library first")
    spec, profile, seed = _made_of(found)
    reports = {name: one.verdicts for name, one in found.items()}
    explanations = _Explanations()
    for case in _cases(libraries, reports):
        if case["verdict"] in ("violated", "error"):
            if not case["known"]:
                raise ConformanceError(f"{case['invariant']} on {case['backend']}, {case['dtype']} has no explanation")
            explanations.note(case)
    verdicts = Counter(case["verdict"] for case in _cases(libraries, reports))
    lines = [
        _HEAD.format(
            profile=profile, seed=seed, spec=spec, cases=verdicts.total(), holds=verdicts["holds"],
            violated=verdicts["violated"] + verdicts["error"], unchecked=verdicts["unchecked"],
        ),
        *([f"Not verified with this spec so far: {', '.join(missing)}.", ""] if missing else []),
        *_implementations(libraries, reports),
        *_explained(explanations),
        *_beside(libraries, found),
    ]  # fmt: skip
    for name, library in libraries.items():
        lines += _library(library, reports[name], explanations)
    return "\n".join(lines).rstrip() + "\n"


def _made_of(found: Mapping[str, LibraryReport]) -> tuple[str, str, int]:
    """Return what all reports are of: the spec, the profile and the seed."""
    made_of = {
        (report["spec"]["sha256"][:8], report["profile"], report["seed"]): name
        for name, one in found.items()
        for report in (one.verdicts, one.models)
        if report is not None
    }
    if len(made_of) != 1:
        raise ConformanceError(f"{', '.join(made_of.values())}: reports of different specs or profiles; run all")
    return next(iter(made_of))


def _cases(libraries: Mapping[str, Library], reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for name in libraries:
        for backend in reports[name]["backends"]:
            yield from _of(backend["name"], reports[name])


def _of(backend: str, report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cases of an implementation, without those of kinds of block that it is not."""
    cases = [case for case in report["cases"] if case["backend"] == backend]
    kinds = {case["block"] for case in cases if case["verdict"] != "unchecked"}
    return [case for case in cases if case["block"] in kinds]


def _implementations(libraries: Mapping[str, Library], reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "## Implementations"
    yield ""
    yield "| implementation | versions | kinds of block | holds | violated | unchecked |"
    yield "|---|---|---|---|---|---|"
    for name, library in libraries.items():
        report = reports[name]
        if unnamed := [package for package in library.versions if package not in report["versions"]]:
            raise ConformanceError(f"{name}: the report names no version of {', '.join(unnamed)}; see `packages`")
        versions = ", ".join(f"{package} {report['versions'][package]}" for package in library.versions)
        for backend in report["backends"]:
            cases = _of(backend["name"], report)
            counts = Counter(case["verdict"] for case in cases)
            blocks = dict.fromkeys(case["block"] for case in cases)
            yield (
                f"| `{backend['name']}` | {versions} | {', '.join(blocks)} | {counts['holds']} | "
                f"{counts['violated'] + counts['error']} | {counts['unchecked']} |"
            )
    yield ""


def _explained(explanations: _Explanations) -> Iterator[str]:
    yield "## Violations and their explanations"
    yield ""
    if not explanations.numbers:
        yield "None."
    for reason, number in explanations.numbers.items():
        where = ", ".join(explanations.where[reason])
        yield f"{number}. {' '.join(reason.split())} ({_count(explanations.cases[reason], 'case')}: {where})"
    yield ""


def _beside(libraries: Mapping[str, Library], found: Mapping[str, LibraryReport]) -> Iterator[str]:
    """Say what else ran in the environments of the libraries."""
    rows = []
    for name, library in libraries.items():
        tests, models = found[name].tests, found[name].models
        if tests is not None:
            if tests.failed or tests.skipped or not tests.passed:
                told = f"{tests.passed} passed, {tests.failed} failed, {tests.skipped} skipped"
                raise ConformanceError(f"the tests of {name}: {told}; all must run and pass")
            files = ", ".join(f"`tests/{file}`" for file in library.tests)
            named = f" with `{library.named}` in their names" if library.named else ""
            rows.append(f"| {name} | {_count(tests.passed, 'test')} of {files}{named}: all pass |")
        if models is not None:
            rows.append(
                f"| {name} | `blocklaws verify {library.models}`: {_of_models(models)}, see [models.md](models.md) |"
            )
    if rows:
        yield from ("## Tests and whole models", "")
        yield "`make test` skips the tests of libraries that it does not install, and has one version of each. Here"
        yield "they ran, and none was skipped."
        yield from ("", "| environment | what ran |", "|---|---|", *rows, "")


def _of_models(report: Mapping[str, Any]) -> str:
    cases = report["cases"]
    counts = Counter(case["verdict"] for case in cases)
    for case in cases:
        if case["verdict"] in ("violated", "error") and not case["known"]:
            raise ConformanceError(f"{case['invariant']} on {case['block']}, {case['backend']} has no explanation")
    return (
        f"{len({case['block'] for case in cases})} classes, {_count(len(cases), 'case')}: {counts['holds']} hold, "
        f"{counts['violated'] + counts['error']} violated (all explained), {counts['unchecked']} unchecked"
    )


def _library(library: Library, report: Mapping[str, Any], explanations: _Explanations) -> Iterator[str]:
    backends = [backend["name"] for backend in report["backends"]]
    yield f"## {library.says}"
    yield ""
    yield f"| invariant | {' | '.join(f'`{backend}`' for backend in backends)} |"
    yield "|---" * (len(backends) + 1) + "|"
    invariants = dict.fromkeys(case["invariant"] for case in report["cases"])
    for invariant in invariants:
        cells = [
            _cell(
                [case for case in report["cases"] if (case["invariant"], case["backend"]) == (invariant, backend)],
                explanations,
            )
            for backend in backends
        ]
        if any(cell != "–" for cell in cells):
            yield f"| {invariant} | {' | '.join(cells)} |"
    yield ""


def _cell(cases: Sequence[Mapping[str, Any]], explanations: _Explanations) -> str:
    parts = []
    for dtype, short in _SHORT.items():
        here = [case for case in cases if case["dtype"] == dtype and case["verdict"] != "unchecked"]
        numbers = sorted({explanations.numbers[case["known"]] for case in here if case["verdict"] != "holds"})
        if numbers:
            parts.append(f"**{short}** [{', '.join(map(str, numbers))}]")
        elif here:
            parts.append(short)
    return " ".join(parts) or "–"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
