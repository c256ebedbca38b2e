"""The rules of the house: which room may import what, read from the sources by ``ast`` and never by importing.

Must hold: a room, an adapter or a folder that no rule lists is an error; imports for type checking count as imports, as
does a module named in a string to ``import_module``. Each rule is shown to see a planted violation.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: room -> top-level modules, beside the standard library and itself, that all of its files may import.
ROOMS = {
    "blocklaws": {
        *("click", "jinja2", "jsonschema", "markupsafe", "ml_dtypes", "numpy", "pytest", "rich", "yaml"),
        *("distributed", "mpi4py"),
    },
    "spec": set[str](),
    "backends": {"ml_dtypes", "numpy"},
    "properties": {"hypothesis", "ml_dtypes", "numpy", "pytest", "redis"},
}

#: adapter -> what it alone may import on top; a name in FRAMEWORKS only where importing the adapter does not import it.
ADAPTERS = {
    "on_numpy": {"jaxtyping"},
    "on_torch": {"torch"},
    "on_jax": {"jax", "jaxlib"},
    "mapped": {"equinox", "flax", "jax", "keras", "mlx", "torch"},
    "mappings": set[str](),
    "composed": {"equinox", "flax", "jax"},
    "tiny_models": set[str](),
    "transformers_models": {"torch", "transformers"},
}

FRAMEWORKS = {
    "equinox",
    "flax",
    "jax",
    "jaxlib",
    "keras",
    "keras_hub",
    "litgpt",
    "mlx",
    "mlx_lm",
    "tensorflow",
    "torch",
    "transformers",
}

#: What runs cases elsewhere, or keeps their examples: imported by one module, when somebody names it.
ENGINES = {"distributed", "mpi4py", "redis"}

#: Folders at the root that are not rooms: nothing that is installed may import them.
OTHER_FOLDERS = {"benchmarks", "conformance", "docs", "examples", "tests"}

#: What commands leave at the root, as .gitignore lists it, and the folders of tools that start with a dot.
LEFT_BY_COMMANDS = re.compile(r"__pycache__|build|dist|.*\.egg-info|\..*")

#: About what can be read in one sitting. Split a module where it has two reasons to change, not to get below a number.
LONGEST_MODULE = 450


@dataclasses.dataclass(frozen=True)
class Import:
    """One import: the absolute name of the module, the line, and whether importing the file runs it."""

    module: str
    line: int
    at_import: bool


def imports_of(path: Path, package: str) -> Iterator[Import]:
    """Yield the imports of a file whose package is ``package``, relative ones made absolute."""

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            # `from blocklaws import spec` imports a module too, so each name counts with its package before it.
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, at_import)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called in ("import_module", "__import__", "importorskip") and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield Import(first.value, node.lineno, at_import)
        inner = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), True)


def installed_name(path: Path, root: Path) -> str:
    """Return the name under which a file of a room is installed, with ``.__init__`` for a package's own file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts if parts[0] == "blocklaws" else ("blocklaws", *parts))


def is_within(module: str, package: str) -> bool:
    """Say whether a dotted name is a package or something in it."""
    return module == package or module.startswith(f"{package}.")


def complaint(found: Import, *, room: str, adapter: str | None, is_package_file: bool) -> str | None:
    """Return what is wrong with one import of one file, or None."""
    top = found.module.split(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top in set(ROOMS) - {"blocklaws"} | OTHER_FOLDERS | {"conftest"}:
        return "is the name of a folder of the checkout; rooms are imported as blocklaws.<room>"
    if top == "blocklaws":
        for other in set(ROOMS) - {"blocklaws"}:
            package = f"blocklaws.{other}"
            if not is_within(found.module, package):
                continue
            if other != room:
                return f"belongs to the room {other}/, which {room}/ finds by name and never imports"
            if room == "backends" and not is_within(found.module, f"{package}.{adapter}"):
                return "is another adapter's: adapters are independent implementations"
        return None
    allowed = ROOMS[room] | (ADAPTERS.get(adapter, set()) if adapter else set())
    if top not in allowed:
        return f"is not among what {room}/{adapter or ''} may import: {sorted(allowed)}"
    if top in ENGINES and found.at_import:
        return "is imported as soon as its module is; import it in the function that somebody asked for"
    if top in FRAMEWORKS and found.at_import and is_package_file:
        return "is imported as soon as the adapter is named; import it in a module or function that is used later"
    return None


def violations(root: Path) -> list[str]:
    """Return every violation of the import rules below ``root``, as ``file:line: module reason``."""
    seen: list[str] = []
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            inside = path.relative_to(root / room).parts
            adapter = inside[0].removesuffix(".py") if room == "backends" and inside != ("__init__.py",) else None
            package = installed_name(path, root).rpartition(".")[0]
            for found in imports_of(path, package):
                reason = complaint(found, room=room, adapter=adapter, is_package_file=path.name == "__init__.py")
                if reason:
                    seen.append(f"{path.relative_to(root).as_posix()}:{found.line}: {found.module} {reason}")
            if adapter is not None and adapter not in ADAPTERS:
                seen.append(
                    f"{path.relative_to(root).as_posix()}:1: the adapter {adapter} is in no rule; add it to ADAPTERS"
                )
    return seen


def sources(root: Path) -> list[Path]:
    """Return the Python files of the checkout, without those that commands leave there."""
    folders = (entry for entry in root.iterdir() if entry.is_dir() and not LEFT_BY_COMMANDS.fullmatch(entry.name))
    return sorted([*root.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))])


