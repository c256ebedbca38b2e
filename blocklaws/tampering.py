"""Notices, in one process, that a backend replaced part of the harness or of NumPy, and puts it back.

Must hold: what is watched is what a judgement passes through: the functions and classes of the package, of the
reference and of the properties, the registry of the expression language, the tolerances, and the NumPy functions
that they compare with. A replacement costs the case in which it is found, as an error, and no other. Must not:
claim more than it can: a backend in the same process can replace this module too, which only a process of its own
prevents (`blocklaws.isolation`).
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["Watch", "begin", "end", "found"]

_NUMPY = (
    "abs", "absolute", "all", "allclose", "any", "argmax", "array", "array_equal", "asarray", "ascontiguousarray",
    "broadcast_to", "divide", "equal", "errstate", "finfo", "fmax", "greater", "isclose", "isfinite", "isnan", "less",
    "less_equal", "max", "maximum", "may_share_memory", "mean", "min", "not_equal", "shares_memory", "sqrt", "subtract",
    "sum", "where", "zeros_like",
)  # fmt: skip
_BEHIND_A_FUNCTION = ("__code__", "__defaults__")


_watch: Watch | None = None


def begin(packages: Iterable[str], values: dict[str, Any]) -> None:
    """Watch from now on, as the harness is at this moment."""
    global _watch
    _watch = Watch(packages, values)


def end() -> None:
    """Watch nothing: no backend runs in this process."""
    global _watch
    _watch = None


def found() -> str:
    """Put back what was replaced, and return a sentence about it; empty when nothing was."""
    names = _watch.restored() if _watch is not None else []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the backend replaced a part of what judges it: {', '.join(names[:3])}{more}" if names else ""


class Watch:
    """Remembers what the harness is made of.

    Args:
        packages: packages whose modules are imported first, so that none is met only after a backend has touched it.
        values: what must keep its text, by name: the tolerances of a spec.
    """

    def __init__(self, packages: Iterable[str] = (), values: dict[str, Any] | None = None) -> None:
        for package in packages:
            _import_all(package)
        self._values = {name: (value, repr(value)) for name, value in (values or {}).items()}
        # The objects are held, so that the identity of one that is gone cannot be that of one that came. What has a
        # namespace is looked up there, as it stands, and quickly: a few thousand parts are looked at after every case.
        self._named: list[tuple[Mapping[str, Any], str, Any, str, Any]] = []
        self._behind: list[tuple[Any, str, Any, str]] = []
        for name, owner, attribute, was in _parts():
            if isinstance(owner, dict):
                self._named.append((owner, attribute, was, name, owner))
            elif isinstance(owner, type | types.ModuleType):
                self._named.append((vars(owner), attribute, was, name, owner))
            else:
                self._behind.append((owner, attribute, was, name))

    def restored(self) -> list[str]:
        """Return the names of what was replaced since, all of it put back."""
        replaced = []
        for namespace, key, was, name, owner in self._named:
            if namespace.get(key) is not was:
                if isinstance(owner, dict):
                    owner[key] = was
                else:
                    setattr(owner, key, was)
                replaced.append(name)
        for function, attribute, was, name in self._behind:
            if getattr(function, attribute) is not was:
                setattr(function, attribute, was)
                replaced.append(name)
        changed = [name for name, (value, text) in self._values.items() if repr(value) != text]
        # A value that was changed in place cannot be put back: it is named again in each case that follows.
        return replaced + changed


def _import_all(package: str) -> None:
    module = importlib.import_module(package)
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        if not found.ispkg:
            importlib.import_module(f"{package}.{found.name}")


def _parts() -> Iterator[tuple[str, Any, str, Any]]:
    """Yield (name, owner, attribute, value) of everything that is watched."""
    for name, module in sorted(sys.modules.items()):
        if (name == "blocklaws" or name.startswith("blocklaws.")) and isinstance(module, types.ModuleType):
            yield from _of_module(name, module)
    for name in _NUMPY:
        if hasattr(np, name):
            yield f"numpy.{name}", np, name, getattr(np, name)


def _of_module(name: str, module: types.ModuleType) -> Iterator[tuple[str, Any, str, Any]]:
    for attribute, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType | type) and not attribute.startswith("__"):
            yield f"{name}.{attribute}", module, attribute, value
            if getattr(value, "__module__", None) == name:
                yield from _inside(f"{name}.{attribute}", value)
        elif isinstance(value, dict) and value and all(_is_made_of_code(each) for each in value.values()):
            for key, each in list(value.items()):
                yield f"{name}.{attribute}[{key!r}]", value, key, each


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any, str, Any]]:
    if isinstance(value, types.FunctionType):
        for attribute in _BEHIND_A_FUNCTION:
            yield name, value, attribute, getattr(value, attribute)
        return
    for attribute, each in list(vars(value).items()):
        inner = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        if isinstance(inner, types.FunctionType):
            yield f"{name}.{attribute}", value, attribute, each
            yield from _inside(f"{name}.{attribute}", inner)


def _is_made_of_code(value: Any) -> bool:
    return callable(value) or callable(getattr(value, "call", None))
