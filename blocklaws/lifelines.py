"""A process that ends as soon as the one that began it is gone, whatever it does at that moment.

Must hold: this needs no Python in the process that ends, so what hangs in native code ends too; a process that has no
lifeline where the system offers none works as it would otherwise. Must not: write to a lifeline.
"""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["hold_on"]


def hold_on(lifeline: int, *, group: bool = False) -> None:
    """End this process when nobody holds the writing end of a pipe any more, by a signal that the kernel sends.

    Args:
        lifeline: the reading end, to which nothing is ever written.
        group: whether to end what this process has started, too; for a process that leads a group of its own.
    """
    if not hasattr(os, "O_ASYNC"):
        return
    import fcntl

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp() if group else os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if not os.read(lifeline, 1):  # it was closed before this began
            os._exit(1)
