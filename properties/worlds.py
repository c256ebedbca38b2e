"""Hypothesis strategies for worlds: they draw the structure of an example, never its arrays.

Must hold: an example shrinks towards the first size of the menu, small integers, seed 0 and offset 0; every draw
satisfies the invariant's ``where``. Must not: reject draws (sizes that cannot be used are left out before anything is
drawn).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from blocklaws.checking import Case
from blocklaws.errors import BlocklawsError
from blocklaws.expressions import evaluate
from blocklaws.specification import Pick, Sizes
from blocklaws.worlds import Example, Recipe, few_lengths

__all__ = ["admissible_sizes", "examples"]

# How often each pattern is drawn. The first is what a counterexample shrinks towards; hostile patterns share a third.
_WEIGHTS = {
    "integers": 3, "normal": 9, "shifted": 4, "tiny": 2, "huge": 1, "zero-rows": 1, "spiky": 2, "far-mean": 1,
    "extreme-scores": 2,
}  # fmt: skip


#: The longest arrangement: no axis of a world is longer, and a stranger's spec must not fill the memory.
_LONGEST = 10_000


def _scope(case: Case, sizes: Sizes, picks: Mapping[str, Any]) -> Any:
    config = case.kind.config(sizes)
    words = {**config.as_dict(), "B": sizes.B, "T": sizes.T, "group": config.group, "dtype": case.dtype, **picks}
    return lambda path: words[path[0]]


def admissible_sizes(case: Case) -> tuple[Sizes, ...]:
    """Return the sizes of the menu that satisfy ``where`` and leave every pick something to choose from."""
    where = case.invariant.where
    return tuple(
        sizes
        for sizes in case.menu
        if case.subject.refusal(case.kind.config(sizes)) is None
        and (where is None or bool(evaluate(where, _scope(case, sizes, {}), case.tolerance)))
        and all(_possible(case, sizes, pick) for pick in case.invariant.picks)
    )


def _possible(case: Case, sizes: Sizes, pick: Pick) -> bool:
    try:
        return pick.low is None or bool(_range(case, sizes, pick, {}))
    except KeyError:  # it depends on another pick
        return True


def _range(case: Case, sizes: Sizes, pick: Pick, picks: Mapping[str, Any]) -> list[int]:
    assert pick.low is not None
    assert pick.high is not None
    scope = _scope(case, sizes, picks)
    low, high = int(evaluate(pick.low, scope, case.tolerance)), int(evaluate(pick.high, scope, case.tolerance))
    if high - low > 1_000_000:
        raise BlocklawsError(f"{pick.place}: the range {low} .. {high} is longer than a million")
    if not _changes_length(case):
        return list(range(low, high + 1))
    step = case.subject.multiples.get("T", 1)
    return few_lengths([value for value in range(low, high + 1) if value % step == 0])


def _changes_length(case: Case) -> bool:
    """Whether some pass has another number of tokens: then a picked length must suit the backend too."""
    groups = (case.invariant.set, *case.invariant.variants.values())
    return any(
        assignment.target == "input" and assignment.axis is None and assignment.by is None
        for group in groups
        for assignment in group
    )


def _draw_pick(draw: st.DrawFn, case: Case, sizes: Sizes, pick: Pick, picks: Mapping[str, Any]) -> Any:
    if pick.choices:
        return draw(st.sampled_from(pick.choices))
    if pick.arrangement is None:
        return draw(st.sampled_from(_range(case, sizes, pick, picks)))
    assert pick.high is not None
    count = int(evaluate(pick.high, _scope(case, sizes, picks), case.tolerance))
    if not 1 <= count <= _LONGEST:
        raise BlocklawsError(f"{pick.place}: {pick.arrangement} of {count}, but must be of 1 to {_LONGEST:,}")
    if pick.arrangement == "permutation":
        return list(draw(st.permutations(range(count))))
    return _partition(draw, count, case.subject.multiples.get("T", 1))


def _partition(draw: st.DrawFn, count: int, step: int) -> list[int]:
    """Split a count into consecutive parts: single steps, one prefill and single steps, or a few chunks.

    The lengths are few (1, a half, all but one, all), because each is a shape of its own to a backend that compiles.
    """
    units = count // step
    half = units // 2
    splits = [[units], [units - 1, 1]]
    if units <= 3:
        splits += [[half, units - half], [1] * units]
    else:
        # Three chunks: what only the one before last holds is lost by a cache that keeps one. Several tokens come first,
        # in the middle and last.
        splits += [[half, units - half - 1, 1], [1, half, units - half - 1]]
    chosen = draw(st.sampled_from([[part for part in split if part > 0] for split in splits]))
    return [part * step for part in chosen]


@st.composite
def examples(draw: st.DrawFn, case: Case, sizes: tuple[Sizes, ...], offsets: bool) -> Example:
    """Draw an example of a case; shrinks towards the smallest sizes, small integers, seed 0 and offset 0."""
    chosen = draw(st.sampled_from(sizes))
    patterns = [pattern for pattern in case.invariant.worlds for _ in range(_WEIGHTS[pattern])]
    pattern = draw(st.sampled_from(patterns))
    seed = draw(st.integers(0, 2**32 - 1))
    last = case.kind.config(chosen).max_positions - chosen.T
    offset = draw(st.sampled_from((0, 0, 1, min(5, last), min(100, last), last))) if offsets else 0
    picks: dict[str, Any] = {}
    for pick in case.invariant.picks:
        picks[pick.name] = _draw_pick(draw, case, chosen, pick, picks)
    return Example(Recipe(chosen, pattern, seed, offset), picks)
