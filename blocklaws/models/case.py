"""A case of one model, and an example of it: token ids, and the values of the invariant's picks.

Must hold: what a model cannot show is ``unchecked`` with the reason, as for a block; an example from a file is checked
before it is used. Must not: know a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from blocklaws.checking import Case
from blocklaws.errors import BlocklawsError
from blocklaws.located_yaml import Place
from blocklaws.models.subject import BuiltModel, ModelSubject
from blocklaws.specification import BlockKind, Clause, Profile, Sizes, Specification
from blocklaws.subjects import Subject
from blocklaws.worlds import Example, Recipe

__all__ = ["MOST_SEQUENCES", "MOST_TOKENS", "ModelCase", "ModelExample", "model_cases"]

#: The largest batch: a mistake of batching shows in two sequences, one of their order in three.
MOST_SEQUENCES = 3
#: The most tokens of an example: past two windows, blocks or chunks of the tiny models, and read at a glance.
MOST_TOKENS = 9

_SAYS = {"logits_cached": "the model has no logits_cached", "padding": "the model has no padding and attention mask"}


@dataclasses.dataclass(frozen=True)
class ModelExample(Example):
    """What one examination of a model looks at: token ids [B, T] and the values of the picks."""

    ids: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of(ids: Sequence[Sequence[int]], picks: Mapping[str, Any]) -> ModelExample:
        """Return the example of some token ids."""
        sizes = Sizes(B=len(ids), T=len(ids[0]), n_heads=0, n_kv_heads=0, d_head=0, d_ff=0, d_model=0)
        return ModelExample(Recipe(sizes, "ids", 0), dict(picks), tuple(tuple(map(int, row)) for row in ids))

    @property
    def array(self) -> np.ndarray:
        """The token ids as an array [B, T]."""
        return np.array(self.ids, np.int64)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {"ids": [list(row) for row in self.ids], "picks": dict(self.picks)}


@dataclasses.dataclass(frozen=True)
class ModelCase(Case):
    """One invariant of models, one model, one backend, one dtype."""

    @property
    def models(self) -> ModelSubject:
        """The backend, which builds models."""
        assert isinstance(self.subject, ModelSubject)
        return self.subject

    def built(self) -> BuiltModel:
        """Return the built model.

        Raises:
            BlockRaised: it cannot be built.
        """
        return self.models.model(self.kind.name, self.dtype)

    def split(self) -> list[tuple[Case, str]]:
        """Return the case, with the reason why it cannot be checked where it cannot."""
        if self.dtype not in self.subject.dtypes:
            why = self.subject.cannot.get(self.dtype)
            return [(self, f"{self.subject.name} does not offer {self.dtype}" + (f" ({why})" if why else ""))]
        if refusal := self.models.model_refusal(self.kind.name):
            return [(self, refusal)]
        lacking = sorted(self.needs - self.built().capabilities)
        return [(self, "; ".join(_SAYS[need] for need in lacking))]

    @property
    def left_by_supports(self) -> str:
        """Nothing: a model is asked for by its name, and no config."""
        return ""

    def config_of(self, example: Example) -> dict[str, Any]:
        """Return what a report says of the model itself."""
        return {"model": self.kind.name, "vocabulary": self.built().vocabulary}

    def example_of(self, data: Mapping[str, Any]) -> Example:
        """Return the example of a report's counterexample.

        Raises:
            BlocklawsError: the model takes no such ids, or the invariant has other picks.
        """
        ids, built = data.get("ids"), self.built()
        if (
            not isinstance(ids, list | tuple)
            or not ids
            or not all(isinstance(row, list | tuple) and len(row) == len(ids[0]) > 0 for row in ids)
            or not all(type(id) is int and 0 <= id < built.vocabulary for row in ids for id in row)
            or len(ids) * len(ids[0]) > 4096
        ):
            raise BlocklawsError(
                f"example: ids={ids!r:.80} must be rows of one length, of whole numbers from 0 to "
                f"{built.vocabulary - 1}"
            )
        picks = data.get("picks")
        wanted = sorted(pick.name for pick in self.invariant.picks)
        if not isinstance(picks, Mapping) or sorted(picks) != wanted:
            raise BlocklawsError(
                f"example: invariant {self.invariant.id!r} picks {wanted or 'nothing'}, not {picks!r:.80}"
            )
        for name, value in picks.items():
            numbers = value if isinstance(value, list | tuple) else [value]
            if not all(type(number) is int and 0 <= number <= 4096 for number in numbers):
                raise BlocklawsError(f"example: {name}={value!r:.80} is no number of tokens or ids")
        return ModelExample.of(ids, picks)


def model_cases(
    spec: Specification, subjects: Sequence[Subject], chosen: Sequence[str], dtypes: Sequence[str],
    ids: Sequence[str], profile: Profile, seed: int, reference: Subject,
) -> Iterator[Case]:  # fmt: skip
    """Yield the cases of the backends that build models, by backend, model, dtype and invariant.

    Args:
        chosen: the names of models; all where empty.
        dtypes: all of the backend's where empty.
        ids: of invariants; all of ``spec.models`` where empty.
    """
    for subject in subjects:
        if not isinstance(subject, ModelSubject):
            continue
        for name in subject.models:
            if chosen and name not in chosen:
                continue
            kind = BlockKind(name, f"the model {name}", "", "", {}, Place(subject.label, 1, 1))
            for dtype in dtypes or subject.dtypes:
                for id, invariant in spec.models.items():
                    if ids and id not in ids:
                        continue
                    needs = frozenset[str]().union(*(clause.needs for clause in invariant.clauses)) - {"logits"}
                    clauses: tuple[Clause, ...] = invariant.clauses
                    yield ModelCase(invariant, "", clauses, needs, kind, subject, dtype, spec, reference, profile, seed)
