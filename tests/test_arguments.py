"""What `blocklaws.verify` refuses to be called with."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import blocklaws
import blocklaws.arguments

ONE_CASE: dict[str, Any] = {
    "blocks": ["llama"],
    "dtypes": ["float32"],
    "invariants": ["output-parity"],
    "profile": "quick",
}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"spec": 3}, "spec=3 must be a spec, the path of one, or None"),
        ({"blocks": "llama"}, "blocks='llama' must be a list of names, such as ['llama']"),
        ({"dtypes": [np.float32]}, f"dtypes={[np.float32]!r} must be a list of names, such as ['llama']"),
        ({"invariants": None}, "invariants=None must be a list of names, such as ['llama']"),
        ({"profile": None}, "profile=None must be a name"),
        ({"seed": "1"}, "seed='1' must be a whole number"),
        ({"seed": True}, "seed=True must be a whole number"),
        ({"device": 0}, "device=0 must be a string, or None"),
        ({"known_failures": 3}, "known_failures=3 must be the path of a file, or None"),
        ({"workers": "2"}, "workers='2' must be a positive number"),
        ({"workers": 0}, "workers=0 must be a positive number"),
        ({"workers": 2.0}, "workers=2.0 must be a positive number"),
        ({"executor": 3}, "executor=3 must be an executor like those of concurrent.futures, or None"),
        ({"isolate": "yes"}, "isolate='yes' must be True, False or None"),
        ({"time_limit": "1"}, "time_limit='1' must be a positive number of seconds"),
        ({"time_limit": float("nan")}, "time_limit=nan must be a positive number of seconds"),
        ({"memory_limit": 0}, "memory_limit=0 must be a positive number of MiB"),
        ({"shard": 3}, "shard=3 must be a string, or None"),
        ({"timings": 3}, "timings=3 must be the path of a file, or None"),
        ({"database": "folder"}, "database='folder' must be a list of folders, reports and addresses, such as "),
        ({"progress": 3}, "progress=3 must be a function of three arguments, or None"),
    ],
)
def test_an_argument_of_another_kind_is_refused_by_its_name(given: dict[str, Any], told: str) -> None:
    """Fails when a name is taken for the list of its letters, or a mistake ends in a traceback from somewhere."""
    with pytest.raises(blocklaws.BlocklawsError) as refused:
        blocklaws.verify("numpy", **ONE_CASE | given)
    assert str(refused.value).startswith(told)


def test_what_is_as_good_as_its_kind_is_taken() -> None:
    """Fails when a number of NumPy's, or a tuple, is refused: this would be a rule for its own sake."""
    report = blocklaws.verify("numpy", **ONE_CASE | {"seed": np.int64(3), "workers": np.int32(1), "blocks": ("llama",)})
    assert report.exit_status == 0


def test_every_argument_has_a_rule() -> None:
    """Fails when an argument is added and no rule for it."""
    arguments = set(inspect.signature(blocklaws.verify).parameters)
    assert arguments - {"backends"} == set(blocklaws.arguments._RULES)
