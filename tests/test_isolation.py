"""A backend in a process of its own is called as it would be here, and whatever breaks that process costs its own call.

The wall between the worker and the reference is tested by what the worker can import; what crosses the wall, by what a
block in it does to memory.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cluster_support import until

import blocklaws
from blocklaws.built import BlockRaised, Built
from blocklaws.discovery import find_subjects
from blocklaws.isolation import Limits, isolated
from blocklaws.isolation_wire import Packer, WireError, receive, unpack
from blocklaws.properties.memory_layouts import LAYOUTS
from blocklaws.spec_reading import load_spec
from blocklaws.subjects import Subject
from blocklaws.worlds import Recipe, World, make_world

BREAKING = Path(__file__).parent / "cheats" / "breaking.py"
MAPPINGS = Path(blocklaws.__file__).parent.parent / "backends" / "mappings"
SHORT = Limits(call_seconds=1, first_seconds=1, patience=2, impatient_seconds=0.2, memory_mib=400)


def world(dtype: str = "float64", size: int = 3, block: str = "llama") -> World:
    spec = load_spec(None)
    return make_world(spec.blocks[block], Recipe(spec.menus["equal"][size], "normal", 1), dtype)


def in_worker(tmp_path: Path, source: str, **options) -> Subject:
    """Return the backend of a module's text, isolated; the text has ``block`` with the methods of a block."""
    file = tmp_path / "mine.py"
    prelude = (
        "import numpy as np\nclass Backend:\n    dtypes = ('float64',)\n"
        "    def build(self, *given): return Block(*given)\n"
    )
    file.write_text(prelude + source, encoding="utf-8")
    (subject,) = isolated(f"{file}:Backend", **options)
    return subject


def breaking(name: str) -> Subject:
    (subject,) = isolated(f"{BREAKING}:{name}", limits=SHORT)
    return subject


# --- the same as in this process -------------------------------------------------------------------------------------


def cached(built: Built, w: World) -> np.ndarray:
    _, cache = built.forward_cached(w.input[:, :2].copy(), None)
    return built.forward_cached(w.input[:, 2:].copy(), cache)[0]


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_every_call_gives_the_same_bits(name: str) -> None:
    """Fails when a value, a dtype or a capability is lost on the way."""
    (here,), (there,) = find_subjects(name), isolated(name)
    assert (there.name, there.dtypes, there.multiples) == (here.name, here.dtypes, here.multiples)
    assert there.blocks == here.blocks
    for dtype in ("float64", "bfloat16"):
        compare_every_call(here, there, world(dtype))


def compare_every_call(here: Subject, there: Subject, w: World) -> None:
    mine, other = here.build(w), there.build(w)
    assert other.capabilities == mine.capabilities
    assert other.at_offset_zero_only == mine.at_offset_zero_only
    calls: list[Callable] = [
        lambda built: {"output": built.forward(w.input.copy(), 3)[0]},
        lambda built: built.trace(w.input.copy(), 3),
        lambda built: built.gradients(w.input.copy(), w.cotangent.copy(), 3),
        lambda built: built.parameters(),
        lambda built: {"cached": cached(built, w)},
    ]
    for call in calls:
        expected, got = call(mine), call(other)
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert got[key].dtype == value.dtype, key
            np.testing.assert_array_equal(got[key], value)


def test_the_reference_can_itself_be_isolated() -> None:
    """Fails when the wall keeps out what is verified."""
    report = blocklaws.verify(
        "numpy", isolate=True, blocks=["original"], dtypes=["float64"], profile="quick",
        invariants=["output-parity", "cache-parity", "gradient-parity", "outputs-are-fresh", "parameter-count",
                    "memory-layout-independence", "bad-inputs-are-refused"],
    )  # fmt: skip
    assert report.summary["holds"] >= 7
    assert report.exit_status == 0


def test_a_function_takes_no_offset_there_either(tmp_path: Path) -> None:
    """Fails when a plain function is told of positions."""
    file = tmp_path / "plain.py"
    file.write_text("def f(x, parameters, config):\n    return x * 2\n", encoding="utf-8")
    (subject,) = isolated(f"{file}:f")
    built = subject.build(world())
    assert built.at_offset_zero_only
    assert built.capabilities == {"forward"}


