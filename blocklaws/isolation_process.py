"""A worker process and the conversation with it: started, asked, watched while it computes, and ended.

Must hold: every way in which a worker can fail to answer (a crash, an exit, a hang, memory beyond the bound, an
answer that is none) ends in `WorkerEnded` with the cause, and in the end of the process and of what it started; none
outlives this process, whatever it does when this one is killed.
Must not: know what is asked.
"""

from __future__ import annotations

import dataclasses
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blocklaws.isolation_wire import Message, WireError, receive, send

__all__ = ["Limits", "WorkerEnded", "WorkerProcess"]

_MIB = 2**20
# How much of what a worker printed is kept, how much of that an error shows, and how much is handed on as it comes.
_OUTPUT, _SHOWN, _ECHOED = 4096, 300, 65_536
# How often a worker that has not answered is looked at.
_SLICE = 0.05


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a worker may take.

    Attributes:
        call_seconds: for a call like one that it has answered before.
        first_seconds: for a call with a config, a dtype or a shape that it has not met: frameworks compile then.
        start_seconds: for finding the backend, frameworks imported.
        patience: after so many calls without an answer no call gets more than ``impatient_seconds``: a backend that
            hangs must not hold up a run for the bound of each of its cases.
        memory_mib: resident memory of the worker. It is polled, because frameworks and drivers reserve far more address
            space than they touch, which is what resource limits count; so a worker may overshoot for a moment.
    """

    call_seconds: float = 30.0
    first_seconds: float = 120.0
    start_seconds: float = 180.0
    patience: int = 3
    impatient_seconds: float = 2.0
    memory_mib: int = 8192


class WorkerEnded(Exception):
    """The worker is gone; says how."""

    def __init__(self, how: str, where: str = "") -> None:
        super().__init__(how)
        self.where = where


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _end(process: subprocess.Popen[bytes], connection: socket.socket, *descriptors: int) -> None:
    """End a worker and close what led to it."""
    _kill(process)
    connection.close()
    for descriptor in descriptors:
        os.close(descriptor)


class WorkerProcess:
    """One worker process, and the conversation with it."""

    def __init__(self, limits: Limits, *, echo: bool = False) -> None:
        self._limits = limits
        self._output = b""
        self._echo = _ECHOED if echo else 0
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        held, lifeline = os.pipe()
        passed = (theirs.fileno(), held)
        try:
            self._process = subprocess.Popen(
                # -P: a file of the working directory must not pass for a module of the standard library.
                [sys.executable, "-P", "-m", "blocklaws.isolation_worker", *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=passed,
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(writing)
            os.close(held)
        self._connection, self._printed = ours, reading
        os.set_blocking(reading, False)
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._poll.register(reading, select.POLLIN)
        self._may_print = True
        self._finalizer = weakref.finalize(self, _end, self._process, ours, reading, lifeline)
        self.seen: set[Any] = set()

    def ask(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], seconds: float) -> Message:
        """Send a call and return the answer.

        Raises:
            WorkerEnded: there was none; the process is gone by now.
        """
        deadline = time.monotonic() + seconds
        try:
            self._connection.settimeout(seconds)
            send(self._connection, header, buffers)
            self._connection.settimeout(None)
            return receive(lambda view: self._read_into(view, deadline))
        except (TimeoutError, OSError, WireError) as error:
            raise self._ended(error, seconds) from None
        except BaseException:
            # An interrupt leaves half a conversation behind, which nothing could follow.
            self.close()
            raise

    def _read_into(self, view: memoryview, deadline: float) -> None:
        looked = time.monotonic()
        while view:
            for descriptor, _ in self._poll.poll(_SLICE * 1000):
                if descriptor == self._printed:
                    self._drain()
                    continue
                count = self._connection.recv_into(view)
                if count == 0:
                    raise ConnectionResetError
                view = view[count:]
            now = time.monotonic()
            if view and now > deadline:
                raise TimeoutError
            if now > looked + _SLICE:
                looked = now
                if (held := self._resident_mib()) > self._limits.memory_mib:
                    raise WireError(
                        f"held {held} MiB of memory, more than {self._limits.memory_mib} MiB, and was ended"
                    )

    def _drain(self) -> bool:
        """Take what the worker printed; say whether there may be more."""
        if not self._may_print:
            return False
        try:
            printed = os.read(self._printed, 65_536)
        except OSError:  # nothing more, for now
            return False
        if not printed:
            # Both its outputs are closed, by its end or by the backend.
            self._poll.unregister(self._printed)
            self._may_print = False
            return False
        self._output = (self._output + printed)[-_OUTPUT:]
        if self._echo:
            shown, self._echo = printed[: self._echo], max(0, self._echo - len(printed))
            more = "" if self._echo else "\n(the backend prints more than is shown)\n"
            sys.stderr.write(shown.decode(errors="replace") + more)
        return True

    def _resident_mib(self) -> int:
        try:
            with open(f"/proc/{self._process.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // _MIB
        except (OSError, IndexError, ValueError):
            return 0  # there is no such file on this system: the memory is not bounded

    def _ended(self, error: Exception, seconds: float) -> WorkerEnded:
        """Describe the end of the process, which this makes sure of."""
        if isinstance(error, ConnectionError):
            try:
                self._process.wait(2)  # it is going; how it went is what is asked
            except subprocess.TimeoutExpired:
                error = WireError("closed the connection to the harness")
        self.close(drain=True)
        code = self._process.returncode
        if isinstance(error, TimeoutError):
            how, where = f"gave no answer within {seconds:g} s, and its process was ended", ""
        elif isinstance(error, WireError):
            how, where = str(error), ""
        elif code < 0:
            how, where = f"ended the process (signal {-code}, {_signal_name(-code)})", _crash_line(self._output)
        else:
            how, where = f"ended the process (exit status {code})", ""
        printed = " ".join(self._output.decode(errors="replace").split())
        if printed and not where:
            how += f"; it printed last: {printed[-_SHOWN:]!r}"
        return WorkerEnded(how, where)

    def close(self, *, drain: bool = False) -> None:
        """End the process."""
        if drain and self._finalizer.alive:
            _kill(self._process)
            while self._drain():
                pass
        self._finalizer()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _crash_line(printed: bytes) -> str:
    """Return the innermost line outside the standard library of the stack that `faulthandler` printed, as file:line."""
    stack = printed.decode(errors="replace").partition("Current thread ")[2]
    frames = re.findall(r'File "([^"]+)", line (\d+)', stack)
    library = os.path.dirname(os.__file__)
    for file, line in [frame for frame in frames if not frame[0].startswith((library, "<"))] or frames:
        return f"{file.rsplit('/', 1)[-1]}:{line}"
    return ""
