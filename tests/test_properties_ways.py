"""Other ways to compute a forward, and sequences by turns; each with blocks that must be refuted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from property_support import Altered, check, faulty

import blocklaws
from blocklaws.discovery import find_subjects


class _Offering:
    """The NumPy block with one more way, by default a right one."""

    name = "offering"
    dtypes = ("float64", "float32")

    def __init__(self, ways: Any = ("swift",), wrong: float = 0.0, sticks: bool = False) -> None:
        self.ways, self.wrong, self.sticks = ways, wrong, sticks
        self._right = find_subjects("numpy")[0].backend

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Return a block with ``ways``."""
        block = self._right.build(config, parameters, dtype)
        return _OfferingBlock(block, self)


class _OfferingBlock:
    def __init__(self, block: Any, offered: _Offering) -> None:
        self._block, self._offered, self._stuck = block, offered, False
        self.ways = offered.ways

    def forward(self, x: Any, position_offset: int = 0) -> Any:
        """Return the output; after a way that sticks, another one."""
        return self._block.forward(x, position_offset) * (1.25 if self._stuck else 1)

    def forward_by(self, way: str, x: Any, position_offset: int = 0) -> Any:
        """Return the output, off by the share that was asked for."""
        self._stuck = self._offered.sticks
        return self._block.forward(x, position_offset) * (1 + self._offered.wrong)


def test_a_right_way_holds_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    """Fails if a way that rounds otherwise is refuted, or one that is off by a thousandth passes."""
    for rounding in (0.0, 1e-7):
        right = check(tmp_path, "ways", _Offering(wrong=rounding), dtype="float32")
        assert (right.verdict, right.informative) == ("holds", right.examples), right.reason
    wrong = check(tmp_path, "ways", _Offering(wrong=1e-3), dtype="float32")
    assert wrong.verdict == "violated"
    assert "swift and forward" in wrong.reason


def test_a_way_that_leaves_the_block_in_another_mode_is_refuted(tmp_path: Path) -> None:
    """Fails if forward may answer otherwise after a way was taken."""
    result = check(tmp_path, "ways", _Offering(sticks=True))
    assert result.verdict == "violated"
    assert "forward, after the way 'swift'" in result.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: y.astype(np.float32), "the output by the way 'each' is float32, the input is float64"),
        (lambda x, y: y if np.copyto(x, 1) is None else x, "the way 'each' wrote into its arguments"),
    ],
)
def test_a_way_keeps_to_its_arguments_and_their_dtype(tmp_path: Path, change: Any, said: str) -> None:
    """Fails if a way may do what ``forward`` may not."""

    def forward_by(block: Any, way: str, x: Any, position_offset: int = 0) -> Any:
        return change(x, block.forward_by(way, x, position_offset))

    result = check(tmp_path, "ways", Altered(forward_by=forward_by))
    assert result.verdict == "violated", result.reason
    assert said in result.reason


def test_a_block_without_ways_is_unchecked(tmp_path: Path) -> None:
    """Fails if a block that offers none passes."""
    result = check(tmp_path, "ways", lambda x, parameters, config: x, dtype="float32")
    assert (result.verdict, result.reason) == ("unchecked", "the block has no forward_by")


@pytest.mark.parametrize("ways", [None, (), "compiled", (1,), [""]])
def test_ways_that_are_not_named_are_an_error_of_the_block(tmp_path: Path, ways: Any) -> None:
    """Fails if forward_by without names of ways is taken for nothing to check."""
    result = check(tmp_path, "ways", _Offering(ways))
    assert result.verdict == "error"
    assert "returned a block with forward_by and ways=" in result.reason
    assert "name the ways, such as ('compiled',)" in result.reason


@pytest.mark.parametrize(
    ("backend", "fault", "way"),
    [
        ("numpy", "norm-in-half-by-one-way", "each"),
        ("torch", "angles-in-half-by-one-way", "compiled"),
        ("torch", "norm-in-half-by-one-way", "compiled"),
        ("jax", "angles-in-half-by-one-way", "eager"),
        ("jax", "norm-in-half-by-one-way", "eager"),
    ],
)
def test_compiled_and_eager_are_compared(tmp_path: Path, backend: str, fault: str, way: str) -> None:
    """Fails if the built-in backends' own ways are not taken, or are taken for forward."""
    result = check(tmp_path, "ways", faulty(fault, backend), dtype="float32", where="T == 3")
    assert result.verdict == "violated", result.reason
    assert f"{way} and forward" in result.reason


