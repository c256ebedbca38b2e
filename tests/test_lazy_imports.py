"""What blocklaws loads before it is asked for a block, and what its pytest plugin does to a run that does not use it.

Must hold: no framework and no Hypothesis is imported by ``import blocklaws``, by ``blocklaws --help``, by naming an
adapter or by the loaded plugin; NumPy is not either, but for the adapters (its import alone is half of the 0.3 s that
``--help`` may take). The plugin prints nothing, adds only prefixed options and patches nothing. Every probe runs in a
fresh interpreter and has a planted twin that it must catch.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FRAMEWORKS = [
    "distributed",
    "equinox",
    "flax",
    "hypothesis",
    "jax",
    "jaxlib",
    "keras",
    "mlx",
    "tensorflow",
    "torch",
    "transformers",
]

#: An exit status that a crash cannot produce, so that a crash is not taken for a heavy import or for a light one.
CAUGHT = 33
CLEAN = 44

#: Runs {action}, whatever status it exits with, then judges by what was loaded.
PROBE = """
import sys
try:
{action}
except SystemExit as stop:
    if stop.code not in (None, 0):
        raise
{planted}
heavy = sorted({heavy!r} & sys.modules.keys())
print("loaded:", *heavy)
sys.exit({caught} if heavy else {clean})
"""

ACTIONS = {
    "import": "    import blocklaws",
    "help": "    sys.argv = ['blocklaws', '--help']; from blocklaws.cli import main; main()",
    "verify help": "    sys.argv = ['blocklaws', 'verify', '--help']; from blocklaws.cli import main; main()",
    "compare": "    import blocklaws.cli_compare",
    "plugin": "    import blocklaws.pytest_plugin",
}
ADAPTERS = {
    name: f"    import blocklaws.backends.{name}" for name in ("on_numpy", "on_torch", "on_jax", "mapped", "composed")
}


def probe(action: str, heavy: set[str], planted: str = "") -> str:
    """Return a program that exits CAUGHT when a heavy module is loaded after the action, and CLEAN when none is."""
    return PROBE.format(action=action, heavy=heavy, planted=planted, caught=CAUGHT, clean=CLEAN)


@pytest.mark.parametrize("name", ACTIONS)
def test_nothing_heavy_is_imported(python: Any, tmp_path: Path, name: str) -> None:
    """Fails when a start costs every user the seconds that a framework takes to import."""
    done = python("-c", probe(ACTIONS[name], {*FRAMEWORKS, "numpy"}), cwd=tmp_path)
    assert done.returncode == CLEAN, done.stdout[-500:] + done.stderr


@pytest.mark.parametrize("name", ADAPTERS)
def test_naming_an_adapter_imports_no_framework(python: Any, tmp_path: Path, name: str) -> None:
    """Fails when listing the backends, or asking one why it cannot run, already needs its framework."""
    done = python("-c", probe(ADAPTERS[name], set(FRAMEWORKS)), cwd=tmp_path)
    assert done.returncode == CLEAN, done.stdout[-500:] + done.stderr


@pytest.mark.parametrize("module", ["hypothesis", "torch"])
@pytest.mark.parametrize("name", [*ACTIONS, *ADAPTERS])
def test_a_planted_import_is_caught(python: Any, tmp_path: Path, name: str, module: str) -> None:
    """Fails when a probe would pass whatever is loaded."""
    # A stand-in of that name: what counts is that the probe sees it, and the real one takes seconds.
    planted = f"import types; sys.modules[{module!r}] = types.ModuleType({module!r})"
    done = python("-c", probe((ACTIONS | ADAPTERS)[name], {module}, planted), cwd=tmp_path)
    assert done.returncode == CAUGHT, done.stdout[-500:] + done.stderr


@pytest.mark.parametrize(("option", "status"), [("", CLEAN), (", '--html', 'page.html'", CAUGHT)])
def test_templates_are_loaded_for_a_page_alone(python: Any, tmp_path: Path, option: str, status: int) -> None:
    """Fails when every run pays for the templates of a page that nobody asked for, or the probe cannot see them."""
    arguments = "'verify', 'numpy', '--block', 'llama', '--invariant', 'shape-preservation', '--profile', 'quick'"
    action = f"    sys.argv = ['blocklaws', {arguments}{option}]; from blocklaws.cli import main; main()"
    done = python("-c", probe(action, {"jinja2", "markupsafe"}), cwd=tmp_path)
    assert done.returncode == status, done.stdout[-500:] + done.stderr


def test_a_real_import_is_caught(python: Any, tmp_path: Path) -> None:
    """Fails when the probe knows a framework by another name than the one it has once imported."""
    done = python("-c", probe("    import blocklaws, hypothesis", set(FRAMEWORKS)), cwd=tmp_path)
    assert done.returncode == CAUGHT, done.stdout + done.stderr


# The plugin in somebody else's test run.

FOREIGN_TEST = """
import json, os, sys, pathlib, random, threading, warnings, logging, builtins, signal

