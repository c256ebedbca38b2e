"""Whether a layer hears of each choice that its mapping claims.

Must hold: every word of a choice that the mapping claims is provided for wherever the file chooses by it; a choice with
several words in ``supports`` is heard by what builds the layer, by what it is called with, by its mask or by its
parameters, and no two of them are heard as the same; otherwise one block is built for both, and one of the words is a
false claim. Must not import a framework.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Mapping as Named
from typing import TYPE_CHECKING, Any

from blocklaws.backends.mapped.reader import Node
from blocklaws.backends.mapped.values import Choose, Value
from blocklaws.claims import ANY_NUMBER
from blocklaws.errors import plain_word

if TYPE_CHECKING:
    from blocklaws.backends.mapped.schema import Mapping

__all__ = ["check_heard"]

#: choice -> the other names that tell of it; every choice is told by its own name and by that of the kind of block.
_TOLD_BY: Named[str, tuple[str, ...]] = {
    "heads": ("n_kv_heads",),
    "rotary": ("cos", "sin"),
    "rotary_fraction": ("d_rotary", "cos", "sin"),
}


def check_heard(mapping: Mapping, supports: Node) -> None:
    """Refuse a choice of several words that nothing tells the layer, and a word that the file does not provide for.

    Raises:
        BackendError: with the place of the choice.
    """
    for value in _values(mapping):
        _check_chosen(value, mapping.supports.choices)
    heard = _heard(mapping)
    entries = supports.value
    _check_layouts(mapping, entries, heard)
    for choice, words in mapping.supports.choices.items():
        if len(words) < 2 and words != (ANY_NUMBER,):
            continue
        if heard & {choice, "block", *_TOLD_BY.get(choice, ())}:
            continue
        if choice == "rotary" and mapping.rotary is not None and None not in words:
            continue  # one layout, and the features are re-ordered for the other
        if choice == "window" and mapping.passing.mask.form != "builtin":
            continue  # the mask shows no more than the window
        if choice == "bias" and any(name.endswith("_bias") for name in mapping.parameters.otherwise):
            continue  # the layer always has them, and they hold a number where the block has none
        names = " or ".join(f"${name}" for name in _TOLD_BY.get(choice, (choice,)))
        claimed = "every number is" if words == (ANY_NUMBER,) else f"{_listed(words)} are"
        entries[choice].refuse(
            f"supports: {choice}: {claimed} supported, but nothing passes {names} to the layer, so one block would be "
            "built for all of them; pass it, or say which of them the layer is"
        )
    for choice, said in entries.items():
        if choice in mapping.supports.choices:
            _check_apart(mapping, choice, said)


def _check_apart(mapping: Mapping, choice: str, said: Node) -> None:
    """Refuse two words of a choice that everything which hears of it takes for the same."""
    names = {choice, "block", *_TOLD_BY.get(choice, ())}
    if any(names & condition.that.names() for condition in mapping.supports.conditions):
        return
    if choice == "bias" and any(name.endswith("_bias") for name in mapping.parameters.otherwise):
        return
    words = [word for word in mapping.supports.choices[choice] if word != ANY_NUMBER]
    for one, other in itertools.combinations(words, 2):
        if choice == "rotary" and mapping.rotary is not None and None not in (one, other):
            continue
        if any(_tells_apart(value, choice, names, (one, other)) for value in _values(mapping)):
            continue
        layouts = " with 'rotary: half' or 'rotary: interleaved'" if choice == "rotary" and one and other else ""
        said.refuse(
            f"supports: {choice}: {_listed((one, other))} are supported, but what hears ${choice} gives the layer the "
            "same for both, so one block would be built for both; tell them apart, or say which of them the layer "
            f"is{layouts}"
        )


def _tells_apart(value: Value, choice: str, names: set[str], words: tuple[Any, Any]) -> bool:
    """Whether a value may be another for one word than for the other: what passes a name on may always."""
    if isinstance(value, Choose) and value.subject.node.value == f"${choice}":
        one, other = (value.among.get(plain_word(word)) for word in words)
        if one is None or other is None or repr(one.node.plain) != repr(other.node.plain):
            return True
        return _tells_apart(one, choice, names, words)
    parts = list(value.inner())
    return any(_tells_apart(part, choice, names, words) for part in parts) if parts else bool(names & {*value.names()})


def _heard(mapping: Mapping) -> set[str]:
    heard = set(mapping.passing.call.names())
    if mapping.cached is not None:
        heard |= set(mapping.cached.passing.call.names()) | set(mapping.cached.start.names())
    for value in (*mapping.build.values(), *mapping.inputs.values()):
        heard |= set(value.names())
    for condition in mapping.supports.conditions:
        heard |= condition.that.names()
    return heard


def _values(mapping: Mapping) -> Iterator[Value]:
    yield from (*mapping.build.values(), *mapping.inputs.values(), mapping.passing.call)
    if mapping.cached is not None:
        yield from (mapping.cached.passing.call, mapping.cached.start)


def _check_chosen(value: Value, claimed: Named[str, tuple[Any, ...]]) -> None:
    """Refuse a ``choose`` that has no entry for a word that is claimed; inside an entry only its own word is met."""
    if not isinstance(value, Choose):
        for part in value.inner():
            _check_chosen(part, claimed)
        return
    for choice in value.subject.names():
        words = claimed.get(choice, ())
        if value.subject.node.value != f"${choice}" or ANY_NUMBER in words:
            continue
        for word in words:
            if plain_word(word) not in value.among:
                value.node.refuse(
                    f"choose: {choice} may be {plain_word(word)} by 'supports', and there is no entry for it; "
                    f"the entries are {', '.join(value.among)}"
                )
        for word in words:
            _check_chosen(value.among[plain_word(word)], {**claimed, choice: (word,)})
        return
    for part in value.inner():
        _check_chosen(part, claimed)


def _check_layouts(mapping: Mapping, entries: Named[str, Node], heard: set[str]) -> None:
    """Refuse a layer of two layouts that neither hears which one is wanted nor says which one is its own."""
    layouts = [word for word in mapping.supports.choices["rotary"] if word is not None]
    if mapping.rotary is None and len(layouts) > 1 and not heard & {"rotary", "block"}:
        entries["rotary"].refuse(
            f"supports: rotary: {' and '.join(layouts)} are supported, but nothing passes $rotary to the layer; "
            "say which pairs it turns with 'rotary: half' or 'rotary: interleaved'"
        )


def _listed(words: tuple[Any, ...]) -> str:
    *first, last = map(plain_word, words)
    return f"{', '.join(first)} and {last}"
