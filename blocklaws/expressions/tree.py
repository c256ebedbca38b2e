"""The checked tree of an expression: what the language is made of, and nothing else.

Must hold: a tree that exists holds only names that resolved, functions of the closed list with arguments that fit,
and constants that are small; the evaluator trusts it. Must not: hold a Python `ast` node, so that nothing unlisted can
slip through a field that nobody looked at.
"""

from __future__ import annotations

import dataclasses

__all__ = [
    "Attribute",
    "Binary",
    "Call",
    "Choice",
    "Comparison",
    "Constant",
    "Index",
    "Logical",
    "Node",
    "Path",
    "Reference",
    "Sequence",
    "Slice",
    "Unary",
]

#: A resolved name: ``("output",)``, ``("after", "gradient", "attention.query")``.
Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression; ``start`` and ``end`` cut its text out of the whole."""

    start: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Constant(Node):
    """A number, a string, True, False, None, or ``...`` inside an index."""

    value: object


@dataclasses.dataclass(frozen=True, slots=True)
class Reference(Node):
    """A name whose value the caller gives."""

    path: Path


@dataclasses.dataclass(frozen=True, slots=True)
class Sequence(Node):
    """A tuple or a list; the language makes no difference between them."""

    items: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Call(Node):
    """A call of a function of the closed list; the arguments fit its signature."""

    function: str
    arguments: tuple[Node, ...]
    keywords: tuple[tuple[str, Node], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Unary(Node):
    """``-x``, ``+x`` or ``not x``."""

    operator: str
    operand: Node


@dataclasses.dataclass(frozen=True, slots=True)
class Binary(Node):
    """``a + b`` and the other arithmetic."""

    operator: str
    left: Node
    right: Node


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison(Node):
    """``a < b <= c``: one operator fewer than operands."""

    operands: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Logical(Node):
    """``a and b and c`` or ``a or b or c``."""

    operator: str
    operands: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Choice(Node):
    """``yes if test else no``."""

    test: Node
    yes: Node
    no: Node


@dataclasses.dataclass(frozen=True, slots=True)
class Slice(Node):
    """``lower:upper:step`` inside an index."""

    lower: Node | None
    upper: Node | None
    step: Node | None


@dataclasses.dataclass(frozen=True, slots=True)
class Index(Node):
    """``value[items]``."""

    value: Node
    items: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Attribute(Node):
    """``value.shape`` and the other three."""

    value: Node
    name: str
