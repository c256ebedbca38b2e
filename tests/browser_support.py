"""A headless Chromium, driven over a pipe: DevTools protocol messages, each ended by a zero byte, and nothing else.

Must hold: no driver program, no port and no package is needed, and nothing is downloaded; the browser has a profile of
its own that is gone afterwards, and no host name resolves in it. Must not: hide what a page logs or raises.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["Chromium", "find_chromium"]

_NAMES = ("chromium", "google-chrome", "chrome")
_SWITCHES = (
    "--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio",
    "--disable-lcd-text",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
_KEYS = {"Tab": 9, "Enter": 13, " ": 32}


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One browser with one page; a context manager that ends it.

    Attributes:
        problems: what the page logged as a warning or an error, or raised, since it was loaded.
    """

    def __init__(self, executable: str, timeout: float = 60) -> None:
        self.problems: list[str] = []
        self._timeout = timeout
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        pipes = [*os.pipe(), *os.pipe()]
        # Above the two numbers that the browser wants them under: it reads its descriptor 3 and writes to its 4.
        its_read, self._write, self._read, its_write = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in pipes)
        for each in pipes:
            os.close(each)
        switches = [*_SWITCHES, f"--user-data-dir={self._profile}"]
        if os.getuid() == 0:
            switches.append("--no-sandbox")  # root cannot have it
        # A shell puts them there, since Python warns of what it would have to run between fork and exec.
        renumbered = f'exec "$@" 3</dev/fd/{its_read} 4>/dev/fd/{its_write}'
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", renumbered, "sh", executable, *switches, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(its_read, its_write),
        )  # fmt: skip
        os.close(its_read)
        os.close(its_write)
        self._session = ""
        pages = [each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(self._timeout)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result.

        Raises:
            RuntimeError: the browser refused, or does not answer.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self._timeout
        while True:
            answer = self._next(end, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self, end: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(f"the browser does not answer to {waiting_for}")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        else:
            self._events.append(event)

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file, and wait until it has loaded."""
        self.problems.clear()
        self.call("Page.navigate", url="about:blank")
        self._events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
        end = time.monotonic() + self._timeout
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") == "about:blank":
            if time.monotonic() > end:
                raise RuntimeError(f"{page} does not load")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page.

        Raises:
            RuntimeError: it raised.
        """
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def look(self, width: int, scheme: str = "light", height: int = 800, media: str = "") -> None:
        """Set the width of the window, the theme that the reader prefers, and ``print`` where that is meant."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self._settle()

    def _settle(self) -> None:
        """Wait until the page has been laid out and painted anew, and its events have been handled."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")

    def press(self, key: str) -> None:
        """Press a key, ``Tab``, ``Enter`` or a space, and wait for what follows from it."""
        told = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": _KEYS[key]}
        typed = {"text": text} if (text := {"Enter": "\r", " ": " "}.get(key)) else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if typed else "rawKeyDown", **told, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)
        self._settle()

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
