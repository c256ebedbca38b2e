"""What the documents list is all that there is: fields that may change, stages in their orders, arguments, attributes.

Must hold: each list is derived here from what it describes, so that neither can grow alone.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import blocklaws
from blocklaws import surroundings
from blocklaws.canonical import one_array, stage_order
from blocklaws.config import CHOICES, BlockConfig
from blocklaws.expressions import tree
from blocklaws.report import CaseResult, Report
from blocklaws.spec_reading import built_in_spec

DOCS = Path(__file__).resolve().parent.parent / "docs"
FIELDS = {field.name for field in dataclasses.fields(BlockConfig)}


def table(document: str, head: str) -> list[list[str]]:
    """Return the rows of the one table of a document whose head begins so, as cells."""
    text = (DOCS / document).read_text(encoding="utf-8")
    (start,) = [match.start() for match in re.finditer(rf"^\| {re.escape(head)}", text, re.MULTILINE)]
    lines = text[start:].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]]


def code(cell: str) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def words_of(value: Any) -> set[str]:
    """Return the texts that an assigned value may become."""
    if not dataclasses.is_dataclass(value):
        return set()
    own = {value.value} if isinstance(value, tree.Constant) and isinstance(value.value, str) else set()
    inner = (getattr(value, field.name) for field in dataclasses.fields(value))
    return own.union(*(words_of(each) for one in inner for each in (one if isinstance(one, tuple) else (one,))))


def changed_fields() -> dict[str, set[str]]:
    """Return the fields of the config that some invariant sets or varies -> the words it may make them."""
    found: dict[str, set[str]] = {}
    for invariant in built_in_spec().invariants.values():
        for group in (invariant.set, *invariant.variants.values()):
            for one in group:
                if one.target in FIELDS:
                    # An expression that only compares with a word has it in the document too, which does no harm.
                    found.setdefault(one.target, set()).update(words_of(one.value))
    return found


def test_the_fields_that_an_invariant_changes_are_listed() -> None:
    """Fails when a backend has a number built in, since no document says that an invariant asks for another."""
    rows = {
        name: row[1] for row in table("writing-a-backend.md", "field | an invariant makes it") for name in code(row[0])
    }
    changed = changed_fields()
    # What no assignment does: a property builds blocks of few positions.
    assert set(rows) == {*changed, "max_positions"}
    for name, words in changed.items():
        for word in words & {each for each in CHOICES.get(name, ()) if isinstance(each, str)}:
            assert f'"{word}"' in rows[name], (name, word)
    assert changed["placement"] >= {"pre", "post"}
    assert changed["feed_forward"] >= {"gelu_tanh", "geglu", "geglu_tanh"}


def test_the_fields_of_a_config_are_all_told() -> None:
    """Fails when a config has a field that no backend's author hears of."""
    text = (
        (DOCS / "writing-a-backend.md").read_text(encoding="utf-8").split("### The config")[1].split("### A block")[0]
    )
    assert set(code(text)) >= FIELDS


@pytest.mark.parametrize("placement", ["pre", "post", "inside"])
def test_the_order_of_the_stages_is_told(placement: str) -> None:
    """Fails when the document has another order than that in which a failure is localised."""
    kinds, menus = built_in_spec().blocks, built_in_spec().menus
    kind = next(kind for kind in kinds.values() if kind.choices["placement"] == placement)
    (told,) = [row[1] for row in table("mathematics.md", "placement | order") if code(row[0]) == [placement]]
    assert code(told) == list(stage_order(kind.config(menus[kind.heads][0])))
    assert dict(re.findall(r"`(\w+)` = `(\w+)`", told)) == one_array(placement)


def test_what_a_process_shares_is_told() -> None:
    """Fails when a state is watched that no backend's author is told to leave alone."""
    text = " ".join((DOCS / "writing-a-backend.md").read_text(encoding="utf-8").split())
    said = text.split("What a process shares is left as it was found: ")[1].split(". ")[0].replace("its", "NumPy's")
    for name in surroundings._SHARED:
        assert name in said


def attributes(record: Any) -> set[str]:
    """Return what can be read of a record: its fields, and what its class computes."""
    public = {name for name in vars(record) if not name.startswith("_")}
    return {field.name for field in dataclasses.fields(record)} | public


@pytest.mark.parametrize(("record", "name"), [(Report, "Report"), (CaseResult, "CaseResult")])
def test_the_attributes_of_a_result_are_listed(record: Any, name: str) -> None:
    """Fails when an attribute is found through help() only, or the document has one that there is not."""
    told = [word.removesuffix("()") for row in table("reports.md", f"attribute of a `{name}`") for word in code(row[0])]
    assert len(told) == len(set(told))
    assert set(told) - {"str(report)"} == attributes(record)


def test_the_arguments_of_verify_are_listed_with_their_defaults() -> None:
    """Fails when an argument is found through help() only, or its default is told wrongly."""
    told = {}
    for names, defaults, _ in table("reports.md", "argument of `verify`"):
        values = code(defaults) or [""]
        for number, name in enumerate(code(names)):
            told[name] = values[number if len(values) > 1 else 0]
    known = inspect.signature(blocklaws.verify).parameters
    assert list(told) == list(known)
    for name, parameter in known.items():
        default = "" if parameter.default is parameter.empty else repr(parameter.default).replace("'", '"')
        assert told[name] == default, name
