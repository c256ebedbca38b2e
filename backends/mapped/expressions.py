"""References and small arithmetic: ``$n_heads * d_head`` over the sizes and choices of a config.

Must hold: an expression can reach the names it is given, public attributes of their values, numbers, arithmetic and one
comparison, and nothing else; its length is bounded and it has no powers, so it ends. Must not be able to call.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blocklaws.backends.mapped.reader import Node
from blocklaws.errors import did_you_mean

__all__ = ["Expression"]

_MAX_LENGTH = 200

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Expression:
    """One parsed expression.

    Args:
        text: the expression, without the ``$`` that marks it in the file.
        node: the value of the file it was written in, where errors are reported.

    Raises:
        BackendError: the text is not an expression of this little language.
    """

    def __init__(self, text: str, node: Node) -> None:
        self.text, self._node = text.strip(), node
        if len(text) > _MAX_LENGTH:
            node.refuse(f"an expression has at most {_MAX_LENGTH} characters, this one has {len(text)}")
        try:
            self._tree: ast.expr = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if "$" in self.text:
                begin = "" if str(node.value).strip() == self.text else "$"
                rule = "one $ begins it, and the names after that have none" if begin else "its names have no $"
                write = begin + self.text.replace("$", "")
                node.refuse(f"{begin + self.text!r} is not an expression: {rule}; write {write}")
            node.refuse(f"{self.text!r} is not an expression; expected a name or arithmetic, as in $2 * d_ff")
        self._check(self._tree)

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse a name that is not among ``known``."""
        known = list(known)
        for name in sorted(self.names()):
            if name not in known:
                hint = did_you_mean(name, known)
                self._node.refuse(f"unknown name ${name}{hint}; known here: {', '.join(known)}")

    def names(self) -> set[str]:
        """Return every name the expression mentions."""
        return {part.id for part in ast.walk(self._tree) if isinstance(part, ast.Name)}

    def __call__(self, look_up: Callable[[str], Any]) -> Any:
        """Evaluate; a name is looked up when it is reached."""
        try:
            return self._evaluate(self._tree, look_up)
        except (ArithmeticError, AttributeError) as error:
            self._node.refuse(f"{self.text!r} has no value here: {error}")

    def _check(self, part: ast.expr) -> None:
        match part:
            case ast.Name() | ast.Constant(value=int() | float()):
                return
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                self._check(left)
                self._check(right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                self._check(left)
                self._check(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check(operand)
            case ast.Attribute(value=value, attr=attr) if not attr.startswith("_"):
                self._check(value)
            case _:
                self._node.refuse(
                    f"{ast.unparse(part)!r} is not allowed in an expression; "
                    "expected names, numbers, + - * / // % and one comparison"
                )

    def _evaluate(self, part: ast.expr, look_up: Callable[[str], Any]) -> Any:
        match part:
            case ast.Name(id=name):
                return look_up(name)
            case ast.Constant(value=value):
                return value
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return _OPERATORS[type(op)](self._evaluate(left, look_up), self._evaluate(right, look_up))
            case ast.UnaryOp(operand=operand):
                return -self._evaluate(operand, look_up)
            case ast.Attribute(value=value, attr=attr):
                return getattr(self._evaluate(value, look_up), attr)
        raise AssertionError(f"{ast.dump(part)} passed the check but has no meaning")
