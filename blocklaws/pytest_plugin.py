"""The pytest plugin: options with the prefix ``--blocklaws-``, and a test a case for functions that carry our mark.

Must hold: in a test run that does not use it, it prints nothing, patches nothing, and imports neither NumPy nor
Hypothesis nor a framework. A fixture named ``case`` that is somebody else's is left alone: only a function marked
``blocklaws_invariants`` (`blocklaws.parametrize` marks it) is ours. Works under pytest-xdist, where each worker
collects for itself.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

__all__: list[str] = []

_MARK = "blocklaws_invariants"
#: Name -> how pytest adds it, and what is said of it.
_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "backend": ({"action": "append", "metavar": "BACKEND"}, "verify this backend; may be repeated"),
    "spec": ({"metavar": "FILE"}, "a spec of your own; the built-in one otherwise"),
    "block": ({"action": "append", "metavar": "NAME"}, "only this kind of block; may be repeated"),
    "dtype": ({"action": "append", "metavar": "NAME"}, "only this dtype; may be repeated"),
    "invariant": ({"action": "append", "metavar": "ID"}, "only this invariant; may be repeated"),
    "profile": ({"metavar": "NAME"}, "quick, default or thorough: how long to look"),
    "seed": ({"metavar": "N"}, "the same seed, the same run"),
    "device": ({"metavar": "DEV"}, "where torch and jax compute"),
    "known-failures": ({"metavar": "FILE"}, "a YAML file of failures that are expected"),
    "database": (
        {"action": "append", "metavar": "WHERE"},
        "counterexamples shared with other runs, looked at first; may be repeated",
    ),
    "isolate": (
        {"action": "store_const", "const": True},
        "run backends in a process of their own that refuses what could tell an answer",
    ),
    "no-isolate": (
        {"action": "store_const", "const": False, "dest": "blocklaws_isolate"},
        "run backends in the process of the tests, where a debugger reaches them",
    ),
}
_STALE = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("blocklaws", "blocklaws (verification of Transformer blocks)")
    for name, (how, text) in _OPTIONS.items():
        where = {"dest": f"blocklaws_{name.replace('-', '_')}"}
        group.addoption(f"--blocklaws-{name}", help=text, **{**where, **how})


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, for runs with ``--strict-markers``."""
    config.addinivalue_line("markers", f"{_MARK}: run the test once a case; it takes the argument 'case'")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a marked test its cases."""
    mark = metafunc.definition.get_closest_marker(_MARK)
    if mark is None or "case" not in metafunc.fixturenames:
        return
    from blocklaws.errors import BlocklawsError

    try:
        cases = _cases(metafunc, mark.args[0] if mark.args else None)
    except BlocklawsError as error:
        # Without a traceback: what is wrong is the call, the spec or the backend, and the message says which.
        raise pytest.Collector.CollectError(f"blocklaws: {error}") from None
    metafunc.parametrize("case", cases, ids=[case.id for case in cases])


def _cases(metafunc: pytest.Metafunc, marked: Mapping[str, Any] | None) -> list[Any]:
    from blocklaws.pytest_cases import cases_of
    from blocklaws.running import prepare

    config = metafunc.config
    request = _from_command_line(config) if marked is None else _from_mark(marked, config, metafunc.definition.path)
    run = prepare(request.pop("backends"), **request)
    stale = config.stash.setdefault(_STALE, [])
    for entry in run.known.entries:
        if entry.asked(run.choice, run.subjects) and not any(
            entry.matches(
                case.invariant.id, case.name, case.subject.name, case.kind.name, case.dtype, case.subject.device
            )
            for case in run.cases
        ):
            stale.append(entry.unmatched)
    return cases_of(run)


def _seed(text: str) -> int:
    from blocklaws.errors import BlocklawsError

    if not text.isdecimal():
        raise BlocklawsError(f"--blocklaws-seed={text} must be a whole number, zero or more")
    return int(text)


def _from_command_line(config: pytest.Config) -> dict[str, Any]:
    from blocklaws.errors import BlocklawsError

    def option(name: str) -> Any:
        return config.getoption(f"blocklaws_{name}", None)

    # `--backend` is the short option of the checkout's conftest.
    backends = [*(option("backend") or []), *(option("short_backend") or [])]
    if not backends:
        raise BlocklawsError(
            "no backend was named; add --blocklaws-backend BACKEND: a registered name such as numpy, "
            "package.module:attribute, path/to/file.py:attribute, or a mapping file"
        )
    return {
        "backends": backends, "spec": option("spec"), "blocks": option("block") or (), "dtypes": option("dtype") or (),
        "invariants": option("invariant") or (), "profile": option("profile") or "default",
        "seed": _seed(option("seed") or "0"), "device": option("device"), "known_failures": option("known_failures"),
        "database": option("database") or (), "isolate": option("isolate"),
    }  # fmt: skip


def _from_mark(marked: Mapping[str, Any], config: pytest.Config, test_file: Path) -> dict[str, Any]:
    def beside(name: Any) -> Any:
        """A file that stands beside the test file is meant, wherever pytest was started."""
        if not isinstance(name, str | Path):
            return name
        file, separator, attribute = str(name).rpartition(":")
        path = test_file.parent / (file if separator else str(name))
        return str(path) + separator + (attribute if separator else "") if os.path.isfile(path) else name

    request = dict(marked)
    request["backends"] = [beside(backend) for backend in request["backends"]]
    request["spec"], request["known_failures"] = beside(request["spec"]), beside(request["known_failures"])
    if (profile := config.getoption("blocklaws_profile", None)) is not None:
        request["profile"] = profile
    if (seed := config.getoption("blocklaws_seed", None)) is not None:
        request["seed"] = _seed(seed)
    if (isolate := config.getoption("blocklaws_isolate", None)) is not None:
        request["isolate"] = isolate
    # As in Hypothesis, a folder of counterexamples is named from where pytest was started.
    request["database"] = [*request["database"], *(config.getoption("blocklaws_database", None) or ())]
    return request


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a case of ours tell the report of its test which parts of it were not checked."""
    if "blocklaws.pytest_cases" not in sys.modules:
        return
    from blocklaws.pytest_cases import PytestCase

    case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    if isinstance(case, PytestCase):
        case.user_properties = item.user_properties


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session whose known failures are stale."""
    stale = session.config.stash.get(_STALE, [])
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["blocklaws_stale"] = stale
    elif stale and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker of pytest-xdist found stale: the controller collects nothing itself."""
    told = getattr(node, "workeroutput", {}).get("blocklaws_stale", [])
    stale = node.config.stash.setdefault(_STALE, [])
    stale += [sentence for sentence in told if sentence not in stale]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which parts of the cases that passed were not checked, and which known failures are stale."""
    unchecked = Counter(
        text
        for report in terminalreporter.stats.get("passed", [])
        for name, text in getattr(report, "user_properties", [])
        if name == "blocklaws_unchecked"
    )
    if unchecked:
        terminalreporter.section("blocklaws: parts of passed cases that were not checked")
        for text, count in sorted(unchecked.items()):
            terminalreporter.line(f"{count} x {text}")
    if stale := config.stash.get(_STALE, []):
        terminalreporter.section("blocklaws: stale known failures")
        for sentence in stale:
            terminalreporter.line(sentence)
