"""An SVG badge of a run: ``blocklaws | 826 hold``.

Must hold: it needs no network and no font that is not there (the text is fitted into the width that was made for it);
what is read out says all four counts; the colour says nothing that the words do not. Must not: show a run in which
something failed, or was not looked at, as one in which everything holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from blocklaws.report import Report

__all__ = ["badge_svg", "message_of"]

# White on each of these has a contrast above 4.5 to 1.
_GREEN, _RED, _GREY, _DARK = "#1a7f37", "#b3261e", "#6b6b6b", "#3b3b3b"
_SIZE, _PADDING, _HEIGHT = 11, 6, 20
# About what Verdana's letters take at 11 px; textLength makes up for another font.
_NARROW, _WIDE = frozenset("fijlrt.,:;|!' ()[]"), frozenset("mwMW%@")


def message_of(report: Report) -> tuple[str, str]:
    """Return what the badge says on its right, and its colour."""
    summary, known = report.summary, sum(bool(case.known) for case in report.cases)
    failed = [
        f"{count} {shown}"
        for verdict, shown in (("violated", "violated"), ("error", "in error"))
        if (count := sum(case.verdict == verdict for case in report.failures))
    ]
    rest = [f"{known} known"] if known else []
    rest += [f"{summary['unchecked']} unchecked"] if summary["unchecked"] else []
    if failed:
        return ", ".join(failed), _RED
    if report.stale:
        return f"{len(report.stale)} stale", _RED
    if report.not_run:
        return "interrupted", _GREY
    if not summary["holds"]:
        return ", ".join(rest) or "nothing checked", _GREY
    return ", ".join([f"{summary['holds']} hold", *rest]), _GREEN


def badge_svg(report: Report) -> str:
    """Return the badge as the text of an SVG file."""
    message, colour = message_of(report)
    summary = report.summary
    told = (
        f"blocklaws: {summary['holds']} hold, {summary['violated']} violated, {summary['error']} in error, "
        f"{summary['unchecked']} unchecked"
    )
    return _badge("blocklaws", message, colour, told)


def _badge(label: str, message: str, colour: str, title: str) -> str:
    left, right = _width(label), _width(message)
    total = left + right
    middle = _HEIGHT - _PADDING
    corner = f"a3 3 0 0 1 3 3v{_HEIGHT - 6}a3 3 0 0 1 -3 3"

    def text(content: str, start: int, width: int) -> str:
        room = width - 2 * _PADDING
        return (
            f'<text x="{start + _PADDING}" y="{middle}" textLength="{room}" lengthAdjust="spacingAndGlyphs">'
            f"{escape(content)}</text>"
        )

    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{_HEIGHT}" '
        f'viewBox="0 0 {total} {_HEIGHT}" role="img" aria-label={quoteattr(title)}>\n'
        f"  <title>{escape(title)}</title>\n"
        f'  <rect width="{total}" height="{_HEIGHT}" rx="3" fill="{_DARK}"/>\n'
        f'  <path d="M{left} 0h{right - 3}{corner}h-{right - 3}z" fill="{colour}"/>\n'
        f'  <g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="{_SIZE}">\n'
        f"    {text(label, 0, left)}\n"
        f"    {text(message, left, right)}\n"
        "  </g>\n"
        "</svg>\n"
    )


def _width(text: str) -> int:
    letters = sum(4.0 if letter in _NARROW else 10.5 if letter in _WIDE else 7.0 for letter in text)
    return round(letters) + 2 * _PADDING
