"""The operators: arithmetic in float64 or in whole numbers of 64 bits, comparisons, indexing.

Must hold: the size of a result is reserved before it is made; whole numbers never grow past 64 bits; strings and lists
are compared but never added or repeated. A float divided by zero is inf or nan as in NumPy; a whole number has no
such value, so ``//`` and ``%`` by zero are errors. A comparison with NaN is false, ``!=`` as well.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blocklaws.expressions.budget import MAX_RANK, Meter
from blocklaws.expressions.judging import Judgement
from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.values import Array, Value, array_of, describe, exact, integer, is_number, simplify, widened

__all__ = ["binary", "broadcast", "compare", "index", "matmul", "unary"]

INTEGER_LIMIT = 2**63

_UFUNCS: Mapping[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "**": np.power,
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": lambda a, b: (a < b) | (a > b),  # NaN makes every comparison false, this one too
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
#: Operations an element, where more than one.
_WEIGHTS = {"**": 6, "%": 3, "//": 3}


def _operand(value: Value, symbol: str) -> Array:
    if not (is_number(value) or isinstance(value, (np.ndarray, tuple))):
        raise EvaluationError(f"{symbol} needs numbers or arrays, one side is {describe(value)}")
    return exact(value)


def broadcast(meter: Meter, *arrays: Array, weight: int = 1) -> tuple[int, ...]:
    """Reserve the result of an element-wise operation and return its shape.

    Raises:
        EvaluationError: the shapes do not fit together, or the result is too large.
    """
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise EvaluationError(f"shapes {shapes} do not fit together") from None
    meter.reserve(shape, weight)
    return shape


def unary(symbol: str, value: Value) -> Value:
    """Return ``-value`` or ``+value``."""
    if isinstance(value, (bool, int)):
        return _whole(symbol, 0, int(value))
    array = _operand(value, symbol)
    return _bounded(-array if symbol == "-" else +array)


def binary(symbol: str, left: Value, right: Value, meter: Meter) -> Value:
    """Return ``left symbol right`` for numbers and arrays.

    Raises:
        EvaluationError: an operand is neither, the shapes do not fit, or the result is too large.
    """
    if symbol == "@":
        return matmul(left, right, meter)
    # Beside an array a list is one too; alone it is the likes of a shape, and + could mean two things.
    sides = (left, right)
    if any(isinstance(side, tuple) for side in sides) and not any(isinstance(side, np.ndarray) for side in sides):
        raise EvaluationError(f"{symbol} needs numbers or arrays, one side is a list; lists are not added or repeated")
    a, b = _operand(left, symbol), _operand(right, symbol)
    whole = a.dtype.kind != "f" and b.dtype.kind != "f"
    if whole and a.ndim == b.ndim == 0:
        return _whole(symbol, int(a), int(b))
    if whole and symbol in ("//", "%") and not np.all(b):
        raise EvaluationError("division of whole numbers by zero")
    if symbol == "**":  # a power of whole numbers soon leaves 64 bits, and NumPy refuses a negative one
        a, b = a.astype(np.float64), b.astype(np.float64)
    broadcast(meter, a, b, weight=_WEIGHTS.get(symbol, 1))
    return _bounded(_UFUNCS[symbol](a, b))


def _whole(symbol: str, a: int, b: int) -> int | float:
    if symbol in ("//", "%") and b == 0:
        raise EvaluationError("division of whole numbers by zero")
    if symbol == "/":
        return float(np.true_divide(a, b))
    if symbol == "**":
        if b < 0:
            return float(np.power(float(a), float(b)))
        # Before the power is taken: 9 ** 9 ** 9 has 369 million digits.
        if abs(a) > 1 and b * math.log2(abs(a)) >= 63:
            raise EvaluationError(f"{a} ** {b} is too large, whole numbers have 64 bits")
        return int(a**b)
    result = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "//": operator.floordiv,
        "%": operator.mod,
    }[symbol](a, b)
    if not -INTEGER_LIMIT <= result < INTEGER_LIMIT:
        raise EvaluationError(f"{a} {symbol} {b} is too large, whole numbers have 64 bits")
    return int(result)


def _bounded(result: Any) -> Value:
    return simplify(np.asarray(result))


def matmul(left: Value, right: Value, meter: Meter) -> Value:
    """Return the matrix product in float64, with leading axes broadcast.

    Raises:
        EvaluationError: the inner lengths differ, or the result is too large.
    """
    # Contiguous, so that NumPy hands the product to BLAS and its cost is the one that is reserved.
    a, b = (np.ascontiguousarray(_operand(side, "@"), dtype=np.float64) for side in (left, right))
    if is_number(left) or is_number(right):
        raise EvaluationError("@ needs arrays with axes, one side is a number")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise EvaluationError(f"shapes {a.shape} and {b.shape} do not fit: {a.shape[-1]} columns meet {inner} rows")
    try:
        leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise EvaluationError(f"shapes {a.shape} and {b.shape} do not fit together") from None
    shape = (*leading, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))
    meter.reserve(shape, weight=1 + inner // 16)  # BLAS makes about 16 multiply-adds in the time of one operation
    meter.spend(math.prod(leading) * 20)  # and each call of it has a cost of its own
    return simplify(np.matmul(a, b))


def compare(symbol: str, left: Value, right: Value, meter: Meter, claim: str) -> Judgement | Array:
    """Return a judgement of two plain values, or an array of truth values where a side is an array.

    Raises:
        EvaluationError: the two cannot be compared that way.
    """
    if symbol in ("in", "not in"):
        if not isinstance(right, tuple):
            raise EvaluationError(f"{symbol!r} needs a list on its right side, got {describe(right)}")
        found = any(_same(left, item) for item in right)
        return _compared(found == (symbol == "in"), left, right, claim)
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        a, b = widened(left), widened(right)
        broadcast(meter, a, b)
        return np.asarray(_COMPARISONS[symbol](a, b))
    for side in (left, right):
        if isinstance(side, (Mapping, Judgement, slice)):
            raise EvaluationError(f"{symbol} does not compare {describe(side)}; use identical, or 'and' and 'or'")
    if is_number(left) and is_number(right):
        return _compared(bool(_COMPARISONS[symbol](left, right)), left, right, claim)
    if symbol in ("==", "!="):
        return _compared(_same(left, right) == (symbol == "=="), left, right, claim)
    raise EvaluationError(f"{symbol} orders numbers, not {describe(left)} and {describe(right)}")


def _same(left: Value, right: Value) -> bool:
    """Say whether two plain values are equal; a tuple by its items, so that NaN is not equal to itself there either."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        raise EvaluationError("lists of arrays are not compared; use identical on each")
    return bool(left == right)


