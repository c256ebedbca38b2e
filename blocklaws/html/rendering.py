"""Templates to text: what every page shares.

Must hold: whatever a report says is text and never markup, and what no reader should meet raw (control characters,
escape sequences of a terminal, marks that turn the direction of a line, halves of a surrogate pair) is shown as its
escape; the page loads nothing, and its one script is the one whose digest it names. Must not: know a report.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import re
from collections.abc import Iterable
from typing import Any

import jinja2
from markupsafe import Markup

import blocklaws
from blocklaws.failure_text import shown_place
from blocklaws.html import words

__all__ = ["plain", "render"]

#: C0 and C1 controls but for tab and newline, marks of direction and of invisible joining, surrogates, non-characters.
_RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\uffff]"
)


def plain(text: str) -> str:
    """Return a text with its raw characters escaped.

    >>> plain("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return _RAW.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def _grouped(rows: Iterable[Any], name: str) -> list[tuple[Any, list[Any]]]:
    """Return rows by one of their attributes, in the order in which its values appear."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(getattr(row, name), []).append(row)
    return list(groups.items())


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": words.number,
        "percent": words.percent,
        "count": words.count,
        "used": words.used,
        "place": shown_place,
        "sentence": lambda text: text[:1].upper() + text[1:],
        "groupby_in_order": _grouped,
        "identity": id,
    }
    style, script = _template("style.css"), _template("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "version": blocklaws.__version__,
        "marks": words.MARKS,
        "shown": words.SHOWN,
        # Files of this package, put into the page as they are.
        "style": Markup(style),
        "script": Markup(script),
        "script_digest": digest,
    }
    return environment


def _template(name: str) -> str:
    return (importlib.resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return plain(_environment().get_template(template).render(**values))
