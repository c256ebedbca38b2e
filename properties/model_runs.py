"""How an invariant of whole models is checked: ids and picks are drawn, and its clauses judged on the model's runs.

Must hold: an example shrinks towards few sequences of few tokens, all of them the first ordinary id; logits of the
wrong shape refute the claim that meets them, and are no error of the spec. Must not: know a model or a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st

from blocklaws.built import BlockRaised
from blocklaws.checking import Case, Examination, nearest
from blocklaws.errors import BlocklawsError
from blocklaws.expressions import EvaluationError, Judgement, evaluate, judge
from blocklaws.models.case import MOST_SEQUENCES, MOST_TOKENS, ModelCase, ModelExample
from blocklaws.models.runs import Runs
from blocklaws.properties.drawing import choices, integers, permutations
from blocklaws.properties.worlds import partitions
from blocklaws.specification import Pick
from blocklaws.worlds import Example

__all__ = ["ModelProperty", "model_examples"]


class ModelProperty:
    """Evaluates the clauses of an invariant over the runs of one model on one example."""

    name = "model"
    schema: Mapping[str, Any] = {"type": "object", "additionalProperties": False}

    def needs(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return nothing: each clause knows its own needs."""
        return frozenset()

    def examine(self, case: Case, example: Example) -> Examination:
        """Judge one example."""
        assert isinstance(case, ModelCase)
        assert isinstance(example, ModelExample)
        try:
            return self._judge(case, Runs(case.built(), example.array, example.picks))
        except BlockRaised as error:
            return Examination(raised=str(error))

    def _judge(self, case: ModelCase, runs: Runs) -> Examination:
        max_error: float | None = None
        near: tuple[float, float] | None = None
        for clause in case.clauses:
            try:
                judgement = judge(clause.expression, runs, case.tolerance, exact=case.subject.deterministic)
            except EvaluationError as error:
                wrong = _wrong_shape(runs, clause.expression.text)
                if wrong is None:
                    raise BlocklawsError(f"{clause.place}: invariant {case.invariant.id!r}: {error}") from None
                judgement = wrong
            if not judgement.holds:
                return Examination(judgement=judgement, clause=clause)
            # Where a claim of difference holds, the two are further apart than it asks for: that is no error.
            if judgement.difference is not None and judgement.difference <= (judgement.allowed or 0.0):
                max_error = max(max_error or 0.0, judgement.difference)
            near = nearest(near, judgement.nearness)
        informative = case.invariant.informative
        told = informative is None or bool(evaluate(informative, runs, case.tolerance))
        return Examination(informative=told, max_error=max_error, nearest=near)


def _wrong_shape(runs: Runs, claim: str) -> Judgement | None:
    """Return a failed judgement when some run gave logits that are not [B, T, vocabulary]."""
    for run, logits in runs.logits.items():
        if (
            logits.ndim != 3
            or logits.shape[2] != runs.model.vocabulary
            or (not run and logits.shape[:2] != runs.ids.shape)
        ):
            of = f" of the run {run!r}" if run else ""
            wanted = (*runs.ids.shape, runs.model.vocabulary)
            detail = f"the logits{of} have shape {logits.shape} where [B, T, vocabulary] is {wanted}"
            return Judgement(False, claim, detail, wrong=1, total=1)
    return None


def model_examples(case: ModelCase) -> st.SearchStrategy[Example]:
    """Draw an example of a case."""
    built = case.built()
    shapes = [
        (batch, tokens)
        for batch in range(1, MOST_SEQUENCES + 1)
        for tokens in range(1, min(MOST_TOKENS, built.max_tokens - 3) + 1)
        if case.invariant.where is None
        or evaluate(case.invariant.where, _sizes(case, batch, tokens, {}), case.tolerance)
    ]
    if not shapes:
        raise BlocklawsError(f"{case.invariant.place}: no size of an example satisfies the invariant's 'where'")
    return _example(case, choices(sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))))


@st.composite
def _example(draw: st.DrawFn, case: ModelCase, shapes: st.SearchStrategy[tuple[int, int]]) -> Example:
    batch, tokens = draw(shapes)
    built = case.built()
    picks: dict[str, Any] = {}
    for pick in case.invariant.picks:
        picks[pick.name] = draw(_pick(case, pick, batch, tokens, picks))
    row = st.lists(integers(built.reserved, built.vocabulary - 1), min_size=tokens, max_size=tokens)
    return ModelExample.of([draw(row) for _ in range(batch)], picks)


def _pick(case: ModelCase, pick: Pick, batch: int, tokens: int, picks: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    sizes = _sizes(case, batch, tokens, picks)
    if pick.choices:
        return choices(pick.choices)
    assert pick.high is not None
    high = int(evaluate(pick.high, sizes, case.tolerance))
    if pick.arrangement == "permutation":
        return permutations(high)
    if pick.arrangement == "partition":
        return choices(partitions(high, 1))
    assert pick.low is not None
    return integers(int(evaluate(pick.low, sizes, case.tolerance)), high)


def _sizes(case: ModelCase, batch: int, tokens: int, picks: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    built = case.built()
    sizes = {"B": batch, "T": tokens, "vocabulary": built.vocabulary, "ordinary": built.vocabulary - built.reserved}
    return {(name,): value for name, value in {**sizes, **picks}.items()}