def _compared(holds: bool, left: Value, right: Value, claim: str) -> Judgement:
    numbers = is_number(left) and is_number(right)
    return Judgement(
        holds=holds,
        claim=claim,
        detail="" if holds else f"left is {describe(left)}, right is {describe(right)}",
        got=float(left) if numbers else None,
        want=float(right) if numbers else None,
        difference=abs(float(left) - float(right)) if numbers else None,
        wrong=int(not holds),
        total=1,
        undecided=numbers and (math.isnan(left) or math.isnan(right)),
    )


def index(value: Value, items: tuple[Value, ...]) -> Value:
    """Return ``value[items]``; a part of an array keeps its dtype.

    Raises:
        EvaluationError: an index is out of range, there are too many, or one is no whole number or slice.
    """
    for item in items:
        if isinstance(item, (np.ndarray, tuple)):
            raise EvaluationError("an index is a whole number or a slice; to gather several, use take")
        if isinstance(item, slice):
            for end in (item.start, item.stop, item.step):
                if end is not None:
                    integer(end, "the end of a slice")
        elif item is not None and item is not ...:
            integer(item, "an index")
    if isinstance(value, tuple):
        if len(items) != 1 or items[0] is None or items[0] is ...:
            raise EvaluationError("a list takes one index")
        return value[items[0]]
    if isinstance(value, Mapping):
        raise EvaluationError("parameters are not indexed; write the name, such as attention.query")
    array = array_of(value)
    if array.ndim + items.count(None) > MAX_RANK:
        raise EvaluationError(f"an array has at most {MAX_RANK} axes")
    return simplify(array[items])
