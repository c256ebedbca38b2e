"""A report as JUnit XML, which CI services show: a test suite a backend, a test case a case.

Must hold: a violation is a ``failure``, an error an ``error``, and what is unchecked or known to fail is ``skipped``
with its reason; half a run is no good one. Must not: write a character that XML 1.0 has no place for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from blocklaws.failure_text import failure_text
from blocklaws.report import CaseResult, Report

__all__ = ["junit_xml"]

# XML 1.0, section 2.2: anything else is not a character, not even escaped.
_NO_CHARACTER = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text: str) -> str:
    return _NO_CHARACTER.sub("\ufffd", text)


def junit_xml(report: Report) -> str:
    """Return the XML text of a report."""
    root = ElementTree.Element("testsuites", name="blocklaws")
    for backend in report.backends:
        cases = [case for case in report.cases if case.backend == backend["name"]]
        counted = [case for case in cases if case.failed]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_text(f"blocklaws {backend['name']}"),
            tests=str(len(cases)),
            failures=str(sum(case.verdict == "violated" for case in counted)),
            errors=str(sum(case.verdict == "error" for case in counted)),
            skipped=str(sum(bool(case.known) or case.verdict == "unchecked" for case in cases)),
            time=f"{sum(case.seconds for case in cases):.3f}",
        )
        about = {"spec": report.spec["sha256"], "profile": report.profile, "seed": report.seed, **report.versions}
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in about.items():
            ElementTree.SubElement(properties, "property", name=_text(name), value=_text(str(value)))
        for case in cases:
            _add(suite, case)
    if report.stale:
        _add_failures(root, "known failures", report.stale)
    if report.not_run:
        # A reader of the file alone must not take half a run for a whole one.
        _add_failures(root, "interrupted", [f"{report.not_run} more cases would have been looked at"])
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_failures(root: ElementTree.Element, name: str, sentences: Sequence[str]) -> None:
    count = str(len(sentences))
    suite = ElementTree.SubElement(
        root, "testsuite", name=f"blocklaws {name}", tests=count, failures=count, errors="0", skipped="0", time="0"
    )
    for sentence in sentences:
        entry = ElementTree.SubElement(suite, "testcase", classname=name, name=_text(sentence), time="0")
        ElementTree.SubElement(entry, "failure", message=_text(sentence))


def _add(suite: ElementTree.Element, case: CaseResult) -> None:
    # A dot would make a package of what stands before it.
    classname = ".".join(part.replace(".", "_") for part in (case.backend, case.block, case.dtype))
    element = ElementTree.SubElement(
        suite, "testcase", classname=_text(classname), name=_text(case.name), time=f"{case.seconds:.3f}"
    )
    if case.known:
        ElementTree.SubElement(element, "skipped", message=_text(f"known failure: {case.known}"))
    elif case.verdict == "unchecked":
        ElementTree.SubElement(element, "skipped", message=_text(f"unchecked: {case.reason}"))
    elif case.failed:
        kind = "failure" if case.verdict == "violated" else "error"
        told = ElementTree.SubElement(element, kind, message=_text(case.reason), type=case.verdict)
        told.text = _text("\n" + failure_text(case) + "\n")
