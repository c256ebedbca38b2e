"""The scenes of the terminal that are kept word for word, one file each in ``snapshots/``.

``python tests/terminal_scenes.py`` shows how the scenes differ from their files, and ends with status 1 where they do.
``--write`` writes the files anew, after a change that means to look otherwise; read the difference before you commit
it. ``test_terminal.py`` compares and never writes.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from faces_support import (
    SPEC,
    invoke,
    scrubbed,
    write_broken,
    write_known,
    write_right,
    write_spec,
    write_wrong,
)

SNAPSHOTS = Path(__file__).with_name("snapshots")

#: More invariants that one wrong mask refutes, so that there is something to group.
GROUPED = (
    SPEC
    + """\
  - id: last-token-is-private
    says: The last token changes no other output row.
    where: T >= 2
    vary: {input: {tokens: "T-1", by: fresh}}
    then: identical(after.output[:, :T-1], output[:, :T-1])
    refuted_by: [mask-off-by-one]
  - id: parity
    says: The output is that of the reference.
    then: calibrated(output, reference.output, recipe.output)
    refuted_by: [mask-off-by-one]
"""
)
LLAMA = ("--spec", "spec.yaml", "--block", "llama")
TWO_BLOCKS = (*LLAMA, "--block", "gpt", "--dtype", "float32")
UNTRACED = "return self.right(x, position_offset) + (x.sum(axis=1, keepdims=True) if x.shape[1] > 1 else 0)"


def shown(*arguments: str, columns: int = 100) -> str:
    """Return what a command prints on standard output, without what changes from run to run."""
    done = invoke(*arguments, columns=columns)
    return scrubbed(done.stdout) + (f"--- standard error\n{scrubbed(done.stderr)}" if done.stderr else "")


def violated(folder: Path, columns: int, *options: str) -> str:
    """Two backends, one wrong."""
    write_spec(folder, GROUPED)
    return shown("verify", write_broken(folder), write_right(folder), *TWO_BLOCKS, *options, columns=columns)


def holds(folder: Path) -> str:
    """Everything holds that can be checked."""
    arguments = ("verify", write_right(folder), *LLAMA, "--dtype", "float32", "--profile", "quick", "--seed", "7")
    return shown(*arguments)


def raises(folder: Path, *options: str) -> str:
    """A block that raises, with the sizes of the example in its message."""
    write_spec(folder, GROUPED)
    wrong = write_wrong(folder, "raise ValueError(f'{x.shape[0]} x {x.shape[1]} is too much')")
    return shown("verify", wrong, *LLAMA, *options)


def untraced(folder: Path) -> str:
    """A wrong block that shows no stages."""
    return shown("verify", write_wrong(folder, UNTRACED), *LLAMA, "--dtype", "float32", columns=80)


def known(folder: Path) -> str:
    """A failure that is expected, and one that is not there any more."""
    write_known(folder, "no-look-ahead", "gradient-is-finite")
    return shown("verify", write_broken(folder), *LLAMA, "--known-failures", "known.yaml")


def nothing_checked(folder: Path) -> str:
    """A backend that can show nothing of what is asked."""
    return shown("verify", write_right(folder), *LLAMA, "--invariant", "gradient-is-finite")


def interrupted(folder: Path) -> str:
    """A run that is ended from the keyboard, with the files it has written by then."""
    wrong = write_wrong(folder, "raise KeyboardInterrupt")
    options = ("--no-isolate", "--json", "report.json")
    text = shown("verify", write_broken(folder), wrong, *LLAMA, "--dtype", "float32", *options)
    return text + ("report.json is there\n" if (folder / "report.json").exists() else "")


def unwritten(folder: Path) -> str:
    """A report that finds no room on its device."""
    return shown("verify", write_right(folder), *LLAMA, "--dtype", "float32", "--quiet", "--json", "/dev/full")


def replayed(folder: Path) -> str:
    """One failure again, from the report."""
    shown("verify", write_broken(folder), *LLAMA, "--dtype", "float32", "--json", "report.json")
    return shown("replay", "report.json", columns=80)


def compared(folder: Path, *options: str) -> str:
    """A backend that was right and is wrong now, in fewer blocks."""
    write_spec(folder, GROUPED)
    write_right(folder, "mine.py")
    shown("verify", "mine.py:Backend", *TWO_BLOCKS, "--json", "old.json")
    (folder / "mine.py").unlink()
    write_broken(folder, "mine.py")
    shown("verify", "mine.py:Backend", *LLAMA, "--dtype", "float32", "--profile", "quick", "--json", "new.json")
    return shown("compare", "old.json", "new.json", columns=80)


#: name of the file -> how the scene is made, in a folder of its own that has ``spec.yaml``.
SCENES: dict[str, Callable[[Path], str]] = {
    "violated-120": lambda folder: violated(folder, 120),
    "violated-80": lambda folder: violated(folder, 80),
    "violated-60": lambda folder: violated(folder, 60),
    "violated-quiet": lambda folder: violated(folder, 100, "--quiet"),
    "violated-verbose": lambda folder: violated(folder, 100, "--verbose"),
    "holds": holds,
    "raises": raises,
    "raises-quiet": lambda folder: raises(folder, "--quiet"),
    "untraced": untraced,
    "known": known,
    "nothing-checked": nothing_checked,
    "interrupted": interrupted,
    "unwritten": unwritten,
    "replayed": replayed,
    "compared": compared,
}


@contextlib.contextmanager
def stage() -> Iterator[Path]:
    """Give a folder of its own, which is the working folder meanwhile."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        write_spec(Path(name))
        yield Path(name)


def kept(name: str) -> str:
    """Return the text that is kept of a scene; empty where it is new."""
    path = SNAPSHOTS / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main(write: bool) -> int:
    """Show, or write, what differs."""
    status = 0
    for name, scene in SCENES.items():
        with stage() as folder:
            text = scene(folder)
        if text == kept(name):
            continue
        sys.stdout.writelines(
            difflib.unified_diff(kept(name).splitlines(True), text.splitlines(True), f"kept {name}", f"now {name}")
        )
        status = 1
        if write:
            SNAPSHOTS.mkdir(exist_ok=True)
            (SNAPSHOTS / f"{name}.txt").write_text(text, encoding="utf-8")
    stale = sorted(path.name for path in SNAPSHOTS.glob("*.txt") if path.stem not in SCENES)
    if stale:
        print(f"no scene has the name of {', '.join(stale)}")
    return 0 if write else status or int(bool(stale))


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
