"""The values of a mapping: what is built, and what is passed to the layer.

Must hold: a value is plain data, a ``$`` expression, an imported object, a call, a choice or an array after operations;
a name it mentions is known when the file is loaded, and what it names is imported and computed only when it is used. An
error says where in the file the value stands.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blocklaws.backends.mapped.blame import given, in_words
from blocklaws.backends.mapped.expressions import Expression
from blocklaws.backends.mapped.operations import Operation, parse_operations, run_operations
from blocklaws.backends.mapped.reader import Node
from blocklaws.errors import BackendError, did_you_mean, plain_word

__all__ = ["Call", "Choose", "Scope", "Value", "import_module_of", "import_object", "parse_call", "parse_value"]


class Scope:
    """What names mean: ready values, and values that are computed at their first use.

    Args:
        ready: name -> value.
        later: name -> a value of the mapping, resolved in this scope when it is first looked up.
        convert: how a NumPy array of the harness becomes the framework's.
    """

    def __init__(self, ready: Mapping[str, Any], later: Mapping[str, Value], convert: Callable[[Any], Any]) -> None:
        self._ready, self._later, self.convert = dict(ready), later, convert

    def look_up(self, name: str) -> Any:
        """Return what a name means."""
        if name not in self._ready:
            self._ready[name] = self._later[name].resolve(self)
        return self._ready[name]


@dataclasses.dataclass(frozen=True)
class Value:
    """One value of the file; the subclasses are its kinds."""

    node: Node

    def resolve(self, scope: Scope) -> Any:
        """Return the value with every name replaced by what it means, arrays in the framework's type."""
        value = self.raw(scope)
        return scope.convert(value) if isinstance(value, np.ndarray) else value

    def raw(self, scope: Scope) -> Any:
        """Return the same, with arrays of the harness still NumPy's."""
        raise NotImplementedError

    def inner(self) -> Iterator[Value]:
        """Yield the values that this one is made of."""
        yield from ()

    def names(self) -> Iterator[str]:
        """Yield every name that the value mentions."""
        for part in self.inner():
            yield from part.names()


@dataclasses.dataclass(frozen=True)
class _Plain(Value):
    data: Any

    def raw(self, scope: Scope) -> Any:
        return self.data


@dataclasses.dataclass(frozen=True)
class _Reference(Value):
    expression: Expression

    def raw(self, scope: Scope) -> Any:
        return self.expression(scope.look_up)

    def names(self) -> Iterator[str]:
        yield from self.expression.names()


@dataclasses.dataclass(frozen=True)
class _List(Value):
    parts: tuple[Value, ...]

    def raw(self, scope: Scope) -> Any:
        return [part.resolve(scope) for part in self.parts]

    def inner(self) -> Iterator[Value]:
        yield from self.parts


@dataclasses.dataclass(frozen=True)
class _Dict(Value):
    parts: Mapping[str, Value]

    def raw(self, scope: Scope) -> Any:
        return {key: part.resolve(scope) for key, part in self.parts.items()}

    def inner(self) -> Iterator[Value]:
        yield from self.parts.values()


@dataclasses.dataclass(frozen=True)
class _Import(Value):
    path: str

    def raw(self, scope: Scope) -> Any:
        return import_object(self.path, self.node)


@dataclasses.dataclass(frozen=True)
class Choose(Value):
    """One of several values, by the word that ``subject`` is."""

    subject: Value
    among: Mapping[str, Value]

    def raw(self, scope: Scope) -> Any:
        """Return the value of the word."""
        # Keys of a file are always text: null, true and false are written as YAML writes them.
        word = plain_word(self.subject.raw(scope))
        if word not in self.among:
            self.node.refuse(f"choose: there is no entry for {word!r}; the entries are {', '.join(self.among)}")
        return self.among[word].raw(scope)

    def inner(self) -> Iterator[Value]:
        """Yield what is looked at, and every value that it may be."""
        yield self.subject
        yield from self.among.values()


@dataclasses.dataclass(frozen=True)
class _Changed(Value):
    base: Value
    operations: tuple[Operation, ...]

    def raw(self, scope: Scope) -> Any:
        array = self.base.raw(scope)
        if not hasattr(array, "reshape"):
            self.node.refuse(
                f"do: a {type(array).__name__} is no array; 'do' changes $input, $mask, $positions, $cos, $sin or "
                "what is made of them"
            )
        try:
            return run_operations(array, self.operations, scope.look_up)[0]
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            self.node.refuse(f"do: the operations do not fit shape {tuple(array.shape)}: {in_words(error)}")

    def inner(self) -> Iterator[Value]:
        yield self.base


