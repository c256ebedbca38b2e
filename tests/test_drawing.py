"""The same seed draws the same examples whatever else is loaded: no number of anybody's source is among them."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from test_searching import case_of, searched

from blocklaws.properties import drawing

ROOM = Path(__file__).parent.parent / "properties"
_PLANTED = itertools.count()


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Load a module outside of site-packages that has a thousand numbers, none of which another one had."""

    def load() -> None:
        number = next(_PLANTED)
        name = f"planted_numbers_{number}"
        numbers = [place * 4_000_000 + 1_000 + 7 * number for place in range(500)]
        numbers += [place * 9 + 100 + number for place in range(500)]
        file = tmp_path / f"{name}.py"
        file.write_text(f"NUMBERS = {numbers}\n")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)

    return load


def drawn(strategy: st.SearchStrategy[Any], examples: int = 60) -> list[Any]:
    """Return what a seeded search draws."""
    found: list[Any] = []

    @hypothesis.seed(0)
    @settings(max_examples=examples, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @hypothesis.given(strategy)
    def look(value: Any) -> None:
        found.append(value)

    look()
    return found


WAYS = [
    (drawing.integers, st.integers, (0, 2**32 - 1)),
    (drawing.integers, st.integers, (0, 4_000)),
    (drawing.choices, st.sampled_from, (range(3_000),)),
    (drawing.permutations, lambda count: st.permutations(range(count)), (150,)),
]


@pytest.mark.parametrize(("ours", "theirs", "given"), WAYS)
def test_numbers_of_a_loaded_module_are_not_drawn(
    ours: Callable[..., Any], theirs: Callable[..., Any], given: tuple[Any, ...], plant: Callable[[], None]
) -> None:
    """Fails when what is loaded decides what is drawn; Hypothesis' own strategies show that the module is seen."""
    before, aided = drawn(ours(*given)), drawn(theirs(*given))
    plant()
    assert drawn(ours(*given)) == before
    assert drawn(theirs(*given)) != aided


def test_a_draw_shrinks_as_the_plain_strategy_does() -> None:
    """Fails when a counterexample no longer shrinks towards the lowest number, the first choice, or the plain order."""
    plain = settings(database=None)
    assert hypothesis.find(drawing.integers(3, 4_000), lambda _: True, settings=plain) == 3
    assert hypothesis.find(drawing.integers(3, 4_000), lambda value: value >= 1_203, settings=plain) == 1_203
    assert hypothesis.find(drawing.choices(range(5, 4_000)), lambda _: True, settings=plain) == 5
    assert hypothesis.find(drawing.permutations(101), lambda _: True, settings=plain) == list(range(101))


@pytest.mark.parametrize(("low", "high"), [(5, 5), (0, 99), (7, 107), (-3, 250)])
def test_every_number_of_a_range_is_drawn_and_no_other(low: int, high: int) -> None:
    """Fails when a number is drawn that was not asked for, or an end of the range never is."""
    found = set(drawn(drawing.integers(low, high), 600))
    assert found <= set(range(low, high + 1))
    assert {low, high} <= found
    assert high - low > 99 or found == set(range(low, high + 1))
    assert sorted(drawn(drawing.permutations(101), 3)[-1]) == list(range(101))


def test_a_verdict_counts_the_same_errors_whatever_is_loaded(plant: Callable[[], None]) -> None:
    """Fails when a case sees other worlds in one process than in a worker, which has loaded other modules."""
    cases = [case_of(name, seed=seed) for name in ("query-and-key-definition", "output-parity") for seed in range(3)]
    before = [searched(case) for case in cases]
    plant()
    assert [searched(case) for case in cases] == before


def _aided(source: str) -> list[str]:
    """Return the calls of Hypothesis' own strategies that could be given what a source has."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not re.fullmatch(r"st\.\w+", name := ast.unparse(node.func)):
            continue
        small = all(isinstance(given, ast.Constant) and -100 < given.value < 100 for given in node.args)
        few = name == "st.sampled_from" and isinstance(node.args[0], ast.Tuple)
        if name != "st.lists" and not few and not (name == "st.integers" and small):
            found.append(ast.unparse(node))
    return found


def test_no_other_module_draws_numbers_by_itself() -> None:
    """Fails when an example is drawn past `drawing`, by a strategy that mixes in what the sources have."""
    assert _aided("st.integers(0, n)\nst.sampled_from(x)\nst.text()\nst.integers(0, 6)\nst.sampled_from((1, 2))") == [
        "st.integers(0, n)", "st.sampled_from(x)", "st.text()",
    ]  # fmt: skip
    others = [path for path in sorted(ROOM.glob("*.py")) if path.name != "drawing.py"]
    assert {path.name: aided for path in others if (aided := _aided(path.read_text()))} == {}
