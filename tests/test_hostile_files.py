"""YAML and arrays from anywhere: whatever was done to a file, its reader gives what it says or one clear error.

Must hold: real specs, faults, menus, mappings, known-failures files, worked examples, chapters and saved worlds are
changed at random, in their bytes and in their values. A reader ends soon, in data or in a `BlocklawsError` of one line.
What still reads is planned, so that a value nobody expects fails where it is read and not in the middle of a run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from faces_support import places
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import blocklaws
from blocklaws.backends.mapped import load_mapping
from blocklaws.chapter_reading import read_chapter
from blocklaws.fixture_reading import read_fixture
from blocklaws.known_failures import KnownFailures
from blocklaws.planning import Choice, plan, reference_subject
from blocklaws.saved_world import read_world
from blocklaws.spec_reading import load_spec

ROOT = Path(__file__).resolve().parent.parent

hostile = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

#: What YAML can say and nobody expects. Each is new: a value that two places shared would be written as an alias.
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(),
    st.sampled_from([0, -1, 2**31, 10**400, 1e308, [], {}, [[]], {"a": {}}, "", "T", "\x1b[2J", "../x", "a:b", "$"]),
    st.text(max_size=20),
).map(copy.deepcopy)  # fmt: skip

KNOWN = """
- {invariant: output-parity, backend: torch, block: llama, dtype: float16, version: torch < 2.4, reason: its kernel}
- {invariant: repeatable, device: cuda, reason: atomics}
"""


def _spec(file: Path) -> None:
    specification = load_spec(file)
    plan(specification, [reference_subject()], Choice((), (), (), "quick", 0))


def _known(file: Path) -> None:
    KnownFailures.load(file).check(load_spec(), [reference_subject()])


def _extended(*rooms: str) -> str:
    """Return a few entries of each room of the built-in spec, as a spec that extends it would override them."""
    said: dict[str, Any] = {"extends": "blocklaws"}
    for room in rooms:
        entries = yaml.safe_load((ROOT / "spec" / f"{room}.yaml").read_text(encoding="utf-8"))
        if room == "invariants":
            said[room] = [entry for entry in entries if entry["id"].startswith(("p", "c", "z"))]
        elif room == "worlds":
            said |= entries
        elif isinstance(entries, list):
            said[room] = entries[:6]
        else:
            said[room] = dict(list(entries.items())[:6])
    return yaml.safe_dump(said, sort_keys=False, width=119)


def _real(*parts: str) -> str:
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


#: What is read: a real text, and its reader.
KINDS: dict[str, tuple[Callable[[], str], Callable[[Path], Any]]] = {
    "invariants": (lambda: _extended("invariants"), _spec),
    "blocks": (lambda: _extended("blocks"), _spec),
    "faults": (lambda: _extended("faults"), _spec),
    "worlds": (lambda: _extended("worlds"), _spec),
    "tolerances": (lambda: _extended("tolerances"), _spec),
    "mapping": (lambda: _real("backends", "mappings", "torch_encoder.yaml"), load_mapping),
    "mapping with variants": (lambda: _real("backends", "mappings", "hf_gpt2.yaml"), load_mapping),
    "known failures": (lambda: KNOWN, _known),
    "fixture": (lambda: _smallest("fixtures"), lambda file: read_fixture("bad", file)),
    "chapter": (lambda: _smallest("chapters"), lambda file: read_chapter("bad", file)),
}


def _smallest(room: str) -> str:
    files = sorted((ROOT / "spec" / room).glob("*.yaml"), key=lambda file: file.stat().st_size)
    return files[0].read_text(encoding="utf-8")


def refused(act: Callable[[], Any]) -> bool:
    """Say whether something was refused. Fails where that is told in any way but one clear line."""
    try:
        act()
    except blocklaws.BlocklawsError as refusal:
        message = str(refusal)
    else:
        return False
    assert message.strip() == message
    assert not {"\n", "\x1b"} & set(message)
    assert "Traceback" not in message
    assert len(message) < 1_500
    return True


def read(kind: str, content: bytes, folder: Path) -> bool:
    """Read a file of some content; say whether it was taken."""
    file = folder / "bad.yaml"
    file.write_bytes(content)
    return not refused(lambda: KINDS[kind][1](file))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_changed_is_real(kind: str, tmp_path: Path) -> None:
    """Fails when the file that the other tests change is refused as it is: then they would test nothing."""
    assert read(kind, KINDS[kind][0]().encode(), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@hostile
@given(data=st.data())
def test_changed_values(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    """Fails when a value of the wrong kind, in any place, is trusted."""
    said = yaml.safe_load(KINDS[kind][0]())
    for _ in range(data.draw(st.integers(1, 2), label="changes")):
        everywhere = places(said)
        if not everywhere:
            break
        depth = data.draw(st.integers(1, max(map(len, everywhere))))
        path = data.draw(st.sampled_from([place for place in everywhere if len(place) <= depth]), label="place")
        holder = said
        for part in path[:-1]:
            holder = holder[part]
        change = data.draw(st.sampled_from(("gone", "value", "key")), label="change")
        if change == "gone":
            del holder[path[-1]]
        elif change == "value" or isinstance(holder, list):
            holder[path[-1]] = data.draw(ODD, label="value")
        else:
            key = data.draw(ODD.filter(lambda odd: not isinstance(odd, list | dict)), label="key")
            holder[key] = holder.pop(path[-1])
    read(kind, yaml.safe_dump(said, allow_unicode=True, sort_keys=False).encode("utf-8", "replace"), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@hostile
@given(data=st.data())
def test_changed_bytes(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    """Fails when a file that was cut, or has wrong bytes or lines in it, ends in a traceback."""
    content = bytearray(KINDS[kind][0]().encode())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content)), label="length")]
    if data.draw(st.booleans(), label="lines"):
        lines = content.splitlines(keepends=True)
        if lines:
            at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            lines.insert(to, lines[at] if data.draw(st.booleans()) else lines.pop(at))
        content = bytearray(b"".join(lines))
    for _ in range(data.draw(st.integers(0, 3), label="changes")):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read(kind, bytes(content), tmp_path)


FOREIGN = [
    b"", b"\x00", b"\xff\xfe\x00", b"\xef\xbb\xbf", b"&a [*a]", b"&a {b: *a}", b"!!python/object/apply:os.system [ls]",
    b"- !!binary x", b"? [a]\n: b", b"<<: {a: 1}", b"a: 1\na: 2", b"--- a\n--- b", b"[" * 5_000, b"a: " + b"{a: " * 500,
    b"a: |\n" + b" x\n" * 200_000, b"x" * 2_000_000, b"a: " + b"9" * 100_000, b"\ta: 1", b"a: 'x", b"extends: bad.yaml",
    b"extends: [bad.yaml, bad.yaml]", b"extends: /dev/zero", b"a: 2026-11-30", b"a: \"\\x1b[2J\"", b"%YAML 9.9\n--- a",
    b"a: &x 1\nb: *y", b"<html><body>404</body></html>", b'{"blocklaws": "1", "cases": []}', b"PK\x03\x04" + bytes(40),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", FOREIGN, ids=range(len(FOREIGN)))
def test_foreign_files(kind: str, content: bytes, tmp_path: Path) -> None:
    """Fails when a file of another kind is taken for one of ours, or holds its reader up."""
    taken = read(kind, content, tmp_path)
    # Nothing at all is a known-failures file whose last entry was removed.
    assert not taken or (kind == "known failures" and content.strip(b"\xef\xbb\xbf") == b"")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a saved world."""
    from blocklaws.replaying import world_of
    from blocklaws.saved_world import write_world

    file = tmp_path_factory.mktemp("saved") / "world.npz"
    case = {
        "invariant": "output-parity", "block": "llama", "backend": "numpy", "label": "numpy", "dtype": "float32",
        "counterexample": {
            "sizes": {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4},
            "pattern": "normal", "seed": 3, "position_offset": 0, "picks": {},
        },
    }  # fmt: skip
    write_world(file, case, world_of(case))
    return file.read_bytes()


@hostile
@given(data=st.data())
def test_changed_worlds(saved: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Fails when a saved world that was cut or changed ends in a traceback."""
    content = bytearray(saved)
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content)), label="length")]
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    file = tmp_path / "bad.npz"
    file.write_bytes(bytes(content))
    refused(lambda: read_world(file))
