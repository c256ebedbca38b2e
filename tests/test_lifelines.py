"""No process outlives the one that began it, even where that is ended without a word."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Each prints the ids of its processes, which would sleep for ten minutes, and sleeps itself.
OF_A_POOL = """
import os, time
from blocklaws.processes import pool
if __name__ == "__main__":
    with pool(2) as executor:
        ids = {executor.submit(os.getpid).result() for _ in range(50)}
        for _ in range(2):
            executor.submit(time.sleep, 600)
        print(*ids, flush=True)
        time.sleep(600)
"""
OF_AN_EXECUTOR = """
import os, time
from blocklaws.processes import Processes
if __name__ == "__main__":
    processes = Processes(2)
    futures = [processes.submit_in(number, os.getpid) for number in range(2)]
    ids = {future.result() for future in futures}
    for number in range(2):
        processes.submit(time.sleep, 600)
    print(*ids, flush=True)
    time.sleep(600)
"""


def is_gone(process: int) -> bool:
    """Whether there is no such process any more, or only what its parent has not fetched."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("script", [OF_A_POOL, OF_AN_EXECUTOR], ids=["of a pool", "of an executor"])
def test_no_process_outlives_one_that_is_killed(tmp_path: Path, script: str) -> None:
    """Fails when a run that is ended from outside leaves processes behind that go on for as long as they like."""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    with subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ids = [int(each) for each in parent.stdout.readline().split()]
        assert ids
        assert os.getpid() not in ids
        assert not any(map(is_gone, ids))
        parent.kill()
    until = time.monotonic() + 60
    while not all(map(is_gone, ids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert all(map(is_gone, ids))
