"""A failure saved as arrays: the same failure when it is replayed, and nothing that a stranger's file could do.

Must hold: the arrays of the file are what the block is given, not those that the recipe would give; no pickle is read;
a damaged, truncated, foreign or huge file is one line and exit status 2.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces_support import invoke, write_broken, write_right, write_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LLAMA = ("--spec", "spec.yaml", "--block", "llama")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


def save(folder: Path, dtype: str = "float32") -> Path:
    """Save the world of a failure in that dtype; return the file."""
    write_broken(folder)
    path = folder / "broken.py"
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace('("float64", "float32")', f'("{dtype}",)'), encoding="utf-8")
    assert f'"{dtype}"' in path.read_text(encoding="utf-8")
    assert invoke("verify", "broken.py:Backend", *LLAMA, "--json", "report.json").exit_code == 1
    done = invoke("replay", "report.json", "--save-world", "world.npz")
    assert done.exit_code == 1
    assert done.stdout.endswith("\nwrote world.npz; replay it with: blocklaws replay world.npz\n")
    return folder / "world.npz"


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write the file anew with its arrays changed."""
    with np.load(path) as stored:
        arrays = dict(stored)
    change(arrays)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    path.write_bytes(stream.getvalue())


def with_text(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    """Return a change of one of the JSON texts."""

    def changed(arrays: dict[str, Any]) -> None:
        data = json.loads(str(arrays[name]))
        change(data)
        arrays[name] = np.array(json.dumps(data))

    return changed


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_saved_world_replays_the_same_failure(folder: Path, dtype: str) -> None:
    """Fails when the failure of the file is another one, or a dtype loses its values on the way."""
    save(folder, dtype)
    told = [invoke("replay", source).stdout for source in ("report.json", "world.npz")]
    assert told[1] == told[0].replace("blocklaws replay report.json", "blocklaws replay world.npz")
    assert "still violated" in told[1]


def test_what_is_in_the_file(folder: Path) -> None:
    """Fails when somebody who opens the file with NumPy does not find the world."""
    with np.load(save(folder), allow_pickle=False) as stored:
        assert stored["input"].shape == stored["cotangent"].shape == (1, 2, 4)
        assert stored["input"].dtype == np.float32
        assert stored["parameters.attention.query"].shape == (4, 4)
        assert (int(stored["seed"]), int(stored["position_offset"])) == (0, 0)
        assert json.loads(str(stored["config"]))["d_ff"] == 3
        assert json.loads(str(stored["case"]))["invariant"] == "no-look-ahead"
    first = (folder / "world.npz").read_bytes()
    assert invoke("replay", "report.json", "--save-world", "world.npz").exit_code == 1
    assert (folder / "world.npz").read_bytes() == first, "the same failure, the same bytes"


def test_the_arrays_of_the_file_are_what_is_replayed(folder: Path) -> None:
    """Fails when a replay draws the recipe's arrays and the file is only for show."""
    path = save(folder)
    before = invoke("replay", "world.npz").stdout
    rewritten(path, lambda arrays: arrays.update(input=arrays["input"] * 0.5))
    after = invoke("replay", "world.npz")
    assert after.exit_code == 1
    assert after.stdout != before
    # One token cannot be seen in a world whose input is what the block multiplies with nothing.
    rewritten(path, lambda arrays: arrays.update({"parameters.attention.output": np.zeros((4, 4), np.float32)}))
    done = invoke("replay", "world.npz")
    assert (done.exit_code, done.stdout) == (0, "no-look-ahead on broken, llama, float32: holds now\n")


def test_a_test_of_a_saved_world(folder: Path, python: Any) -> None:
    """Fails when the test shows another world than the file, or none is written of a world that its recipe gives."""
    path = save(folder)
    done = invoke("replay", "world.npz", "--as-test", "test_mine.py")
    assert done.exit_code == 1
    assert "wrote test_mine.py" in done.stdout
    run = python("-m", "pytest", "-q", "test_mine.py", cwd=folder)
    assert run.returncode == 1
    assert "VIOLATED no-look-ahead" in run.stdout
    (folder / "broken.py").unlink()
    write_right(folder, "broken.py")
    assert python("-m", "pytest", "-q", "test_mine.py", cwd=folder).returncode == 0
    rewritten(path, lambda arrays: arrays.update(input=arrays["input"] * 0.5))
    done = invoke("replay", "world.npz", "--as-test", "test_other.py")
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "blocklaws: world.npz: its arrays are not those of its recipe, so a test without them "
    )
    assert not (folder / "test_other.py").exists()


