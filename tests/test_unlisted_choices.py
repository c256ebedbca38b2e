"""What no kind of block has, and what no world of ordinary weights drives, is looked at all the same.

Must hold: a block that is wrong only under such a word of the config, or only where an activation is driven hard, is
refuted by the invariant that is there for it; a right block that is written another way is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from property_support import Altered

import blocklaws
from blocklaws.backends.on_numpy.activations import gelu
from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.precision import precision_of

NO_GRADIENTS = "the block has no gradients"


def verdict(backend: Any, invariant: str, block: str, dtype: str) -> str:
    """Return the verdict of one case of the built-in spec, all of whose parts came to the same."""
    report = blocklaws.verify(backend, invariants=[invariant], blocks=[block], dtypes=[dtype], profile="quick")
    assert {case.reason for case in report.cases if case.verdict in ("error", "unchecked")} <= {NO_GRADIENTS}
    return "violated" if any(case.verdict == "violated" for case in report.cases) else "holds"


def off_where(**words: str) -> Altered:
    """Return a backend that is off by a thousandth where the config has those words, and nowhere else."""

    def forward(block: Any, x: Any, position_offset: int) -> Any:
        wrong = all(getattr(block.config, key) == word for key, word in words.items())
        return block.forward(x, position_offset) * (1.001 if wrong else 1)

    return Altered(forward=forward)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("words", "invariant", "block"),
    [
        ({"norm": "rms", "placement": "post"}, "placement-matters", "llama-gqa"),
        ({"norm": "layer", "placement": "pre", "feed_forward": "relu"}, "placement-matters", "original"),
        ({"feed_forward": "gelu_tanh"}, "tanh-gelu-honoured", "gpt"),
    ],
)
def test_a_word_that_no_kind_of_block_has_is_looked_at(
    words: dict[str, str], invariant: str, block: str, dtype: str
) -> None:
    """Fails if a block may be wrong wherever no kind of block is."""
    assert verdict(off_where(**words), invariant, block, dtype) == "violated"
    assert verdict(off_where(), "output-parity", block, dtype) == "violated"
    assert verdict(off_where(**words), "output-parity", block, dtype) == "holds"
    assert verdict(Altered(), invariant, block, dtype) == "holds"


def silu_by_power(a: np.ndarray) -> np.ndarray:
    """Return a exp(a) / (1 + exp(a)), which overflows where a is large."""
    return a * (np.exp(a) / (1 + np.exp(a)))


def silu_by_decay(a: np.ndarray) -> np.ndarray:
    """Return a / (1 + exp(-a)), whose exponential overflows where the result is zero all the same."""
    return a / (1 + np.exp(-a))


def gelu_to_88(a: np.ndarray) -> np.ndarray:
    """Return the exact GELU, and NaN where an exponential of its argument would overflow in float32."""
    return np.where(a > 88, np.nan, gelu(a)[0]).astype(a.dtype)


class _Written:
    """The NumPy backend with an activation of one's own."""

    name = "written"
    dtypes = ("float64", "float32")

    def __init__(self, activation: Callable[[np.ndarray], np.ndarray]) -> None:
        class Block(NumpyBlock):
            gradients: Any = None

            def activate(self, a: np.ndarray) -> Any:
                with np.errstate(over="ignore", invalid="ignore"):
                    return activation(a), None

        self._block = Block

    def build(self, config: Any, parameters: Any, dtype: str) -> Any:
        """Return a block that computes no gradients."""
        return self._block(config, parameters, precision_of(dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("activation", "block", "expected"),
    [(silu_by_power, "llama", "violated"), (silu_by_decay, "llama", "holds"), (gelu_to_88, "gpt", "violated")],
)
def test_an_activation_that_overflows_is_refuted_where_that_shows(
    activation: Callable[[np.ndarray], np.ndarray], block: str, expected: str, dtype: str
) -> None:
    """Fails if NaN passes, or an overflow that does no harm is held against a block."""
    assert verdict(_Written(activation), "activation-driven-hard", block, dtype) == expected


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_derivative_that_overflows_is_refuted(dtype: str) -> None:
    """Fails if the gradient may be NaN where the activation is driven hard and its value is right."""

    class Block(NumpyBlock):
        def activate(self, a: np.ndarray) -> Any:
            value, _ = super().activate(a)
            with np.errstate(over="ignore", invalid="ignore"):
                power = np.exp(-a)
                slope = (1 + power + a * power) / (1 + power) ** 2
            return value, lambda cotangent, _: cotangent * slope

    backend = _Written(silu_by_decay)
    backend._block = Block
    report = blocklaws.verify(backend, invariants=["activation-driven-hard"], blocks=["llama"], dtypes=[dtype])
    assert [(case.part, case.verdict) for case in report.cases if case.verdict == "violated"] == [
        ("gradients", "violated")
    ]
