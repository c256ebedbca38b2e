"""What it costs to begin: the help, a first look, the plugin in a pytest run that does not use it, and memory.

Each is a whole process, started anew. What is compared takes turns, so that a busy machine slows both sides alike, and
medians are told. Memory is the peak of one process that verifies all it is asked to.

    python benchmarks/start.py [--repeat N] [--backends "numpy torch jax"]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PYTHON = sys.executable
#: A name that pytest knows the plugin by.
PLUGIN = "blocklaws.pytest_plugin"


class Run(NamedTuple):
    """What a process took: seconds on the clock, seconds of a processor, and the MiB that it held at most."""

    seconds: float
    busy: float
    memory: float


def run(arguments: Sequence[str], folder: str = ".") -> Run:
    """Run a process; return what it took.

    Raises:
        RuntimeError: it failed.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        [PYTHON, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: status {process.returncode}: {complaint.decode()[-500:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def turns(sides: Sequence[Sequence[str]], repeat: int, folder: str = ".") -> list[list[Run]]:
    """Return the runs of each of some processes that take turns."""
    for side in sides:
        run(side, folder)  # files are read from the disk once
    taken = [[run(side, folder) for side in sides] for _ in range(repeat)]
    return [list(its) for its in zip(*taken, strict=True)]


def median(runs: Sequence[Run]) -> float:
    """Return the median of the seconds on the clock."""
    return statistics.median(its.seconds for its in runs)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--backends", default="numpy torch jax", help="of the last measure of memory")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    asked = parse(arguments)
    sides = ("-c", ""), ("-c", "import click"), ("-m", "blocklaws", "--help")
    bare, click, help_ = map(median, turns(sides, asked.repeat))
    print(
        f"blocklaws --help                          {help_:.3f} s   (python alone {bare:.3f}, with click {click:.3f})"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_foreign.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        own = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_foreign.py")
        with_it, without = turns((own, (*own, "-p", f"no:{PLUGIN}")), asked.repeat, folder)
        # A hundredth of what starting pytest takes: processor time, turn by turn, is what the rest of the machine moves
        # least.
        more = statistics.median(one.busy - other.busy for one, other in zip(with_it, without, strict=True))
        print(
            f"a pytest run that does not use the plugin {median(with_it):.3f} s   "
            f"({1000 * more:+.0f} ms of a processor; {median(without):.3f} s without the plugin)"
        )
    quick = ("-m", "blocklaws", "verify", "numpy", "--profile", "quick", "--no-progress")
    unasked, alone = map(median, turns((quick, (*quick, "--workers", "1")), 3))
    print(f"blocklaws verify numpy --profile quick    {unasked:.2f} s   ({alone:.2f} s in one process)")
    for backends in ("numpy", asked.backends):
        took = run(("-m", "blocklaws", "verify", *backends.split(), "--no-progress", "--workers", "1"))
        print(f"blocklaws verify {backends:<24} {took.seconds:.1f} s, one process, at most {took.memory:.0f} MiB")


if __name__ == "__main__":
    main()