def refused(path: Path) -> str:
    """Replay a file that must be refused; return the one line that is told."""
    done = invoke("replay", path.name)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.startswith("blocklaws: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("blocklaws: ").rstrip("\n")


class Trap:
    """A pickle that leaves a mark when it is loaded."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize("name", ["input", "case", "parameters.attention.query"])
def test_a_pickle_is_never_read(folder: Path, name: str) -> None:
    """Fails when a file from a stranger can run code."""
    path = save(folder)
    rewritten(path, lambda arrays: arrays.update({name: np.array(Trap(), dtype=object)}))
    assert refused(path) == "world.npz: is no saved world: it has pickled objects, which are never read"
    path.write_bytes(pickle.dumps(Trap()))
    assert "is no saved world of blocklaws: " in refused(path)
    assert not (folder / "sprung").exists()
    pickle.loads(pickle.dumps(Trap()))
    assert (folder / "sprung").exists(), "the trap works"


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no case": (lambda arrays: arrays.pop("case"), "is no saved world of blocklaws: it has no 'case'"),
    "another format": (with_text("blocklaws", lambda data: data.update(format=2)), "is no saved world of format 1"),
    "no JSON": (lambda arrays: arrays.update(case=np.array("{")), "is no saved world of blocklaws: "),
    "no text": (lambda arrays: arrays.update(config=np.zeros(3)), "is no saved world of blocklaws: "),
    "a config that is none": (lambda arrays: arrays.update(config=np.array("[]")), "its config is no mapping"),
    "another config": (with_text("config", lambda data: data.update(d_ff=9)), "the spec, which has changed since"),
    "another seed": (lambda arrays: arrays.update(seed=np.array(7)), "seed is not that of its case"),
    "a damaged case": (with_text("case", lambda data: data.pop("block")), "the case is damaged: 'block' is a required"),
    "an array too few": (lambda arrays: arrays.pop("input"), "it lacks, or has too much, the array 'input'"),
    "an array too many": (lambda arrays: arrays.update(x=np.zeros(1)), "or has too much, the array 'x'"),
    "another shape": (lambda arrays: arrays.update(input=np.zeros((1, 3, 4), np.float32)), "input is float32[1, 3, 4]"),
    "another dtype": (lambda arrays: arrays.update(input=np.zeros((1, 2, 4))), "input is float64[1, 2, 4]"),
    "texts": (lambda arrays: arrays.update(input=np.array([["x"]])), "input is <U1[1, 1], and a world"),
    "the other byte order": (
        lambda arrays: arrays.update(input=arrays["input"].astype(">f4")), "an array is not as long as it says",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_changed_file_is_refused(folder: Path, name: str) -> None:
    """Fails when a world that its case could not have reaches a block."""
    change, told = DAMAGE[name]
    path = save(folder)
    rewritten(path, change)
    assert told in refused(path)


def test_a_file_that_is_no_archive(folder: Path) -> None:
    """Fails when what is there is read as something that it is not."""
    path = folder / "world.npz"
    assert refused(path) == "world.npz: there is no such file"
    path.write_bytes(b"")
    assert "is no saved world of blocklaws: " in refused(path)
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    assert "is no saved world of blocklaws: " in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "is no saved world of blocklaws: " in refused(path)
    done = invoke("replay", "world.npz", "0123456789")
    assert "a saved world is of one failure; leave the id '0123456789' out" in done.stderr


def test_a_huge_file_is_refused_before_it_is_read(folder: Path) -> None:
    """Fails when a few bytes make the command fill the memory."""
    path = folder / "world.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("input.npy", "w") as member:
        for _ in range(257):
            member.write(bytes(2**20))
    assert refused(path) == "world.npz: is no saved world: it is larger than any small world"
    header = np.lib.format.magic(1, 0) + b"\x76\x00"
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000, 1000), }"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("input.npy", header + text.ljust(117).encode() + b"\n" + bytes(8))
    assert refused(path) == "world.npz: is damaged: an array is not as long as it says"


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_file_with_wrong_bytes_is_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Fails when some damage ends in a traceback."""
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not (folder / "world.npz").exists():
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            write_spec(folder)
            save(folder)
    content = bytearray((folder / "world.npz").read_bytes())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1), label="length")]
    for _ in range(data.draw(st.integers(0, 4), label="changes")):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "bad.npz").write_bytes(bytes(content))
        done = invoke("replay", "bad.npz")
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1, 2)
    if done.exit_code == 2 and done.stderr:
        assert done.stderr.startswith("blocklaws: ")
        assert done.stderr.count("\n") == 1
