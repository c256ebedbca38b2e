"""Runs one property on one backend, as a spec would, and makes blocks that are wrong in ways of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

import blocklaws
from blocklaws import CaseResult
from blocklaws.discovery import find_subjects


def check(
    tmp_path: Path,
    property: str,
    backend: Any = "numpy",
    *,
    arguments: Mapping[str, Any] | None = None,
    block: str = "llama",
    dtype: str = "float64",
    seed: int = 0,
    **entry: Any,
) -> CaseResult:
    """Return the result of one case of an invariant that names ``property``; ``entry`` has more of its keys."""
    invariant = {"id": "under-test", "says": "what is tested", "property": property, **entry}
    if arguments is not None:
        invariant["with"] = dict(arguments)
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"invariants": [invariant]}), encoding="utf-8")
    report = blocklaws.verify(backend, spec=spec, blocks=[block], dtypes=[dtype], profile="quick", seed=seed)
    (result,) = report.cases
    return result


def faulty(fault: str, backend: str = "numpy") -> Any:
    """Return a built-in backend with one of the listed faults."""
    return find_subjects(backend)[0].with_fault(fault).backend


class Altered:
    """A built-in backend, ``of``, with some methods of its blocks replaced, or of itself (``build``).

    Each replacement is called with the block and the arguments of the call.
    """

    name = "altered"

    def __init__(
        self, deterministic: bool = True, validates: bool = True, of: str = "numpy", **methods: Callable[..., Any]
    ) -> None:
        self.deterministic = deterministic
        self.validates = validates
        self._methods = methods
        self._right = find_subjects(of)[0].backend
        self.dtypes = self._right.dtypes

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Return a right block with the replacements over it."""
        return _AlteredBlock(self._right.build(config, parameters, dtype), self._methods)


class _AlteredBlock:
    def __init__(self, block: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        self._block = block
        self._methods = methods
        self.ways = block.ways

    def forward(self, x: Any, position_offset: int = 0) -> Any:
        """Return the output, altered where it is asked for."""
        return self._run("forward", x, position_offset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        getattr(self._block, name)
        return lambda *arguments, **options: self._run(name, *arguments, *options.values())

    def _run(self, name: str, *arguments: Any) -> Any:
        if name in self._methods:
            return self._methods[name](self._block, *arguments)
        return getattr(self._block, name)(*arguments)
