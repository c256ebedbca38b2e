"""Hypothesis strategies for worlds: they draw the structure of an example, never its arrays.

Must hold: an example shrinks towards the first size of the menu, small integers, seed 0 and offset 0; every draw
satisfies the invariant's ``where``. Must not: reject draws (sizes that cannot be used are left out before anything is
drawn).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from blocklaws.checking import Case
from blocklaws.config import DERIVED_SIZES
from blocklaws.errors import BlocklawsError
from blocklaws.expressions import evaluate
from blocklaws.properties.drawing import choices, integers, permutations
from blocklaws.specification import Pick, Sizes
from blocklaws.worlds import Example, Recipe, few_lengths

__all__ = ["admissible_sizes", "could_draw", "examples"]

# How often each pattern is drawn. The first is what a counterexample shrinks towards; hostile patterns share a third.
_WEIGHTS = {
    "integers": 3, "normal": 9, "shifted": 4, "tiny": 2, "huge": 1, "zero-rows": 1, "spiky": 2, "far-mean": 1,
    "extreme-scores": 2,
}  # fmt: skip


#: How many seeds of arrays there are: more than the examples of a thousand runs, and three draws.
_SEEDS = 1_000_000
#: The longest arrangement: no axis of a world is longer, and a stranger's spec must not fill the memory.
_LONGEST = 10_000


def _scope(case: Case, sizes: Sizes, picks: Mapping[str, Any]) -> Any:
    config = case.kind.config(sizes)
    words = {**config.as_dict(), **{name: getattr(config, name) for name in DERIVED_SIZES}}
    words |= {"B": sizes.B, "T": sizes.T, "dtype": case.dtype, **picks}
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
    if not case.invariant.changes_length:  # a picked length must suit the backend too
        return list(range(low, high + 1))
    step = case.subject.multiples.get("T", 1)
    return few_lengths([value for value in range(low, high + 1) if value % step == 0])


def partitions(count: int, step: int) -> list[list[int]]:
    """Return ways to split a count into consecutive parts: a prompt and a step, single steps, or a few chunks.

    The lengths are few (1, a half, all but one), because each is a shape of its own to a backend that compiles. All in
    one part is among them for two tokens only: it continues nothing, and a prompt of all but one looks at its mask too.
    """
    units = count // step
    half = units // 2
    rest = units - half - 1
    if units == 1:
        splits = [[1]]
    elif units == 2:
        splits = [[1, 1], [2]]
    elif units == 3:
        splits = [[2, 1], [1, 2], [1, 1, 1]]
    else:
        # Three chunks: what only the one before last holds is lost by a cache that keeps one. Chunks of several tokens
        # come first, in the middle and last, single steps after a prompt, and between two chunks.
        splits = [[units - 1, 1], [half, rest, 1], [1, half, rest], [half, 1, rest], [half] + [1] * (units - half)]
        if units <= 8:
            splits.append([1] * units)
    return [[part * step for part in split] for split in splits]


def _count(case: Case, sizes: Sizes, pick: Pick, picks: Mapping[str, Any]) -> int:
    """Return of how many an arrangement is."""
    assert pick.high is not None
    count = int(evaluate(pick.high, _scope(case, sizes, picks), case.tolerance))
    if not 1 <= count <= _LONGEST:
        raise BlocklawsError(f"{pick.place}: {pick.arrangement} of {count}, but must be of 1 to {_LONGEST:,}")
    return count


def _last_offset(case: Case, sizes: Sizes) -> int:
    return case.kind.config(sizes).max_positions - sizes.T


class _Strategies:
    """What the examples of one case are drawn from, each made once: a strategy costs more to make than to draw from."""

    def __init__(self, case: Case, sizes: tuple[Sizes, ...]) -> None:
        self._case = case
        self._made: dict[tuple[Any, ...], st.SearchStrategy[Any]] = {}
        self.sizes = choices(sizes)
        self.patterns = choices([name for name in case.invariant.worlds for _ in range(_WEIGHTS[name])])
        self.seeds = integers(0, _SEEDS - 1)

    def _once(self, key: tuple[Any, ...], make: Callable[[], st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def position_offset(self, sizes: Sizes) -> st.SearchStrategy[int]:
        """Return offsets near, far and anywhere, zero the most often."""

        def make() -> st.SearchStrategy[int]:
            last = _last_offset(self._case, sizes)
            plain = st.sampled_from((0, 0, 1, min(5, last), min(100, last), last))
            return st.integers(0, 6).flatmap(lambda which: plain if which else integers(0, last))

        return self._once(("", sizes), make)

    def pick(self, pick: Pick, sizes: Sizes, picks: Mapping[str, Any]) -> st.SearchStrategy[Any]:
        """Return the values of a pick in a world of some sizes, after the picks before it."""
        ends = [end for end in (pick.low, pick.high) if end is not None]
        earlier = {path[0] for end in ends for path in end.columns} & set(picks)
        key = (pick.name, sizes, *(str(picks[name]) for name in sorted(earlier)))
        return self._once(key, lambda: self._of_pick(pick, sizes, picks))

    def _of_pick(self, pick: Pick, sizes: Sizes, picks: Mapping[str, Any]) -> st.SearchStrategy[Any]:
        case = self._case
        if pick.choices:
            return choices(pick.choices)
        if pick.arrangement is None:
            return choices(_range(case, sizes, pick, picks))
        count = _count(case, sizes, pick, picks)
        if pick.arrangement == "permutation":
            return permutations(count)
        return choices(partitions(count, case.subject.multiples.get("T", 1))).map(list)


@st.composite
def _example(draw: st.DrawFn, strategies: _Strategies, case: Case, offsets: bool) -> Example:
    sizes = draw(strategies.sizes)
    pattern = draw(strategies.patterns)
    seed = draw(strategies.seeds)
    offset = draw(strategies.position_offset(sizes)) if offsets else 0
    picks: dict[str, Any] = {}
    for pick in case.invariant.picks:
        picks[pick.name] = draw(strategies.pick(pick, sizes, picks))
    return Example(Recipe(sizes, pattern, seed, offset), picks)


def examples(case: Case, sizes: tuple[Sizes, ...], offsets: bool) -> st.SearchStrategy[Example]:
    """Draw an example of a case; shrinks towards the smallest sizes, small integers, seed 0 and offset 0."""
    return _example(_Strategies(case, sizes), case, offsets)


def could_draw(case: Case, sizes: Sequence[Sizes], offsets: bool, example: Example) -> bool:
    """Whether `examples` could draw an example: one that comes from elsewhere must show nothing that a draw cannot."""
    recipe = example.recipe
    if recipe.sizes not in sizes or recipe.pattern not in case.invariant.worlds or not 0 <= recipe.seed < _SEEDS:
        return False
    if not 0 <= recipe.position_offset <= (_last_offset(case, recipe.sizes) if offsets else 0):
        return False
    if {pick.name for pick in case.invariant.picks} != set(example.picks):
        return False
    earlier: dict[str, Any] = {}
    for pick in case.invariant.picks:
        value = example.picks[pick.name]
        if not _could_pick(case, recipe.sizes, pick, earlier, value):
            return False
        earlier[pick.name] = value
    return True


def _could_pick(case: Case, sizes: Sizes, pick: Pick, earlier: Mapping[str, Any], value: Any) -> bool:
    if pick.choices:
        # As JSON has them: true is not 1, and a list of a spec's file is a list.
        return json.dumps(value) in [json.dumps(choice) for choice in pick.choices]
    if pick.arrangement is None:
        return type(value) is int and value in _range(case, sizes, pick, earlier)
    if not isinstance(value, list) or not all(type(entry) is int for entry in value):
        return False
    count = _count(case, sizes, pick, earlier)
    if pick.arrangement == "permutation":
        return sorted(value) == list(range(count))
    return value in partitions(count, case.subject.multiples.get("T", 1))