@pytest.mark.parametrize("mapping", sorted(MAPPINGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_mapping_file_stands_for_its_backends(mapping: Path) -> None:
    """Fails when only registered names and Python files can be isolated, or the reader of mappings leaves its wall."""
    here, there = find_subjects(str(mapping)), isolated(str(mapping))
    assert [each.name for each in there] == [each.name for each in here]


def test_a_refused_config_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Fails when ``supports`` is not asked over there."""
    subject = in_worker(tmp_path, "    def supports(self, config): return 'not on Sundays'\n")
    assert subject.refusal(world().config) == "not on Sundays"


# --- what a block does to memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_arrives_as_it_was(tmp_path: Path, layout: str) -> None:
    """Fails when a block over there meets another view than it would here."""
    subject = in_worker(
        tmp_path,
        "class Block:\n    def __init__(self, *given): pass\n    def forward(self, x, position_offset=0):\n"
        "        f = x.flags\n"
        "        return np.array([*x.strides, f.aligned, f.writeable, f.c_contiguous, float(x.sum())])\n",
    )
    view = LAYOUTS[layout](world().input)
    output, _ = subject.build(world()).forward(view, 0)
    flags = view.flags
    expected = [*view.strides, flags.aligned, flags.writeable, flags.c_contiguous]
    assert output[:-1].tolist() == [float(each) for each in expected]
    assert output[-1] == pytest.approx(float(view.sum()))


def test_what_a_call_changes_is_changed_here(tmp_path: Path) -> None:
    """Fails when a worker hides that a block writes into what it was given or has returned."""
    subject = in_worker(
        tmp_path,
        "class Block:\n"
        "    def __init__(self, config, parameters, dtype): self.p, self.out = parameters, None\n"
        "    def forward(self, x, position_offset=0):\n"
        "        x[0, 0, 0] = 77\n        self.p['attention_norm.gain'][0] = 78\n"
        "        if self.out is None or self.out.shape != x.shape: self.out = x.copy()\n"
        "        self.out += 1\n        return self.out\n"
        "    def forward_cached(self, x, cache): return self.forward(x.copy()), None\n"
        "    def parameters(self):\n"
        "        return {**self.p, 'attention.key': self.p['attention.query'].T}\n",
    )
    w = world()
    built = subject.build(w)
    x = w.input.copy()
    copied, kept = built.forward(x, 0)
    assert x[0, 0, 0] == 77
    assert built.given_parameters["attention_norm.gain"][0] == 78
    assert np.array_equal(kept, copied)
    built.forward(w.input.copy(), 0)
    assert not np.array_equal(kept, copied)
    copied, kept, _ = built.forward_cached_kept(w.input.copy(), None)
    assert np.array_equal(kept, copied)
    built.forward_cached(w.input.copy(), None)
    assert not np.array_equal(kept, copied)
    shown = built.parameters()
    assert np.shares_memory(shown["attention.key"], shown["attention.query"])
    assert not np.shares_memory(shown["attention.value"], shown["attention.query"])
    assert np.array_equal(shown["attention.key"], shown["attention.query"].T)


def test_an_output_in_the_input_is_one_here(tmp_path: Path) -> None:
    """Fails when an aliased output comes back as an array of its own."""
    source = (
        "class Block:\n    def __init__(self, *given): pass\n"
        "    def forward(self, x, position_offset=0): x *= 2; return x[:, ::-1]\n"
    )
    w = world()
    x = w.input.copy()
    output, kept = in_worker(tmp_path, source).build(w).forward(x, 0)
    assert np.shares_memory(kept, x)
    assert np.array_equal(output, 2 * w.input[:, ::-1])


# --- what breaks a process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("Segfaults", r"forward ended the process \(signal 11, SIGSEGV\) \(breaking.py:\d+\)"),
        ("Exits", r"forward ended the process \(exit status 3\); it printed last: 'about to leave'"),
        ("CallsExit", r"forward raised SystemExit: 3"),
        ("Interrupts", r"forward raised KeyboardInterrupt"),
        ("KillsItself", r"forward ended the process \(signal 15, SIGTERM\)"),
        ("Hangs", r"forward gave no answer within 1 s, and its process was ended"),
        ("EatsMemory", r"forward held \d+ MiB of memory, more than 400 MiB, and was ended"),
        ("ClosesItsOutputs", r"forward ended the process \(exit status 5\)"),
        ("ExitsBesideAFork", r"forward ended the process \(exit status 3\)"),
        (
            "ReplacesGetcwd",
            r"forward ended the process \(exit status 1\); it printed last: 'what the worker stands on has failed it, "
            r"ZeroDivisionError: division by zero'",
        ),
        ("ClosesEverything", r"forward (closed the connection|ended the process)"),
        ("ForgesAnswers", r"forward .*(longer than any that is meant|no header|no answer|do not add up)"),
    ],
)
def test_the_cause_is_told_and_the_next_call_has_a_worker(name: str, cause: str) -> None:
    """Fails when a broken process takes the harness with it, or leaves the next call without one."""
    subject = breaking(name)
    built = subject.build(world())
    limits = Limits(**{**vars(SHORT), "call_seconds": 20, "first_seconds": 20}) if name == "EatsMemory" else SHORT
    subject.backend._limits = limits  # the time to fill 400 MiB is no part of what is tested
    for _ in range(2):
        with pytest.raises(BlockRaised, match=cause):
            built.forward(world().input.copy(), 0)


@pytest.mark.parametrize("name", ["PrintsMegabytes", "LeavesThreads", "Forks", "ReplacesJson"])
def test_noise_is_no_failure(name: str) -> None:
    """Fails when a full pipe or a thread that stays holds an answer up, or a fork gives one to a call after its own."""
    subject = breaking(name)
    (honest,) = find_subjects("numpy")
    for size in (3, 2, 1):
        w = world("float32", size)
        output, _ = subject.build(w).forward(w.input.copy(), 0)
        np.testing.assert_allclose(output, honest.build(w).forward(w.input.copy(), 0)[0], rtol=1e-4, atol=1e-5)


def test_a_crash_costs_its_own_examples_only() -> None:
    """Fails when a case after a crash is not judged, or the crash is shrunk process by process."""
    begin = time.monotonic()
    report = blocklaws.verify(
        f"{BREAKING}:SegfaultsOnLongInputs", isolate=True, blocks=["llama"], dtypes=["float32"], profile="quick",
        invariants=["output-parity", "rotary-order-matters", "shape-preservation", "repeatable"],
    )  # fmt: skip
    verdicts = {case.invariant: case for case in report.cases}
    assert verdicts["output-parity"].verdict == "error"
    assert "signal 11, SIGSEGV) (breaking.py:" in verdicts["output-parity"].reason
    assert verdicts["output-parity"].counterexample is not None
    assert time.monotonic() - begin < 30


def test_a_backend_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    """Fails when a crash while importing looks like a mistake of the harness."""
    file = tmp_path / "early.py"
    file.write_text("import os\nos._exit(4)\n", encoding="utf-8")
    with pytest.raises(blocklaws.BackendError, match=r"while it was loaded, it ended the process \(exit status 4\)"):
        isolated(f"{file}:Backend")
    with pytest.raises(blocklaws.BackendError, match="did you mean 'torch'"):
        isolated("torhc")


def test_hanging_often_is_not_waited_for_often() -> None:
    """Fails when each case of a backend that hangs takes the full bound."""
    built = breaking("Hangs").build(world())
    for _ in range(2):
        with pytest.raises(BlockRaised, match="within 1 s"):
            built.forward(world().input.copy(), 0)
    with pytest.raises(BlockRaised, match=r"within 0\.2 s"):
        built.forward(world().input.copy(), 0)


# --- the wall --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    ["backends.on_numpy", "backends.on_torch", "spec", "properties", "expressions", "passes", "running", "isolation"],
)
def test_what_could_tell_the_answer_cannot_be_imported(tmp_path: Path, module: str) -> None:
    """Fails when the worker can reach another backend, the spec, or what judges."""
    source = (
        f"class Block:\n    def __init__(self, *given): pass\n    def forward(self, x, position_offset=0):\n"
        f"        import blocklaws.{module}\n        return x\n"
    )
    with pytest.raises(BlockRaised, match=r"cannot be imported by an isolated backend"):
        in_worker(tmp_path, source).build(world()).forward(world().input.copy(), 0)


def test_the_worker_has_loaded_no_reference(tmp_path: Path) -> None:
    """Fails when the worker itself loads what its backend must not find."""
    source = (
        "class Block:\n    def __init__(self, *given): pass\n    def forward(self, x, position_offset=0):\n"
        "        import sys\n"
        "        raise ValueError(' '.join(sorted(m for m in sys.modules if m.startswith('blocklaws.'))))\n"
    )
    with pytest.raises(BlockRaised) as caught:
        in_worker(tmp_path, source).build(world()).forward(world().input.copy(), 0)
    for word in ("backends", "spec.", "properties", "expressions", "passes", "checking", "running", "hypothesis"):
        assert f"blocklaws.{word}" not in str(caught.value)


def test_an_object_cannot_be_isolated() -> None:
    """Fails when an object is silently checked in this process after all."""
    with pytest.raises(blocklaws.BlocklawsError, match="given as an object, which cannot be moved to another process"):
        blocklaws.verify(find_subjects("numpy")[0].backend, isolate=True)


def test_the_command_line_isolates(blocklaws, tmp_path: Path) -> None:
    """Fails when ``--isolate`` is lost on its way, or a replay runs here what ends a process."""
    options = ("--isolate", "--block", "plain", "--profile", "quick", "--no-progress", "--invariant", "output-parity")
    told = blocklaws("verify", f"{BREAKING}:Segfaults", *options, cwd=tmp_path)
    assert told.returncode == 1
    assert "SIGSEGV" in told.stdout
    assert "isolate=True" in told.stdout
    (stored,) = (tmp_path / ".blocklaws" / "failures").glob("*.json")
    again = blocklaws("replay", stored.stem, cwd=tmp_path)
    assert again.returncode == 1
    assert "still in error" in again.stdout


@pytest.mark.parametrize("isolate", [True, False])
def test_threads_that_stay_do_not_keep_the_command(blocklaws, isolate: bool) -> None:
    """Fails when a backend's thread that never ends keeps a run from ending, here or in a process of its own."""
    options = ("--block", "plain", "--profile", "quick", "--no-progress", "--invariant", "output-parity")
    where = () if isolate else ("--no-isolate",)
    told = blocklaws("verify", f"{BREAKING}:LeavesThreads", *options, *where, timeout=60)
    assert told.returncode == 0
    assert ("threads of a backend still running" in told.stderr) == (not isolate)


# --- guarded, which is how the code of others runs unasked ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("SegfaultsOnLongInputs", "forward ended the process (signal 11, SIGSEGV) (breaking.py:"),
        ("Exits", "forward ended the process (exit status 3)"),
        ("Hangs", "forward gave no answer within"),
        ("EatsMemory", "MiB of memory, more than 300 MiB, and was ended"),
    ],
)
def test_unasked_what_breaks_the_process_costs_its_own_cases(name: str, cause: str) -> None:
    """Fails when the code of others is called in the harness's own process, or a bound is not handed on."""
    report = blocklaws.verify(
        f"{BREAKING}:{name}", "numpy", blocks=["llama"], dtypes=["float32"], profile="quick",
        invariants=["output-parity"], time_limit=0.5, memory_limit=300,
    )  # fmt: skip
    theirs, ours = report.cases
    assert theirs.verdict == "error"
    assert cause in theirs.reason
    assert theirs.counterexample is not None
    assert ours.verdict == "holds"


