"""Walks the checked tree of an expression and gives its value, within a budget.

Must hold: a name is asked of the scope only when its value is needed, and once; what the scope raises passes through
untouched; anything else that goes wrong is an `EvaluationError` with the part that failed. Must not warn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Imported for the functions they register.
from blocklaws.expressions import along_axes, elementwise, judgements, making, operators, parts, rearranging, tree
from blocklaws.expressions.budget import DEFAULT_BUDGET, Budget, Meter
from blocklaws.expressions.judging import Judgement, as_judgement
from blocklaws.expressions.parsing import Expression
from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.registry import FUNCTIONS, Context, ToleranceLike
from blocklaws.expressions.signatures import SIGNATURES
from blocklaws.expressions.values import Value, array_of, as_value, describe, simplify

__all__ = ["Scope", "evaluate", "judge"]

#: Path -> value, as a function or a mapping. A KeyError of a mapping becomes an `EvaluationError`.
Scope = Callable[[tree.Path], object] | Mapping[tree.Path, object]

_FUNCTION_MODULES = (along_axes, elementwise, judgements, making, parts, rearranging)
if missing := set(SIGNATURES) - set(FUNCTIONS):
    raise TypeError(f"functions without an implementation: {sorted(missing)}")

#: What NumPy raises when operands do not fit. RuntimeError is not among them: that would be a bug of ours.
_REFUSALS = (ValueError, TypeError, IndexError, ArithmeticError, MemoryError)


def evaluate(
    expression: Expression,
    scope: Scope,
    tolerance: ToleranceLike | None = None,
    budget: Budget = DEFAULT_BUDGET,
    *,
    exact: bool = True,
) -> Value:
    """Return the value of an expression: a judgement, an array, a number, a word, a tuple, a slice or parameters.

    Args:
        expression: from `parse` or `parse_index`.
        scope: gives the value of a path; it is called at most once for each, and only when the value is needed.
        tolerance: the numbers of `close`, `apart` and `calibrated`; without it these are errors.
        budget: what the evaluation may cost.
        exact: whether `identical` means the last bit; for a backend that is not deterministic it is judged as `close`.

    Raises:
        EvaluationError: the expression has no value here; the failing part is named.
    """
    walk = _Walk(expression.text, scope, tolerance, Meter(budget), exact)
    with np.errstate(all="ignore"):
        return walk.value(expression.root)


def judge(
    expression: Expression,
    scope: Scope,
    tolerance: ToleranceLike | None = None,
    budget: Budget = DEFAULT_BUDGET,
    *,
    exact: bool = True,
) -> Judgement:
    """Return the value of an expression that judges: what `evaluate` gives, a truth value made into a judgement.

    Raises:
        EvaluationError: as `evaluate`, or the value is neither.
    """
    value = evaluate(expression, scope, tolerance, budget, exact=exact)
    try:
        return as_judgement(value, expression.text.strip())
    except EvaluationError as problem:
        raise EvaluationError(problem.message, 1, expression.text) from None


@dataclasses.dataclass(slots=True)
class _Walk:
    text: str
    scope: Scope
    tolerance: ToleranceLike | None
    meter: Meter
    exact: bool
    known: dict[tree.Path, Value] = dataclasses.field(default_factory=dict)

    def source(self, node: tree.Node) -> str:
        return " ".join(self.text[max(0, node.start) : node.end].split())

    def fail(self, node: tree.Node, message: str) -> EvaluationError:
        return EvaluationError(message, max(0, node.start) + 1, self.source(node))

    def attempt(self, node: tree.Node, operation: Callable[..., Any], *arguments: Any, **keywords: Any) -> Value:
        """Return the result of an operation; what it refuses is blamed on ``node``."""
        try:
            return operation(*arguments, **keywords)
        except EvaluationError as problem:
            raise self.fail(node, problem.message) from None
        except _REFUSALS as problem:
            raise self.fail(node, str(problem) or type(problem).__name__) from problem

    def paid(self, node: tree.Node, value: Value, weight: int = 1) -> Value:
        """Return an operand as it is, once its size is counted."""
        self.attempt(node, self.meter.spend, _size(value) * weight)
        return value

    def value(self, node: tree.Node) -> Value:
        match node:
            case tree.Constant(value=value):
                return value
            case tree.Reference():
                return self.reference(node)
            case tree.Sequence(items=items):
                return tuple(self.value(item) for item in items)
            case tree.Call():
                return self.call(node)
            case tree.Unary(operator="not"):
                return self.negation(node)
            case tree.Unary(operator=symbol, operand=operand):
                return self.attempt(node, operators.unary, symbol, self.paid(node, self.value(operand)))
            case tree.Binary(operator=symbol, left=left, right=right):
                a, b = self.paid(node, self.value(left)), self.paid(node, self.value(right))
                return self.attempt(node, operators.binary, symbol, a, b, self.meter)
            case tree.Comparison():
                return self.comparison(node)
            case tree.Logical():
                return self.logical(node)
            case tree.Choice(test=test, yes=yes, no=no):
                return self.value(yes if self.truth(test) else no)
            case tree.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if end is None else self.value(end) for end in (lower, upper, step)))
            case tree.Index(value=inner, items=items):
                places = tuple(self.value(item) for item in items)
                return self.attempt(node, operators.index, self.value(inner), places)
            case tree.Attribute(value=inner, name=name):
                return self.attempt(node, _attribute, self.value(inner), name)
        raise AssertionError(f"unknown node {node!r}")

    def reference(self, node: tree.Reference) -> Value:
        if node.path not in self.known:
            if isinstance(self.scope, Mapping):
                if node.path not in self.scope:
                    raise self.fail(node, f"{'.'.join(node.path)} has no value here")
                given = self.scope[node.path]
            else:
                given = self.scope(node.path)
            self.known[node.path] = self.attempt(node, as_value, given)
        return self.known[node.path]

    def call(self, node: tree.Call) -> Value:
        function = FUNCTIONS[node.function]
        arguments = [self.value(argument) for argument in node.arguments]
        keywords = {name: self.value(argument) for name, argument in node.keywords}
        for argument in (*arguments, *keywords.values()):
            self.paid(node, argument, function.weight)
        if function.needs_context:
            arguments.insert(0, Context(self.meter, self.tolerance, self.source(node), self.exact))
        return simplify(self.attempt(node, function.call, *arguments, **keywords))

    def comparison(self, node: tree.Comparison) -> Value:
        left = self.paid(node, self.value(node.operands[0]))
        found: Value = None
        for symbol, operand in zip(node.operators, node.operands[1:], strict=True):
            right = self.paid(node, self.value(operand))
            one = self.attempt(node, operators.compare, symbol, left, right, self.meter, self.source(node))
            found = one if found is None else self.attempt(node, _both, found, one)
            if isinstance(found, Judgement) and not found:
                return found
            left = right
        return found

    def truth(self, node: tree.Node) -> Judgement:
        judgement: Judgement = self.attempt(node, as_judgement, self.value(node), self.source(node))
        return judgement

    def negation(self, node: tree.Unary) -> Judgement:
        inner = self.truth(node.operand)
        claim = self.source(node)
        if inner.undecided:
            return dataclasses.replace(inner, holds=False, claim=claim)
        if not inner:
            return Judgement(True, claim, total=inner.total, shape=inner.shape)
        return Judgement(False, claim, f"{inner.claim} holds", wrong=1, total=max(1, inner.total), shape=inner.shape)

    def logical(self, node: tree.Logical) -> Judgement:
        """Judge left to right: the first that decides is the outcome, and nothing after it is looked at."""
        found = []
        for operand in node.operands:
            found.append(self.truth(operand))
            if found[-1].holds == (node.operator == "or"):
                return found[-1]
        total = sum(judgement.total for judgement in found)
        if node.operator == "and":
            return Judgement(True, self.source(node), total=total)
        details = "; ".join(judgement.detail for judgement in found)
        return dataclasses.replace(found[-1], claim=self.source(node), detail=details)


def _both(left: Judgement | np.ndarray[Any, Any], right: Judgement | np.ndarray[Any, Any]) -> Value:
    """Join two links of a chained comparison."""
    if isinstance(left, Judgement) and isinstance(right, Judgement):
        return right if left else left
    a, b = (side.holds if isinstance(side, Judgement) else side for side in (left, right))
    return np.logical_and(a, b)


def _size(value: Value) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, (tuple, Mapping)):
        return sum(map(_size, value.values() if isinstance(value, Mapping) else value))
    return 1


def _attribute(value: Value, name: str) -> Value:
    if not isinstance(value, np.ndarray):
        raise EvaluationError(f"only an array has .{name}, this is {describe(value)}")
    array = array_of(value)
    return {"shape": array.shape, "ndim": array.ndim, "size": array.size, "dtype": array.dtype.name}[name]
