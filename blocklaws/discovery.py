"""Finds a backend or a property by the name that the user gave.

A backend is named by a registered name (``torch``), ``package.module:attribute``, ``path/to/file.py:attribute``, or a
mapping file (``path/to/mapping.yaml``); whole models by the name of their family, or by ``FAMILY:MODEL``. Must hold:
whatever goes wrong is one `BackendError` that says what was looked for and what to do. Must not: import anything that
was not named.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from blocklaws.errors import BackendError, BlocklawsError, did_you_mean, missing_module, one_line
from blocklaws.models.subject import subject_of
from blocklaws.subjects import Subject

__all__ = [
    "check_databases",
    "find_measurement",
    "find_property",
    "find_search",
    "find_subjects",
    "is_own",
    "registered",
]


@functools.cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return name -> entry point of the group ``blocklaws.<group>``: ours and those of other distributions."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"blocklaws.{group}"):
        found.setdefault(point.name, point)
    return dict(sorted(found.items()))


def find_subjects(name: str) -> list[Subject]:
    """Return what a name stands for: one backend, or the several variants of a mapping file or a family of models.

    Raises:
        BackendError: it cannot be found, imported or used.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not os.path.isfile(path):
            raise BackendError(f"backend {name!r}: there is no such mapping file")
        loader = _load(registered("mappings")["layer"], name)
        loaded = loader(path)
        return [Subject(backend, name) for backend in (loaded if isinstance(loaded, list) else [loaded])]
    points = registered("backends")
    if name in points:
        return [Subject(_load(points[name], name), name)]
    models, (family, _, chosen) = registered("models"), name.partition(":")
    if family in models:
        return [subject_of(backend, name) for backend in _load(models[family], name)(chosen)]
    module_name, separator, attribute = name.rpartition(":")
    if not separator:
        path = Path(name)
        if path.suffix == ".py" or os.path.isfile(path):
            raise BackendError(f"backend {name!r} names a file but no attribute in it; write {name}:NAME")
        raise BackendError(
            f"unknown backend {name!r}{did_you_mean(name, [*points, *models])}; "
            f"a backend is a registered name ({', '.join([*points, *models])}), "
            "package.module:attribute, path/to/file.py:attribute, or a mapping file (.yaml)"
        )
    module = _import_file(Path(module_name), name) if module_name.endswith(".py") else _import_module(module_name, name)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [word for word in vars(module) if not word.startswith("_")]
            raise BackendError(f"backend {name!r}: {module_name} has no attribute {part!r}{did_you_mean(part, public)}")
        target = getattr(target, part)
    return [subject_of(target, name)]


def is_own(name: str) -> bool:
    """Whether a name stands for one of blocklaws' own adapters, which are tested to keep to themselves."""
    point = registered("backends").get(name) or registered("models").get(name.partition(":")[0])
    return (name if point is None else point.value).startswith("blocklaws.backends.")


def find_property(name: str) -> Any:
    """Return the registered property of a name, made.

    Raises:
        BlocklawsError: there is none of that name.
    """
    return _named("property", "properties", name)()


def find_measurement(name: str) -> Any:
    """Return the registered measurement of a name.

    Raises:
        BlocklawsError: there is none of that name.
    """
    return _named("measurement", "measurements", name)


def find_search() -> Any:
    """Return the registered search: what draws examples and shrinks the failing one."""
    return _load(registered("searches")["hypothesis"], "hypothesis")


def check_databases(sources: Sequence[str]) -> None:
    """Open the databases of counterexamples, so that one which cannot be used is found before anything runs.

    Raises:
        BlocklawsError: one cannot be used.
    """
    _load(registered("databases")["hypothesis"], "hypothesis")(tuple(sources))


def _named(noun: str, group: str, name: str) -> Any:
    points = registered(group)
    if name not in points:
        raise BlocklawsError(f"unknown {noun} {name!r}{did_you_mean(name, points)}; there are {', '.join(points)}")
    return _load(points[name], name)


def _load(point: EntryPoint, name: str) -> Any:
    try:
        return point.load()
    except ImportError as error:
        raise BackendError(f"backend {name!r}: {missing_module(error)}") from None
    except (Exception, SystemExit) as error:
        raise BackendError(f"backend {name!r}: importing {point.value} {_where_raised(error)}") from None


def _import_module(module: str, name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        # A module beside the user, as with `python -m`.
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise BackendError(f"backend {name!r}: there is no module {error.name!r}") from None
        raise BackendError(f"backend {name!r}: {missing_module(error)}") from None
    except (Exception, SystemExit) as error:
        raise BackendError(f"backend {name!r}: importing {module} {_where_raised(error)}") from None


def _import_file(path: Path, name: str) -> Any:
    if not os.path.isfile(path):
        raise BackendError(f"backend {name!r}: there is no file {path}")
    stat = path.stat()
    # A file that was edited since is another module: `verify` may be called again in one session.
    version = abs(hash((str(path.resolve()), stat.st_mtime_ns, stat.st_size)))
    module_name = f"_blocklaws_backend_{path.stem}_{version:x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise BackendError(f"backend {name!r}: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    # A file may import its neighbours, as a script does.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, ModuleNotFoundError):
            raise BackendError(f"backend {name!r}: {missing_module(error)}") from None
        raise BackendError(f"backend {name!r}: importing {path} {_where_raised(error)}") from None
    return module


def _where_raised(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError):
        return f"fails: {error.msg} (line {error.lineno})"
    where = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    message = one_line(error, 300)
    return f"raised {type(error).__name__}: {message}{where}"
