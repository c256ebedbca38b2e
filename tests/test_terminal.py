"""What a run looks like: every scene of `terminal_scenes` word for word, and what no text can show.

Must hold: a failure is complete (place and sentence, claim, worst element, pattern, stage, world, replay, Python),
what is unchecked is counted with its reasons, and nothing breaks without colours, in a narrow window or in ASCII.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import terminal_scenes
from faces_support import invoke, scrubbed, write_broken, write_right, write_spec
from terminal_scenes import SCENES, SNAPSHOTS, kept

import blocklaws

ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


def shown(*arguments: str, columns: int = 100) -> str:
    """Return what `verify` prints, without what changes from run to run."""
    done = invoke("verify", *arguments, "--spec", "spec.yaml", "--block", "llama", columns=columns)
    assert done.stderr == ""
    return scrubbed(done.stdout)


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_looks_as_it_is_kept(folder: Path, name: str) -> None:
    """Fails when a report looks otherwise than its file in ``snapshots/``, meant or not.

    ``python tests/terminal_scenes.py`` shows all differences, and ``--write`` keeps them.
    """
    assert SCENES[name](folder) == kept(name)


def test_every_snapshot_has_its_scene() -> None:
    """Fails when a file is kept that nothing is compared with."""
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(SCENES)


def test_a_changed_scene_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Fails when the script that keeps the scenes would pass another text, or writes without being told to."""
    monkeypatch.setattr(terminal_scenes, "SNAPSHOTS", tmp_path / "snapshots")
    monkeypatch.setattr(terminal_scenes, "SCENES", {"one": lambda folder: "as it is now\n"})
    assert terminal_scenes.main(write=False) == 1
    assert "+as it is now" in capsys.readouterr().out
    assert not (tmp_path / "snapshots").exists()
    assert terminal_scenes.main(write=True) == 0
    assert terminal_scenes.main(write=False) == 0
    (tmp_path / "snapshots" / "two.txt").write_text("nobody's", encoding="utf-8")
    assert terminal_scenes.main(write=False) == 1


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_of_prose_is_wider_than_the_window(folder: Path, columns: int) -> None:
    """Fails when a narrow window breaks lines where it likes. What may be pasted is never broken."""
    text = terminal_scenes.violated(folder, columns)
    pasted = re.compile(r"    \w+ = |    from |    print|  replay|  claim|           ID")
    assert [line for line in text.splitlines() if len(line) > columns and not pasted.match(line)] == []


def test_commands_and_code_are_never_wrapped(folder: Path) -> None:
    """Fails when what a reader pastes has a line break in it."""
    narrow = shown(write_broken(folder), "--quiet", columns=30)
    wide = shown(write_broken(folder, "again.py"), "--quiet", columns=200).replace("again", "broken")
    for label in ("    example = ", "    result = ", "  replay   "):
        assert [line for line in narrow.splitlines() if line.startswith(label)] == [
            line for line in wide.splitlines() if line.startswith(label)
        ]


def test_the_snippet_of_a_failure_runs(folder: Path) -> None:
    """Fails when the Python under a failure does not run as it stands, or shows another failure."""
    text = invoke("verify", write_broken(folder), "--spec", "spec.yaml", "--block", "llama", "-q", columns=60).stdout
    after = text.split("  python\n", 1)[1].splitlines()
    code = "\n".join(line[4:] for line in after if line.startswith("    ") and not line.startswith("     "))
    assert code.count("\n") <= 5
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("violated 4 of 4 elements wrong, worst at (0, 0, 0): got 51.3164")


def test_a_failing_case_without_an_example_has_a_command_that_looks_again(folder: Path) -> None:
    """Fails when a block that cannot even be built is told with a replay that does not exist."""
    write_right(folder, "bad.py")
    with (folder / "bad.py").open("a", encoding="utf-8") as stream:
        stream.write("\n\nclass Bad(Backend):\n    def build(self, *given):\n        raise OSError('no compiler')\n")
    text = shown("bad.py:Bad", "--dtype", "float64", "--seed", "3", "-q")
    assert (
        "  replay   blocklaws verify bad.py:Bad --invariant no-look-ahead --block llama --dtype float64 --seed 3 "
        "--profile default --spec spec.yaml\n" in text
    )


def test_a_report_prints_its_failures(folder: Path) -> None:
    """Fails when somebody who calls `verify` from Python has to take the report apart to read it."""
    report = blocklaws.verify(write_broken(folder), spec="spec.yaml", blocks=["llama"], dtypes=["float64"])
    text = str(report)
    assert text.startswith(
        "VIOLATED no-look-ahead: backend broken, block llama, float64\n  says     spec.yaml:6: Changing"
    )
    assert text.endswith("\n\n3 cases: 1 holds, 1 violated, 1 unchecked, 0 error")


