"""The diagram of a block as inline SVG: two residual streams, their branches, and how each stage compares.

Must hold: it reads without colour: identity paths are solid, branches dashed, additions double rings, and the state of
a stage is a mark and a word; whoever cannot see it gets the same from its title and description. Must not: need a
stage that a block does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from markupsafe import Markup, escape

__all__ = ["STATES", "block_diagram"]

#: State of a stage -> (mark in its box, what it means).
STATES = {
    "first": ("✗ first", "the first outside its bound"),
    "suspect": ("✗ here?", "what the experiments leave"),
    "outside": ("✗", "outside its bound"),
    "within": ("✓", "within its bound"),
    "unseen": ("–", "not shown by the block"),
    "unknown": ("", ""),
}

_WIDTH, _STREAM = 320, 24
_LEFT, _RIGHT, _HIGH = 76, 316, 28
_MIDDLE = (_LEFT + _RIGHT) // 2


class _Drawing:
    """Collects the parts of one diagram from top to bottom."""

    def __init__(self, states: Mapping[str, str]) -> None:
        self._states = states
        self.lines: list[str] = []
        self.boxes: list[Markup] = []

    def box(self, stage: str, y: int, left: int = _LEFT, right: int = _RIGHT) -> None:
        """Draw a stage: its name on the left, its mark on the right."""
        state = self._states.get(stage, "unknown")
        mark, _ = STATES[state]
        short = right - left < 90
        self.boxes.append(
            Markup('<g class="stage {}"><rect x="{}" y="{}" width="{}" height="{}" rx="4"/>').format(
                state, left, y, right - left, _HIGH
            )
            + Markup('<text x="{}" y="{}">{}</text>').format(left + (6 if short else 9), y + 19, stage)
            + (Markup('<text class="mark" x="{}" y="{}">{}</text>').format(right - 7, y + 19, mark) if mark else "")
            + Markup("</g>")
        )

    def solid(self, top: int, bottom: int) -> None:
        """Draw a part of the residual stream."""
        self.lines.append(f'<path class="identity" d="M{_STREAM} {top}V{bottom}"/>')

    def dashed(self, path: str, arrow: bool = True) -> None:
        """Draw a part of a branch."""
        head = ' marker-end="url(#arrow)"' if arrow else ""
        self.lines.append(f'<path class="branch" d="{path}"{head}/>')

    def addition(self, y: int) -> None:
        """Draw an addition: a double ring with a plus."""
        self.lines.append(
            f'<g class="addition"><circle cx="{_STREAM}" cy="{y}" r="11"/><circle cx="{_STREAM}" cy="{y}" r="8"/>'
            f'<path d="M{_STREAM - 4} {y}h8M{_STREAM} {y - 4}v8"/></g>'
        )

    def on_stream(self, stage: str, y: int) -> None:
        """Draw a stage that is the stream itself: a dot, and its name beside it."""
        self.lines.append(f'<circle class="dot" cx="{_STREAM}" cy="{y + _HIGH // 2}" r="4"/>')
        self.lines.append(f'<path class="stub" d="M{_STREAM} {y + _HIGH // 2}H{_LEFT - 26}"/>')
        self.box(stage, y, _LEFT - 26, _RIGHT)


def _attention(drawing: _Drawing, y: int) -> int:
    """Draw query, key and value, the weights and the branch, from ``y`` down; return where it ends."""
    third = (_RIGHT - _LEFT - 8) // 3
    lefts = [_LEFT + number * (third + 4) for number in range(3)]
    centres = [left + third // 2 for left in lefts]
    weights, branch = y + 50, y + 100
    for stage, left, centre in zip(("query", "key", "value"), lefts, centres, strict=True):
        drawing.dashed(f"M{_MIDDLE} {y - 14}H{centre}V{y - 2}")
        drawing.box(stage, y, left, left + third)
        drawing.dashed(f"M{centre} {y + _HIGH}V{(weights if stage != 'value' else branch) - 2}")
    drawing.box("attention_weights", weights, _LEFT, centres[2] - 12)
    drawing.dashed(f"M{centres[0]} {weights + _HIGH}V{branch - 2}")
    drawing.box("attention_branch", branch)
    return branch + _HIGH


def _joined(drawing: _Drawing, bottom: int) -> int:
    """Draw the way of a branch back to the stream and the addition there; return its height."""
    y = bottom + 18
    drawing.dashed(f"M{_MIDDLE} {bottom}V{y}H{_STREAM + 14}")
    drawing.addition(y)
    return y


def _pre(drawing: _Drawing, beside: bool = False) -> int:
    y = 50
    drawing.dashed(f"M{_STREAM} {y}H{_MIDDLE}V{y + 10}")
    drawing.box("attention_norm", y + 12)
    drawing.dashed(f"M{_MIDDLE} {y + 12 + _HIGH}V{y + 54}", arrow=False)
    first = _joined(drawing, _attention(drawing, y + 68))
    drawing.solid(20, first - 11)
    drawing.on_stream("after_attention", first + 20)
    y = first + 64
    # Beside the attention branch, the other one starts where that does.
    start = f"M{_STREAM} 50H{_STREAM + 18}V{y}" if beside else f"M{_STREAM} {y}"
    drawing.dashed(f"{start}H{_MIDDLE}V{y + 10}")
    return _second_half(drawing, first, "feed_forward_norm", "feed_forward_branch")


def _second_half(drawing: _Drawing, first: int, upper: str, lower: str) -> int:
    """Draw the two boxes of the feed-forward branch, its addition and the output; return where the drawing ends."""
    y = first + 64
    drawing.box(upper, y + 12)
    drawing.dashed(f"M{_MIDDLE} {y + 12 + _HIGH}V{y + 60}")
    drawing.box(lower, y + 62)
    second = _joined(drawing, y + 62 + _HIGH)
    drawing.solid(first + 11, second - 11)
    drawing.on_stream("output", second + 20)
    drawing.solid(second + 11, second + 58)
    return second + 62


def _inside(drawing: _Drawing) -> int:
    drawing.dashed(f"M{_STREAM} 50H{_MIDDLE}", arrow=False)
    branch = _attention(drawing, 64)
    drawing.dashed(f"M{_MIDDLE} {branch}V{branch + 20}")
    drawing.box("attention_norm", branch + 22)
    first = _joined(drawing, branch + 22 + _HIGH)
    drawing.solid(20, first - 11)
    drawing.on_stream("after_attention", first + 20)
    y = first + 64
    drawing.dashed(f"M{_STREAM} {y}H{_MIDDLE}V{y + 10}")
    return _second_half(drawing, first, "feed_forward_branch", "feed_forward_norm")


def _post(drawing: _Drawing) -> int:
    y = 64
    drawing.dashed(f"M{_STREAM} 50H{_MIDDLE}", arrow=False)
    first = _joined(drawing, _attention(drawing, y))
    drawing.solid(20, first - 11)
    drawing.on_stream("attention_norm", first + 20)
    drawing.on_stream("after_attention", first + 56)
    y = first + 100
    drawing.dashed(f"M{_STREAM} {y}H{_MIDDLE}V{y + 10}")
    drawing.box("feed_forward_branch", y + 12)
    second = _joined(drawing, y + 12 + _HIGH)
    drawing.solid(first + 11, second - 11)
    drawing.on_stream("feed_forward_norm", second + 20)
    drawing.on_stream("output", second + 56)
    drawing.solid(second + 11, second + 94)
    return second + 98


#: Placement -> where a norm stands, in a sentence and in a title.
_NORMS = {
    "pre": ("first in each branch", "in the branches"),
    "post": ("after each addition", "after the additions"),
    "inside": ("last in each branch", "between branches and additions"),
}


def block_diagram(config: Mapping[str, Any], states: Mapping[str, str], name: str) -> Markup:
    """Return the diagram of one block.

    Args:
        config: its ``placement`` says where the norms stand, its ``residual`` what the second branch reads.
        states: stage -> one of `STATES`; a stage that is missing is drawn without a mark.
        name: a word for the ids of the page, different for each diagram.
    """
    drawing = _Drawing(states)
    placement, beside = str(config["placement"]), config.get("residual") == "parallel"
    draws: dict[str, Callable[[_Drawing], int]] = {
        "pre": partial(_pre, beside=beside),
        "post": _post,
        "inside": _inside,
    }
    height = draws[placement](drawing)
    told = "; ".join(f"{stage} is {STATES[state][1]}" for stage, state in states.items() if STATES[state][1])
    norms, title = _NORMS[placement]
    norms += "; both branches read the input" if beside else ""
    described = (
        "From top to bottom: the input, the attention branch and its addition to the stream, the feed-forward branch "
        f"and its addition, the output; a norm stands {norms}." + (f" {told[:1].upper()}{told[1:]}." if told else "")
    )
    start = Markup(
        '<svg class="diagram" role="img" aria-labelledby="{0}-t" aria-describedby="{0}-d" viewBox="0 0 {1} {2}" '
        'width="{1}" height="{2}">'
        '<title id="{0}-t">The block, norms {3}</title><desc id="{0}-d">{4}</desc>'
        '<defs><marker id="{0}-a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
        '<circle class="dot" cx="{5}" cy="20" r="4"/><text x="{6}" y="24">input</text>'
    ).format(name, _WIDTH, height, title, described,
             _STREAM, _STREAM + 12)  # fmt: skip
    lines = Markup("".join(drawing.lines).replace("#arrow", f"#{escape(name)}-a"))
    return start + lines + Markup("").join(drawing.boxes) + Markup("</svg>")
