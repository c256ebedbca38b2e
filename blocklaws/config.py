"""The config of one block: its sizes and its choices, checked once, when it is made.

Must hold: a `BlockConfig` that exists is coherent, so no adapter has to check it again. Must not import NumPy: the
command line reads configs before anything heavy is loaded. The words are those of ``spec/blocks.yaml``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from blocklaws.errors import ConfigError, did_you_mean

__all__ = ["CHOICES", "DEFAULTS", "DERIVED_SIZES", "NUMBERS", "SIZES", "BlockConfig"]

#: The sizes of a config, in the order in which they are printed.
SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff")

#: The sizes that follow from those and from the choices.
DERIVED_SIZES = ("group", "d_rotary")

#: The choices of a config and the words that each may take.
CHOICES: Mapping[str, tuple[str | bool | None, ...]] = {
    "norm": ("rms", "layer"),
    "placement": ("pre", "post", "inside"),
    "residual": ("sequential", "parallel"),
    "feed_forward": ("swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh", "relu"),
    "rotary": (None, "interleaved", "half"),
    "bias": (False, True, "qkv"),
    "qk_norm": (None, "head", "width"),
}

#: The choices that are numbers, and what each lies between in a file; some may be null instead.
NUMBERS: Mapping[str, tuple[float, float]] = {
    "norm_eps": (0, 1),
    "rotary_base": (1e-3, 1e12),
    "residual_scale": (1e-3, 1e3),
    "rotary_fraction": (1e-3, 1),
    "window": (1, 10_000_000),
    "softcap": (1e-3, 1e6),
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
        placement: ``"pre"`` or ``"post"`` (Xiong et al. 2020, figure 1), or ``"inside"``: x + norm(branch(x)) (OLMo 2
            2024, section 2).
        feed_forward: ``"swiglu"``, ``"geglu"`` (erf) or ``"geglu_tanh"``, with a gate (Shazeer 2020, eq. 6); ``"gelu"``
            (erf), ``"gelu_tanh"`` or ``"relu"``, without.
        rotary: ``None``, ``"interleaved"`` (pairs 2i, 2i+1; Su et al. 2021, eq. 34) or ``"half"`` (pairs i, i +
            d_rotary/2).
        rotary_base: the base of the rotary frequencies.
        bias: whether the projections have biases: all four of attention, and up and down of a feed-forward without a
            gate; ``"qkv"``: query, key and value alone.
        max_positions: positions run from 0 to ``max_positions - 1``; others are refused.
        residual: ``"sequential"``, or ``"parallel"``: both branches read the block's input (Wang and Komatsuzaki 2021).
        residual_scale: what each branch is multiplied by before it is added.
        rotary_fraction: the share of a head's features that rotary positions turn, its first ones (GPT-NeoX 2022,
            section 2.1).
        qk_norm: ``None``; or queries and keys are normed before they are turned, ``"head"``: each head's features
            (Dehghani et al. 2023, section 2), ``"width"``: all heads' features together (OLMo 2).
        window: ``None``, or how many keys a query may see, itself included (Jiang et al. 2023, section 2).
        softcap: ``None``, or c, where scores become c tanh(scores / c) before the mask (Gemma 2 2024, section 2).

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
    placement: Literal["pre", "post", "inside"]
    feed_forward: Literal["swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh", "relu"]
    rotary: Literal["interleaved", "half"] | None
    rotary_base: float
    bias: bool | Literal["qkv"]
    max_positions: int
    residual: Literal["sequential", "parallel"] = "sequential"
    residual_scale: float = 1.0
    rotary_fraction: float = 1.0
    qk_norm: Literal["head", "width"] | None = None
    window: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        for name in ("norm_eps", "rotary_base", "residual_scale", "rotary_fraction", "softcap"):
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
        for name in ("rotary_base", "residual_scale", "softcap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"configuration: {name}={value!r} must be positive and finite")
        if not 0 < self.rotary_fraction <= 1:
            raise ConfigError(f"configuration: rotary_fraction={self.rotary_fraction!r} must be in (0, 1]")
        window: Any = self.window
        if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
            raise ConfigError(
                f"configuration: window={self.window!r} must be a positive integer, or null for no window"
            )
        if self.residual == "parallel" and self.placement != "pre":
            raise ConfigError(
                f"configuration: placement={self.placement!r} with residual='parallel'; branches beside each other are "
                "normed before (placement 'pre')"
            )
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
        return self.feed_forward in ("swiglu", "geglu", "geglu_tanh")

    @property
    def d_rotary(self) -> int:
        """How many features of a head rotary positions turn: an even number, two at least."""
        return 2 * max(1, int(self.d_head * self.rotary_fraction) // 2)

    @property
    def further(self) -> dict[str, Any]:
        """What the config asks for that a block without such a choice does not do: name -> value; empty for most."""
        return {name: getattr(self, name) for name, value in DEFAULTS.items() if getattr(self, name) != value}

    def replace(self, **changes: Any) -> BlockConfig:
        """Return a copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, in their order."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


#: The choices that a file may leave out, and what they are then: as in the blocks of before there were such choices.
DEFAULTS: Mapping[str, Any] = {
    field.name: field.default for field in dataclasses.fields(BlockConfig) if field.default is not dataclasses.MISSING
}
