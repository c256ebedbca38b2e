"""Builds a block of each kind and dtype of a run before anything is judged, for backends that ask for it.

Must hold: what ends a run (a `BackendError` from ``build``: a mapping that does not fit its layer) ends it at once, not
after the kinds before it were judged; what a block raises otherwise is left to its cases. Must not: cost a run anything
more, since a subject keeps what its blocks can do.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from blocklaws.built import BlockRaised
from blocklaws.checking import Case
from blocklaws.errors import BackendError
from blocklaws.surroundings import Surroundings

__all__ = ["preflight"]


def preflight(cases: Sequence[Case]) -> dict[str, str]:
    """Ask one block of each kind and dtype what it can do.

    Returns:
        The id of a case -> what that block left changed that all share, to be told as the case's own.

    Raises:
        BackendError: a backend refuses to build one; the message says which, where it has several.
    """
    first: dict[tuple[str, str, str], Case] = {}
    for case in cases:
        if getattr(case.subject, "preflight", False) and case.dtype in case.subject.dtypes:
            first.setdefault((case.subject.name, case.kind.name, case.dtype), case)
    changes = {}
    for (name, kind, dtype), case in first.items():
        surroundings = Surroundings()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if case.supported is None:
                    _ = case.abilities
        except BlockRaised:
            pass  # kept, and raised again in the cases
        except BackendError as error:
            several = sum(each[0] == name for each in first) > 1
            raise BackendError(f"{error} (in a block {kind}, {dtype})" if several else str(error)) from None
        finally:
            left = surroundings.restored()
        if left:
            changes[case.id] = left
    return changes
