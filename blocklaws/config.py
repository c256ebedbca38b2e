"""The config of one block: its sizes and its choices, checked once, when it is made.

Must hold: a `BlockConfig` that exists is coherent, so no adapter has to check it again. Must not import NumPy: the
command line reads configs before anything heavy is loaded. The words are those of ``spec/blocks.yaml``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from blocklaws.errors import ConfigError, did_you_mean

__all__ = ["CHOICES", "SIZES", "BlockConfig"]

#: The sizes of a config, in the order in which they are printed.
SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff")

#: The choices of a config and the words that each may take.
CHOICES: Mapping[str, tuple[str | bool | None, ...]] = {
    "norm": ("rms", "layer"),
    "placement": ("pre", "post"),
    "feed_forward": ("swiglu", "gelu", "gelu_tanh", "relu"),
    "rotary": (None, "interleaved", "half"),
    "bias": (False, True),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Sizes and choices of one decoder block.

    Attributes:
        block: the name of the kind of block, a key of ``spec/blocks.yaml``.
        d_model: width of the residual stream.
        n_heads: number of query heads.
        n_kv_heads: number of key/value heads; divides ``n_heads``.
        d_head: width of one head; even where there is a rotary embedding.
        d_ff: inner width of the feed-forward branch.
        norm: ``"rms"`` (Zhang and Sennrich 2019, eq. 4) or ``"layer"`` (Ba et al. 2016, eq. 3).
        norm_eps: added to the mean square or the variance, inside the root.
        placement: ``"pre"`` or ``"post"`` (Xiong et al. 2020, figure 1).
        feed_forward: ``"swiglu"`` (Shazeer 2020, eq. 6), ``"gelu"`` (erf), ``"gelu_tanh"`` or ``"relu"``.
        rotary: ``None``, ``"interleaved"`` (pairs 2i, 2i+1; Su et al. 2021, eq. 34) or ``"half"`` (pairs i, i +
        d_head/2). rotary_base: the base of the rotary frequencies.
        bias: whether the projections have biases (all four of attention; up and down of a one-gate feed-forward).
        max_positions: positions run from 0 to ``max_positions - 1``; others are refused.

    Raises:
        ConfigError: a size is not a positive integer, a choice is unknown, or they contradict each other.
    """

    block: str
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    norm: Literal["rms", "layer"]
    norm_eps: float
    placement: Literal["pre", "post"]
    feed_forward: Literal["swiglu", "gelu", "gelu_tanh", "relu"]
    rotary: Literal["interleaved", "half"] | None
    rotary_base: float
    bias: bool
    max_positions: int

    def __post_init__(self) -> None:
        for name in ("norm_eps", "rotary_base"):
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool):
                # A whole number is a fine epsilon, but not every library takes one.
                object.__setattr__(self, name, float(value))
        for name in (*SIZES, "max_positions"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"configuration: {name}={value!r} must be a positive integer")
        for name, words in CHOICES.items():
            value = getattr(self, name)
            # `in` alone would let 0 and 1 pass for False and True.
            if not any(value is word or (isinstance(word, str) and value == word) for word in words):
                hint = did_you_mean(str(value), [str(word) for word in words])
                raise ConfigError(f"configuration: {name}={value!r} must be one of {list(words)}{hint}")
        if not self.norm_eps >= 0:
            raise ConfigError(f"configuration: norm_eps={self.norm_eps!r} must be zero or positive")
        if not self.rotary_base > 0:
            raise ConfigError(f"configuration: rotary_base={self.rotary_base!r} must be positive")
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"configuration: n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads} "
                f"(remainder {self.n_heads % self.n_kv_heads}); "
                "each key/value head serves an equal group of query heads"
            )
        if self.rotary is not None and self.d_head % 2:
            raise ConfigError(
                f"configuration: d_head={self.d_head} is odd, but rotary={self.rotary!r} turns pairs of features; "
                "use an even d_head"
            )

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def gated(self) -> bool:
        """Whether the feed-forward branch has a gate matrix of its own."""
        return self.feed_forward == "swiglu"

    def replace(self, **changes: Any) -> BlockConfig:
        """Return a copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, in their order."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
