"""Adapters that try to pass instead of computing are refuted; adapters that are right and unusual are not.

The adapters are in tests/cheats, each with its trick in its docstring. Those of NOT_IN_ONE_PROCESS pass where they
share a process with the harness, which docs/power.md says; that they do is tested too, so that the list stays true.
Isolated, every one is refuted.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklaws.planning import properties_of
from blocklaws.report import CaseResult
from blocklaws.running import prepare, run_case

CHEATS = Path(__file__).parent / "cheats"

#: What the adapters are run against, in an order in which most are refuted soon.
LAWS = (
    "output-parity",
    "look-alike-inputs",
    "same-input-other-parameters",
    "memory-layout-independence",
    "many-calls",
    "refilled-buffer",
    "zero-branch-identity",
    "liveness",
    "arguments-unchanged",
    "shape-preservation",
)

#: Adapter -> why no harness can refute it in its own process.
NOT_IN_ONE_PROCESS = {
    "AsksTheReference": "what the reference computes is right; whose work it is cannot be seen in the numbers",
    "AsksTheCaller": "a callee can reach every object of its callers, the reference among them",
    "SwallowsFailures": "code in a process can replace any other, also what looks for replacements",
}

#: These change the process that they run in, and get one of their own.
TAMPERING = "tampering.py"


def adapters(*files: str) -> Iterator[str]:
    """Yield file.py:NAME of every adapter, without importing one."""
    for file in files:
        tree = ast.parse((CHEATS / file).read_text(encoding="utf-8"))
        yield from (
            f"{file}:{node.name}" for node in tree.body if isinstance(node, ast.ClassDef) and node.decorator_list
        )


def results(adapter: str, *, isolate: bool, profile: str = "default") -> Iterator[CaseResult]:
    """Check one adapter law by law, without shrinking what fails and without the parts that need gradients."""
    run = prepare(
        [f"{CHEATS / adapter}"], blocks=["llama"], dtypes=["float32"], invariants=LAWS, profile=profile, isolate=isolate
    )
    properties = properties_of(case.invariant for case in run.cases)
    ordered = sorted(run.cases, key=lambda case: LAWS.index(case.invariant.id))
    for case in (each for each in ordered if not each.part):
        yield from run_case(dataclasses.replace(case, shrink=False), properties[case.invariant.property_name])


def refuted(adapter: str, *, isolate: bool, profile: str = "default") -> CaseResult | None:
    """Return the first result that refutes an adapter, or None."""
    found = results(adapter, isolate=isolate, profile=profile)
    return next((one for one in found if one.verdict in ("violated", "error")), None)


def name_of(adapter: str) -> str:
    return adapter.partition(":")[2]


IN_PROCESS = tuple(adapters("values.py", "replaying.py", "snooping.py"))
WITH_TAMPERING = tuple(adapters(TAMPERING))
CONTROLS = tuple(adapters("unusual.py"))


def test_there_are_enough() -> None:
    """Fails when an adapter is lost: the lists are read from the files."""
    assert len(IN_PROCESS) + len(WITH_TAMPERING) >= 35
    assert len(CONTROLS) >= 14
    assert {name_of(each) for each in (*IN_PROCESS, *WITH_TAMPERING)} >= set(NOT_IN_ONE_PROCESS)


@pytest.mark.parametrize("adapter", [each for each in IN_PROCESS if name_of(each) not in NOT_IN_ONE_PROCESS])
def test_a_cheat_is_refuted_in_one_process(adapter: str) -> None:
    """Fails when an adapter passes without computing."""
    assert refuted(adapter, isolate=False) is not None


@pytest.mark.parametrize("adapter", [each for each in IN_PROCESS if name_of(each) in NOT_IN_ONE_PROCESS])
def test_what_one_process_cannot_defend_is_known(adapter: str) -> None:
    """Fails when the list of what passes in one process says too much."""
    assert [one for one in results(adapter, isolate=False, profile="quick") if one.verdict != "holds"] == []


@pytest.mark.parametrize("adapter", [*IN_PROCESS, *WITH_TAMPERING])
def test_a_cheat_is_refuted_when_isolated(adapter: str) -> None:
    """Fails when something in the worker tells an adapter the answer, or when it reaches the judgement."""
    assert refuted(adapter, isolate=True, profile="quick") is not None


_SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_cheats import refuted
found = {}
for adapter in sys.argv[2:]:
    one = refuted(adapter, isolate=False)
    found[adapter] = None if one is None else [one.verdict, one.reason]
print(json.dumps(found), file=sys.__stdout__)
"""


def run_apart(python, *names: str) -> dict[str, list[str] | None]:
    completed = python("-c", _SCRIPT, str(CHEATS.parent), *names)
    assert completed.returncode == 0, completed.stderr
    found: dict[str, list[str] | None] = json.loads(completed.stdout)
    return found


def test_replacing_the_judge_is_found_out(python) -> None:
    """Fails when an adapter can make its own verdict, or when the next one finds the harness replaced."""
    expected = [each for each in WITH_TAMPERING if name_of(each) not in NOT_IN_ONE_PROCESS]
    # The tolerances cannot be put back, so the one that widens them comes last.
    expected.sort(key=lambda each: name_of(each) == "WidensTolerances")
    for adapter, found in run_apart(python, *expected).items():
        assert found is not None, adapter
        assert found[0] == "error", adapter
        assert "replaced a part of what judges it" in found[1]


def test_replacing_also_what_looks_for_replacements_is_not(python) -> None:
    """Fails when the list of what passes in one process says too much."""
    undetected = [each for each in WITH_TAMPERING if name_of(each) in NOT_IN_ONE_PROCESS]
    assert set(run_apart(python, *undetected).values()) == {None}


@pytest.mark.parametrize("adapter", CONTROLS)
@pytest.mark.parametrize("isolate", [False, True], ids=["one process", "isolated"])
def test_a_right_adapter_is_left_alone(adapter: str, isolate: bool) -> None:
    """Fails when a defence against cheats refutes what is only unusual."""
    found = list(results(adapter, isolate=isolate, profile="quick"))
    assert [one for one in found if one.verdict in ("violated", "error")] == []
    assert sum(one.verdict == "holds" for one in found) == len(LAWS)