def test_unwritable_failures_cost_one_line(folder: Path) -> None:
    """Fails when a run is lost because its failures cannot be stored."""
    (folder / ".blocklaws").write_text("in the way", encoding="utf-8")
    done = invoke("verify", write_broken(folder), "--spec", "spec.yaml", "--block", "llama", "--dtype", "float64")
    assert done.exit_code == 1
    assert "  replay   blocklaws verify broken.py:Backend --invariant no-look-ahead --block llama" in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("blocklaws: failures are not stored in .blocklaws/failures: ")


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Run the command on a pseudo-terminal; return what it shows."""
    main, side = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "blocklaws", *arguments],
        stdin=side, stdout=side, stderr=side, env={**clean, "TERM": "xterm", **environment},
    )  # fmt: skip
    os.close(side)
    seen = io.BytesIO()
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen.write(part)
    process.wait()
    os.close(main)
    return seen.getvalue().decode("utf-8", "replace")


def test_progress_is_live_on_a_terminal_only(folder: Path) -> None:
    """Fails when a log is filled with the frames of a progress bar, or a terminal shows nothing for minutes."""
    arguments = ("verify", write_right(folder), "--spec", "spec.yaml", "--block", "llama")
    live = on_a_terminal(*arguments)
    assert re.search(r"\d/6\b", live)
    assert re.search(r"\d\.\d/s", live), "the rate"
    assert re.search(r"left.*\d:\d\d:\d\d|left.*-:--:--", live), "the time left"
    assert "same-shape on right, llama, float32" in live, "what is looked at"
    assert f"{ESCAPE}[32m" in live, "verdicts are coloured"
    for quiet in (
        on_a_terminal(*arguments, CI="true"),
        on_a_terminal(*arguments, TERM="dumb"),
        on_a_terminal(*arguments, "--no-progress"),
    ):
        assert "/6" not in quiet
        assert "  right  llama  4 hold, 2 unchecked, " in re.sub(r"\x1b\[[0-9;]*m", "", quiet)
        assert "exit status 0" in quiet
    assert ESCAPE not in on_a_terminal(*arguments, TERM="dumb")


def test_no_progress_where_one_end_is_a_pipe(folder: Path) -> None:
    """Fails when `blocklaws verify ... > file` draws a bar, into the file or over the terminal."""
    arguments = ["verify", write_right(folder), "--spec", "spec.yaml", "--block", "llama"]
    main, side = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "blocklaws", *arguments], stdout=subprocess.PIPE, stderr=side, check=False,
        env={name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm"},
    )  # fmt: skip
    os.close(side)
    assert done.returncode == 0
    assert b"/6" not in done.stdout
    assert ESCAPE.encode() not in done.stdout
    assert b"  right  llama  4 hold, 2 unchecked, " in done.stdout
    with pytest.raises(OSError, match="Input/output error"):  # nothing was written there, and nobody can write any more
        os.read(main, 1)
    os.close(main)


def test_lines_above_the_bar_are_whole(folder: Path) -> None:
    """Fails when a line that is printed while the bar is shown gets mixed with it."""
    live = on_a_terminal("verify", write_broken(folder), "--spec", "spec.yaml", "--block", "llama", "--block", "gpt")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", live)
    for block in ("llama", "gpt  "):
        assert re.search(rf"(^|[\r\n])  broken  {block}  2 hold, 2 violated, 2 unchecked, \d+\.\d s *\r?\n", plain)


def test_no_text_steers_the_terminal(folder: Path) -> None:
    """Fails when a spec, or a file, can move the cursor or change what stands above."""
    steering = r"Changing \x1b[2J\x1b]0;mine\x07 \u202e a token."
    spec = (folder / "spec.yaml").read_text(encoding="utf-8")
    (folder / "spec.yaml").write_text(
        spec.replace("says: Changing a token changes no earlier output row.", f'says: "{steering}"'), encoding="utf-8"
    )
    text = invoke("verify", write_broken(folder), "--spec", "spec.yaml", "--block", "llama").stdout
    assert "Changing ?[2J?]0;mine ? a token." in text
    assert not set(text) & {ESCAPE, "\x07", "\u202e"}


def test_no_color_is_honoured(folder: Path) -> None:
    """Fails when NO_COLOR leaves colours, or their absence loses a word."""
    arguments = ("verify", write_broken(folder), "--spec", "spec.yaml", "--block", "llama", "--no-progress")
    plain = on_a_terminal(*arguments, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain)
    assert "VIOLATED no-look-ahead" in re.sub(r"\x1b\[[0-9;]*m", "", plain)


def test_ascii_is_enough(folder: Path) -> None:
    """Fails when a name that the encoding cannot show ends the report in an exception."""
    write_right(folder)
    path = folder / "right.py"
    path.write_text(path.read_text(encoding="utf-8").replace('name = "right"', 'name = "größer"'), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "blocklaws", "verify", "right.py:Backend", "--spec", "spec.yaml", "--block", "llama"],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"gr\\xf6\\xdfer" in done.stdout
    assert done.stdout.isascii()
    live = on_a_terminal(
        "verify",
        "right.py:Backend",
        "--spec",
        "spec.yaml",
        "--block",
        "llama",
        PYTHONIOENCODING="ascii",
        PYTHONUTF8="0",
    )
    assert re.search(r"\d/6\b", live)
    assert live.isascii(), "the bar too"
