"""What a run looks like, word for word: one snapshot a kind of report.

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

import pytest
from faces_support import invoke, scrubbed, write_broken, write_right, write_spec, write_wrong

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


VIOLATED = """\
blocklaws VERSION, spec spec.yaml (DIGEST), 3 invariants, 12 cases, profile default, seed 0
  broken (broken.py:Backend): float64, float32
  right (right.py:Backend): float64, float32

VIOLATED no-look-ahead: backend broken, block llama, float64
  says     spec.yaml:6: Changing a token changes no earlier output row.
  claim    identical(after.output[:, :p], output[:, :p])   (spec.yaml:11)
  worst    at batch=0, token=0, feature=0: got 51.3164531, expected 4.32217908, |difference| 47 (4
           of 4 elements)
  wrong at every batch, token and feature
  diverges first at the stage attention_weights: query 0, every batch, head and key
  config   d_model 4, n_heads 1, n_kv_heads 1, d_head 4, d_ff 3, rms norm, pre placement, swiglu,
           rotary interleaved (base 10000)
  world    B 1, T 2, values integers, seed 0, p = 1
  replay   blocklaws replay ID
  python
    from blocklaws.replaying import examine
    example = {'sizes': {'B': 1, 'T': 2, 'n_heads': 1, 'n_kv_heads': 1, 'd_head': 4, 'd_ff': 3, 'd_model': 4}, \
'pattern': 'integers', 'seed': 0, 'position_offset': 0, 'picks': {'p': 1}}
    result = examine('broken.py:Backend', invariant='no-look-ahead', block='llama', dtype='float64', spec='spec.yaml', \
example=example)
    print(result.verdict, result.reason)
  also     1 other case in the same way:
           llama, float32   blocklaws replay ID

invariant              broken       right
no-look-ahead          2 violated   2 hold
gradient-is-finite     2 unchecked  2 unchecked
same-shape (unproven)  2 hold       2 hold

unchecked, so nothing is known of 4 cases:
      2  broken: the block has no gradients
      2  right: the block has no gradients

unproven, for no fault is named that would refute it (refuted_by): same-shape

12 cases: 6 hold, 2 violated, 0 in error, 4 unchecked, in TIME s
exit status 1: something is violated or in error
"""

HOLDS = """\
blocklaws VERSION, spec spec.yaml (DIGEST), 3 invariants, 3 cases, profile quick, seed 7
  right (right.py:Backend): float32

invariant              right
no-look-ahead          1 hold
gradient-is-finite     1 unchecked
same-shape (unproven)  1 hold

unchecked, so nothing is known of 1 case:
      1  right: the block has no gradients

unproven, for no fault is named that would refute it (refuted_by): same-shape

3 cases: 2 hold, 0 violated, 0 in error, 1 unchecked, in TIME s
exit status 0: everything that was checked holds
"""

ERROR = """\
ERROR no-look-ahead: backend wrong, block llama, float32
  says     spec.yaml:6: Changing a token changes no earlier output row.
  reason   forward returned nothing (None) where an array was expected
  config   d_model 4, n_heads 1, n_kv_heads 1, d_head 4, d_ff 3, rms norm, pre placement, swiglu,
           rotary interleaved (base 10000)
  world    B 1, T 2, values integers, seed 0, p = 1
  replay   blocklaws replay ID
  python
    from blocklaws.replaying import examine
    example = {'sizes': {'B': 1, 'T': 2, 'n_heads': 1, 'n_kv_heads': 1, 'd_head': 4, 'd_ff': 3, 'd_model': 4}, \
'pattern': 'integers', 'seed': 0, 'position_offset': 0, 'picks': {'p': 1}}
    result = examine('wrong.py:Wrong', invariant='no-look-ahead', block='llama', dtype='float32', spec='spec.yaml', \
example=example)
    print(result.verdict, result.reason)
  also     1 other case in the same way:
           same-shape, llama, float32   blocklaws replay ID

3 cases: 0 hold, 0 violated, 2 in error, 1 unchecked, in TIME s
exit status 1: something is violated or in error
"""

NARROW = """\
broken
  no-look-ahead: 1 violated
  gradient-is-finite: 1 unchecked
  same-shape (unproven): 1 hold
right
  no-look-ahead: 1 hold
  gradient-is-finite: 1 unchecked
  same-shape (unproven): 1 hold
"""

VERBOSE = """\
violated  no-look-ahead broken llama float32  1 example, TIME s  4 of 4 elements wrong, worst at (0, 0, 0): got
unchecked gradient-is-finite broken llama float32  0 examples, TIME s  the block has no gradients
holds     same-shape broken llama float32  8 examples, TIME s
"""


def test_a_violation(folder: Path) -> None:
    """Fails when a failure is not complete, or a reader has to look elsewhere for what it means."""
    assert shown(write_broken(folder), write_right(folder)) == VIOLATED


def test_everything_holds(folder: Path) -> None:
    """Fails when a good run says more than it must, or hides what was not checked."""
    assert shown(write_right(folder), "--dtype", "float32", "--profile", "quick", "--seed", "7") == HOLDS


def test_an_error_shown_quietly(folder: Path) -> None:
    """Fails when --quiet loses a failure, or one mistake is shown once an invariant."""
    assert shown(write_wrong(folder, "return None"), "--quiet") == ERROR


def test_a_narrow_window(folder: Path) -> None:
    """Fails when the matrix breaks where its columns do not fit, or prose is not wrapped."""
    text = shown(write_broken(folder), write_right(folder), "--dtype", "float32", "--profile", "quick", columns=40)
    assert NARROW in text
    prose = [line for line in text.splitlines() if re.match(r"  (says|config|worst) |           ", line)]
    assert max(len(line) for line in prose) <= 40


def test_commands_and_code_are_never_wrapped(folder: Path) -> None:
    """Fails when what a reader pastes has a line break in it."""
    narrow = shown(write_broken(folder), "--quiet", columns=30)
    wide = shown(write_broken(folder, "again.py"), "--quiet", columns=200).replace("again", "broken")
    for label in ("    example = ", "    result = ", "  replay   "):
        assert [line for line in narrow.splitlines() if line.startswith(label)] == [
            line for line in wide.splitlines() if line.startswith(label)
        ]


def test_one_line_a_case(folder: Path) -> None:
    """Fails when --verbose leaves out a case, its verdict or why it was not checked."""
    text = shown(write_broken(folder), "--verbose", "--dtype", "float32", "--profile", "quick")
    lines = re.sub(r"\d+\.\d\d s", "TIME s", text).splitlines()[2:5]
    assert [line[: len(want)] for line, want in zip(lines, VERBOSE.splitlines(), strict=True)] == VERBOSE.splitlines()


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
    assert f"{ESCAPE}[32m" in live, "verdicts are coloured"
    for quiet in (on_a_terminal(*arguments, CI="true"), on_a_terminal(*arguments, "--no-progress")):
        assert "/6" not in quiet
        assert "exit status 0" in quiet


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
