"""Takes the pictures that the documentation shows: ``python docs/pictures.py``.

Must hold: they are of real runs: the failure that `reading-a-failure.md` tells how to make, in both themes, and the
kill matrix of NumPy; and small enough to keep in a repository. It needs the Chromium that the tests use
(``make browser``).
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import zlib
from pathlib import Path

from blocklaws.html import faults_page, verify_page
from blocklaws.kill_matrix import run_faults
from blocklaws.running import verify

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1280, 1160
MOST_BYTES = 200_000


def main() -> None:
    """Write a picture of the report in each theme, and one of the kill matrix."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser_support import Chromium, find_chromium

    executable = find_chromium()
    if executable is None:
        sys.exit("there is no Chromium here; `make browser` installs one where it may")
    os.chdir(ROOT)
    report = verify_page(verify("examples/wrong_block.py:WrongBackend", blocks=["llama"], dtypes=["float32"]))
    matrix = faults_page(run_faults(["numpy"], claims_only=True, workers=None).as_dict())
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Chromium(executable) as browser:
        page = Path(folder) / "page.html"
        for name, text, scheme in (
            ("report-light", report, "light"),
            ("report-dark", report, "dark"),
            ("matrix", matrix, "light"),
        ):
            page.write_text(text, encoding="utf-8")
            browser.look(WIDTH, scheme, HEIGHT)
            browser.open(page)
            picture = compact(browser.picture())
            assert len(picture) < MOST_BYTES, f"{len(picture)} bytes are too many for a picture of the documentation"
            (PICTURES / f"{name}.png").write_bytes(picture)


def compact(png: bytes) -> bytes:
    """Return the same picture, packed as tightly as zlib can and without anything but its pixels."""
    chunks, start = [], 8
    while start < len(png):
        (length,) = struct.unpack(">I", png[start : start + 4])
        chunks.append((png[start + 4 : start + 8], png[start + 8 : start + 8 + length]))
        start += 12 + length
    pixels = zlib.compress(zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT")), 9)
    kept = [(name, data) for name, data in chunks if name == b"IHDR"] + [(b"IDAT", pixels), (b"IEND", b"")]
    return png[:8] + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in kept
    )


if __name__ == "__main__":
    main()
