"""Planes of numbers: |difference| over token and feature, and attention weights over query and key.

Must hold: a small plane is a table whose cells can be read, a large one a picture with a title and a description;
masked keys have a pattern, and a weight on one is marked by a word; NaN is the worst there is. Must not: show less than
the plane has without saying so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from blocklaws.html.words import number

__all__ = ["LEVELS", "difference_plane", "value_plane", "weights_plane", "where"]

#: Steps of the scale of a heat map, 0 where there is no difference.
LEVELS = 7
_MOST_IN_TABLE, _MOST_ACROSS = 96, 12
_SIDE = 12

Numbers = Sequence[Sequence[float]]


def _numbers(rows: Sequence[Sequence[float | str]]) -> Numbers:
    return [[float(value) for value in row] for row in rows]


def where(plane: Mapping[str, Any]) -> str:
    """Return which plane of the stage it is, and which window of it: ``batch 0, head 1, tokens 3 to 26 of 67``."""
    parts = [f"{axis} {index}" for axis, index in zip(plane["axes"], plane["at"], strict=False)]
    shown = (len(plane["got"]), len(plane["got"][0]) if plane["got"] else 0)
    for axis, start, length, whole in zip(plane["axes"][-2:], plane["from"], shown, plane["of"], strict=True):
        if length < whole:
            parts.append(f"{axis} {start} to {start + length - 1} of {whole}")
    return ", ".join(parts)


def difference_plane(plane: Mapping[str, Any], title: str, name: str) -> Markup:
    """Return |candidate - reference| as a heat map; ``name`` is a word for the ids of the page."""
    got, want = _numbers(plane["got"]), _numbers(plane["want"])
    far = [[_far(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(got, want, strict=True)]
    most = max((value for row in far for value in row if math.isfinite(value)), default=0.0)
    return _plane(plane, far, title, name, lambda value, *_: (f"h{_level(value, most)}", ""))


def value_plane(plane: Mapping[str, Any], side: str, title: str) -> Markup:
    """Return one side of a plane, ``got`` or ``want``, as plain numbers; nothing where they are too many to read."""
    values = _numbers(plane[side])
    return _table(plane, values, title, lambda *_: ("", "")) if _readable(values) else Markup("")


def weights_plane(plane: Mapping[str, Any], side: str, title: str, name: str) -> Markup:
    """Return attention weights; keys after their query, which no query may see, have a pattern."""
    shift = plane["of"][1] - plane["of"][0]
    top, left = plane["from"]

    def look(value: float, row: int, column: int) -> tuple[str, str]:
        if column + left > row + top + shift:
            return ("masked", "masked") if value == 0 else ("masked leak", "masked, yet seen")
        return f"w{_level(value, 1.0)}", ""

    return _plane(plane, _numbers(plane[side]), title, name, look)


def _far(a: float, b: float) -> float:
    return 0.0 if a == b else abs(a - b)


def _level(value: float, most: float) -> int:
    """Return how far up the scale a value is: 0 for nothing, `LEVELS` for the most and for what is no number."""
    if not math.isfinite(value):
        return LEVELS
    if value <= 0 or most <= 0:
        return 0
    return max(1, min(LEVELS, math.ceil(LEVELS * value / most)))


_Look = Callable[[float, int, int], tuple[str, str]]


def _readable(values: Numbers) -> bool:
    across = len(values[0]) if values else 0
    return across <= _MOST_ACROSS and across * len(values) <= _MOST_IN_TABLE


def _plane(plane: Mapping[str, Any], values: Numbers, title: str, name: str, look: _Look) -> Markup:
    if _readable(values):
        return _table(plane, values, title, look)
    return _picture(plane, values, title, name, look)


def _table(plane: Mapping[str, Any], values: Numbers, title: str, look: _Look) -> Markup:
    down, across = plane["axes"][-2:]
    top, left = plane["from"]
    heads = Markup("").join(
        Markup('<th scope="col">{}</th>').format(left + column) for column in range(len(values[0]) if values else 0)
    )
    rows = []
    for row, line in enumerate(values):
        cells = []
        for column, value in enumerate(line):
            style, said = look(value, row, column)
            aside = Markup('<span class="sr">, {}</span>').format(said) if said else ""
            cells.append(
                Markup('<td class="{}">{}{}</td>').format(style, _short(value), aside)
                if style
                else Markup("<td>{}</td>").format(_short(value))
            )
        rows.append(Markup('<tr><th scope="row">{}</th>{}</tr>').format(top + row, Markup("").join(cells)))
    return Markup(
        '<table class="plane"><caption>{}</caption><thead><tr><td><span class="axis">{} ↓ {} →</span></td>{}</tr>'
        "</thead><tbody>{}</tbody></table>"
    ).format(title, down, across, heads, Markup("").join(rows))


def _short(value: float) -> str:
    return number(value, 3 if 0.01 <= abs(value) < 1000 else 2)


def _picture(plane: Mapping[str, Any], values: Numbers, title: str, name: str, look: _Look) -> Markup:
    down, across = plane["axes"][-2:]
    paths: dict[str, list[str]] = {}
    leaks = []
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            style, _ = look(value, row, column)
            paths.setdefault(style.split(" ")[0], []).append(f"M{column} {row}h1v1h-1z")
            if "leak" in style:
                leaks.append((row, column))
    peak, row, column = max(
        ((value if math.isfinite(value) else math.inf), row, column)
        for row, line in enumerate(values)
        for column, value in enumerate(line)
    )
    top, left = plane["from"]
    described = (
        f"{len(values)} {down}s by {len(values[0])} {across}s; the largest is {number(peak)} at {down} {top + row}, "
        f"{across} {left + column}"
    )
    if leaks:
        first_row, first_column = leaks[0]
        described += f"; masked keys are seen at {len(leaks)} places, the first {down} {top + first_row}, "
        described += f"{across} {left + first_column}"
    width, height = len(values[0]), len(values)
    hatch = Markup(
        '<defs><pattern id="{0}-h" width=".5" height=".5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="hatch" d="M0 0V.5"/></pattern></defs>'
    ).format(name)
    drawn = Markup("").join(
        Markup('<path class="{}" d="{}"{}/>').format(
            style, "".join(parts), Markup(' fill="url(#{}-h)"').format(name) if style == "masked" else ""
        )
        for style, parts in paths.items()
    )
    seen = Markup('<path class="leak" d="{}"/>').format("".join(f"M{c} {r}h1v1h-1z" for r, c in leaks)) if leaks else ""
    return Markup(
        '<figure class="picture"><svg role="img" aria-labelledby="{0}-t" aria-describedby="{0}-d" '
        'viewBox="0 0 {1} {2}" width="{3}" height="{4}"><title id="{0}-t">{5}</title><desc id="{0}-d">{6}</desc>'
        "{7}{8}{9}</svg>"
        "<figcaption>{5}: {6}. {10} down, {11} across.</figcaption></figure>"
    ).format(name, width, height, width * _SIDE, height * _SIDE, title, described, hatch if "masked" in paths else "",
             drawn, seen, down, across)  # fmt: skip
