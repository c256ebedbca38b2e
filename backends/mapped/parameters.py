"""Where each parameter of a layer comes from, and the way back to the canonical names and layouts.

Must hold: every parameter of the layer is filled by one rule and every canonical parameter of the block is used exactly
once, in the layer's shape, or the mapping is refused with the names. What was laid out can be read back: values for
``parameters()``, differences for ``gradients()``. Several numbers become one when a constant is added and the sum is
rounded, so an array that a layer holds bit for bit as it was filled is read back as what it was filled from. Must not
import a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from blocklaws.backends.mapped.operations import JOINS, Array, Operation, join, parse_operations, run_operations
from blocklaws.backends.mapped.reader import Node
from blocklaws.backends.mapped.rotary import ROTATED, reorder, restore
from blocklaws.canonical import PARAMETER_NAMES, parameter_shapes
from blocklaws.config import SIZES, BlockConfig
from blocklaws.errors import did_you_mean

__all__ = ["Layout", "ParameterMap"]

#: (a layer's array, whether it is a difference) -> canonical name -> array.
_Reading = Callable[[Array, bool], dict[str, Array]]


@dataclasses.dataclass(frozen=True)
class _Rule:
    """One array of the layer: a canonical parameter or several joined, after operations; or a constant."""

    node: Node
    sources: tuple[str | _Rule, ...] = ()
    how: tuple[str, int] | None = None
    operations: tuple[Operation, ...] = ()
    otherwise: float | None = None

    def names(self) -> Iterator[tuple[str, Node]]:
        for source in self.sources:
            if isinstance(source, str):
                yield source, self.node
            else:
                yield from source.names()

    def fill(self, canonical: Mapping[str, Array], size: Callable[[str], Any]) -> tuple[Array, _Reading]:
        """Return the layer's array and the way back to the canonical parameters in it."""
        arrays: list[Array] = []
        readings: list[_Reading] = []
        for source in self.sources:
            array, reading = (
                (canonical[source], _named(source)) if isinstance(source, str) else source.fill(canonical, size)
            )
            arrays.append(array)
            readings.append(reading)
        try:
            joined, split = join(arrays, *self.how) if self.how else (arrays[0], lambda result: [result])
            laid_out, undo = run_operations(joined, self.operations, size)
        except ValueError as error:  # NumPy's word for axes and shapes that do not fit
            shapes = ", ".join(str(array.shape) for array in arrays)
            self.node.refuse(f"parameters: the operations do not fit arrays of shape {shapes}: {error}")

        def read(result: Array, difference: bool) -> dict[str, Array]:
            found: dict[str, Array] = {}
            for reading, part in zip(readings, split(undo(result, difference)), strict=True):
                found |= reading(part, difference)
            return found

        return laid_out, read


