"""Where the implementations of the listed functions are kept, and what a call gives them.

Must hold: an implementation has the name and the arguments of its entry in `signatures`; a mismatch fails at import.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from blocklaws.expressions.budget import Meter
from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.signatures import SIGNATURES

__all__ = ["FUNCTIONS", "Context", "Function", "Tolerance", "ToleranceLike", "function", "show"]


class ToleranceLike(Protocol):
    """Anything that has the numbers of a `Tolerance`."""

    @property
    def rtol(self) -> float: ...
    @property
    def atol(self) -> float: ...
    @property
    def c(self) -> float: ...
    @property
    def floor(self) -> float: ...
    @property
    def underflow(self) -> float: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """How close is close, for one dtype.

    Attributes:
        rtol: relative to the largest value of the row.
        atol: absolute.
        c: how many times the error of the recipe in the same dtype a candidate may have.
        floor: what it may have beside that, relative to the largest value of the reference's row.
        underflow: what it may have anyhow, because it may be flushed to zero on the way.
    """

    rtol: float
    atol: float
    c: float = 1.0
    floor: float = 0.0
    underflow: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What a function may need beside its arguments: the meter, the tolerance, and the text of the call.

    Where ``exact`` is false, two equal runs may differ in their last bits, and `identical` is judged as `close`.
    """

    meter: Meter
    given: ToleranceLike | None = None
    claim: str = ""
    exact: bool = True

    @property
    def tolerance(self) -> ToleranceLike:
        """The tolerance of this evaluation.

        Raises:
            EvaluationError: none was given, as in a `where`, which must not depend on it.
        """
        if self.given is None:
            raise EvaluationError("there is no tolerance here; use identical, or compare numbers")
        return self.given


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """An implementation: ``weight`` is its cost for each element of its arguments, see `Budget.work`."""

    name: str
    call: Callable[..., Any]
    weight: int
    needs_context: bool


#: Name -> implementation, filled by the modules that define them.
FUNCTIONS: dict[str, Function] = {}

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


def function(*, weight: int = 1) -> Callable[[Implementation], Implementation]:
    """Register an implementation under its name; a trailing underscore only keeps it apart from a Python builtin.

    Raises:
        TypeError: the name is not on the list, is taken, or the arguments are not those of the list.
    """

    def register(implementation: Implementation) -> Implementation:
        name = implementation.__name__.rstrip("_")
        parameters = list(inspect.signature(implementation).parameters.values())
        needs_context = bool(parameters) and parameters[0].name == "context"
        if needs_context:
            del parameters[0]
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        text = f"{name}{inspect.Signature(bare)}"
        if name not in SIGNATURES or SIGNATURES[name].text != text:
            raise TypeError(f"{text} is not on the list in blocklaws.expressions.signatures")
        if name in FUNCTIONS:
            raise TypeError(f"{name} is implemented twice")
        FUNCTIONS[name] = Function(name, implementation, weight, needs_context)
        return implementation

    return register


@functools.cache
def _stage() -> tuple[Any, Callable[[tuple[str, ...]], object]]:
    # Here and not above: the evaluator imports the functions, whose examples need the evaluator.
    import numpy as np

    from blocklaws.expressions.vocabulary import Vocabulary

    x = np.arange(24.0).reshape(2, 3, 4)
    values: dict[tuple[str, ...], object] = {
        ("B",): 2,
        ("T",): 3,
        ("d_model",): 4,
        ("input",): x,
        ("output",): 2 * x,
        ("query",): x.reshape(2, 2, 3, 2),
        ("parameters",): {"attention_norm.gain": np.ones(4), "attention.query": np.eye(4)},
        ("position_offset",): 0,
    }
    return Vocabulary(sizes=frozenset({"B", "T", "d_model"})), values.__getitem__


def show(text: str) -> None:
    """Print the value of an expression in a small fixed world; the examples of the functions are written with it.

    ``input`` counts from 0 to 23 in shape (B, T, d_model) = (2, 3, 4), ``output`` is twice that.

    >>> show("output[0, 1, 2] - input[0, 1, 2]")
    6.0
    """
    from blocklaws.expressions.evaluation import evaluate
    from blocklaws.expressions.parsing import parse

    vocabulary, scope = _stage()
    value = evaluate(parse(text, vocabulary), scope, Tolerance(rtol=1e-6, atol=1e-9, c=4.0, floor=1e-9))
    if hasattr(value, "tolist"):
        value = value.round(4).tolist() if value.dtype.kind == "f" else value.tolist()
    print(value)
