"""One change between two reports, as data that terminal and Markdown tell alike."""

from __future__ import annotations

import dataclasses

__all__ = ["Change", "Line"]


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing that changed.

    Attributes:
        kind: one of the kinds of `blocklaws.comparing`.
        backend, name, block, dtype: what of; ``name`` is an invariant or a fault.
        detail: how.
        id: the failure to replay, where there is one.
    """

    kind: str
    backend: str
    name: str
    block: str = ""
    dtype: str = ""
    detail: str = ""
    id: str = ""


@dataclasses.dataclass(frozen=True)
class Line:
    """What is told of changes that belong together: what changed, and how."""

    what: str
    detail: str
