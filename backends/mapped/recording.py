"""Record what sub-modules are given and what they give, in frameworks that have no hooks.

A call looks ``__call__`` up on the class, so a module is given, for the time of one pass, a class that is its own
class with a recording ``__call__``. Must hold: the module is the same object with the same attributes, so that a layer
which compares, flattens or types its parts sees nothing new, and it has its own class back afterwards whatever happens.
Must not import a framework.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from blocklaws.backends.mapped.driver import Seen, Tap
from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.parts import Missing

__all__ = ["recorded_calls"]

#: The modules that are recorded now, by identity, and what is told of each call: arguments, keywords, output.
_LISTENERS: dict[int, Callable[[Any, Any, Any], None]] = {}


@contextmanager
def recorded_calls(
    modules: Mapping[str, Any], taps: Sequence[Tap], record: Callable[[Any, Callable[[Array], None]], None]
) -> Iterator[Seen]:
    """Record the calls of modules that some taps speak of.

    Args:
        modules: path -> sub-module.
        taps: what is recorded.
        record: takes a framework's array and a function that is to get it as NumPy's, once for this call.
    """
    seen: dict[str, list[Array | Missing | None]] = {tap.stage: [] for tap in taps}
    by_path: dict[str, list[Tap]] = {}
    for tap in taps:
        by_path.setdefault(tap.module, []).append(tap)
    changed: list[tuple[Any, type]] = []

    def listener(sharing: Sequence[Tap]) -> Callable[[Any, Any, Any], None]:
        def listen(arguments: Any, keywords: Any, output: Any) -> None:
            for tap in sharing:
                picked = tap.pick(arguments, keywords, output)
                if picked is None or isinstance(picked, Missing):
                    seen[tap.stage].append(picked)
                else:
                    record(picked, seen[tap.stage].append)

        return listen

    try:
        for path, sharing in by_path.items():
            module, own = modules[path], type(modules[path])
            _LISTENERS[id(module)] = listener(sharing)
            # Modules of every framework guard attributes; a class is none of their business.
            object.__setattr__(module, "__class__", _recording_class(own))
            changed.append((module, own))
        yield seen
    finally:
        for module, own in reversed(changed):
            object.__setattr__(module, "__class__", own)
            _LISTENERS.pop(id(module), None)


#: A class -> the one that is it and tells of its calls; made once, since frameworks keep a register of classes.
_RECORDING: dict[type, type] = {}


def _recording_class(own: type) -> type:
    if own in _RECORDING:
        return _RECORDING[own]

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        output = own.__call__(self, *arguments, **keywords)
        _LISTENERS[id(self)](arguments, keywords, output)
        return output

    made = types.new_class(own.__name__, (own,), exec_body=lambda space: space.update(__call__=call))
    return _RECORDING.setdefault(own, made)
