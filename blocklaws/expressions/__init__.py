"""The expression language of specs: what `then`, `where`, `informative`, `set` and `vary` are written in.

`parse` reads a text against a `Vocabulary` and refuses everything that is not on a list; `evaluate` and `judge` run
what was read, within a `Budget`. A spec from a stranger is data, not code. The language is described in
docs/expressions.md.

Reading does not import NumPy: what runs is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocklaws.expressions.budget import DEFAULT_BUDGET, Budget
from blocklaws.expressions.parsing import Expression, parse, parse_index
from blocklaws.expressions.problems import EvaluationError, ExpressionError
from blocklaws.expressions.vocabulary import Vocabulary

if TYPE_CHECKING:
    from blocklaws.expressions.direct import apart, calibrated, close, differs, finite, identical
    from blocklaws.expressions.evaluation import Scope, evaluate, judge
    from blocklaws.expressions.judging import Judgement
    from blocklaws.expressions.registry import Tolerance

__all__ = [
    "DEFAULT_BUDGET",
    "Budget",
    "EvaluationError",
    "Expression",
    "ExpressionError",
    "Judgement",
    "Scope",
    "Tolerance",
    "Vocabulary",
    "apart",
    "calibrated",
    "close",
    "differs",
    "evaluate",
    "finite",
    "identical",
    "judge",
    "parse",
    "parse_index",
]

_LAZY = {
    "Scope": "evaluation",
    "evaluate": "evaluation",
    "judge": "evaluation",
    "Judgement": "judging",
    "Tolerance": "registry",
    **dict.fromkeys(("apart", "calibrated", "close", "differs", "finite", "identical"), "direct"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
