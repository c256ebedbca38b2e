"""Reads ``spec/models.yaml``: the invariants of whole models, and the faults that they must refute.

Must hold: an expression names only what `runs` can give, and an invariant has the picks that its runs follow. Must not:
evaluate anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from blocklaws.expressions import Vocabulary
from blocklaws.fields import Fields
from blocklaws.invariant_reading import read_clauses, read_condition, read_picks
from blocklaws.located_yaml import LocatedDict, Place
from blocklaws.models.names import NEEDS, PICKS, SIZES
from blocklaws.specification import Chooser, Fault, Invariant

__all__ = ["read_model_fault", "read_model_invariant"]

_KEYS = (
    "id", "says", "why", "source", "where", "pick", "then", "informative", "min_informative", "refuted_by", "means",
)  # fmt: skip
NOWHERE = Chooser(names=())


def read_model_fault(id: str, entry: LocatedDict, place: Place) -> Fault:
    """Make a `Fault` of one entry; it is planted in a model, and so in no kind of block."""
    fields = Fields(entry, ("id", "says", "modelled_on"), f"fault {id!r}")
    return Fault(
        id=id, says=fields.text("says"), modelled_on=fields.text("modelled_on", ""), family="model", step="model",
        stage=None, blocks=(), chosen_by=NOWHERE, dtypes=None, backends=None, place=place,
    )  # fmt: skip


def read_model_invariant(id: str, entry: LocatedDict, place: Place, faults: Mapping[str, Fault]) -> Invariant:
    """Make an `Invariant` of one entry.

    Raises:
        SpecError: with the place in the file, what is wrong, and what was expected.
    """
    fields = Fields(entry, _KEYS, f"invariant {id!r}")
    sizes = Vocabulary(sizes=SIZES, stages=(), parameters=(), variants=frozenset())
    picks = read_picks(fields, SIZES)
    vocabulary = Vocabulary(
        sizes=SIZES, picks=frozenset(pick.name for pick in picks), stages=("ids", "logits"), parameters=(),
        variants=frozenset(PICKS),
    )  # fmt: skip
    clauses = read_clauses(fields, vocabulary, needs_of)
    informative = read_condition(fields, "informative", vocabulary)
    expressions = [clause.expression for clause in clauses] + ([informative] if informative else [])
    for run in {path[0] for each in expressions for path in each.references} & set(PICKS):
        if missing := set(PICKS[run]) - {pick.name for pick in picks}:
            fields.refuse(
                "then", f"the run {run!r} follows {' and '.join(sorted(missing))}, which 'pick' does not give"
            )
    return Invariant(
        id=id, says=fields.text("says"), why=fields.text("why", ""), source=fields.text("source", ""), family="model",
        place=place, blocks=(), chosen_by=NOWHERE, where=read_condition(fields, "where", sizes), picks=picks,
        clauses=clauses, informative=informative,
        min_informative=fields.number("min_informative", 0.9, low=0, high=1),
        refuted_by=fields.words("refuted_by", faults, "fault"), property_name="model", means=fields.text("means", ""),
    )  # fmt: skip


def needs_of(path: tuple[str, ...], vocabulary: Vocabulary) -> frozenset[str]:
    """Return the capabilities that a reference needs."""
    if path[-1] != "logits":
        return frozenset()
    return frozenset({"logits"} | ({NEEDS[path[0]]} if path[0] in NEEDS else set()))
