"""What the tests of the HTML report share: reports to make pages of, and a strict reader of a page.

Must hold: the reader refuses what a browser would repair (an element that is not closed, an id twice), since a repaired
page is not the one that was meant. Must not: compare pages with stored ones.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import blocklaws
from blocklaws.discovery import find_subjects
from blocklaws.kill_matrix import run_faults
from blocklaws.report import CaseResult, Report
from blocklaws.spec_reading import load_spec
from blocklaws.tracing import trace

__all__ = ["HOSTILE", "Element", "hostile_report", "large_report", "parsed", "small_matrix", "traced", "wrong_report"]

#: What a backend, a spec or an exception may say.
HOSTILE = "<script>alert(1)</script>\"' onload=x &amp; \x1b[31mred\x00\x7f\u202eright\ud800"

_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_BOXES = {"caption", "dd", "details", "dl", "dt", "figcaption", "h1", "h2", "h3", "h4", "li", "p", "pre", "section",
          "summary", "table", "td", "th", "tr", "ul"}  # fmt: skip


@dataclasses.dataclass
class Element:
    """One element of a page; its children are elements and texts, in their order."""

    tag: str
    attributes: Mapping[str, str]
    parent: Element | None = None
    children: list[Element | str] = dataclasses.field(default_factory=list)

    def __iter__(self) -> Iterator[Element]:
        """Yield the element and all below it, in the order of the page."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child

    @property
    def text(self) -> str:
        """All text below the element, its white space made single spaces; what has a box of its own stands apart."""
        parts = (
            child if isinstance(child, str) else f" {child.text} " if child.tag in _BOXES else child.text
            for child in self.children
        )
        return " ".join("".join(parts).split())

    def all(self, *tags: str, **attributes: str) -> list[Element]:
        """Return the elements below with one of the tags and all of the attributes; ``class_`` asks for one class."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}

        def fits(element: Element) -> bool:
            return (not tags or element.tag in tags) and all(
                value in element.attributes.get(name, "").split()
                if name == "class"
                else element.attributes.get(name) == value
                for name, value in wanted.items()
            )

        return [element for element in self if element is not self and fits(element)]

    def one(self, *tags: str, **attributes: str) -> Element:
        """Return the only such element."""
        (found,) = self.all(*tags, **attributes)
        return found

    def within(self, tag: str) -> bool:
        """Whether the element stands in one with this tag."""
        return self.parent is not None and (self.parent.tag == tag or self.parent.within(tag))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs}, self._open)
        self._open.children.append(element)
        if tag not in _VOID:
            self._open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open = self._open.parent or self.root

    def handle_endtag(self, tag: str) -> None:
        assert self._open.tag == tag, f"</{tag}> where <{self._open.tag}> is open, at {self.getpos()}"
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        self._open.children.append(data)

    def done(self) -> Element:
        assert self._open is self.root, f"<{self._open.tag}> is not closed"
        return self.root


def parsed(page: str) -> Element:
    """Return the elements of a page.

    Raises:
        AssertionError: it is not one that every reader reads in the same way.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    root = reader.done()
    ids = [element.attributes["id"] for element in root if "id" in element.attributes]
    assert len(set(ids)) == len(ids), f"ids twice: {sorted(id for id in set(ids) if ids.count(id) > 1)}"
    return root


def faulty(fault: str) -> Any:
    """Return the NumPy backend with a fault."""
    return find_subjects("numpy")[0].with_fault(fault).backend


@functools.cache
def wrong_report() -> Report:
    """Return a report of a block whose norm runs over tokens, with verdicts of every kind but ``error``."""
    return blocklaws.verify(
        faulty("norm-over-tokens"),
        blocks=["llama", "original"],
        dtypes=["float32", "float16"],
        invariants=["prefix-invariance", "rms-norm-definition", "output-parity", "shape-preservation"],
        profile="quick",
    )


@functools.cache
def small_matrix() -> dict[str, Any]:
    """Return the JSON of a small kill matrix over two seeds, in which one fault survives."""
    found = run_faults(
        ["numpy"], faults=["norm-over-tokens", "mask-off-by-one", "gain-missing"],
        invariants=["prefix-invariance", "rms-norm-definition"], profile="quick", seeds=2, blocks=["llama"],
        dtypes=["float32"],
    ).as_dict()  # fmt: skip
    alive = next(row for row in found["rates"] if row["fault"] == "gain-missing")
    alive["share"] = 0.5
    return found


def hostile_report() -> Report:
    """Return a report in which every text that somebody else wrote is hostile."""
    report = wrong_report()
    texts = ("backend", "label", "block", "reason", "says", "location", "pattern", "claim", "clause_at", "worst",
             "divergence", "how", "device", "part", "spec_file", "stage")  # fmt: skip

    def hostile(case: CaseResult, number: int) -> CaseResult:
        changes: dict[str, Any] = {name: f"{name}{HOSTILE}" for name in texts if getattr(case, name)}
        changes |= {"known": f"known{HOSTILE}"} if number % 5 == 4 else {}
        return dataclasses.replace(case, **changes)

    cases = tuple(hostile(case, number) for number, case in enumerate(report.cases))
    return dataclasses.replace(
        report,
        cases=(*cases, dataclasses.replace(cases[0], verdict="error", element=None, worst="", stages=None)),
        backends=({**report.backends[0], "name": f"backend{HOSTILE}", "label": HOSTILE, "device": HOSTILE},),
        stale=(f"known.yaml:3: {HOSTILE}",),
        meanings={id: dict.fromkeys(told, HOSTILE) for id, told in report.meanings.items()},
        command=f"blocklaws verify {HOSTILE}",
        spec={**report.spec, "sources": [HOSTILE]},
    )


def large_report(cases: int = 5000) -> Report:
    """Return a report of many cases: invariants on three backends, seven blocks and four dtypes; one in four fails."""
    report = wrong_report()
    failing = [case for case in report.cases if case.verdict == "violated"]
    others = [case for case in report.cases if case.verdict != "violated"]
    places = itertools.product(range(cases), range(3), range(7), ("float64", "float32", "bfloat16", "float16"))
    made = [
        dataclasses.replace(
            failing[number % len(failing)] if number % 4 == 0 else others[number % len(others)],
            invariant=f"invariant-{invariant}",
            backend=f"backend-{backend}",
            block=f"block-{block}",
            dtype=dtype,
        )
        for number, (invariant, backend, block, dtype) in enumerate(itertools.islice(places, cases))
    ]
    return dataclasses.replace(
        report,
        cases=tuple(made),
        backends=tuple({**report.backends[0], "name": f"backend-{number}"} for number in range(3)),
        invariants=tuple(dict.fromkeys(case.invariant for case in made)),
    )


def traced(fault: str = "", block: str = "llama") -> dict[str, Any]:
    """Return the trace of a NumPy block, right or with a fault, as ``trace --json`` prints it."""
    subject = find_subjects("numpy")[0]
    data: dict[str, Any] = json.loads(
        json.dumps(trace(subject.with_fault(fault) if fault else subject, load_spec(), block))
    )
    return data
