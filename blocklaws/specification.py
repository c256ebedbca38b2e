"""What a spec is, once it is read: blocks, menus, tolerances, faults and invariants as frozen records.

Must hold: a record that exists is complete and coherent; `blocklaws.spec_reading` makes them and refuses what is not.
Must not: read files, import NumPy, or know a framework.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blocklaws.config import DEFAULTS, BlockConfig
from blocklaws.errors import BlocklawsError, did_you_mean
from blocklaws.located_yaml import Place

if TYPE_CHECKING:
    from blocklaws.expressions import Expression

__all__ = [
    "GIVEN",
    "Assignment",
    "BlockKind",
    "Chooser",
    "Clause",
    "Fault",
    "Invariant",
    "Pick",
    "Profile",
    "Sizes",
    "Specification",
    "Tolerance",
]

#: What an entry asks for that speaks of every block with a window, say, however wide: ``blocks: {window: given}``.
GIVEN = "given"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One entry of a menu: all the sizes of a world, so that every axis can have a length of its own."""

    B: int
    T: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    d_model: int


@dataclasses.dataclass(frozen=True)
class BlockKind:
    """A kind of block: every choice of a config, and the menu from which its sizes come.

    A kind that is not ``by_default`` is verified where it is asked for: named in a run, or by the backend.
    """

    name: str
    says: str
    source: str
    heads: str
    choices: Mapping[str, Any]
    place: Place
    by_default: bool = True

    def config(self, sizes: Sizes) -> BlockConfig:
        """Return the config of this kind with the given sizes; it is checked once, and the same object after that."""
        if sizes not in self._configs:
            chosen = dataclasses.asdict(sizes)
            del chosen["B"], chosen["T"]
            self._configs[sizes] = BlockConfig(block=self.name, **chosen, **self.choices)
        return self._configs[sizes]

    @functools.cached_property
    def _configs(self) -> dict[Sizes, BlockConfig]:
        return {}


@dataclasses.dataclass(frozen=True)
class Chooser:
    """Which kinds of block an entry speaks of: those named, or those with all of the choices; every kind by default.

    Of a choice that a block need not make, `GIVEN` stands for every word and number but that of the blocks without it.
    """

    names: tuple[str, ...] | None = None
    choices: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def __call__(self, blocks: Mapping[str, BlockKind]) -> tuple[str, ...]:
        """Return the names of the chosen kinds, in the order of the spec."""
        if self.names is not None:
            return tuple(name for name in blocks if name in self.names)
        return tuple(
            name
            for name, kind in blocks.items()
            if all(_is_among(kind, key, words) for key, words in self.choices.items())
        )


def _is_among(kind: BlockKind, choice: str, words: tuple[Any, ...]) -> bool:
    value = kind.heads if choice == "heads" else kind.choices[choice]
    return value in words or (GIVEN in words and choice in DEFAULTS and value != DEFAULTS[choice])


_UNDERFLOW = {
    "float64": 2.0 ** (-1022 + 27),
    "float32": 2.0 ** (-126 + 27),
    "bfloat16": 2.0 ** (-126 + 27),
    "float16": 0.0,
}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How close is close in one dtype; the reasons stand beside the numbers in ``spec/tolerances.yaml``.

    `close(a, b)` allows ``atol + rtol * rowmax``; `calibrated` allows ``c * error(recipe) + floor * rowmax``, where
    rowmax is the largest magnitude of the row (last axis), and `underflow`.
    """

    dtype: str
    rtol: float
    atol: float
    c: float
    floor: float
    reasons: Mapping[str, str]

    @property
    def underflow(self) -> float:
        """What is as good as zero: a processor, or a compiler, may flush what is below the smallest normal number.

        A sum of a hundred such terms and a norm, which divides by the root of an epsilon of 1e-12 at the least, make
        2**27 times as much of it. Nothing in float16: its smallest normal number, 6e-5, is not thrown away by anybody.
        """
        return _UNDERFLOW[self.dtype]


@dataclasses.dataclass(frozen=True)
class Profile:
    """How much a run spends: examples a case, at most."""

    name: str
    says: str
    examples: int


@dataclasses.dataclass(frozen=True)
class Fault:
    """A block that is known to be wrong: a small override of one named step of a built-in backend."""

    id: str
    says: str
    modelled_on: str
    family: str
    step: str
    stage: str | None
    blocks: tuple[str, ...]
    chosen_by: Chooser
    dtypes: tuple[str, ...] | None
    backends: tuple[str, ...] | None
    place: Place

    def can_show(self, block: str, dtype: str, backend: str) -> bool:
        """Whether the fault can be seen in this kind of block, dtype and backend."""
        return (
            block in self.blocks
            and (self.dtypes is None or dtype in self.dtypes)
            and (self.backends is None or backend in self.backends)
        )


@dataclasses.dataclass(frozen=True)
class Pick:
    """A value drawn for each example: one of ``choices``, a number from ``low .. high``, or an arrangement."""

    name: str
    text: str
    place: Place
    low: Expression | None = None
    high: Expression | None = None
    choices: tuple[Any, ...] = ()
    arrangement: str | None = None  # "permutation" or "partition"


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One line of ``set`` or ``vary``: what is replaced, where, and by what.

    ``target`` is ``input``, ``position_offset``, ``cotangent``, a word of the config, or a pattern of parameter names
    (``*_bias``). ``axis`` and ``selection`` choose a part of an input or a parameter; ``by`` names a filling
    (``fresh``), ``value`` is a number or an expression over the world before the assignment.
    """

    target: str
    place: Place
    value: Expression | float | None = None
    by: str | None = None
    axis: str | None = None
    selection: Expression | tuple[Expression | None, Expression | None] | None = None


