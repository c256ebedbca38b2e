"""The documents keep their word: what they show is run, what they link to is there, what they quote can be read.

Must hold: each command of a ``console`` or ``sh`` block is run, checked to exist, or stands in NOT_RUN with a reason; a
command of a new kind is an error. The commands of one document run in their order in one copy of the checkout, so that
a later one may use what an earlier one made.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from blocklaws.spec_reading import load_spec

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)

#: The start of a command that is shown and not run -> why.
NOT_RUN = {
    "git clone": "there is no network",
    "git ": "would change the reader's repository",
    "cd ": "the commands run in the checkout already",
    "pip install": "installs; tests/test_packaging.py does that without a network",
    "python -m pip install": "installs; tests/test_packaging.py does that without a network",
    "python -m venv": "makes an environment; tests/test_packaging.py does that",
    ". .venv": "changes the reader's shell",
    "source .venv": "changes the reader's shell",
    "dask ": "starts what runs until it is ended; tests/test_schedulers.py does that",
    "blocklaws verify torch jax --scheduler": "needs what was started; tests/test_schedulers.py has it",
    "mpiexec ": "needs MPI; tests/test_schedulers.py runs it where there is one",
}

#: What the copy does not need.
NOT_COPIED = shutil.ignore_patterns("__pycache__", "build", "dist", "*.egg-info", ".*")


@dataclasses.dataclass(frozen=True)
class Fence:
    """A fenced block of a document: its language, its text, and the line of its first line."""

    language: str
    text: str
    line: int


def fences(text: str) -> Iterator[Fence]:
    """Yield the fenced blocks of a Markdown text."""
    for match in re.finditer(r"^( *)```([^\n`]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        indent, language, body = match.groups()
        body = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        yield Fence(language.split(" ")[0], body, text.count("\n", 0, match.start()) + 2)


@dataclasses.dataclass(frozen=True)
class Command:
    """A shown command, and what the document shows that it prints."""

    text: str
    shown: str
    line: int


def commands(fence: Fence) -> Iterator[Command]:
    """Yield the commands of a block: lines after ``$`` in ``console``, every line but comments in ``sh``."""
    lines = fence.text.replace("\\\n", " ").splitlines()
    if fence.language in ("sh", "bash", "shell"):
        for line in lines:
            if line.strip() and not line.startswith("#"):
                yield Command(bare(line), "", fence.line)
    elif fence.language == "console":
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield Command(bare(lines[start][2:]), "\n".join(lines[start + 1 : end]), fence.line)


def shown_commands(document: str) -> list[Command]:
    """Return the commands that a document shows, in their order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [command for fence in fences(text) for command in commands(fence)]


def bare(line: str) -> str:
    """Return a command without a comment after it and without doubled spaces."""
    return " ".join(re.sub(r"\s#\s.*$", "", line).split())


