"""The operations a mapping may do to an array, each with the way back.

Must hold: every operation on a parameter moves elements or adds a constant, so that what a layer holds can be read back
in the canonical layout: ``undo`` is the exact inverse on values (an addition: up to its rounding), and on gradients
(where ``difference`` is true) the same without the constant. Where nothing has to come back they work on a framework's
arrays as well as on NumPy's. Must not import a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from blocklaws.backends.mapped.expressions import Expression
from blocklaws.backends.mapped.reader import Node

__all__ = ["JOINS", "Array", "Operation", "Undo", "join", "parse_operations", "run_operations"]

Array: TypeAlias = np.ndarray[Any, Any]
#: (array, whether it is a difference, such as a gradient) -> the array as it was before.
Undo: TypeAlias = Callable[[Array, bool], Array]
#: (array, size by name) -> the new array and the way back.
Operation: TypeAlias = Callable[[Array, Callable[[str], Any]], tuple[Array, Undo]]

_NAMES = ("transpose", "reshape", "add", "split_heads", "merge_heads")
JOINS = ("concatenate", "stack")


def _permuted(array: Any, order: Sequence[int]) -> Any:
    """Return an array, NumPy's or a framework's, with its axes in an order; in PyTorch ``transpose`` swaps two."""
    return array.permute(*order) if hasattr(array, "permute") else array.transpose(order)


def _transpose(axes: Sequence[int] | None) -> Operation:
    def run(array: Array, _size: Callable[[str], Any]) -> tuple[Array, Undo]:
        order = tuple(range(array.ndim))[::-1] if axes is None else tuple(axes)
        back = np.argsort(order)
        return _permuted(array, order), lambda result, _difference: result.transpose(back)

    return run


def _reshape(shape: Sequence[int | Expression]) -> Operation:
    def run(array: Array, size: Callable[[str], Any]) -> tuple[Array, Undo]:
        lengths = [part(size) if isinstance(part, Expression) else part for part in shape]
        before = array.shape
        return array.reshape(lengths), lambda result, _difference: result.reshape(before)

    return run


def _add(constant: float) -> Operation:
    def run(array: Array, _size: Callable[[str], Any]) -> tuple[Array, Undo]:
        def undo(result: Array, difference: bool) -> Array:
            return result if difference else (result.astype(np.float64) - constant).astype(result.dtype)

        return array + constant, undo

    return run


def _select(axis: int, index: int) -> Operation:
    def undo(result: Array, _difference: bool) -> Array:
        raise AssertionError("a selection is parsed for stages alone, and stages do not go back")

    def run(array: Array, _size: Callable[[str], Any]) -> tuple[Array, Undo]:
        return array[(slice(None),) * (axis % array.ndim) + (index,)], undo

    return run


def _split_heads(array: Array, size: Callable[[str], Any]) -> tuple[Array, Undo]:
    """[batch, token, heads d_head] -> [batch, heads, token, d_head]."""
    split = _permuted(array.reshape((*array.shape[:2], -1, size("d_head"))), (0, 2, 1, 3))
    return split, lambda result, _difference: result.transpose(0, 2, 1, 3).reshape(array.shape)


def _merge_heads(array: Array, _size: Callable[[str], Any]) -> tuple[Array, Undo]:
    """[batch, heads, token, d_head] -> [batch, token, heads d_head]."""
    batch, heads, tokens, width = array.shape
    merged = _permuted(array, (0, 2, 1, 3)).reshape((batch, tokens, heads * width))
    return merged, lambda result, _difference: result.reshape(batch, tokens, heads, width).transpose(0, 2, 1, 3)


def _parse_operation(node: Node, what: str, sizes: Sequence[str], one_way: bool) -> Operation:
    if isinstance(node.value, str):
        match node.word(what, _NAMES):
            case "transpose":
                return _transpose(None)
            case "split_heads":
                return _split_heads
            case "merge_heads":
                return _merge_heads
            case name:
                node.refuse(f"{what}: {name} needs an argument, as in {{{name}: ...}}")
    entries = node.fields(what, ("transpose", "reshape", "add", *(("select",) if one_way else ())))
    if len(entries) != 1:
        node.refuse(f"{what}: expected one operation a list item, found {len(entries)}")
    [(name, argument)] = entries.items()
    if name == "add":
        if not isinstance(argument.value, (int, float)) or isinstance(argument.value, bool):
            argument.refuse(f"{what}: add expects a number, found {argument.kind}")
        return _add(float(argument.value))
    if name == "select":
        parts = [item.integer(f"{what}: select") for item in argument.items(f"{what}: select")]
        if len(parts) != 2:
            argument.refuse(f"{what}: select expects [axis, index], found {len(parts)} numbers")
        return _select(*parts)
    if name == "transpose":
        axes = [item.integer(f"{what}: an axis of transpose") for item in argument.items(f"{what}: transpose")]
        if sorted(axes) != list(range(len(axes))):
            argument.refuse(f"{what}: transpose {axes} must name each axis 0 .. {len(axes) - 1} once")
        return _transpose(axes)
    lengths: list[int | Expression] = []
    for item in argument.items(f"{what}: reshape"):
        if isinstance(item.value, str) and item.value.startswith("$"):
            expression = Expression(item.value[1:], item)
            expression.check_names(sizes)
            lengths.append(expression)
        else:
            lengths.append(item.integer(f"{what}: a length of reshape (a number, -1 or $size)"))
    return _reshape(lengths)


def parse_operations(
    node: Node | None, what: str, sizes: Sequence[str], *, one_way: bool = False
) -> tuple[Operation, ...]:
    """Read the value of a ``do:`` key, a list of operations.

    Args:
        sizes: the names that ``$`` may mean in it.
        one_way: also allow what loses elements and so has no way back (stages are only read).
    """
    if node is None:
        return ()
    return tuple(_parse_operation(item, what, sizes, one_way) for item in node.items(what))


def run_operations(array: Array, operations: Sequence[Operation], size: Callable[[str], Any]) -> tuple[Array, Undo]:
    """Return the array after every operation, and the way back through all of them."""
    undos: list[Undo] = []
    for operation in operations:
        array, undo = operation(array, size)
        undos.append(undo)

    def back(result: Array, difference: bool) -> Array:
        for undo in reversed(undos):
            result = undo(result, difference)
        return result

    return array, back


def join(arrays: Sequence[Array], how: str, axis: int) -> tuple[Array, Callable[[Array], list[Array]]]:
    """Return the arrays concatenated along an axis or stacked along a new one, and the way back."""
    if how == "stack":
        stacked = np.stack(arrays, axis)
        return stacked, lambda result: [part.squeeze(axis) for part in np.split(result, len(arrays), axis)]
    ends = np.cumsum([array.shape[axis] for array in arrays])[:-1]
    return np.concatenate(arrays, axis), lambda result: np.split(result, ends, axis)