def test_unasked_there_is_no_wall(tmp_path: Path) -> None:
    """Fails when an adapter that stands on one of ours is refused unless that was asked for."""
    file = tmp_path / "standing.py"
    file.write_text("from blocklaws.backends.on_numpy import NumpyBackend as Mine\n", encoding="utf-8")
    asked: dict = {"blocks": ["plain"], "dtypes": ["float32"], "invariants": ["repeatable"], "profile": "quick"}
    assert blocklaws.verify(f"{file}:Mine", **asked).exit_status == 0
    with pytest.raises(blocklaws.BackendError, match="cannot be imported by an isolated backend"):
        blocklaws.verify(f"{file}:Mine", isolate=True, **asked)


def test_unasked_what_is_printed_is_shown_up_to_a_bound(blocklaws) -> None:
    """Fails when a print in an adapter is lost, or megabytes of them are handed on."""
    options = ("--block", "plain", "--profile", "quick", "--no-progress", "--invariant", "output-parity")
    told = blocklaws("verify", f"{BREAKING}:PrintsMegabytes", *options)
    assert told.returncode == 0
    assert "(the backend prints more than is shown)" in told.stderr
    assert 60_000 < len(told.stderr) < 80_000


@pytest.mark.parametrize(
    ("limits", "told"), [({"time_limit": 0}, "time_limit=0"), ({"memory_limit": 0}, "memory_limit=0")]
)
def test_a_bound_must_be_positive(limits: dict, told: str) -> None:
    """Fails when a bound that no call can keep is taken."""
    with pytest.raises(blocklaws.BlocklawsError, match=f"{told} must be a positive number of"):
        blocklaws.verify("numpy", **limits)