@dataclasses.dataclass(frozen=True)
class Clause:
    """One line of ``then``, with what it needs from a block: capabilities, stages (``trace:query``) and gradients."""

    expression: Expression
    needs: frozenset[str]
    place: Place

    @property
    def capabilities(self) -> frozenset[str]:
        """The methods that the block must have."""
        return frozenset(need.partition(":")[0] for need in self.needs)


@dataclasses.dataclass(frozen=True)
class Invariant:
    """One thing that must hold for all worlds where ..., then ..."""

    id: str
    says: str
    why: str
    family: str
    place: Place
    blocks: tuple[str, ...]
    chosen_by: Chooser
    clauses: tuple[Clause, ...]
    where: Expression | None = None
    assume: Expression | None = None
    picks: tuple[Pick, ...] = ()
    set: tuple[Assignment, ...] = ()
    variants: Mapping[str, tuple[Assignment, ...]] = dataclasses.field(default_factory=dict)
    informative: Expression | None = None
    min_informative: float = 0.9
    refuted_by: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    worlds: tuple[str, ...] = ()
    examples: float = 1.0
    advisory: bool = False
    property_name: str = "expression"
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    means: str = ""
    source: str = ""

    @functools.cached_property
    def drawn_from(self) -> str:
        """What its examples are drawn from: invariants that say the same of their worlds look at the same ones."""
        where = self.where.text if self.where is not None else ""
        picks = [(pick.name, pick.text) for pick in self.picks]
        return f"{where}|{picks}|{self.changes_length and bool(picks)}|{self.worlds}"

    @functools.cached_property
    def changes_length(self) -> bool:
        """Whether some pass has another number of tokens than the world that was drawn."""
        return any(
            assignment.target == "input" and assignment.axis is None and assignment.by is None
            for group in (self.set, *self.variants.values())
            for assignment in group
        )

    @property
    def unproven(self) -> bool:
        """Whether the invariant names no fault that it refutes."""
        return not self.refuted_by

    @property
    def needs(self) -> frozenset[str]:
        """Everything that some clause needs."""
        return frozenset().union(*(clause.needs for clause in self.clauses)) if self.clauses else frozenset()


@dataclasses.dataclass(frozen=True)
class Specification:
    """Everything that one spec says, after ``extends`` has been followed."""

    sources: tuple[str, ...]
    sha256: str
    blocks: Mapping[str, BlockKind]
    menus: Mapping[str, tuple[Sizes, ...]]
    profiles: Mapping[str, Profile]
    tolerances: Mapping[str, Tolerance]
    faults: Mapping[str, Fault]
    invariants: Mapping[str, Invariant]
    models: Mapping[str, Invariant] = dataclasses.field(default_factory=dict)
    """What must hold of whole models."""
    model_faults: Mapping[str, Fault] = dataclasses.field(default_factory=dict)

    def one(self, kind: str, name: str) -> Any:
        """Return one named record of ``blocks``, ``invariants``, ``faults``, ``profiles`` or ``tolerances``.

        Raises:
            BlocklawsError: there is none of that name; the message gives the nearest one.
        """
        table: Mapping[str, Any] = getattr(self, kind)
        if name not in table:
            listed = (
                f"; `blocklaws list {kind}` shows all {len(table)}"
                if kind in ("blocks", "invariants", "faults")
                else ""
            )
            raise BlocklawsError(
                f"unknown {_SINGULAR[kind]} {name!r}{did_you_mean(name, table)}{listed or _choices(table)}"
            )
        return table[name]


_SINGULAR = {
    "blocks": "block",
    "invariants": "invariant",
    "faults": "fault",
    "profiles": "profile",
    "tolerances": "dtype",
}


def _choices(table: Mapping[str, Any]) -> str:
    return f"; there are {', '.join(table)}"
