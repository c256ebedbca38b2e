"""The exception family: everything blocklaws refuses is one of these, and each message stands alone.

Must hold: a message says what was given, the rule it breaks and what to do; the command line prints it as one line and
exits 2. Must not: carry a framework's exception type, or be raised for a block that is merely wrong (that is a
verdict).
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable

__all__ = [
    "BackendError",
    "BlocklawsError",
    "ConfigError",
    "SpecError",
    "did_you_mean",
    "missing_module",
    "one_line",
    "plain_word",
]


class BlocklawsError(Exception):
    """Something the caller gave could not be used."""


class ConfigError(BlocklawsError, ValueError):
    """A block's sizes or choices contradict each other."""


class SpecError(BlocklawsError, ValueError):
    """A spec file says something that cannot be meant. The message begins with ``file:line:column``."""


class BackendError(BlocklawsError):
    """A backend could not be found, imported, or used as one."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known word, or an empty string.

    >>> did_you_mean("ouput", ["input", "output"])
    " (did you mean 'output'?)"
    >>> did_you_mean("zebra", ["input", "output"])
    ''
    """
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def one_line(error: object, most: int) -> str:
    """Return what an error says in one line, no longer than so many characters."""
    return " ".join(str(error).split())[:most]


def plain_word(word: object) -> str:
    """Return a word of a choice as YAML writes it.

    >>> plain_word(None), plain_word(True), plain_word("half")
    ('null', 'true', 'half')
    """
    return "null" if word is None else str(word).lower() if isinstance(word, bool) else str(word)


_EXTRAS = {
    "torch": "blocklaws[torch]",
    "jax": "blocklaws[jax]",
    "jaxlib": "blocklaws[jax]",
    "distributed": "blocklaws[dask]",
    "mpi4py": "blocklaws[mpi]",
    "redis": "blocklaws[redis]",
}


def missing_module(error: ImportError) -> str:
    """Say which module is not installed, or is there and lacks a part, and how to install it.

    >>> missing_module(ModuleNotFoundError("No module named 'torch'", name="torch"))
    "torch is not installed; pip install 'blocklaws[torch]'"
    >>> missing_module(ModuleNotFoundError("No module named 'json.news'", name="json.news"))
    'the json that is installed has no json.news, so it is too old, or too new; pip install --upgrade json'
    """
    missing, _, part = (error.name or "").partition(".")
    if not isinstance(error, ModuleNotFoundError) or not missing:
        return f"cannot be imported: {error}"
    what = f"'{_EXTRAS[missing]}'" if missing in _EXTRAS else missing
    if part and importlib.util.find_spec(missing) is not None:
        told = f"the {missing} that is installed has no {error.name}, so it is too old, or too new"
        return f"{told}; pip install --upgrade {what}"
    return f"{missing} is not installed; pip install {what}"