# --- the wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "described",
    [
        {"buffer": 1, "dtype": "<f8", "shape": [1]},
        {"buffer": 0, "dtype": "<f8", "shape": [9]},
        {"buffer": 0, "dtype": "<f8", "shape": [1], "offset": 8},
        {"buffer": 0, "dtype": "<f8", "shape": [2], "offset": 0, "strides": [800]},
        {"buffer": 0, "dtype": "<f8", "shape": [1], "offset": -8, "strides": [8]},
        {"buffer": 0, "dtype": "O", "shape": [1]},
        {"buffer": 0, "dtype": "<f8", "shape": [-1]},
        {"buffer": 0, "dtype": "<f8", "shape": [2**62, 2**62]},
        {"buffer": 0, "dtype": "<f8", "shape": "x"},
        {"buffer": True, "dtype": "<f8"},
        [],
        None,
    ],
)
def test_a_wrong_description_is_refused(described) -> None:
    """Fails when the other side can make an array of memory that is not its own."""
    with pytest.raises(WireError):
        unpack(described, [np.zeros(8, np.uint8)])


@pytest.mark.parametrize(
    "sent", [b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b'\x0e\0\0\0\0\0\0\0{"sizes":[-1]}', b"\x02\0\0\0\0\0\0\0{}"]
)
def test_a_wrong_message_is_refused(sent: bytes) -> None:
    """Fails when the other side can send what is taken for a message."""
    stream = io.BytesIO(sent)
    with pytest.raises(WireError):
        receive(lambda view: view.__setitem__(slice(None), stream.read(len(view))))