@dataclasses.dataclass(frozen=True)
class Call(Value):
    """A call: ``target`` is an import path or a ``$`` expression."""

    target: Value
    arguments: tuple[Value, ...]
    keywords: Mapping[str, Value]

    def raw(self, scope: Scope) -> Any:
        function, arguments, keywords = self.parts(scope)
        try:
            return function(*arguments, **keywords)
        except BackendError:
            raise
        except Exception as error:
            name = getattr(function, "__name__", type(function).__name__)
            shapes = given(function, arguments, keywords)
            self.node.refuse(f"calling {name} failed: {in_words(error)}{f'; given {shapes}' if shapes else ''}")

    def parts(self, scope: Scope) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return what is called, and the arguments by position and by name."""
        return (
            self.target.raw(scope),
            [part.resolve(scope) for part in self.arguments],
            {key: part.resolve(scope) for key, part in self.keywords.items()},
        )

    def inner(self) -> Iterator[Value]:
        """Yield what is called, and what it is given."""
        yield from (self.target, *self.arguments, *self.keywords.values())


def parse_value(node: Node, known: Sequence[str]) -> Value:
    """Read one value; ``known`` are the names that it may mention."""
    value = node.value
    if isinstance(value, str) and value.startswith("$$"):
        return _Plain(node, value[1:])
    if isinstance(value, str) and value.startswith("$"):
        expression = Expression(value[1:], node)
        expression.check_names(known)
        return _Reference(node, expression)
    if isinstance(value, list):
        return _List(node, tuple(parse_value(item, known) for item in value))
    if not isinstance(value, dict):
        return _Plain(node, value)
    if "call" in value:
        return parse_call(node, known)
    if "import" in value:
        return _Import(node, node.fields("import", ("import",))["import"].text("import"))
    if "choose" in value:
        entries = node.fields("choose", ("choose", "among"), ("among",))
        among = entries["among"].entries("choose.among")
        parts = {key: parse_value(item, known) for key, item in among.items()}
        return Choose(node, parse_value(entries["choose"], known), parts)
    if "do" in value:
        entries = node.fields("value", ("value", "do"), ("value",))
        return _Changed(node, parse_value(entries["value"], known), parse_operations(entries["do"], "do", known))
    _check_not_misspelt(node)
    return _Dict(node, {key: parse_value(item, known) for key, item in value.items()})


def _check_not_misspelt(node: Node) -> None:
    """Refuse a dict that would be passed as it stands, though a word of it belongs to one that means something."""
    keys = tuple(node.value)
    for word, needed in (("with", "call"), ("args", "call"), ("among", "choose")):
        if word in keys and needed not in keys:
            near = did_you_mean(needed, [key for key in keys if key != word])
            node.refuse(f"{word!r} stands beside {needed!r}, which is not among the keys {', '.join(keys)}{near}")
    for key in keys if len(keys) == 1 else ():
        text = node.value[key].value
        if isinstance(text, str) and text.count(":") == 1 and (near := did_you_mean(key, ("call", "import"))):
            node.refuse(f"{key!r} is no word of a mapping{near}; a dict that is to be passed has no import path in it")


def parse_call(node: Node, known: Sequence[str], target: str | None = None) -> Call:
    """Read a call, ``{call: ..., args: [...], with: {...}}``; ``target`` is what is called when it does not say."""
    entries = node.fields("call", ("call", "args", "with"), () if target else ("call",))
    if "call" in entries:
        text = entries["call"].text("call")
        path = entries["call"]
        called: Value = parse_value(path, known) if text.startswith("$") else _Import(path, text)
        if isinstance(called, _Import) and text.count(":") != 1:
            path.refuse(f"call: {text!r} is not an import path; expected package.module:name or $name")
    else:
        called = _Reference(node, Expression(target or "", node))
    arguments = entries["args"].items("args") if "args" in entries else []
    keywords = entries["with"].entries("with") if "with" in entries else {}
    return Call(
        node,
        called,
        tuple(parse_value(item, known) for item in arguments),
        {key: parse_value(item, known) for key, item in keywords.items()},
    )


def import_module_of(path: str, node: Node) -> tuple[types.ModuleType, str]:
    """Return the module of ``package.module:name`` and the name; a module may lie beside the mapping file."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        node.refuse(f"{path!r} is not an import path; expected package.module:name")
    folder = str(Path(node.place.file).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # behind all else: nothing that is installed is hidden by it
    try:
        return importlib.import_module(module_name), name
    except ImportError as error:
        missing = error.name or module_name
        advice = (
            f"install the distribution that has {missing.partition('.')[0]!r}, or correct the path; "
            "a module of your own may lie beside the mapping file"
        )
        node.refuse(f"{module_name!r} cannot be imported: {error}; {advice}")
    except Exception as error:
        node.refuse(f"importing {module_name} failed: {in_words(error)}")


def import_object(path: str, node: Node) -> Any:
    """Return what ``package.module:name`` or ``package.module:name.attribute`` means."""
    found: Any
    found, names = import_module_of(path, node)
    for name in names.split("."):
        if not hasattr(found, name):
            where = getattr(found, "__name__", type(found).__name__)
            node.refuse(f"{where} has no {name!r}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    return found
