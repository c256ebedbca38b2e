"""Which blocks a layer is: the ``supports:`` section of a mapping.

Must hold: a mapping says each choice that every config makes, so that it cannot claim by silence what it never thought
of; what a config may leave out is supported at its default alone, unless the mapping names more. Must not import a
framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from blocklaws.backends.mapped.expressions import Expression
from blocklaws.backends.mapped.reader import Node
from blocklaws.claims import ANY_NUMBER, HEADS, claimed_of, means
from blocklaws.config import CHOICES, DEFAULTS, NUMBERS, SIZES, BlockConfig
from blocklaws.errors import plain_word

__all__ = ["Condition", "Supports", "parse_supports"]

#: The further choices that are numbers; of the others, such as norm_eps, a layer takes any.
_NUMBERS = tuple(name for name in NUMBERS if name in DEFAULTS)
#: What a condition may speak of.
_MEASURES = (*SIZES, "d_rotary", "max_positions", *NUMBERS)


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition on the sizes and numbers of a config, and the sentence that says why the layer needs it."""

    that: Expression
    why: str


@dataclasses.dataclass(frozen=True)
class Supports:
    """The choices that a layer can make.

    Attributes:
        choices: choice -> the words or numbers it may take (`ANY_NUMBER`: all); ``heads`` is equal or grouped.
        conditions: what must hold of sizes and numbers.
        said: the choices that the file speaks of; of the others the default is supported.
    """

    choices: Mapping[str, tuple[Any, ...]]
    conditions: tuple[Condition, ...]
    said: tuple[str, ...] = ()

    def objection(self, config: BlockConfig) -> str | None:
        """Return None, or a sentence why the layer is not such a block."""
        for name, allowed in self.choices.items():
            value = claimed_of(config, name)
            if not any(means(word, value) for word in allowed):
                offered = " or ".join(plain_word(word) for word in allowed)
                return f"{name} is {plain_word(value)}; the mapping supports {offered}"
        for condition in self.conditions:
            if not condition.that(lambda name: getattr(config, name)):
                return f"{condition.that.text} does not hold: {condition.why}"
        return None


def parse_supports(node: Node) -> Supports:
    """Read the ``supports:`` section."""
    words: dict[str, tuple[Any, ...]] = {**CHOICES, "heads": HEADS}
    words |= {name: (None, ANY_NUMBER) if DEFAULTS[name] is None else (ANY_NUMBER,) for name in _NUMBERS}
    entries = node.fields("supports", (*words, "where"), [name for name in words if name not in DEFAULTS])
    choices: dict[str, tuple[Any, ...]] = {}
    for name, allowed in words.items():
        if name not in entries:
            choices[name] = (DEFAULTS[name],)
            continue
        given = entries[name]
        items = given.items("supports") if isinstance(given.value, list) else [given]
        for item in items:
            if not (any(means(word, item.value) for word in allowed) or item.value == ANY_NUMBER in allowed):
                known = ", ".join(map(plain_word, allowed))
                item.refuse(f"supports: {name}: {item.kind} is not known; expected some of {known}")
        choices[name] = tuple(item.value for item in items)
    conditions = []
    for item in entries["where"].items("supports: where") if "where" in entries else []:
        parts = item.fields("supports: where", ("that", "why"), ("that", "why"))
        that = Expression(parts["that"].text("supports: where: that"), parts["that"])
        that.check_names(_MEASURES)
        conditions.append(Condition(that, parts["why"].text("supports: where: why")))
    return Supports(choices, tuple(conditions), tuple(name for name in choices if name in entries))
