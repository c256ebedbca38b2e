"""Adapters that break the process they are called in; run them isolated."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time

import numpy as np
from honest import Block, adapter


@adapter
class Segfaults(Block):
    """Reads address zero."""

    def forward(self, x, position_offset=0):
        ctypes.string_at(0)


@adapter
class SegfaultsOnLongInputs(Block):
    """Reads address zero for more than four tokens, and is right for fewer."""

    def forward(self, x, position_offset=0):
        if x.shape[1] > 4:
            ctypes.string_at(0)
        return super().forward(x, position_offset)


@adapter
class Exits(Block):
    """Ends the process without a word to Python."""

    def forward(self, x, position_offset=0):
        print("about to leave", flush=True)
        os._exit(3)


@adapter
class CallsExit(Block):
    """Raises SystemExit."""

    def forward(self, x, position_offset=0):
        sys.exit(3)


@adapter
class Interrupts(Block):
    """Raises what a user's interrupt raises."""

    def forward(self, x, position_offset=0):
        raise KeyboardInterrupt


@adapter
class KillsItself(Block):
    """Sends its own process a signal."""

    def forward(self, x, position_offset=0):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)


@adapter
class Hangs(Block):
    """Never answers."""

    def forward(self, x, position_offset=0):
        time.sleep(3600)


@adapter
class EatsMemory(Block):
    """Takes memory until there is none."""

    def forward(self, x, position_offset=0):
        taken = []
        while True:
            taken.append(np.ones(4_000_000))


@adapter
class PrintsMegabytes(Block):
    """Right, and prints four megabytes a block."""

    def __init__(self, config, parameters, dtype):
        super().__init__(config, parameters, dtype)
        for _ in range(64):
            print("x" * 65_536)


@adapter
class LeavesThreads(Block):
    """Right, and leaves a thread behind that never ends."""

    def __init__(self, config, parameters, dtype):
        super().__init__(config, parameters, dtype)
        threading.Thread(target=time.sleep, args=(3600,)).start()


@adapter
class ClosesItsOutputs(Block):
    """Closes what it prints to, and ends a moment later: the harness hears of the one before the other."""

    def forward(self, x, position_offset=0):
        os.close(1)
        os.close(2)
        time.sleep(0.3)
        os._exit(5)


@adapter
class Forks(Block):
    """Right, twice: it forks, and both processes come back from the call."""

    def forward(self, x, position_offset=0):
        os.fork()
        return super().forward(x, position_offset)


@adapter
class ExitsBesideAFork(Block):
    """Ends its process, and leaves a fork of it behind."""

    def forward(self, x, position_offset=0):
        if os.fork():
            os._exit(3)
        time.sleep(3600)


@adapter
class ReplacesJson(Block):
    """Right, and replaces what others in its process read JSON with."""

    def forward(self, x, position_offset=0):
        json.loads = json.dumps = lambda *given, **options: {"sizes": []}
        return super().forward(x, position_offset)


@adapter
class ReplacesGetcwd(Block):
    """Replaces a function that its process stands on."""

    def forward(self, x, position_offset=0):
        os.getcwd = lambda: 1 / 0
        return super().forward(x, position_offset)


@adapter
class ClosesEverything(Block):
    """Closes every file of its process, the line to the harness among them."""

    def forward(self, x, position_offset=0):
        os.closerange(3, 64)
        return super().forward(x, position_offset)


@adapter
class ForgesAnswers(Block):
    """Writes to the line to the harness itself."""

    def forward(self, x, position_offset=0):
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\xff" * 4096)
            except OSError:
                continue
        return super().forward(x, position_offset)
