"""Plans a run: which cases there are for some backends, and in which order.

Must hold: every invariant of the spec gives at least one case for each block, backend and dtype it speaks of, whether
or not it can be checked there; a filter that leaves nothing is an error. Must not: build a block or draw an example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from blocklaws.checking import Case, Property
from blocklaws.discovery import find_property, find_subjects
from blocklaws.errors import BlocklawsError, SpecError, did_you_mean
from blocklaws.models.case import model_cases
from blocklaws.models.subject import ModelSubject
from blocklaws.spec_reading import built_in_spec
from blocklaws.specification import BlockKind, Clause, Invariant, Specification
from blocklaws.subjects import Subject

__all__ = ["Choice", "kinds_of", "plan", "properties_of", "reference_subject"]


@dataclasses.dataclass(frozen=True)
class Choice:
    """What of a spec a run checks; an empty tuple means everything."""

    blocks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    invariants: tuple[str, ...] = ()
    profile: str = "default"
    seed: int = 0
    advisory: bool = False
    """Whether invariants that are off by default run too; naming one turns it on."""


def reference_subject() -> Subject:
    """Return the backend that everything is compared with: the float64 NumPy block."""
    return find_subjects("numpy")[0]


def plan(
    spec: Specification, subjects: Sequence[Subject], choice: Choice, reference: Subject | None = None
) -> list[Case]:
    """Return the cases of a run, ordered by backend, block, dtype and invariant.

    Raises:
        BlocklawsError: a name is unknown, two backends have one name, or nothing is left to check.
    """
    _distinct(subjects)
    _check_blocks(spec, subjects)
    profile = spec.one("profiles", choice.profile)
    models = dict.fromkeys(name for subject in subjects for name in getattr(subject, "models", ()))
    # With whole models in the run, a name may be of theirs; without, everything is looked for where it always was.
    for name in choice.blocks:
        if models and name not in (*models, *spec.blocks):
            raise BlocklawsError(f"unknown block or model {name!r}{did_you_mean(name, [*models, *spec.blocks])}")
        if name not in models:
            spec.one("blocks", name)
    named = [id for id in choice.invariants or spec.invariants if not models or id not in spec.models]
    invariants: list[Invariant] = [spec.one("invariants", id) for id in named]
    invariants = [one for one in invariants if choice.advisory or choice.invariants or not one.advisory]
    for dtype in choice.dtypes:
        spec.one("tolerances", dtype)
    properties = properties_of(invariants)
    reference = reference or reference_subject()
    cases = [
        Case(invariant, part, clauses, needs, kind, subject, dtype, spec, reference, profile, choice.seed)
        for subject in subjects
        if not isinstance(subject, ModelSubject)
        for kind in kinds_of(spec, subject, choice)
        for dtype in choice.dtypes or spec.tolerances
        for invariant in invariants
        if kind.name in invariant.blocks and dtype in _dtypes(invariant, subject, choice)
        for part, needs, clauses in _parts(invariant, properties[invariant.property_name])
    ]
    cases += model_cases(
        spec, subjects, choice.blocks, choice.dtypes, choice.invariants, profile, choice.seed, reference
    )
    if not cases:
        raise BlocklawsError("no invariant speaks of the chosen blocks and dtypes, so nothing could be checked")
    return cases


def kinds_of(spec: Specification, subject: Subject, choice: Choice) -> list[BlockKind]:
    """Return the kinds of block that a run looks at on a backend.

    Those that the run names; where it names none, those that every backend meets and those that this one asks for.
    """
    if choice.blocks:
        # A name that is not here is a model's: `plan` has refused what is neither.
        return [spec.blocks[name] for name in choice.blocks if name in spec.blocks]
    asked = {spec.one("blocks", name).name for name in subject.blocks}
    return [kind for kind in spec.blocks.values() if kind.by_default or kind.name in asked]


def _dtypes(invariant: Invariant, subject: Subject, choice: Choice) -> tuple[str, ...]:
    """Return the dtypes in which an invariant meets a backend.

    Where the backend offers none of those that the invariant speaks of, one is planned all the same: it ends as
    ``unchecked``, so that what was not looked at is told and counted.
    """
    offered = choice.dtypes or subject.dtypes
    if invariant.dtypes is None:
        return tuple(offered)
    common = tuple(dtype for dtype in offered if dtype in invariant.dtypes)
    return common if common or choice.dtypes else invariant.dtypes[:1]


def properties_of(invariants: Iterable[Invariant]) -> dict[str, Property]:
    """Return name -> property of every invariant, after checking each one's arguments against its property's schema.

    The invariants of cases may be given as they come: one that many cases share is checked once.

    Raises:
        SpecError: a property does not exist, or its arguments do not fit; with the place in the spec.
    """
    found: dict[str, Property] = {}
    for invariant in {id(one): one for one in invariants}.values():
        try:
            property = found.setdefault(invariant.property_name, find_property(invariant.property_name))
        except BlocklawsError as error:
            raise SpecError(f"{invariant.place}: invariant {invariant.id!r}: {error}") from None
        _check_arguments(invariant, property)
    return found


def _check_arguments(invariant: Invariant, property: Property) -> None:
    error = best_match(_validator(property).iter_errors(_plain(invariant.arguments)))
    if error is not None:
        where = ".".join(str(part) for part in error.absolute_path)
        raise SpecError(
            f"{invariant.place}: invariant {invariant.id!r}: with{'.' + where if where else ''}: {error.message} "
            f"(property {property.name!r})"
        )


# Whether a schema is one takes longer to see than whether arguments fit it, and a worker asks that for each of its
# cases. The schemas are held too, so that their identities stay their own.
_VALIDATORS: dict[int, tuple[Mapping[str, Any], Validator]] = {}
_MOST_VALIDATORS = 1000


def _validator(property: Property) -> Validator:
    """Return what checks a property's arguments; its schema is checked itself when it is first met.

    Raises:
        BlocklawsError: the schema is not one.
    """
    schema = property.schema
    if id(schema) not in _VALIDATORS:
        kind = validator_for(schema)
        try:
            kind.check_schema(dict(schema))
        except SchemaError as error:
            where = "".join(f".{part}" for part in error.absolute_path)
            raise BlocklawsError(
                f"property {property.name!r}: schema{where} is not JSON Schema: {error.message}; mend the property"
            ) from None
        if len(_VALIDATORS) >= _MOST_VALIDATORS:
            _VALIDATORS.clear()
        _VALIDATORS[id(schema)] = schema, kind(schema)
    return _VALIDATORS[id(schema)][1]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _parts(invariant: Invariant, property: Property) -> list[tuple[str, frozenset[str], tuple[Clause, ...]]]:
    """Group an invariant's clauses by need, so that a block without gradients still has its outputs judged."""
    if not invariant.clauses:
        return [("", property.needs(invariant.arguments), ())]
    groups: dict[frozenset[str], list[Clause]] = {}
    for clause in invariant.clauses:
        groups.setdefault(clause.capabilities - {"forward"}, []).append(clause)
    if len(groups) == 1:
        ((needs, clauses),) = groups.items()
        return [("", needs, tuple(clauses))]
    return [("+".join(sorted(needs)), needs, tuple(clauses)) for needs, clauses in groups.items()]


def _check_blocks(spec: Specification, subjects: Sequence[Subject]) -> None:
    """Refuse a backend that asks for a kind of block that there is not, whether or not a run names others.

    A spec that leaves out some of the built-in kinds is no reason to refuse a backend that is one of these too.
    """
    known = list(dict.fromkeys((*spec.blocks, *built_in_spec().blocks)))
    for subject in subjects:
        for name in getattr(subject, "blocks", ()):
            if name not in known:
                place = subject.blocks_at.get(name) or f"backend {subject.label!r}"
                raise BlocklawsError(
                    f"{place}: blocks: unknown block {name!r}{did_you_mean(name, known)}; `blocklaws list blocks` "
                    f"shows all {len(spec.blocks)}"
                )


def _distinct(subjects: Sequence[Subject]) -> None:
    seen: dict[str, str] = {}
    for subject in subjects:
        if subject.name in seen:
            raise BlocklawsError(
                f"two backends are named {subject.name!r} ({seen[subject.name]} and {subject.label}); "
                "give each a name of its own, so that a report can tell them apart"
            )
        seen[subject.name] = subject.label
