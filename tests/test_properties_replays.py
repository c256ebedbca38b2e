"""The property about look-alike questions, with caches whose keys leave something out and one that leaves out nothing.

The caches of tests/cheats are seen by the spec's own invariants; those here pass them all but for one question.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from property_support import Altered, check

LOOK_ALIKES = {"law": "look-alikes"}


class Remembering(Altered):
    """Blocks that answer from a memo, each block from one of its own or all of the backend from the same."""

    def __init__(self, key: Callable[[Any], Any], *, shared: bool = False, **options: Any) -> None:
        super().__init__(forward=self._forward, **options)
        self._key, self._shared = key, shared
        self._memo: dict[Any, tuple[Any, Any]] = {}

    def _forward(self, block: Any, x: Any, position_offset: int = 0) -> Any:
        # What a shared memo has to know beside the input are the parameters, so that nothing else is wrong with it.
        of = tuple(value.tobytes() for value in block.parameters().values()) if self._shared else id(block)
        key = (of, self._key(x), position_offset)
        if key not in self._memo:
            self._memo[key] = (block, block.forward(x, position_offset))
        return self._memo[key][1].copy()


def _bytes(x: Any) -> Any:
    return x.tobytes()


def _rounded(x: Any) -> Any:
    return x.shape, np.round(x, 3).tobytes()


def _cut_off(x: Any) -> Any:
    return x.shape, np.floor(x * 1000).tobytes()


def _in_half(x: Any) -> Any:
    return x.shape, x.astype(np.float16).tobytes()


def _without_last_bits(x: Any) -> Any:
    bits = x.view(np.uint64 if x.dtype == np.float64 else np.uint32)
    return x.shape, (bits >> np.asarray(4, bits.dtype)).tobytes()


def _complete(x: Any) -> Any:
    return x.shape, x.tobytes()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("key", "said"),
    [
        (_bytes, "an input of the same bytes in the shape"),
        (_rounded, "of two inputs that are the same to three decimals"),
    ],
)
def test_a_key_that_leaves_something_out_is_seen(
    tmp_path: Path, key: Callable[[Any], Any], said: str, dtype: str, shared: bool
) -> None:
    """Fails if the bytes without the shape, or the rounded values, will do as the key of a memo."""
    result = check(tmp_path, "replays", Remembering(key, shared=shared), arguments=LOOK_ALIKES, dtype=dtype)
    assert result.verdict == "violated", result.reason
    assert said in result.reason


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("key", [_in_half, _without_last_bits])
def test_a_key_that_leaves_out_the_last_bits_is_seen(tmp_path: Path, key: Callable[[Any], Any], dtype: str) -> None:
    """Fails if a finer rounding than three decimals will do as the key of a memo.

    A memo of all blocks is not seen by it: its wrong answers are as near to the reference as right ones.
    """
    result = check(tmp_path, "replays", Remembering(key), arguments=LOOK_ALIKES, dtype=dtype)
    assert result.verdict == "violated", result.reason
    assert "of two inputs that are the same" in result.reason


@pytest.mark.parametrize("where", ["B == 1 and T == 2", "B == 2 and T == 3", "B == 4 and T == 1", "B == 2 and T == 2"])
@pytest.mark.parametrize("key", [_bytes, _rounded, _cut_off])
def test_it_is_seen_at_every_small_size(tmp_path: Path, key: Callable[[Any], Any], where: str) -> None:
    """Fails if one size has no other shape to ask about."""
    result = check(
        tmp_path, "replays", Remembering(key), arguments=LOOK_ALIKES, where=where, worlds=["normal"], examples=3
    )
    assert result.verdict == "violated", result.reason


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_memo_of_the_whole_question_is_right(tmp_path: Path, deterministic: bool) -> None:
    """Fails if a cache that is keyed on all that the answer depends on is forbidden."""
    backend = Remembering(_complete, deterministic=deterministic)
    result = check(tmp_path, "replays", backend, arguments=LOOK_ALIKES, worlds=["gentle"])
    assert result.verdict == "holds", result.reason


def test_a_backend_that_is_not_deterministic_is_judged_closely(tmp_path: Path) -> None:
    """Fails if rounding noise between two blocks refutes a backend that says so."""

    def forward(block: Any, x: Any, position_offset: int = 0) -> Any:
        return block.forward(x, position_offset) * (1 + np.random.default_rng().uniform(-1, 1) * 1e-15)

    options = {"arguments": LOOK_ALIKES, "worlds": ["gentle"]}
    assert check(tmp_path, "replays", Altered(deterministic=False, forward=forward), **options).verdict == "holds"


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("numpy", "float64"), ("numpy", "float32"), ("torch", "float32"), ("torch", "bfloat16"), ("jax", "float64"),
     ("jax", "float32"), ("jax", "bfloat16")],
)  # fmt: skip
def test_a_right_block_answers_each(tmp_path: Path, backend: str, dtype: str) -> None:
    """Fails if a right block is refuted, at any offset and size, or no question tells it from another."""
    if backend != "numpy":
        pytest.importorskip(backend)
    where = "T <= 5" if backend == "numpy" else "T <= 2"
    result = check(tmp_path, "replays", backend, arguments=LOOK_ALIKES, dtype=dtype, worlds=["gentle"], where=where)
    assert (result.verdict, result.informative) == ("holds", result.examples), result.reason


def test_a_kernel_is_not_asked_about_tokens_that_it_does_not_take(tmp_path: Path) -> None:
    """Fails if the other shape does not keep to what a backend's sizes must divide by."""
    backend = Altered()
    backend.multiples = {"T": 2}  # type: ignore[attr-defined]

    def forward(block: Any, x: Any, position_offset: int = 0) -> Any:
        if x.shape[1] % 2:
            raise ValueError(f"{x.shape[1]} tokens")
        return block.forward(x, position_offset)

    backend._methods = {"forward": forward}
    result = check(tmp_path, "replays", backend, arguments=LOOK_ALIKES, worlds=["gentle"])
    assert result.verdict == "holds", result.reason