def _named(name: str) -> _Reading:
    return lambda array, _difference: {name: array}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The parameters of one block as the layer holds them, and the way back.

    Attributes:
        arrays: the layer's parameter name -> float64 array in the layer's shape.
    """

    arrays: Mapping[str, Array]
    _canonical: Mapping[str, Array]
    _readings: Mapping[str, _Reading]
    _names: tuple[str, ...]
    _order: Array | None

    def read(self, arrays: Mapping[str, Array], *, difference: bool = False) -> dict[str, Array]:
        """Return canonical name -> array, in canonical order, from arrays in the layer's layout.

        Args:
            arrays: the layer's parameter name -> array; those of constants are ignored.
            difference: the arrays are gradients: constants that were added are not taken away again.
        """
        found: dict[str, Array] = {}
        for name, reading in self._readings.items():
            array = arrays[name]
            read = reading(array, difference)
            if not difference and array.tobytes() == self.arrays[name].astype(array.dtype).tobytes():
                read = {source: self._canonical[source].astype(array.dtype) for source in read}
            found |= read
        back = {name: restore(found[name], self._order) if name in ROTATED else found[name] for name in self._names}
        return {name: np.ascontiguousarray(array) for name, array in back.items()}


class ParameterMap:
    """The ``parameters:`` section of a mapping file.

    Raises:
        BackendError: a rule cannot be meant, or two rules use one canonical parameter.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rules = {name: _parse_rule(rule) for name, rule in node.entries("parameters").items()}
        used: dict[str, str] = {}
        for target, rule in self._rules.items():
            for name, place in rule.names():
                if name in used:
                    place.refuse(
                        f"parameters: {name} is used twice, for {used[name]!r} and for {target!r}; use it once"
                    )
                used[name] = target

    def places(self) -> Iterator[tuple[str, Node]]:
        """Yield each canonical parameter that a rule uses, with the rule's place."""
        for rule in self._rules.values():
            yield from rule.names()

    @property
    def otherwise(self) -> tuple[str, ...]:
        """The canonical parameters for which a number stands where the block has none."""
        rules = [rule for rule in self._rules.values() if rule.otherwise is not None]
        return tuple(name for rule in rules for name, _ in rule.names())

    def lay_out(
        self,
        config: BlockConfig,
        parameters: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        order: Array | None,
    ) -> Layout:
        """Return the layer's parameters for a block's.

        Args:
            config: the block.
            parameters: canonical name -> array.
            shapes: the layer's parameter name -> shape.
            order: the order of the features of each head that rotary positions turn; see `rotary.feature_order`.

        Raises:
            BackendError: a parameter of either side is left over, or a shape does not fit.
        """
        names = tuple(parameter_shapes(config))
        canonical = {name: np.asarray(parameters[name]).astype(np.float64) for name in names}
        canonical = {name: reorder(array, order) if name in ROTATED else array for name, array in canonical.items()}
        sizes = {name: getattr(config, name) for name in SIZES} | {"group": config.group}
        arrays: dict[str, Array] = {}
        readings: dict[str, _Reading] = {}
        idle: dict[str, list[str]] = {}
        for target, rule in self._rules.items():
            wanted = [name for name, _ in rule.names()]
            absent = [name for name in wanted if name not in canonical]
            if absent and len(absent) < len(wanted):
                rule.node.refuse(f"parameters: {target!r} joins {wanted}, but this block has no {', '.join(absent)}")
            if rule.otherwise is not None and len(absent) == len(wanted):
                self._expect(target, shapes)
                arrays[target] = np.full(shapes[target], rule.otherwise)
            elif absent:
                idle[target] = absent
            else:
                self._expect(target, shapes)
                arrays[target], readings[target] = rule.fill(canonical, sizes.__getitem__)
                if arrays[target].shape != tuple(shapes[target]):
                    rule.node.refuse(
                        f"parameters: {target!r} would be filled with shape {arrays[target].shape}, "
                        f"but the layer's has shape {tuple(shapes[target])}"
                    )
        self._leave_nothing_over(canonical, arrays, shapes, idle)
        return Layout(arrays, canonical, readings, names, order)

    def _expect(self, target: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if target not in shapes:
            hint = did_you_mean(target, shapes)
            self._node.refuse(f"parameters: the layer has no parameter {target!r}{hint}; it has {', '.join(shapes)}")

    def _leave_nothing_over(
        self,
        canonical: Mapping[str, Array],
        arrays: Mapping[str, Array],
        shapes: Mapping[str, tuple[int, ...]],
        idle: Mapping[str, list[str]],
    ) -> None:
        for name in shapes:
            if name in idle:
                needs = ", ".join(idle[name])
                self._node.refuse(
                    f"parameters: the layer has {name!r}, but this block has no {needs}; "
                    "build the layer without it, or say what it holds then with 'else'"
                )
        unfilled = [name for name in shapes if name not in arrays]
        if unfilled:
            self._node.refuse(f"parameters: no rule fills {', '.join(unfilled)} of the layer")
        used = {name for target in arrays for name, _ in self._rules[target].names()}
        unused = [name for name in canonical if name not in used]
        if unused:
            self._node.refuse(f"parameters: no rule uses {', '.join(unused)} of the block")


def _parse_rule(node: Node) -> _Rule:
    if isinstance(node.value, str):
        return _Rule(node, (node.word("parameters", PARAMETER_NAMES),))
    entries = node.fields("parameters", ("from", "join", "do", "else", "constant"))
    if "constant" in entries:
        if len(entries) > 1:
            node.refuse("parameters: 'constant' stands alone; it takes nothing from the block")
        return _Rule(node, otherwise=_number(entries["constant"], "constant"))
    if "from" not in entries:
        node.refuse("parameters: the key 'from' is missing; expected 'from' or 'constant'")
    source = entries["from"]
    several = isinstance(source.value, list)
    if several != ("join" in entries):
        node.refuse("parameters: a list in 'from' needs 'join', as in {concatenate: 0}, and 'join' needs a list")
    how = None
    if several:
        joins = entries["join"].fields("parameters: join", JOINS)
        if len(joins) != 1:
            entries["join"].refuse("parameters: join: expected {concatenate: axis} or {stack: axis}")
        [(name, axis)] = joins.items()
        how = (name, axis.integer(f"parameters: join: the axis of {name}"))
    rules = [_parse_rule(item) for item in (source.items("parameters: from") if several else [source])]
    return _Rule(
        node,
        # A source without operations of its own is only its name; its place is the rule's it stands in.
        tuple(rules),
        how,
        parse_operations(entries.get("do"), "parameters: do", (*SIZES, "group")),
        _number(entries["else"], "else") if "else" in entries else None,
    )


def _number(node: Node, what: str) -> float:
    if not isinstance(node.value, (int, float)) or isinstance(node.value, bool):
        node.refuse(f"parameters: {what}: expected a number, found {node.kind}")
    return float(node.value)
