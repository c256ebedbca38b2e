"""A world in an ``.npz`` file: the arrays of one failure, to be looked at with NumPy and replayed as they stand.

Must hold: nothing in a file is ever unpickled; sizes are read and bounded before an array is, and names, shapes and
dtypes are those of the case before a block sees them; a damaged or a foreign file is one clear line. bfloat16, which
NumPy does not know by itself, is stored as its bits (uint16).
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

import blocklaws
from blocklaws.checking import Case
from blocklaws.errors import BlocklawsError, one_line
from blocklaws.files import write_bytes
from blocklaws.stored_failures import check_case
from blocklaws.worlds import Recipe, World, as_dtype

__all__ = ["SavedWorld", "is_saved_world", "read_world", "write_world"]

FORMAT = 1
_MOST_BYTES = 2**28
_MOST_ARRAYS = 64
_PARAMETERS = "parameters."
_TEXTS = ("blocklaws", "config", "case")


@dataclasses.dataclass(frozen=True)
class SavedWorld:
    """What a file holds.

    Attributes:
        path: the file.
        case: the failing case, as a report has it.
        config: the config of its block.
        arrays: ``input``, ``cotangent`` and ``parameters.NAME``, as they are stored.
    """

    path: str
    case: Mapping[str, Any]
    config: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def given_to(self, case: Case, recipe: Recipe) -> Case:
        """Return a case whose world of that recipe has the arrays of the file.

        Raises:
            BlocklawsError: they are not those of such a world.
        """
        like = case.world(recipe)
        if like.config.as_dict() != dict(self.config):
            raise BlocklawsError(
                f"{self.path}: its config is not that of block {case.kind.name!r} of the spec, which has changed since"
            )
        wanted = _arrays(like)
        if set(wanted) != set(self.arrays):
            odd = sorted(set(wanted) ^ set(self.arrays))
            raise BlocklawsError(f"{self.path}: is damaged: it lacks, or has too much, the array {odd[0]!r:.80}")
        given = {}
        for name, value in self.arrays.items():
            if value.shape != wanted[name].shape or value.dtype != wanted[name].dtype:
                raise BlocklawsError(
                    f"{self.path}: is damaged: {name} is {value.dtype}{list(value.shape)}, and a world of this case "
                    f"has {wanted[name].dtype}{list(wanted[name].shape)}"
                )
            given[name] = value.view(as_dtype(like.dtype)) if like.dtype == "bfloat16" else value
        world = like.replace(
            input=given["input"],
            cotangent=given["cotangent"],
            parameters={name: given[_PARAMETERS + name] for name in like.parameters},
        )
        fields = {field.name: getattr(case, field.name) for field in dataclasses.fields(Case)}
        return _WithWorld(**fields, given=world)

    def is_of_its_recipe(self, world: World) -> bool:
        """Whether the arrays are those that the recipe gives: a test can then do without the file."""
        wanted = _arrays(world)
        return set(wanted) == set(self.arrays) and all(
            value.dtype == wanted[name].dtype and np.array_equal(value, wanted[name], equal_nan=value.dtype.kind == "f")
            for name, value in self.arrays.items()
        )


@dataclasses.dataclass(frozen=True)
class _WithWorld(Case):
    """A case in which one recipe stands for given arrays."""

    given: World | None = None

    def world(self, recipe: Recipe) -> World:
        """Return the given world for its own recipe; others are filled as ever."""
        return self.given if self.given is not None and recipe == self.given.recipe else super().world(recipe)


def _arrays(world: World) -> dict[str, np.ndarray]:
    """Return the arrays of a world by the names that they have in a file."""
    arrays = {"input": world.input, "cotangent": world.cotangent}
    arrays |= {_PARAMETERS + name: value for name, value in world.parameters.items()}
    return {name: value.view(np.uint16) if world.dtype == "bfloat16" else value for name, value in arrays.items()}


def write_world(path: Path | str, case: Mapping[str, Any], world: World) -> None:
    """Write the world of a failing case.

    The file has ``input`` and ``cotangent`` [B, T, d_model], ``parameters.NAME``, ``position_offset``, ``seed``, and as
    JSON texts ``config``, ``case`` and ``blocklaws`` (version and format).
    """
    texts = {
        "blocklaws": {"version": blocklaws.__version__, "format": FORMAT},
        "config": world.config.as_dict(),
        "case": case,
    }
    numbers = {"position_offset": world.position_offset, "seed": world.recipe.seed}
    arrays: dict[str, np.ndarray] = {name: np.array(json.dumps(value)) for name, value in texts.items()}
    arrays |= {name: np.array(value, np.uint64) for name, value in numbers.items()}
    stream = io.BytesIO()
    # As numpy.savez does, which has no time of day in its files either.
    with zipfile.ZipFile(stream, "w") as archive:
        for name, value in {**arrays, **_arrays(world)}.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as member:
                npy.write_array(member, value.copy(order="C"), allow_pickle=False)
    write_bytes(path, stream.getvalue())


def is_saved_world(source: str) -> bool:
    """Whether what a user names is meant to be a saved world."""
    return source.endswith(".npz")


def read_world(path: Path | str) -> SavedWorld:
    """Read a saved world.

    Raises:
        BlocklawsError: the file cannot be read, or is none.
    """
    if not os.path.isfile(path):
        raise BlocklawsError(f"{path}: there is no such file")
    try:
        arrays = _read(path)
        if lacking := {*_TEXTS, "position_offset", "seed"} - set(arrays):
            raise BlocklawsError(f"{path}: is no saved world of blocklaws: it has no {sorted(lacking)[0]!r}")
        texts = {name: json.loads(str(arrays.pop(name)[()])) for name in _TEXTS}
        numbers = {name: int(arrays.pop(name)[()]) for name in ("position_offset", "seed")}
    except BlocklawsError:
        raise
    except OSError as error:
        raise BlocklawsError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:  # a stranger's bytes: zipfile, zlib, NumPy and ast each have exceptions of their own
        what = one_line(error, 120)
        raise BlocklawsError(f"{path}: is no saved world of blocklaws: {what or type(error).__name__}") from None
    header = texts["blocklaws"]
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise BlocklawsError(f"{path}: is no saved world of format {FORMAT}, which this blocklaws reads")
    if not isinstance(texts["config"], dict):
        raise BlocklawsError(f"{path}: is damaged: its config is no mapping")
    case = check_case(texts["case"], path)
    example = case["counterexample"]
    if any(example[name] != numbers[name] for name in numbers):
        raise BlocklawsError(f"{path}: is damaged: its position_offset or seed is not that of its case")
    return SavedWorld(str(path), case, texts["config"], arrays)


def _read(path: Path | str) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_ARRAYS or sum(member.file_size for member in members) > _MOST_BYTES:
            raise BlocklawsError(f"{path}: is no saved world: it is larger than any small world")
        if len({member.filename for member in members}) < len(members):
            raise BlocklawsError(f"{path}: is damaged: it has an array twice")
        return {member.filename.removesuffix(".npy"): _array(archive.read(member), path) for member in members}


def _array(content: bytes, path: Path | str) -> np.ndarray:
    stream = io.BytesIO(content)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
    shape, in_columns, dtype = read_header(stream)
    if dtype.hasobject:
        raise BlocklawsError(f"{path}: is no saved world: it has pickled objects, which are never read")
    rest = stream.read()
    if dtype.itemsize * math.prod(shape) != len(rest) or not dtype.isnative:
        raise BlocklawsError(f"{path}: is damaged: an array is not as long as it says")
    values = np.frombuffer(rest, dtype) if rest else np.empty(0, dtype)
    return values.reshape(shape, order="F" if in_columns else "C").copy()
