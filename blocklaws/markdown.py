"""A summary in Markdown, for a pull request: of a run, or of what changed between two.

Must hold: whatever a spec, a backend or a file says stands in a code element or a fenced block, where it is neither
markup nor a mention nor a link nor the end of a table's cell; the text is never longer than a comment may be
(65,536 characters on GitHub), and says what was left out. Must not: show a run as better than the terminal does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from blocklaws.causes import causes
from blocklaws.failure_text import failure_text, shown_place
from blocklaws.verdict_tables import SHOWN, Evidence

if TYPE_CHECKING:
    from blocklaws.comparing import Comparison
    from blocklaws.report import CaseResult, Report

__all__ = ["LONGEST", "code", "comparison_markdown", "fenced", "report_markdown"]

#: No summary has more characters.
LONGEST = 60_000
_LONGEST_NAME, _LONGEST_BLOCK, _MOST_LISTED = 200, 4_000, 50
_HEADS = ("backend", "hold", "violated", "in error", "unchecked", "examples", "informative", "max error", "time")


def code(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a text as a code element on one line, as it may stand anywhere: in prose, in a list, in a table's cell."""
    text = " ".join(text.split())
    text = text if len(text) <= longest else text[: longest - 3] + "..."
    letters = (letter if letter.isprintable() else "?" for letter in text)
    # An entity is never a delimiter, and in <code> an @ is no mention.
    shown = "".join(letter if letter.isalnum() or letter in " -.,/()" else f"&#{ord(letter)};" for letter in letters)
    return f"<code>{re.sub('www[.]', 'www&#46;', shown, flags=re.IGNORECASE)}</code>"


def fenced(text: str, longest: int = _LONGEST_BLOCK) -> str:
    """Return lines as a fenced block whose fence they cannot close."""
    text = text if len(text) <= longest else text[: longest - 3] + "..."
    text = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


class _Page:
    """Paragraphs that together are no longer than a summary may be."""

    def __init__(self, last: str) -> None:
        self._parts: list[str] = []
        self._last = last
        self._left = LONGEST - len(last) - 200
        self._omitted = 0

    def add(self, part: str) -> None:
        if len(part) + 2 > self._left or self._omitted:
            self._omitted += 1
            return
        self._parts.append(part)
        self._left -= len(part) + 2

    def __str__(self) -> str:
        more = [f"{self._omitted} more parts are left out here; the JSON has everything."] if self._omitted else []
        return "\n\n".join([*self._parts, *more, self._last]) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _listed(entries: Sequence[str]) -> str:
    shown = [f"- {entry}" for entry in entries[:_MOST_LISTED]]
    return "\n".join([*shown, *([f"- and {len(entries) - _MOST_LISTED} more"] if len(entries) > _MOST_LISTED else [])])


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def report_markdown(report: Report, status: int, why: str) -> str:
    """Return the summary of a run.

    Args:
        report: what it found.
        status: its exit status.
        why: what that status means, in our own words.
    """
    summary = report.summary
    counts = ", ".join(f"{summary[verdict]} {shown}" for verdict, shown in SHOWN.items())
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    sources = ", ".join(str(source) for source in report.spec.get("sources", ()))
    page = _Page(
        f"blocklaws {code(report.version)}, spec {code(str(report.spec['sha256'])[:8])} of {code(sources)}, profile "
        f"{code(report.profile)}, seed {report.seed}; {code(versions)}"
    )
    page.add(f"### blocklaws: {_verdict(report, status)}")
    known = sum(bool(case.known) for case in report.cases)
    page.add(
        f"{len(report.cases)} cases: {counts}{f' ({known} of the failures are known)' if known else ''}. "
        f"Exit status {status}: {why}."
    )
    page.add(_table(_HEADS, _backend_rows(report)))
    for cause in causes(report.failures):
        page.add(_failure(cause.smallest))
        if cause.others:
            others = [f"{code(other.id)} {_case(other)}" for other in cause.others]
            title = f"{len(others)} other {'case' if len(others) == 1 else 'cases'} {_shared(cause.smallest)}"
            page.add(_folded(title, _listed(others)))
    if report.stale:
        page.add("Stale known failures:\n\n" + _listed([code(sentence, 400) for sentence in report.stale]))
    reasons = Counter((case.backend, case.reason) for case in report.cases if case.verdict == "unchecked")
    if reasons:
        entries = [
            f"{count} on {code(backend)}: {code(reason, 400)}" for (backend, reason), count in reasons.most_common()
        ]
        page.add(_folded(f"unchecked, so nothing is known of {sum(reasons.values())} cases", _listed(entries)))
    if claims := [
        f"{code(str(backend['name']))} supports what no block of this run has: {code(', '.join(words), 400)}"
        for backend in report.backends
        if (words := backend.get("never_met"))
    ]:
        page.add(_listed(claims))
    return str(page)


def _verdict(report: Report, status: int) -> str:
    if report.failures:
        counts = Counter(case.verdict for case in report.failures)
        return ", ".join(f"{counts[verdict]} {SHOWN[verdict]}" for verdict in ("violated", "error") if counts[verdict])
    if report.stale:
        return f"{len(report.stale)} known failures are stale"
    return {0: "everything that was checked holds", 130: "interrupted"}.get(status, "nothing could be checked")


def _backend_rows(report: Report) -> Iterable[list[str]]:
    for backend in report.backends:
        cases = [case for case in report.cases if case.backend == backend["name"]]
        counts = Counter[str](case.verdict for case in cases)
        yield [
            code(str(backend["name"])), *(str(counts[verdict]) for verdict in SHOWN), *Evidence(cases).columns
        ]  # fmt: skip


def _case(case: CaseResult) -> str:
    return f"{code(case.name)} on {code(case.backend)}, {code(case.block)}, {code(case.dtype)}"


def _shared(case: CaseResult) -> str:
    if case.stage and case.verdict == "violated":
        return f"with the same first diverging stage, {code(case.stage)}"
    return "of the same cause"


def _failure(case: CaseResult) -> str:
    verdict = "Violated" if case.verdict == "violated" else "Error"
    at = f", {code(shown_place(case.location))}" if case.location else ""
    return f"**{verdict}**: {_case(case)}{at}\n\n{fenced(failure_text(case, width=100))}"


def comparison_markdown(comparison: Comparison) -> str:
    """Return the summary of a comparison."""
    reports = zip((comparison.old, comparison.new), comparison.told, strict=True)
    page = _Page(" to ".join(f"{code(report.name)} ({code(told, 400)})" for report, told in reports))
    worse = ", ".join(f"{len(changes)} {kind}" for kind, changes in comparison.worse.items())
    page.add(f"### blocklaws compare: {worse or 'nothing got worse'}")
    if comparison.notes:
        page.add("The runs differ:\n\n" + _listed([code(note, 400) for note in comparison.notes]))
    for kind, changes in comparison.by_kind.items():
        mark = "**" if kind in comparison.regressions else ""
        entries = [
            code(line.what, 400) + (f": {code(line.detail, 400)}" if line.detail else "")
            for line in comparison.lines(changes)
        ]
        page.add(f"{mark}{kind} ({len(changes)}){mark}\n\n{_listed(entries)}")
    if not comparison.by_kind:
        page.add("Nothing changed.")
    return str(page)