def test_objects_are_never_sent() -> None:
    """Fails when an array of Python objects can cross."""
    with pytest.raises(WireError, match="only numbers"):
        Packer().values(np.array([object()]))


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_a_call_costs_little_more() -> None:
    """Fails when isolation has become too slow to be a default; processor time, since machines are shared."""
    (there,) = isolated("torch")
    w = world("float32")
    built = there.build(w)
    built.forward(w.input.copy(), 0)
    begin = time.process_time()
    for _ in range(200):
        built.forward(w.input.copy(), 0)
    assert (time.process_time() - begin) / 200 < 1e-3


def test_workers_end_with_the_process(tmp_path: Path) -> None:
    """Fails when a run leaves processes behind."""
    script = (
        "import sys\nfrom blocklaws.isolation import isolated\n"
        f"(s,) = isolated({str(BREAKING)!r} + ':Hangs')\nprint(s.backend._process._process.pid)\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not Path(f"/proc/{told.stdout.strip()}").exists()


# --- a harness that is gone ------------------------------------------------------------------------------------------

HANGS = {
    "in Python": "while True: pass",
    "in native code": "import ctypes; ctypes.PyDLL(None).pause()",  # which keeps the interpreter's lock
    "and so does its child": "os.fork(); import time; time.sleep(600)",
}


@pytest.mark.slow
@pytest.mark.parametrize("hangs", HANGS.values(), ids=HANGS)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_backend_that_hangs_does_not_outlive_a_harness_that_is_killed(
    hangs: str, workers: str, tmp_path: Path
) -> None:
    """Fails when a run that is gone leaves a process behind that computes for ever."""
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "class Backend:\n"
        "    def build(self, *given): return self\n"
        "    def forward(self, x, position_offset=0):\n"
        "        open(f'group-{os.getpgrp()}', 'w').close()\n"
        f"        {hangs}\n"
    )
    command = [sys.executable, "-m", "blocklaws", "verify", "mine.py:Backend", "--block", "llama", "--profile", "quick"]
    command += ["--invariant", "prefix-invariance", "--workers", workers]
    harness = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        (group,) = until(lambda: [int(path.name[6:]) for path in tmp_path.glob("group-*")])
        os.killpg(group, 0)
    finally:
        harness.kill()
        harness.wait()
    until(lambda: gone(group))


def gone(group: int) -> bool:
    """Whether no process of a group is left that runs; one that nobody waits for may be left as a zombie."""
    running = [
        path for path in Path("/proc").glob("[0-9]*/stat")
        if (fields := read(path).rpartition(")")[2].split()) and int(fields[2]) == group and fields[0] != "Z"
    ]  # fmt: skip
    return not running


def read(path: Path) -> str:
    """Return the text of a file; empty where it is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
