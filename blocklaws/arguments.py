"""What `blocklaws.verify` is called with, in a script that no type checker reads.

Must hold: an argument of another kind than its own is refused by its name before anything runs, and a name on its own
is never taken for the list of its letters. Must not: know what names there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from blocklaws.errors import BlocklawsError
from blocklaws.specification import Specification

__all__ = ["check_arguments"]

Rule = tuple[Callable[[Any], bool], str]


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _is_file(value: Any) -> bool:
    return value is None or isinstance(value, (str, os.PathLike))


_NAMES: Rule = _are_names, "a list of names, such as ['llama']"
_A_NAME: Rule = lambda value: isinstance(value, str), "a name"
_A_NAME_OR_NONE: Rule = lambda value: value is None or isinstance(value, str), "a string, or None"
_A_FILE: Rule = _is_file, "the path of a file, or None"

_RULES: dict[str, Rule] = {
    "spec": (lambda value: _is_file(value) or isinstance(value, Specification), "a spec, the path of one, or None"),
    "blocks": _NAMES,
    "dtypes": _NAMES,
    "invariants": _NAMES,
    "profile": _A_NAME,
    "seed": (lambda value: _is_number(value, Integral), "a whole number"),
    "device": _A_NAME_OR_NONE,
    "known_failures": _A_FILE,
    "workers": (lambda value: _is_number(value, Integral) and value > 0, "a positive number"),
    "executor": (
        lambda value: value is None or callable(getattr(value, "submit", None)),
        "an executor like those of concurrent.futures, or None",
    ),
    "isolate": (lambda value: value is None or isinstance(value, bool), "True, False or None"),
    "time_limit": (
        lambda value: value is None or (_is_number(value, Real) and 0 < value < float("inf")),
        "a positive number of seconds",
    ),
    "memory_limit": (
        lambda value: value is None or (_is_number(value, Integral) and value > 0),
        "a positive number of MiB",
    ),
    "shard": _A_NAME_OR_NONE,
    "timings": _A_FILE,
    "database": (_are_names, "a list of folders, reports and addresses, such as ['counterexamples']"),
    "progress": (lambda value: value is None or callable(value), "a function of three arguments, or None"),
}


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse an argument of another kind than its own.

    Raises:
        BlocklawsError: it says which, its value, and what it must be.
    """
    for name, value in given.items():
        fits, rule = _RULES[name]
        if not fits(value):
            shown = f"{value!r:.80}"
            raise BlocklawsError(f"{name}={shown} must be {rule}")