def state():
    from _pytest.assertion import util
    return {
        "modules": sorted(sys.modules),
        "environment": dict(os.environ),
        "filters": [str(entry) for entry in warnings.filters],
        "showwarning": warnings.showwarning.__module__,
        "hooks": [str(type(finder)) + getattr(finder, "__module__", "") for finder in sys.meta_path],
        "excepthook": [sys.excepthook.__module__, threading.excepthook.__module__, str(sys.gettrace())],
        "import": builtins.__import__.__module__,
        "print": builtins.print.__module__,
        "loggers": sorted(logging.root.manager.loggerDict),
        "level": logging.root.level,
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "interrupt": getattr(signal.getsignal(signal.SIGINT), "__module__", ""),
        "path": sys.path,
        "reprcompare": getattr(util._reprcompare, "__module__", None),
    }

def test_passes():
    random.seed(3)
    pathlib.Path("state.json").write_text(json.dumps(state()))

def test_fails():
    assert [1, 2] == [1, 3]
"""

PLANTED_PLUGIN = """
import os, sys, types, warnings
os.environ["PLANTED"] = "1"
sys.modules["torch"] = types.ModuleType("torch")

def pytest_addoption(parser):
    parser.addoption("--planted")

def pytest_report_header(config):
    return "planted: a line that nobody asked for"
"""


def foreign_run(python: Any, folder: Path, plugin: str | None) -> tuple[str, dict[str, Any], set[str]]:
    """Run pytest in a folder of its own; return its output without times, its state, and its options."""
    folder.mkdir()
    (folder / "test_foreign.py").write_text(FOREIGN_TEST, encoding="utf-8")
    (folder / "planted_plugin.py").write_text(PLANTED_PLUGIN, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    # Autoload off: jaxtyping's and others' plugins are not what is measured, and this one is named instead.
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    options = ["-p", plugin] if plugin else []
    done = python("-m", "pytest", "-p", "no:cacheprovider", *options, cwd=folder, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    helped = python("-m", "pytest", *options, "--help", cwd=folder, env=environment)
    assert helped.returncode == 0, helped.stderr
    output = re.sub(r"in \d+\.\d+s", "in 0s", done.stdout + done.stderr).replace(str(folder), "FOLDER")
    # pytest itself lists what is installed; that one line no plugin can keep out.
    output = re.sub(r"^plugins: .*\n", "", output, flags=re.MULTILINE)
    # Only what starts a line of the help is an option of its own, or an ini setting ("  name (type):").
    named = set(re.findall(r"^  (--[\w-]+|[a-z_]+(?= \())", helped.stdout, re.MULTILINE))
    state = json.loads((folder / "state.json").read_text(encoding="utf-8").replace(str(folder), "FOLDER"))
    return output, state, named


@pytest.fixture(scope="module")
def bare_run(python: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], set[str]]:
    """Return the foreign run without any plugin."""
    return foreign_run(python, tmp_path_factory.mktemp("bare") / "project", None)


def test_the_plugin_is_inert_when_unused(
    python: Any, tmp_path: Path, bare_run: tuple[str, dict[str, Any], set[str]]
) -> None:
    """Fails when installing blocklaws changes what another project's test run prints, offers or does."""
    bare_output, bare_state, bare_options = bare_run
    output, state, options = foreign_run(python, tmp_path / "project", "blocklaws.pytest_plugin")
    assert output == bare_output
    added = options - bare_options
    assert all(name.startswith(("--blocklaws-", "blocklaws_")) for name in added), added
    assert "--blocklaws-backend" in added
    new_modules = set(state.pop("modules")) - set(bare_state["modules"])
    assert not new_modules & {*FRAMEWORKS, "numpy"}
    assert state == {name: value for name, value in bare_state.items() if name != "modules"}


def test_a_plugin_that_is_not_inert_is_caught(
    python: Any, tmp_path: Path, bare_run: tuple[str, dict[str, Any], set[str]]
) -> None:
    """Fails when the comparison of the two runs could not see a difference."""
    bare_output, bare_state, bare_options = bare_run
    output, state, options = foreign_run(python, tmp_path / "project", "planted_plugin")
    assert "planted: a line" in output
    assert output != bare_output
    assert options - bare_options == {"--planted"}
    assert "torch" in set(state["modules"]) - set(bare_state["modules"])
    assert state["environment"] != bare_state["environment"]