def targets(root: Path) -> set[str]:
    """Return the targets that the Makefile offers."""
    match = re.search(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert match
    return set(match.group(1).split())


def words_to_run(command: str) -> list[str] | None:
    """Return the words to run for a shown command, made small; None where its being there is enough.

    Raises:
        LookupError: the command is of a kind that nothing here covers.
    """
    if any(command.startswith(start) for start in NOT_RUN):
        return None
    words = shlex.split(command)
    if words[0] == "make":
        named = [word for word in words[1:] if "=" not in word]
        missing = set(named) - targets(ROOT)
        if missing:
            raise LookupError(f"the Makefile has no target {sorted(missing)}")
        return None
    if set(words) & {"|", "&&", ";", ">", "<", "||"}:
        raise LookupError("a command with an operator of the shell cannot be run here")
    if words[0] == "blocklaws":
        small = words[1:2] in (["verify"], ["faults"]) and "--help" not in words
        options = []
        if small and "--profile" not in words and words[1] == "verify":
            options += ["--profile", "quick"]
        if small and "--block" not in words and words[1] == "verify":
            options += ["--block", "llama"]
        return [*words, *options]
    if words[0] == "pytest":
        # The cases are run by other tests; here it counts that the call is understood and finds some.
        return [sys.executable, "-m", "pytest", *words[1:], "--collect-only", "-q", "-p", "no:cacheprovider"]
    if words[0] == "python" and len(words) > 1 and words[1] != "-m":
        return [sys.executable, *words[1:]]
    raise LookupError("a command of a kind that is neither run nor listed in NOT_RUN")


def expected_status(command: Command) -> int:
    """Return the exit status that goes with what a document shows: 1 where it shows a violation, 0 otherwise."""
    counts = re.findall(r"(\d+) violated", command.shown)
    return int(any(map(int, counts)) if counts else "violated" in command.shown.lower())


@pytest.mark.slow
@pytest.mark.parametrize("document", [document for document in DOCUMENTS if shown_commands(document)])
def test_shown_commands_run(document: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """Fails when a reader who types what a document shows gets an error."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    problems = []
    for command in shown_commands(document):
        try:
            words = words_to_run(command.text)
        except LookupError as error:
            problems.append(f"{document}:{command.line}: {command.text}: {error}")
            continue
        if words is None:
            continue
        # A pytest run would refuse a copy of the checkout that is not the installed one, and rightly so.
        done = run(*words, cwd=ROOT if "pytest" in words else copy, env={"PATH": path})
        if done.returncode != expected_status(command) or "Traceback" in done.stderr:
            tail = (done.stdout + done.stderr)[-600:]
            problems.append(f"{document}:{command.line}: {command.text}: exit status {done.returncode}\n{tail}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_snippets_can_be_read(document: str) -> None:
    """Fails when a snippet does not parse in its own language."""
    readers: dict[str, Callable[[str], object]] = {
        "python": lambda text: compile(text, document, "exec"),
        "yaml": lambda text: list(yaml.safe_load_all(text)),
        "toml": tomllib.loads,
        "json": json.loads,
    }
    for fence in fences((ROOT / document).read_text(encoding="utf-8")):
        if fence.language in readers:
            try:
                readers[fence.language](fence.text)
            except (SyntaxError, ValueError, yaml.YAMLError) as error:
                pytest.fail(f"{document}:{fence.line}: not {fence.language}: {error}")


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a Markdown text, as code hosts make them."""
    headings = re.findall(r"^#+ +(.*?) *#*$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: str, root: Path) -> list[str]:
    """Return the links of a document that lead nowhere; those to other hosts are not followed."""
    text = (root / document).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", prose):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (root / document).parent / name if name else root / document
        if not path.exists():
            broken.append(f"{document}: {target}: there is no such file")
        elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
            broken.append(f"{document}: {target}: there is no such heading")
    return broken


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document: str) -> None:
    """Fails when a reader is sent to a page or a heading that is not there."""
    assert broken_links(document, ROOT) == []


def test_the_readme_shows_the_two_commands() -> None:
    """Fails when a stranger cannot see how to verify and how to test."""
    shown = {" ".join(command.text.split()[:2]) for command in shown_commands("README.md")}
    assert {"make verify", "make test"} <= shown


def test_the_readme_counts_the_faults_of_today() -> None:
    """Fails when the README boasts of more faults than a built-in backend has, or the spec has outgrown it."""
    (told,) = re.findall(
        r"more\s+than\s+(\d+)\s+blocks\s+that\s+are\s+known\s+to\s+be\s+wrong", (ROOT / "README.md").read_text()
    )
    faults = load_spec().faults.values()
    counts = [
        sum(fault.backends is None or name in fault.backends for fault in faults) for name in ("numpy", "torch", "jax")
    ]
    assert int(told) < min(counts) <= int(told) + 20


# The checks above, shown what they are there for.


def test_every_kind_of_line_is_read() -> None:
    """Fails when a command in a document is overlooked, or output is taken for one."""
    text = "text\n\n```console\n$ make verify   # numpy\n2 violated\n$ blocklaws \\\n    list blocks\nllama\n```\n"
    text += "\n1. item\n   ```sh\n   # a comment\n   make test\n   ```\n"
    found = [command for fence in fences(text) for command in commands(fence)]
    assert [command.text for command in found] == ["make verify", "blocklaws list blocks", "make test"]
    assert [expected_status(command) for command in found] == [1, 0, 0]
    assert expected_status(Command("x", "12 holds, 0 violated, 1 unchecked", 1)) == 0


@pytest.mark.parametrize(
    ("command", "reason"),
    [("make nothing", "no target"), ("rm -r x", "neither run nor listed"), ("blocklaws list | cat", "operator")],
)
def test_an_unknown_command_is_an_error(command: str, reason: str) -> None:
    """Fails when a command that nobody ran can slip through."""
    with pytest.raises(LookupError, match=reason):
        words_to_run(command)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    """Fails when links are not looked at, or good ones are refused."""
    (tmp_path / "other.md").write_text("# One `two`, three\n", encoding="utf-8")
    text = "[a](other.md) [b](other.md#one-two-three) [c](https://example.org/x) `[d](code)` [e](#here)\n## Here\n"
    (tmp_path / "page.md").write_text(text + "[f](missing.md) [g](other.md#four)\n", encoding="utf-8")
    assert broken_links("page.md", tmp_path) == [
        "page.md: missing.md: there is no such file",
        "page.md: other.md#four: there is no such heading",
    ]
