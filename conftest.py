"""What a checkout adds to pytest: the short ``--backend`` option and the Hypothesis profiles.

Must hold: without an installation of this checkout, one line says how to get one, before any test is collected. Must
stay thin: what works outside a checkout belongs to the plugin (``blocklaws/pytest_plugin.py``), under its prefix.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent


def _spec_folder() -> Path | None:
    """Return the folder that ``blocklaws.spec`` comes from, or None when it is not installed.

    ``blocklaws`` itself proves nothing: pytest puts the checkout's root on ``sys.path``, where it is found uninstalled.
    """
    try:
        found = importlib.util.find_spec("blocklaws.spec")
    except ImportError:
        return None
    return Path(found.origin).resolve().parent if found is not None and found.origin else None


def _require_this_checkout() -> None:
    folder = _spec_folder()
    if folder == CHECKOUT / "spec":
        return
    found = "blocklaws is not installed" if folder is None else f"blocklaws is another copy, of {folder.parent}"
    sys.stderr.write(
        f"{found}: these tests are for {CHECKOUT}. Run 'make pytest', which makes an environment of its own, or "
        f'install the checkout into this one: {sys.executable} -m pip install -c constraints.txt -e ".[test]"\n'
    )
    # Not an exception that pytest would show as a traceback of this file.
    raise SystemExit(pytest.ExitCode.USAGE_ERROR)


_require_this_checkout()


def _register_profiles() -> None:
    """Register the profiles of ``--hypothesis-profile``; ``deadline`` is off in all, since a first call may compile.

    ``ci`` is what ``make test`` runs: the same examples each time, nothing remembered. ``explore`` looks for what that
    misses: fresh seeds, ten times the examples.
    """
    from hypothesis import settings

    settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
    settings.register_profile("blocklaws", deadline=None)
    settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
    settings.load_profile("blocklaws")


_register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--backend``; the plugin reads it as more of ``--blocklaws-backend``."""
    parser.getgroup("blocklaws").addoption(
        "--backend",
        action="append",
        dest="blocklaws_short_backend",
        metavar="BACKEND",
        help="short for --blocklaws-backend, in this checkout only; may be repeated",
    )