def test_training_and_evaluation_are_compared(tmp_path: Path) -> None:
    """Fails if torch's training mode is not taken."""
    result = check(
        tmp_path, "ways", faulty("training-gelu-tanh", "torch"), block="gpt", dtype="float32", where="T == 3"
    )
    assert result.verdict == "violated", result.reason
    assert "training and forward" in result.reason


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_ways_are_reached_in_a_process_of_their_own(backend: str) -> None:
    """Fails if isolation loses the ways of a block, or their answers."""
    report = blocklaws.verify(backend, blocks=["llama"], invariants=["ways-agree"], profile="quick", isolate=True)
    assert [case.verdict for case in report.cases] == ["holds"], [case.reason for case in report.cases]


def test_the_compiled_torch_backend_compiles_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if its forward is the uncompiled one; Inductor, which needs a compiler of C++, is stood in for."""
    from blocklaws.backends.on_torch import ways

    used = []
    compiled = ways.compiled

    def standing_in(module: Any, x: Any, run: Any, compiler: str) -> Any:
        used.append(compiler)
        return compiled(module, x, run)

    monkeypatch.setattr(ways, "compiled", standing_in)
    report = blocklaws.verify(
        "blocklaws.backends.on_torch:CompiledTorchBackend", blocks=["llama"], invariants=["ways-agree"], profile="quick"
    )
    assert [(case.backend, case.verdict) for case in report.cases] == [("torch-compiled", "holds")]
    assert set(used) == {"inductor"}


# --- cache-turns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_sequences_by_turns(tmp_path: Path, backend: str) -> None:
    """Fails if a right block is refuted, or one that keeps the cache itself passes."""
    right = check(tmp_path, "cache-turns", backend, dtype="float32", where="T == 3")
    assert (right.verdict, right.informative) == ("holds", right.examples), right.reason
    wrong = check(tmp_path, "cache-turns", faulty("cache-on-block", backend), dtype="float32", where="T == 3")
    assert wrong.verdict == "violated", wrong.reason
    assert "two sequences by turns" in wrong.reason


def test_a_cached_output_of_another_shape_is_an_error(tmp_path: Path) -> None:
    """Fails if a chunk's output may have another shape than the chunk."""

    def forward_cached(block: Any, x: Any, cache: Any) -> Any:
        output, cache = block.forward_cached(x, cache)
        return np.concatenate([output, output], axis=1), cache

    wrong = Altered(forward_cached=forward_cached)
    result = check(tmp_path, "cache-turns", wrong, where="T == 3")
    assert result.verdict == "error"
    assert "for a chunk of shape" in result.reason


# --- cache-arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("cache-input-modified", "written to"),
        ("cache-output-reused", "a later call wrote into them"),
        ("cache-strides-ignored", "Fortran-ordered chunks"),
        ("cache-begins-at-last-offset", "chunks with other calls before each"),
    ],
)
def test_cached_calls_keep_to_their_arguments(tmp_path: Path, backend: str, fault: str, told: str) -> None:
    """Fails if a right block is refuted, or one that misreads or writes to a chunk passes."""
    right = check(tmp_path, "cache-arguments", backend, dtype="float32", where="T == 3")
    assert (right.verdict, right.informative) == ("holds", right.examples), right.reason
    wrong = check(tmp_path, "cache-arguments", faulty(fault, backend), dtype="float32", where="T == 3")
    assert wrong.verdict == "violated", wrong.reason
    assert told in wrong.reason


def test_a_cached_output_of_another_dtype_is_seen(tmp_path: Path) -> None:
    """Fails if decoding may give another dtype than the full pass does."""

    def forward_cached(block: Any, x: Any, cache: Any) -> Any:
        output, cache = block.forward_cached(x, cache)
        return output.astype(np.float32), cache

    result = check(tmp_path, "cache-arguments", Altered(forward_cached=forward_cached), where="T == 3")
    assert result.verdict == "violated"
    assert "the output of a chunk is float32, the input is float64" in result.reason
