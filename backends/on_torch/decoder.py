"""One decoder block as an ``nn.Module``, written as the named steps of ``docs/architecture.md``.

Must hold: each step is a method that no other step bypasses, so a fault is a subclass that overrides one of them; a
trace records the tensors of the very computation that gives the output. Statistics of norms, rotary angles, the
soft-cap and the softmax are at least float32, and float64 in a float64 block. A choice at its default adds no
operation. No step reads or writes a global setting of torch.

Axes: batch, token, feature; with heads [batch, head, token, d_head]. Source: the mathematics in the design, which
follows Vaswani et al. 2017 (section 3.2), Zhang and Sennrich 2019 (equation 4), Su et al. 2021 (equation 34) and
Shazeer 2020 (equation 6); `BlockConfig` names those of the further choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocklaws.backends.on_torch.parts import Affine, Pass, Projection, join_pairs, split_pairs
from blocklaws.canonical import parameter_shapes
from blocklaws.config import BlockConfig

__all__ = ["DecoderBlock"]


class DecoderBlock(nn.Module):
    """A decoder block of one config, from canonical tensors: name -> tensor, matrices [in, out]."""

    projection_class: type[Projection] = Projection
    affine_class: type[Affine] = Affine

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.dtype = tensors["attention.query"].dtype
        self.wide = torch.float64 if self.dtype == torch.float64 else torch.float32

        def affine(name: str) -> Affine:
            return self.affine_class(tensors[f"{name}.gain"], tensors.get(f"{name}.bias"))

        def projection(name: str) -> Projection:
            return self.projection_class(tensors[name], tensors.get(f"{name}_bias"))

        self.attention_affine = affine("attention_norm")
        self.feed_forward_affine = affine("feed_forward_norm")
        self.query_affine = affine("attention.query_norm") if config.qk_norm else None
        self.key_affine = affine("attention.key_norm") if config.qk_norm else None
        self.query_projection = projection("attention.query")
        self.key_projection = projection("attention.key")
        self.value_projection = projection("attention.value")
        self.output_projection = projection("attention.output")
        self.gate_projection = projection("feed_forward.gate") if config.gated else None
        self.up_projection = projection("feed_forward.up")
        self.down_projection = projection("feed_forward.down")

    def canonical_parameters(self) -> Iterator[tuple[str, nn.Parameter, bool]]:
        """Yield (canonical name, parameter, whether it is stored transposed) in canonical order."""
        for name, shape in parameter_shapes(self.config).items():
            part, _, leaf = name.rpartition(".")
            if part.endswith("_norm"):
                # attention_norm, feed_forward_norm; attention.query_norm, attention.key_norm
                path = f"{part.removeprefix('attention.').removesuffix('_norm')}_affine.{leaf}"
            elif leaf.endswith("_bias"):
                path = f"{leaf.removesuffix('_bias')}_projection.bias"
            else:
                path = f"{leaf}_projection.weight"
            yield name, self.get_parameter(path), len(shape) == 2

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Return the output, [batch, token, d_model] like ``x``; ``run`` carries offset, cache and stages."""
        run = Pass() if run is None else run
        run.record("input", x)
        middle = run.record("after_attention", self.attention_half(x, run))
        return run.record("output", self.feed_forward_half(middle, self.feed_forward_source(x, middle), run))

    # The two halves: a branch with its norm and its addition, in the order of the placement.

    @property
    def placement(self) -> Literal["pre", "post", "inside"]:
        """Where the norms are: before the branches, after the additions, or between the two."""
        return self.config.placement

    def attention_half(self, x: Tensor, run: Pass) -> Tensor:
        if self.placement == "pre":
            normed = run.record("attention_norm", self.attention_norm(x))
            return self.add_attention(x, run.record("attention_branch", self.attention(normed, run)))
        branch = run.record("attention_branch", self.attention(x, run))
        if self.placement == "inside":
            return self.add_attention(x, run.record("attention_norm", self.attention_norm(branch)))
        return run.record("attention_norm", self.attention_norm(self.add_attention(x, branch)))

    def feed_forward_source(self, x: Tensor, middle: Tensor) -> Tensor:
        """Return what the second branch reads: the stream after attention, or the block's input, beside attention."""
        return x if self.config.residual == "parallel" else middle

    def feed_forward_half(self, x: Tensor, source: Tensor, run: Pass) -> Tensor:
        """Return ``x`` with the branch of ``source`` added, normed where the placement says so."""
        if self.placement == "pre":
            normed = run.record("feed_forward_norm", self.feed_forward_norm(source))
            return self.add_feed_forward(x, run.record("feed_forward_branch", self.feed_forward(normed)))
        branch = run.record("feed_forward_branch", self.feed_forward(source))
        if self.placement == "inside":
            return self.add_feed_forward(x, run.record("feed_forward_norm", self.feed_forward_norm(branch)))
        return run.record("feed_forward_norm", self.feed_forward_norm(self.add_feed_forward(x, branch)))

    def add_attention(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.scale_branch(branch)

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.scale_branch(branch)

    def scale_branch(self, branch: Tensor) -> Tensor:
        """Return what is added to the stream for a branch."""
        return branch if self.config.residual_scale == 1 else branch * self.config.residual_scale

    # Norms.

    def standardize(self, x: Tensor, eps: float) -> Tensor:
        """Return ``x`` with the scale (rms) or the mean and scale (layer) of each token removed, in the wide dtype."""
        x = x.to(self.wide)
        if self.config.norm == "layer":
            # Subtracted before squaring: E[x^2] - E[x]^2 cancels where the mean is large.
            x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

    def attention_norm(self, x: Tensor) -> Tensor:
        affine: Tensor = self.attention_affine(self.standardize(x, self.config.norm_eps))
        return affine.to(x.dtype)

    def feed_forward_norm(self, x: Tensor) -> Tensor:
        affine: Tensor = self.feed_forward_affine(self.standardize(x, self.config.norm_eps))
        return affine.to(x.dtype)

    def norm_query(self, query: Tensor) -> Tensor:
        """Return projected queries, [batch, token, n_heads d_head], normed where the block norms queries and keys."""
        return query if self.query_affine is None else self.norm_heads(query, self.query_affine)

    def norm_key(self, key: Tensor) -> Tensor:
        return key if self.key_affine is None else self.norm_heads(key, self.key_affine)

    def norm_heads(self, a: Tensor, affine: nn.Module) -> Tensor:
        """Return a norm of [batch, token, heads d_head] over the features of each head, or over all of them."""
        width = self.config.d_head if self.config.qk_norm == "head" else a.shape[-1]
        heads = a.view(*a.shape[:-1], a.shape[-1] // width, width)
        normed: Tensor = affine(self.standardize(heads, self.config.norm_eps))
        return normed.to(a.dtype).view(a.shape)

    # Attention.

    def attention(self, n: Tensor, run: Pass) -> Tensor:
        """Return the attention branch, [batch, token, d_model]."""
        config = self.config
        query = self.split_heads(self.norm_query(self.project_query(n)), config.n_heads)
        key = self.split_heads(self.norm_key(self.project_key(n)), config.n_kv_heads)
        value = self.split_heads(self.project_value(n), config.n_kv_heads)
        query_positions = self.positions(n.shape[1], run.offset)
        if config.rotary is not None:
            angles = self.rotary_angles(query_positions)
            query, key = self.rotate_query(query, angles), self.rotate_key(key, angles)
        run.record("query", query)
        run.record("key", key)
        run.record("value", value)
        run.cached = key, value = self.extend_cache(run.cached, key, value)
        earlier = key.shape[2] - n.shape[1]
        key_positions = self.positions(key.shape[2], run.offset - earlier) if earlier else query_positions
        key, value = self.repeat_heads(key), self.repeat_heads(value)
        visible = self.visible(query_positions, key_positions)
        if run.stages is not None:
            # The fused kernel keeps its weights to itself; these are the same ones from the same steps.
            weights = self.softmax(self.scores(query, key), visible)
            run.record("attention_weights", weights.to(self.dtype))
        return self.project_output(self.merge_heads(self.attend(query, key, value, visible)))

    def project_query(self, n: Tensor) -> Tensor:
        projected: Tensor = self.query_projection(n)
        return projected

    def project_key(self, n: Tensor) -> Tensor:
        projected: Tensor = self.key_projection(n)
        return projected

    def project_value(self, n: Tensor) -> Tensor:
        projected: Tensor = self.value_projection(n)
        return projected

    def split_heads(self, a: Tensor, heads: int) -> Tensor:
        """Return [batch, heads, token, d_head] from [batch, token, heads d_head]; head i owns its run of columns."""
        return a.view(*a.shape[:-1], heads, self.config.d_head).transpose(1, 2)

    def positions(self, tokens: int, offset: int) -> Tensor:
        """Return the positions offset .. offset + tokens - 1, [token], on the device of the parameters."""
        return torch.arange(offset, offset + tokens, device=self.query_projection.weight.device)

    def rotary_frequencies(self) -> Tensor:
        """Return base^(-2 i / d_rotary), radians a position, [d_rotary / 2], in float64."""
        width, device = self.config.d_rotary, self.query_projection.weight.device
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
        return torch.pow(self.config.rotary_base, -exponents)

    def rotary_angles(self, positions: Tensor) -> Tensor:
        """Return radians, [token, d_rotary / 2]; float64, because float32 is 2e-4 off at position 4000."""
        return positions.to(torch.float64).unsqueeze(-1) * self.rotary_frequencies()

    def rotate_query(self, query: Tensor, angles: Tensor) -> Tensor:
        return self.rotate(query, angles)

    def rotate_key(self, key: Tensor, angles: Tensor) -> Tensor:
        return self.rotate(key, angles)

    def rotate(self, a: Tensor, angles: Tensor) -> Tensor:
        """Turn the first d_rotary features of query or key, [batch, heads, token, d_head]; the rest stay."""
        if (width := self.config.d_rotary) == a.shape[-1]:
            return self.rotate_pairs(a, angles)
        return torch.cat((self.rotate_pairs(a[..., :width], angles), a[..., width:]), dim=-1)

    def rotate_pairs(self, a: Tensor, angles: Tensor) -> Tensor:
        """Turn each pair of features of ``a``, [batch, heads, token, d_rotary], by its angle."""
        cos, sin = angles.cos().to(self.wide), angles.sin().to(self.wide)
        first, second = split_pairs(a.to(self.wide), self.config.rotary)
        turned = join_pairs(first * cos - second * sin, first * sin + second * cos, self.config.rotary)
        return turned.to(a.dtype)

    def extend_cache(self, cached: tuple[Tensor, Tensor] | None, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values so far, [batch, n_kv_heads, key, d_head] each."""
        if cached is None:
            return key, value
        return torch.cat((cached[0], key), dim=2), torch.cat((cached[1], value), dim=2)

    def repeat_heads(self, a: Tensor) -> Tensor:
        """Return key or value for each query head: head i reads key/value head i // group (Ainslie et al. 2023)."""
        return a if self.config.group == 1 else a.repeat_interleave(self.config.group, dim=1)

    def score_scale(self) -> float:
        return float(self.config.d_head**-0.5)

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return [query, key], True where a query may look at a key: not after itself, and within the window."""
        query_positions = query_positions.unsqueeze(-1)
        visible = key_positions <= query_positions
        window = self.config.window
        return visible if window is None else visible & (key_positions > query_positions - window)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """Return [batch, n_heads, token, d_head]: `scores`, `softmax` and `mix`, in one fused kernel where it can."""
        if self.config.softcap is not None:
            # The kernel has nothing between its scores and their softmax.
            return self.mix(self.softmax(self.scores(query, key), visible), value)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=self.score_scale())

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Return q . k / sqrt(d_head), soft-capped, [batch, n_heads, query, key], in the wide dtype."""
        return self.cap_scores(query.to(self.wide) @ key.to(self.wide).mT * self.score_scale())

    def cap_scores(self, scores: Tensor) -> Tensor:
        """Return scores kept between -c and c, c tanh(scores / c), where the block caps them."""
        cap = self.config.softcap
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Return the weights over the keys; a hidden key weighs exactly zero."""
        return scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        """Return the values of the keys, weighted, [batch, n_heads, query, d_head]."""
        return (weights @ value.to(weights.dtype)).to(value.dtype)

    def merge_heads(self, a: Tensor) -> Tensor:
        """Return [batch, token, n_heads d_head], heads joined in order."""
        return a.transpose(1, 2).flatten(-2)

    def project_output(self, a: Tensor) -> Tensor:
        projected: Tensor = self.output_projection(a)
        return projected

    # Feed-forward.

    def activate(self, a: Tensor) -> Tensor:
        match self.config.feed_forward:
            case "swiglu":
                return F.silu(a)
            case "gelu" | "geglu":
                return F.gelu(a)
            case "gelu_tanh" | "geglu_tanh":
                return F.gelu(a, approximate="tanh")
            case "relu":
                return F.relu(a)

    def feed_forward_inner(self, n: Tensor) -> Tensor:
        """Return what enters the down projection, [batch, token, d_ff]."""
        up: Tensor = self.up_projection(n)
        return self.activate(up) if self.gate_projection is None else self.activate(self.gate_projection(n)) * up

    def feed_forward(self, n: Tensor) -> Tensor:
        """Return the feed-forward branch, [batch, token, d_model]."""
        branch: Tensor = self.down_projection(self.feed_forward_inner(n))
        return branch
