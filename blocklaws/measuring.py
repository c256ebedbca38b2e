"""Measurements: what a chapter prints that the expression language cannot say, such as how many slopes agree.

A measurement is registered under the entry point group ``blocklaws.measurements``. Must hold: it answers by calling
the block that it is asked about; what the block cannot show is `Unavailable`. Must not: judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from blocklaws.checking import Case
from blocklaws.discovery import find_measurement
from blocklaws.passes import Pass
from blocklaws.planning import reference_subject
from blocklaws.specification import BlockKind, Chooser, Invariant, Specification
from blocklaws.subjects import Subject

__all__ = ["Measurement", "measure"]


class Measurement(Protocol):
    """What a measurement is: a function of a case, whose invariant has its arguments, and of a pass."""

    def __call__(self, case: Case, base: Pass) -> Mapping[str, Any]:
        """Return its own words -> values of the expression language.

        Raises:
            Unavailable: the block cannot show what is measured.
            BlockRaised: a call of the block failed.
        """


def measure(
    name: str, arguments: Mapping[str, Any], subject: Subject, spec: Specification, kind: BlockKind, base: Pass
) -> Mapping[str, Any]:
    """Take the measurement of a name of the block of a pass.

    Raises:
        BlocklawsError: there is none of that name.
    """
    measurement: Measurement = find_measurement(name)
    invariant = Invariant(
        id=name,
        says=f"What {name} measures.",
        why="",
        family="measurements",
        place=kind.place,
        blocks=(kind.name,),
        chosen_by=Chooser(names=(kind.name,)),
        clauses=(),
        property_name=name,
        arguments=arguments,
    )
    profile = spec.one("profiles", "default")
    case = Case(
        invariant, "", (), frozenset(), kind, subject, base.world.dtype, spec, reference_subject(), profile, seed=0
    )
    return measurement(case, base)
