"""The part of what a call gave that is meant: found by index or key, and seen to be an array.

Must hold: what is not there, or is no array, is said in words with the place in the file; it is never left to the
first thing that trips over it. Must not import a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocklaws.backends.mapped.operations import Operation, run_operations
from blocklaws.backends.mapped.reader import Node

__all__ = ["Missing", "NotAnArray", "Part", "array_of", "part_of"]


@dataclasses.dataclass(frozen=True)
class Missing:
    """A part that was asked of a value that does not have it, in words.

    It is handed on in place of the part and refused afterwards: an exception within a layer's own call would come out
    as the layer's.
    """

    words: str


@dataclasses.dataclass(frozen=True)
class NotAnArray(Missing):
    """A part that is there and is no array: ``words`` say what it is, ``several`` whether it has parts itself."""

    several: bool


def part_of(value: Any, take: int | str | None) -> Any:
    """Return an entry of a value by index or key (None: all of it), or `Missing`."""
    if take is None:
        return value
    try:
        return value[take]
    except (LookupError, TypeError):
        kind = type(value).__name__
        if isinstance(value, Mapping):
            has = f"has {', '.join(map(str, value)) or 'nothing'}"
        elif isinstance(value, Sequence):
            has = f"has {len(value)} entries"
        else:
            has = "has no entries by index or name"
        return Missing(f"there is no {take!r}: the {kind} {has}")


def array_of(value: Any, kinds: type | tuple[type, ...]) -> Any:
    """Return a value that is an array of a framework (or None, or `Missing`) as it is, and anything else in words."""
    if value is None or isinstance(value, (Missing, kinds)):
        return value
    if isinstance(value, Mapping):
        return NotAnArray(f"a {type(value).__name__} with {', '.join(map(str, value)) or 'nothing'}", True)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return NotAnArray(f"a {type(value).__name__} of {len(value)}", True)
    return NotAnArray(f"a {type(value).__name__}", False)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of what a call returns, by index or key (None is all of it), after operations.

    Attributes:
        what: the section of the file, as in ``forward``.
        key: the key of the section that says which part, as in ``output``.
    """

    what: str
    key: str
    take: int | str | None
    node: Node
    operations: tuple[Operation, ...] = ()

    def of(self, result: Any) -> Any:
        """Return the part.

        Raises:
            BackendError: the result has no such part.
        """
        found = part_of(result, self.take)
        if isinstance(found, Missing):
            self.node.refuse(f"{self.what}: {self.key}: {found.words}")
        return found

    def array(self, result: Any, kinds: type | tuple[type, ...], size: Callable[[str], Any]) -> Any:
        """Return the part, an array of the framework, after the operations.

        Raises:
            BackendError: the result has no such part, it is no array, or the operations do not fit it.
        """
        found = array_of(self.of(result), kinds)
        if found is None or isinstance(found, NotAnArray):
            words = "nothing (null)" if found is None else found.words
            which = "" if self.take is None else f" at {self.take!r}"
            several = isinstance(found, NotAnArray) and found.several
            hint = f"; say which with {self.key!r}" if several and self.take is None else "; expected one array"
            self.node.refuse(f"{self.what}: the layer returned {words}{which}{hint}")
        try:
            return run_operations(found, self.operations, size)[0]
        except (ValueError, TypeError, IndexError, RuntimeError) as error:  # each framework has its own word for it
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.node.refuse(f"{self.what}: {self.key}: the operations do not fit shape {tuple(found.shape)}: {first}")

    def check_shape(self, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        """Refuse an output that is not [batch, token, d_model].

        Raises:
            BackendError: it has another shape; tokens first are told as such.
        """
        if shape == expected:
            return
        batch, tokens, width = expected
        hint = (
            f"; where tokens come first, pass $input transposed and say {self.key}: {{do: [{{transpose: [1, 0, 2]}}]}}"
            if shape == (tokens, batch, width)
            else f"; look at {self.key!r}, and at how $input and $mask are passed"
        )
        which = "the whole result" if self.take is None else f"the part {self.take!r} of the result"
        self.node.refuse(f"{self.what}: {which} has shape {shape}, where [batch, token, d_model] is {expected}{hint}")
