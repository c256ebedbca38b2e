"""What an installation contains, and that it works away from the checkout, in a folder of any name.

Must hold: the wheel has one top-level name and every package, YAML file and entry point of the checkout, so that adding
a folder without naming it in pyproject.toml fails here and not at a user. Nothing is downloaded: a new environment sees
the dependencies of the one that runs the tests, and blocklaws comes from the wheel or the checkout alone.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_docs_examples import follow

#: room -> the name it is installed under.
ROOMS = {
    "blocklaws": "blocklaws",
    "spec": "blocklaws/spec",
    "backends": "blocklaws/backends",
    "properties": "blocklaws/properties",
}

#: A name that is no identifier, ends in what looks like a version, and has what shells and file URLs trip over.
ODD_NAME = "block-laws.try-1 (ü)"

NOT_COPIED = shutil.ignore_patterns("__pycache__", "build", "dist", "*.egg-info", ".*")


def shipped(root: Path) -> dict[str, Path]:
    """Return the files that an installation must contain, by their path in the wheel."""
    return {
        f"{place}/{path.relative_to(root / room).as_posix()}": path
        for room, place in ROOMS.items()
        for path in (root / room).rglob("*")
        if path.suffix in {".py", ".yaml", ".json", ".typed", ".j2", ".css", ".js"}
    }


def difference(wheel: set[str], checkout: set[str]) -> list[str]:
    """Return what a wheel lacks, and what it has too much, as sentences that say what to do."""
    problems = [f"{name} is not in the wheel: name its folder in pyproject.toml" for name in sorted(checkout - wheel)]
    return problems + [f"{name} is in the wheel and not in the checkout" for name in sorted(wheel - checkout)]


@pytest.fixture(scope="module")
def wheel(root: Path, python: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from a copy of the checkout, so that no leftover of an earlier build gets in."""
    copy = tmp_path_factory.mktemp("source") / ODD_NAME
    shutil.copytree(root, copy, ignore=NOT_COPIED)
    out = tmp_path_factory.mktemp("wheel")
    done = python("-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture
def environment(tmp_path: Path) -> Callable[[], Path]:
    """Return a function that makes a virtual environment in which everything but blocklaws is installed.

    The dependencies come from this environment's folder by a path entry; its own installation of blocklaws is not among
    them, because Python runs the hooks of an editable installation only where they are installed.
    """

    def make() -> Path:
        folder = tmp_path / "environment"
        venv.create(folder, with_pip=False, symlinks=True)
        purelib = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        return folder / "bin"

    return make


def project_table(root: Path) -> dict[str, Any]:
    """Return the `project` table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def requirements(root: Path) -> list[str]:
    """Return every requirement of pyproject.toml, those of the extras included."""
    project = project_table(root)
    return [
        *project["dependencies"],
        *(entry for extra in project["optional-dependencies"].values() for entry in extra),
    ]


def install(python: Any, bin_folder: Path, *what: str | Path) -> None:
    """Install without an index, without dependencies and without build isolation: nothing is downloaded."""
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    done = python("-m", "pip", "--python", bin_folder / "python", "install", *options, "--force-reinstall", *what)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_contains_the_checkout(root: Path, wheel: Path) -> None:
    """Fails when a package or a YAML file stands in a folder that pyproject.toml does not name."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert difference(names, set(shipped(root))) == []


def test_a_missing_folder_is_seen(root: Path) -> None:
    """Fails when the comparison above could not see a folder that is left out, or one too many."""
    everything = set(shipped(root))
    without = {name for name in everything if not name.startswith("blocklaws/backends/on_torch/")}
    assert difference(without, everything)[0].startswith("blocklaws/backends/on_torch/__init__.py is not in the wheel")
    without = {name for name in everything if not name.endswith(".j2")}
    assert any("blocklaws/html/templates/verify.html.j2" in problem for problem in difference(without, everything))
    without = {name for name in everything if not name.endswith(".yaml")}
    assert any("blocklaws/spec/blocks.yaml" in problem for problem in difference(without, everything))
    assert difference({*everything, "tests/x.py"}, everything) == ["tests/x.py is in the wheel and not in the checkout"]


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    """Fails when an installation would put `spec`, `backends` or `properties` where other projects have theirs."""
    assert {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == {
        "blocklaws"
    }


def test_the_wheel_says_what_it_is(root: Path, wheel: Path) -> None:
    """Fails when the licence, the types or the entry points do not travel."""
    archive = zipfile.ZipFile(wheel)
    names = {re.sub(r"^[^/]*\.dist-info/", "", name): name for name in archive.namelist()}
    assert "blocklaws/py.typed" in names
    assert archive.read(names["licenses/LICENSE"]) == (root / "LICENSE").read_bytes()
    metadata = email.message_from_bytes(archive.read(names["METADATA"]))
    assert (metadata["Name"], metadata["License-Expression"]) == ("blocklaws", "Apache-2.0")
    project = project_table(root)
    entry_points = archive.read(names["entry_points.txt"]).decode()
    declared = {"console_scripts": project["scripts"], **project["entry-points"]}
    for group, entries in declared.items():
        assert f"[{group}]" in entry_points
        for name, target in entries.items():
            assert f"{name} = {target}" in entry_points


def test_the_plugin_is_keyed_by_its_module(root: Path) -> None:
    """Fails when a `pytest_plugins` line in somebody's conftest would register the plugin a second time."""
    project = project_table(root)
    (entry,) = project["entry-points"]["pytest11"].items()
    assert entry[0] == entry[1]


def test_ranges_stay_open(root: Path) -> None:
    """Fails when an upper bound or a pin keeps blocklaws out of somebody's environment."""
    listed = requirements(root)
    assert [entry for entry in listed if re.search(r"==|<|~=|!=", entry)] == []


def test_every_dependency_is_pinned_for_the_tests(root: Path) -> None:
    """Fails when two runs of `make test` could install different versions, or a pin only this machine can install."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    pinned = {normal(line.split("==")[0]) for line in pins}
    listed = requirements(root)
    wanted = {normal(re.match(r"[\w.-]+", entry).group()) for entry in listed} - {"blocklaws"}  # type: ignore[union-attr]
    assert wanted - pinned == set()


def normal(name: str) -> str:
    """Return a distribution's name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


PROBE = """
import importlib.metadata, importlib.resources, importlib.util, pathlib
import blocklaws, blocklaws.spec, blocklaws.backends, blocklaws.properties, blocklaws.backends.mappings
place = pathlib.Path(blocklaws.__file__).resolve().parent
print(place)
assert (importlib.resources.files("blocklaws.spec") / "blocks.yaml").read_text(encoding="utf-8").strip()
names = {entry.name for entry in importlib.metadata.entry_points(group="blocklaws.backends")}
assert {"numpy", "torch", "jax"} <= names, names
for room in ("spec", "backends", "properties"):
    assert importlib.util.find_spec(room) is None, room
"""


@pytest.mark.slow
def test_the_wheel_works_elsewhere(
    run: Any, python: Any, wheel: Path, environment: Callable[[], Path], tmp_path: Path
) -> None:
    """Fails when blocklaws works only beside its checkout."""
    folder = environment()
    install(python, folder, wheel)
    probed = run(folder / "python", "-c", PROBE, cwd=tmp_path)
    assert probed.returncode == 0, probed.stderr
    assert Path(probed.stdout.strip()).is_relative_to(folder.parent)
    listed = run(folder / "blocklaws", "list", "blocks", cwd=tmp_path)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "llama" in listed.stdout
    checked = run(folder / "python", "-m", "mypy", "-c", "import blocklaws.config", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_an_editable_installation_works_from_a_folder_of_any_name(
    root: Path, run: Any, python: Any, environment: Callable[[], Path], tmp_path: Path
) -> None:
    """Fails when the checkout must have a particular name, or when two names make two copies of a module."""
    copy = tmp_path / ODD_NAME
    shutil.copytree(root, copy, ignore=NOT_COPIED)
    folder = environment()
    install(python, folder, "-e", copy)
    probed = run(folder / "python", "-c", PROBE, cwd=tmp_path)
    assert probed.returncode == 0, probed.stderr
    assert Path(probed.stdout.strip()) == copy / "blocklaws"
    listed = run(folder / "blocklaws", "list", "blocks", cwd=tmp_path)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "llama" in listed.stdout
    for room in ("spec", "backends"):
        # In the checkout's root the rooms can be imported under their own names; a guard says what to write instead.
        refused = run(folder / "python", "-c", f"import {room}", cwd=copy)
        assert refused.returncode == 1
        assert f"blocklaws.{room}" in refused.stderr


@pytest.mark.slow
def test_a_repository_of_ones_own(
    run: Any, python: Any, wheel: Path, environment: Callable[[], Path], tmp_path: Path
) -> None:
    """Fails when what docs/in-your-repository.md says does not work from an installed wheel, in somebody's folder."""
    folder = environment()
    install(python, folder, wheel)
    # The path entry brings the modules of the dependencies and not their scripts.
    script = folder / "pytest"
    script.write_text(
        f"#!{folder / 'python'}\nimport sys\nimport pytest\nsys.exit(pytest.main())\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["--strict-markers", "--strict-config"]\nfilterwarnings = ["error"]\n',
        encoding="utf-8",
    )

    def run_here(command: str, *arguments: str, **options: Any) -> Any:
        options["env"]["PATH"] = os.pathsep.join([str(folder), os.environ["PATH"]])
        return run(folder / command, *arguments, **options)

    problems = follow("in-your-repository", repository, run_here)
    assert not problems, "\n\n".join(problems)
    where = run(folder / "python", "-c", "import blocklaws; print(blocklaws.__file__)", cwd=repository)
    assert Path(where.stdout.strip()).is_relative_to(folder.parent)
