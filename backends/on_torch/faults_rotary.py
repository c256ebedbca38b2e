"""Faults of the rotary embedding: pairs, frequencies, angles, positions, and what is turned. The mask stays right."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.arrays import Array
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import CallAware
from blocklaws.backends.on_torch.parts import join_pairs, split_pairs
from blocklaws.config import BlockConfig

_OTHER_LAYOUT = {"interleaved": "half", "half": "interleaved", None: None}


class RotaryLayoutSwapped(DecoderBlock):
    """Built for the other layout."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config.replace(rotary=_OTHER_LAYOUT[config.rotary]), tensors)


class RotaryLayoutFixed(DecoderBlock):
    """Built for half-split pairs whatever the config says."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config.replace(rotary="half"), tensors)


class RotaryAnglesMispaired(DecoderBlock):
    """Pairs of one layout, cosines and sines of the other."""

    def rotate_pairs(self, a: Tensor, angles: Tensor) -> Tensor:
        layout, other = self.config.rotary, _OTHER_LAYOUT[self.config.rotary]
        angle_of_first, angle_of_second = split_pairs(join_pairs(angles, angles, other), layout)
        first, second = split_pairs(a.to(self.wide), layout)
        turned = join_pairs(
            first * angle_of_first.cos().to(self.wide) - second * angle_of_first.sin().to(self.wide),
            first * angle_of_second.sin().to(self.wide) + second * angle_of_second.cos().to(self.wide),
            layout,
        )
        return turned.to(a.dtype)


class RotaryFrequencyOffByOne(DecoderBlock):
    """base^(-2 (i - 1) / d_rotary)."""

    def rotary_frequencies(self) -> Tensor:
        return super().rotary_frequencies() * math.pow(self.config.rotary_base, 2 / self.config.d_rotary)


class RotaryBaseFixed(DecoderBlock):
    """Built for a base of 10000."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config.replace(rotary_base=10000.0), tensors)


class RotaryPositionsOverHeads(DecoderBlock):
    """Head h is turned as the token at position h."""

    def rotate(self, a: Tensor, angles: Tensor) -> Tensor:
        # [heads, 1, d_rotary / 2]
        return super().rotate(a, self.rotary_angles(self.positions(a.shape[1], 0)).unsqueeze(1))


class ValueRotated(CallAware):
    """Values are turned by their positions."""

    def project_value(self, n: Tensor) -> Tensor:
        angles = self.rotary_angles(self.positions(n.shape[1], self.run.offset))
        heads = self.split_heads(super().project_value(n), self.config.n_kv_heads)
        return self.merge_heads(self.rotate(heads, angles))


class RotaryMissing(DecoderBlock):
    """Nothing is turned."""

    def rotate(self, a: Tensor, angles: Tensor) -> Tensor:
        return a


class RotaryKeyNotTurned(DecoderBlock):
    """Only queries are turned."""

    def rotate_key(self, key: Tensor, angles: Tensor) -> Tensor:
        return key


class RotaryBackwards(DecoderBlock):
    """Minus the angle."""

    def rotate(self, a: Tensor, angles: Tensor) -> Tensor:
        return super().rotate(a, -angles)


class RotaryKeyBackwards(DecoderBlock):
    """Minus the angle, for keys."""

    def rotate_key(self, key: Tensor, angles: Tensor) -> Tensor:
        return super().rotate_key(key, -angles)


class RotarySineMissing(DecoderBlock):
    """(a, b) -> (a cos t, b cos t)."""

    def rotate_pairs(self, a: Tensor, angles: Tensor) -> Tensor:
        cosines = join_pairs(angles, angles, self.config.rotary).cos().to(self.wide)
        return (a.to(self.wide) * cosines).to(a.dtype)


class RotaryAnglesInHalf(DecoderBlock):
    """Positions, frequencies and their products with eight bits of mantissa."""

    def rotary_angles(self, positions: Tensor) -> Tensor:
        angles = positions.to(torch.bfloat16).unsqueeze(-1) * self.rotary_frequencies().to(torch.bfloat16)
        return angles.to(torch.float64)


class RotaryFrequenciesRounded(DecoderBlock):
    """Frequencies with eight bits of mantissa."""

    def rotary_frequencies(self) -> Tensor:
        return super().rotary_frequencies().to(torch.bfloat16).to(torch.float64)


class RotaryOffsetIgnored(TorchBlock):
    """Offset 0 for any offset that is in range."""

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        self._checked_input(x, position_offset)
        return super().forward(x)

    def trace(self, x: Array, position_offset: int = 0) -> dict[str, Array]:
        self._checked_input(x, position_offset)
        return super().trace(x)


class PositionsFromOne(DecoderBlock):
    """The first token is at position 1."""

    def rotary_angles(self, positions: Tensor) -> Tensor:
        return super().rotary_angles(positions + 1)


class RotaryPartial(DecoderBlock):
    """The second half of the pairs has no frequency."""

    def rotary_frequencies(self) -> Tensor:
        frequencies = super().rotary_frequencies()
        frequencies[(len(frequencies) + 1) // 2 :] = 0.0
        return frequencies


class RotaryExponentByDModel(DecoderBlock):
    """base^(-2 i / d_model)."""

    def rotary_frequencies(self) -> Tensor:
        return super().rotary_frequencies() ** (self.config.d_rotary / self.config.d_model)


class PositionsCapped(DecoderBlock):
    """Position 31 for any later one."""

    def rotary_angles(self, positions: Tensor) -> Tensor:
        return super().rotary_angles(positions.clamp(max=31))


class RotaryFractionIgnored(DecoderBlock):
    """Built to turn every feature of a head."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config.replace(rotary_fraction=1.0), tensors)


class RotaryFractionFixed(DecoderBlock):
    """Built to turn half of each head."""

    def __init__(self, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config.replace(rotary_fraction=0.5), tensors)


class RotaryFractionExponentByDHead(DecoderBlock):
    """base^(-2 i / d_head) for the d_rotary features."""

    def rotary_frequencies(self) -> Tensor:
        return super().rotary_frequencies() ** (self.config.d_rotary / self.config.d_head)


class RotaryTurnsLastFeatures(DecoderBlock):
    """The last d_rotary features are turned."""

    def rotate(self, a: Tensor, angles: Tensor) -> Tensor:
        stay = self.config.d_head - self.config.d_rotary
        return torch.cat((a[..., :stay], self.rotate_pairs(a[..., stay:], angles)), dim=-1)


class RotaryFractionPairsAcrossHead(DecoderBlock):
    """Pairs (i, i + d_head / 2), as many as have an angle."""

    def rotate(self, a: Tensor, angles: Tensor) -> Tensor:
        pairs, half = self.config.d_rotary // 2, self.config.d_head // 2
        first, second = a[..., :half], a[..., half:]
        chosen = torch.cat((first[..., :pairs], second[..., :pairs]), dim=-1)
        turned = self.rotate_pairs(chosen, angles).chunk(2, dim=-1)
        return torch.cat((turned[0], first[..., pairs:], turned[1], second[..., pairs:]), dim=-1)
