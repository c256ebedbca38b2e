"""blocklaws verifies Transformer decoder blocks against a spec of invariants.

`verify` checks backends and returns a `Report`; `parametrize` makes a test of your own run one case each; `load_spec`
reads a spec. Everything is loaded when it is first used: importing this package imports no framework, no NumPy and no
Hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocklaws.config import BlockConfig
    from blocklaws.errors import BackendError, BlocklawsError, ConfigError, SpecError
    from blocklaws.pytest_cases import InvariantViolated, parametrize
    from blocklaws.report import CaseResult, Report
    from blocklaws.running import verify
    from blocklaws.spec_reading import load_spec

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 (grouped by purpose)
    # what is called
    "load_spec",
    "parametrize",
    "verify",
    # what comes back
    "CaseResult",
    "Report",
    # what adapters meet
    "BlockConfig",
    # what is raised
    "BackendError",
    "BlocklawsError",
    "ConfigError",
    "InvariantViolated",
    "SpecError",
]

_HOMES = {
    "BackendError": "errors",
    "BlockConfig": "config",
    "BlocklawsError": "errors",
    "CaseResult": "report",
    "ConfigError": "errors",
    "InvariantViolated": "pytest_cases",
    "Report": "report",
    "SpecError": "errors",
    "load_spec": "spec_reading",
    "parametrize": "pytest_cases",
    "verify": "running",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'blocklaws' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"blocklaws.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
