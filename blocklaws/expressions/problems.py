"""What an expression is refused with: `ExpressionError` before it runs, `EvaluationError` while it runs.

Must hold: a message says what is wrong and what was expected, and stands alone; ``column`` counts from 1 inside the
text of the expression, so that whoever read the file can add the file and the line. Both survive pickling, because
verdicts cross process borders. Must not: quote a text of any length, a stranger may have sent a hundred megabytes.
"""

from __future__ import annotations

from blocklaws.errors import BlocklawsError, SpecError

__all__ = ["EvaluationError", "ExpressionError"]

#: How much of a text an error quotes.
QUOTED = 120


def quoted(text: str) -> str:
    """Return ``text`` in double quotes, cut to a length that fits on a line.

    >>> quoted("T >= 2")
    '"T >= 2"'
    """
    return f'"{text}"' if len(text) <= QUOTED else f'"{text[:QUOTED]}..."'


class ExpressionError(SpecError):
    """The text is not an expression of the language.

    Attributes:
        message: what is wrong, what was expected, and the nearest right word.
        column: where, counted from 1 in ``text``.
        text: the expression, cut short where it is very long.
    """

    def __init__(self, message: str, column: int, text: str) -> None:
        super().__init__(f"{message}, at column {column} of {quoted(text)}")
        self.message = message
        self.column = column
        self.text = text if len(text) <= QUOTED else text[:QUOTED] + "..."

    def __reduce__(self) -> tuple[type[ExpressionError], tuple[str, int, str]]:
        return type(self), (self.message, self.column, self.text)


class EvaluationError(BlocklawsError):
    """The expression is well formed but has no value here: shapes do not fit, an index is out of range, it is too big.

    Attributes:
        message: what is wrong.
        column: where the failing part begins, counted from 1 in the whole expression.
        text: the failing part alone.
    """

    def __init__(self, message: str, column: int = 1, text: str = "") -> None:
        super().__init__(f"{message}, in {quoted(text)} at column {column}" if text else message)
        self.message = message
        self.column = column
        self.text = text

    def __reduce__(self) -> tuple[type[EvaluationError], tuple[str, int, str]]:
        return type(self), (self.message, self.column, self.text)
