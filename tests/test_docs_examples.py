"""The pages that teach by example: a reader who makes their files and types their commands sees what they show.

Must hold: a page is followed from its top to its end in one folder. ``<!-- file: NAME -->`` before a fenced block (or
``wrong``, for a spec that is refused) writes it, ``<!-- change: NAME -->`` before a ``diff`` applies it, a
``shell-session`` is typed and its output compared. Every invariant of a page holds and refutes the faults it names,
every ``<!-- part -->`` of one is read, every ``<!-- mistake -->`` gives the message that is shown below it. Numbers,
ids and places of the built-in spec may differ from the page: they change with every change of the spec.
Must not: know what the pages say.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blocklaws.discovery import registered
from blocklaws.errors import BlocklawsError, SpecError
from blocklaws.fixture_reading import fixture_names
from blocklaws.invariant_reading import read_invariant
from blocklaws.kill_matrix import run_faults
from blocklaws.planning import properties_of
from blocklaws.running import verify
from blocklaws.spec_reading import load_spec

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = (
    "writing-a-backend", "writing-an-invariant", "reading-a-failure", "specs", "reports", "parallel",
    "in-your-repository",
)  # fmt: skip

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>\w+)(?:: (?P<name>[\w./-]+))? -->\n)?```(?P<language>[\w-]*)\n(?P<text>.*?)^```$", re.M | re.S
)
_HEAD = "extends: blocklaws\ninvariants:\n  - id: mine\n    says: A rule of mine.\n"
_RUNS = ("blocklaws", "pytest", "python", "cp", "cat")


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block of a page: the mark before it, its language and text, and its first line."""

    mark: str
    name: str
    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in their order."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [
        Block(
            found["mark"] or "",
            found["name"] or "",
            found["language"],
            found["text"],
            text.count("\n", 0, found.start("text")) + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


def changed(text: str, diff: str) -> str:
    """Return a text after a diff without line numbers: what it shows as old is found and replaced by the new.

    Raises:
        LookupError: they are not there, or more than once.
    """
    for hunk in re.split(r"^@@.*\n", diff, flags=re.M):
        lines = hunk.splitlines()
        old, new = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
        if text.count(old) != 1:
            raise LookupError(f"these lines are there {text.count(old)} times:\n{old}")
        text = text.replace(old, new)
    return text


@dataclasses.dataclass(frozen=True)
class Typed:
    """A command of a session and what is shown to follow it."""

    command: str
    shown: str

    @property
    def status(self) -> int:
        """The exit status that goes with what is shown."""
        if told := re.findall(r"^exit status (\d+)", self.shown, re.M):
            return int(told[-1])
        if re.search(r"^blocklaws: ", self.shown, re.M):
            return 2
        return int(bool(re.search(r"still (violated|in error)|^(VIOLATED|ERROR) |\d failed", self.shown, re.M)))


def session(text: str) -> Iterator[Typed]:
    """Yield the commands of a session."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        yield Typed(re.sub(r"\s+#\s.*$", "", command), shown)


def words(text: str) -> list[str]:
    """Return the words of an output, with places of the built-in spec as they are in a checkout."""
    return re.sub(r"[^\s('\"]*/(?=spec/\w+\.yaml)", "", text).split()


def plain(word: str) -> str:
    """Return a word without what may differ: ids, digests, numbers, and the plural that goes with one."""
    if re.fullmatch(r"\(?[0-9a-f]{8}\)?,?|[0-9a-f]{10}(\.json)?", word):
        return "ID"
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", word)


def missing(shown: str, printed: str) -> tuple[str, dict[str, str]]:
    """Return the first part of what is shown that was not printed, and shown id -> printed id; parts end at ``...``."""
    ids: dict[str, str] = {}
    got = words(printed)
    bare, start = [plain(word) for word in got], 0
    for part in re.split(r"^ *\.\.\.$", shown, flags=re.M):
        wanted = words(part)
        like = [plain(word) for word in wanted]
        found = next((at for at in range(start, len(bare) - len(like) + 1) if bare[at : at + len(like)] == like), None)
        if found is None:
            return part, ids
        ids |= {old: new for old, new in zip(wanted, got[found:], strict=False) if plain(old) == "ID"}
        start = found + len(like)
    return "", ids


def make(block: Block, folder: Path) -> None:
    """Write or change the file that a block is about, if it is about one."""
    file = folder / block.name
    if block.mark in ("file", "wrong"):
        file.write_text(block.text, encoding="utf-8")
    elif block.mark == "change":
        file.write_text(changed(file.read_text(encoding="utf-8"), block.text.rstrip("\n")), encoding="utf-8")


def follow(page: str, folder: Path, run: Callable[..., Any]) -> list[str]:
    """Follow a page in a folder; return what went otherwise than it says."""
    problems: list[str] = []
    ids: dict[str, str] = {}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in blocks(page):
        at = f"docs/{page}.md:{block.line}"
        make(block, folder)
        if block.language == "shell-session":
            for typed in session(block.text):
                typing = [ids.get(word, word) for word in shlex.split(typed.command)]
                assert typing[0] in _RUNS, f"{at}: {typed.command}: not a command that pages may show"
                done = run(*typing, cwd=folder, env={"PATH": path})
                printed = done.stdout + done.stderr
                part, more = missing(typed.shown, printed)
                ids |= more
                if part or done.returncode != typed.status or "Traceback" in done.stderr:
                    problems.append(
                        f"{at}: {typed.command}: exit status {done.returncode}\nshown: {part}\nbut: {printed}"
                    )
    return problems


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_followed(page: str, run: Callable[..., Any], root: Path, tmp_path: Path) -> None:
    """Fails when a reader who types what a page shows sees something else."""
    shutil.copytree(root / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    problems = follow(page, tmp_path, run)
    assert not problems, "\n\n".join(problems)


def specs() -> list[Any]:
    """Return (page, spec file) of every spec file of the pages."""
    found = [(page, block) for page in PAGES for block in blocks(page)]
    return [
        pytest.param(page, block, id=f"{page}-{block.name}")
        for page, block in found
        if block.mark == "file" and block.language == "yaml" and "invariants:" in block.text
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), specs())
def test_the_invariants_of_a_page_hold_and_refute(page: str, block: Block, tmp_path: Path) -> None:
    """Fails when an invariant that readers copy is wrong, or catches less than it claims."""
    for each in blocks(page):
        if each.name.endswith(".yaml"):
            make(each, tmp_path)
    file = tmp_path / block.name
    own = [one for one in load_spec(file).invariants.values() if one.place.file == str(file)]
    assert own
    report = verify("numpy", spec=file, invariants=[one.id for one in own], profile="quick")
    assert [(case.id, case.reason) for case in report.failures] == []
    assert {case.invariant for case in report.cases if case.verdict == "holds"} == {one.id for one in own}
    for one in own:
        if one.refuted_by:
            matrix = run_faults(
                ["numpy"], spec=str(file), invariants=[one.id], faults=one.refuted_by, profile="quick", claims_only=True
            )
            assert set(one.refuted_by) <= matrix.kills_of(one.id), f"{one.id}: {matrix.untrue} {matrix.unmet}"


def fragments() -> list[Any]:
    """Return (page, fragment of an invariant, the message that is shown below it or nothing)."""
    found = []
    for page in PAGES:
        here = blocks(page)
        for number, block in enumerate(here):
            if block.mark in ("part", "mistake"):
                message = here[number + 1].text if block.mark == "mistake" else ""
                found.append(pytest.param(page, block, message, id=f"{page}-{block.line}"))
    return found


def invariant_of(fragment: str, folder: Path) -> Path:
    """Write a spec file that has an invariant with the fragment in it, after its id and what it says."""
    file = folder / "laws.yaml"
    body = "".join(f"    {line}\n" for line in fragment.splitlines())
    claims = re.search(r"^(then|than|property):", fragment, re.M)
    file.write_text(_HEAD + body + ("" if claims else "    then: finite(output)\n"), encoding="utf-8")
    return file


@pytest.mark.parametrize(("page", "block", "message"), fragments())
def test_a_fragment_is_read_or_refused_as_shown(page: str, block: Block, message: str, tmp_path: Path) -> None:
    """Fails when a key that a page shows is not a key, or a message that it quotes is not the message."""
    file = invariant_of(block.text, tmp_path)
    told = ""
    try:
        spec = load_spec(file)
        mine = spec.invariants["mine"]
        properties_of([mine])
        if block.mark == "mistake":
            report = verify(
                "numpy", spec=file, invariants=["mine"], blocks=["llama"], dtypes=["float64"], profile="quick"
            )
            told = report.cases[0].reason
    except (SpecError, BlocklawsError) as error:
        told = str(error)
    got, want = told.replace(str(file), "laws.yaml").split(), message.split()
    # Which world shows it first may change; where it stands may not.
    assert got[:1] == want[:1], f"docs/{page}.md:{block.line}: {told}"
    assert list(map(plain, got)) == list(map(plain, want)), f"docs/{page}.md:{block.line}: {told}"


def test_every_key_of_an_invariant_is_explained() -> None:
    """Fails when a key can be written and the page does not say what it means."""
    source = (DOCS / "writing-an-invariant.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^### .*$", source, re.M))))
    known = read_invariant.__globals__["_KEYS"]
    assert headings == set(known)


def test_a_difference_is_seen() -> None:
    """Fails when a page may show what was never printed."""
    printed = "blocklaws 0.1.0, spec a.yaml (0123abcd), 2 cases\nreplay blocklaws replay 0123456789\n2 cases: 1 hold"
    assert missing("replay blocklaws replay aaaaaaaaaa\n...\n7 cases: 3 hold", printed) == (
        "",
        {"aaaaaaaaaa": "0123456789"},
    )
    assert missing("7 cases: 3 violated", printed)[0]
    assert missing("2 cases: 1 hold\n...\nreplay", printed)[0]
    assert changed("a\nb\nc\n", " a\n-b\n+d") == "a\nd\nc\n"
    with pytest.raises(LookupError):
        changed("a\nb\n", "-c\n+d")
    assert [typed.status for typed in session("$ a # why\nexit status 1: x\n$ b\nblocklaws: no\n$ c\n1 passed")] == [
        1,
        2,
        0,
    ]


def test_what_the_founding_documents_gave_is_in_the_spec() -> None:
    """Fails when a rule or a number is said to be verified by something that is not there."""
    spec = load_spec()
    known = {*spec.invariants, *spec.faults, *spec.blocks, *fixture_names(), *registered("measurements")}
    named = set(
        re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", (DOCS / "founding-documents.md").read_text(encoding="utf-8"))
    )
    assert named - known == set()
    assert {one.id for one in spec.invariants.values() if one.property_name == "fixtures"} <= named