def test_rooms_import_only_what_they_may(root: Path) -> None:
    """Fails when the engine knows an adapter or a framework, or adapters stop being independent of each other."""
    assert violations(root) == []


def test_no_unlisted_folder(root: Path) -> None:
    """Fails when a new folder at the root comes under no rule."""
    folders = {entry.name for entry in root.iterdir() if entry.is_dir() and not LEFT_BY_COMMANDS.fullmatch(entry.name)}
    assert folders - set(ROOMS) - OTHER_FOLDERS == set()


def test_spec_is_data_alone(root: Path) -> None:
    """Fails when code moves into the room of what must hold."""
    assert [path.name for path in (root / "spec").rglob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize(
    ("file", "source", "reason"),
    [
        ("blocklaws/engine.py", "import blocklaws.spec", "never imports"),
        ("blocklaws/engine.py", "from blocklaws import backends", "never imports"),
        ("blocklaws/engine.py", "from . import properties", "never imports"),
        ("blocklaws/deep/engine.py", "from ..backends.on_numpy import block", "never imports"),
        ("blocklaws/engine.py", "import spec", "name of a folder"),
        ("blocklaws/engine.py", "def late():\n    import torch", "may import"),
        ("blocklaws/engine.py", "import importlib\nimportlib.import_module('jax.numpy')", "may import"),
        ("blocklaws/engine.py", "import hypothesis", "may import"),
        ("blocklaws/engine.py", "import typing\nif typing.TYPE_CHECKING:\n    import torch", "may import"),
        ("blocklaws/engine.py", "import distributed", "as soon as its module is"),
        ("blocklaws/engine.py", "from mpi4py import MPI", "as soon as its module is"),
        ("properties/kind.py", "import redis", "as soon as its module is"),
        ("properties/kind.py", "from blocklaws.backends import on_numpy", "never imports"),
        ("properties/kind.py", "import blocklaws.spec", "never imports"),
        ("properties/kind.py", "import torch", "may import"),
        ("backends/on_torch/block.py", "import jax", "may import"),
        ("backends/on_torch/block.py", "from blocklaws.backends.on_numpy import block", "another adapter's"),
        ("backends/on_torch/block.py", "from ..on_jax import block", "another adapter's"),
        ("backends/on_torch/block.py", "import hypothesis", "may import"),
        ("backends/on_torch/block.py", "from blocklaws.properties import worlds", "never imports"),
        ("backends/on_torch/__init__.py", "import torch", "as soon as the adapter is named"),
        ("backends/on_torch/__init__.py", "class A:\n    import torch", "as soon as the adapter is named"),
        ("backends/on_fire/block.py", "x = 1", "in no rule"),
        ("backends/helpers.py", "x = 1", "in no rule"),
        ("spec/loader.py", "import yaml", "may import"),
    ],
)
def test_a_planted_bad_import_is_seen(tmp_path: Path, file: str, source: str, reason: str) -> None:
    """Fails when a rule cannot see its own violation, so that keeping it proves nothing."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    (seen,) = violations(tmp_path)
    assert seen.startswith(f"{file}:")
    assert reason in seen


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "blocklaws/engine.py",
            "import json\nimport numpy\nfrom blocklaws.errors import SpecError\nfrom . import config",
        ),
        ("blocklaws/engine.py", "from importlib import resources\nresources.files('blocklaws.spec')"),
        (
            "backends/on_torch/block.py",
            "import torch\nfrom blocklaws.backends.on_torch import faults\nfrom . import faults",
        ),
        ("backends/on_torch/__init__.py", "def build():\n    import torch\n    from . import block"),
        ("properties/kind.py", "import hypothesis\nfrom blocklaws.properties import worlds"),
    ],
)
def test_a_good_import_is_left_alone(tmp_path: Path, file: str, source: str) -> None:
    """Fails when a rule refuses what the architecture allows."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    assert violations(tmp_path) == []


def test_every_module_has_a_docstring(root: Path) -> None:
    """Fails when a module does not say what it must guarantee."""
    silent = [
        path.relative_to(root).as_posix()
        for path in sources(root)
        if not ast.get_docstring(ast.parse(path.read_bytes()))
    ]
    assert silent == []


def test_no_module_outgrows_one_sitting(root: Path) -> None:
    """Fails when a module has probably got a second reason to change."""
    lengths = {path.relative_to(root).as_posix(): len(path.read_bytes().splitlines()) for path in sources(root)}
    # A file of tests is read a test at a time.
    lengths = {name: lines for name, lines in lengths.items() if not name.startswith("tests/")}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE} == {}


#: An absolute path that only one machine has. A URL's path, with a letter or a dot before its slash, is something else.
MACHINE_PATH = re.compile(r"(?<![\w.:~<>\-])/(?:work|farm|root|home|Users|tmp|opt)/\w")


def test_no_path_of_one_machine(root: Path) -> None:
    """Fails when a file names a folder that no reader has."""
    found = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        # .ci is the one dotted folder that is ours.
        if not path.is_file() or any(LEFT_BY_COMMANDS.fullmatch(part) for part in parts if part != ".ci"):
            continue
        if path.suffix in {".py", ".yaml", ".md", ".toml", ".txt", ".json", ""} and parts[0] != "tests":
            text = path.read_text(encoding="utf-8")
            found += [f"{'/'.join(parts)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


def test_a_planted_machine_path_is_seen() -> None:
    """Fails when the pattern no longer matches what it is there for, or matches a web address."""
    assert MACHINE_PATH.search('open("/' + 'home/someone/file")')
    assert not MACHINE_PATH.search("https://example.org/" + "home/page")
