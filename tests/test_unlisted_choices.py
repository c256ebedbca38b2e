"""What no kind of block has, and what no world of ordinary weights drives, is looked at all the same.

Must hold: a block that is wrong only under such a word of the config, or only where an activation is driven hard, is
refuted by the invariant that is there for it; a right block that is written another way is not.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from property_support import Altered

import blocklaws
from blocklaws.backends.on_numpy.activations import gelu
from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.precision import precision_of
from blocklaws.replaying import examine

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


@pytest.fixture
def relu_kinds(tmp_path: Path) -> str:
    """Return the path of a spec with kinds of block that have a ReLU behind a norm, with biases and without."""
    words = yaml.safe_load(files("blocklaws.spec").joinpath("blocks.yaml").read_text(encoding="utf-8"))["original"]
    kinds = {f"relu-{bias}": {**words, "placement": "pre", "bias": bias} for bias in (True, False)}
    path = tmp_path / "relu.yaml"
    path.write_text(yaml.safe_dump({"extends": "blocklaws", "blocks": kinds}), encoding="utf-8")
    return str(path)


def test_what_every_relu_keeps_out_changes_nothing(relu_kinds: str) -> None:
    """Fails if a right block is accused of a gain that no ReLU of a small world lets through."""
    sizes = {"B": 1, "T": 2, "n_heads": 1, "n_kv_heads": 1, "d_head": 4, "d_ff": 3, "d_model": 4}
    result = examine(
        "numpy",
        invariant="both-gains-honoured",
        block="relu-False",
        dtype="float32",
        spec=relu_kinds,
        example={"sizes": sizes, "pattern": "normal", "seed": 144814, "position_offset": 0, "picks": {}},
    )
    assert result.verdict != "violated", result.reason


@pytest.mark.parametrize("block", ["relu-True", "relu-False"])
def test_gradients_behind_a_relu_are_looked_at(relu_kinds: str, block: str) -> None:
    """Fails if the kinks of a ReLU are looked for where it is not, or in biases that a block does not have."""

    def wrong(block: Any, x: Any, cotangent: Any, position_offset: int) -> Any:
        gradients = block.gradients(x, cotangent, position_offset)
        return {**gradients, "feed_forward.up": gradients["feed_forward.up"] * 1.01}

    for backend, verdict in (("numpy", "holds"), (Altered(gradients=wrong), "violated")):
        report = blocklaws.verify(
            backend,
            spec=relu_kinds,
            invariants=["gradient-parity"],
            blocks=[block],
            dtypes=["float64"],
            profile="quick",
        )
        assert [case.verdict for case in report.cases] == [verdict]
        assert report.cases[0].informative >= 1


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
