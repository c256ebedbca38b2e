"""Rotary positions: each pair of features of a query or key is turned by an angle that grows with the position.

Must hold: values are not turned; angles are computed in the dtype of the arithmetic, float64 in a float64 block and
float32 otherwise. That is what a block may do at worst, and the recipe that tolerances are calibrated by must not be
better. A turn keeps the length of each pair.

Sources: Su et al. 2021, equation 34, for interleaved pairs; half-split pairs are the same turn of permuted features; a
share of the features, Black et al. 2022 (GPT-NeoX-20B), section 2.1.1.
"""

from functools import partial

import numpy as np

from blocklaws.backends.on_numpy.shapes import Angles, Frequencies, Heads, Positions
from blocklaws.backends.on_numpy.steps import Gradients, Pullback, Steps, chain

__all__ = ["RotarySteps"]


class RotarySteps(Steps):
    """The steps that turn queries and keys."""

    def rotary_frequencies(self) -> Frequencies:
        """Return radians a position for each pair i: ``rotary_base^(-2 i / d_rotary)``."""
        exponents = -np.arange(0, self.config.d_rotary, 2) / self.config.d_rotary
        frequencies: np.ndarray = self.config.rotary_base**exponents
        return frequencies.astype(self.precision.computing)

    def rotary_angles(self, positions: Positions) -> Angles:
        """Return the angle in radians by which each pair of each token is turned."""
        angles: np.ndarray = positions[:, None].astype(self.precision.computing) * self.rotary_frequencies()
        return angles

    def rotary_pairs(self) -> tuple[slice, slice]:
        """Return where the first and the second feature of each pair lie within a head: among its first d_rotary."""
        width = self.config.d_rotary
        if self.config.rotary == "interleaved":
            return slice(0, width, 2), slice(1, width, 2)
        return slice(None, width // 2), slice(width // 2, width)

    def turn(
        self,
        a: Heads,
        cosine: Angles,
        sine: Angles,
    ) -> Heads:
        """Return each pair (a, b) as ``(a cos - b sin, a sin + b cos)``, and features of no pair as they are."""
        first, second = self.rotary_pairs()
        turned = a.copy()
        turned[..., first] = a[..., first] * cosine - a[..., second] * sine
        turned[..., second] = a[..., first] * sine + a[..., second] * cosine
        return turned

    def place(self, a: Heads, positions: Positions) -> tuple[Heads, Pullback]:
        """Return a query or a key turned to its positions, where the block has rotary positions."""
        if self.config.rotary is None:
            return a, chain()
        return self.rotate(a, self.rotary_angles(positions))

    def rotate(self, a: Heads, angles: Angles) -> tuple[Heads, Pullback]:
        """Return a query or a key, turned; the pullback turns back."""
        computing = self.precision.computing
        angles = angles.astype(computing, copy=False)
        cosine, sine = np.cos(angles), np.sin(angles)
        return self.rounded(self.turn(a, cosine, sine), partial(self.pull_rotate, cosine, sine))

    def pull_rotate(self, cosine: Angles, sine: Angles, cotangent: Heads, _: Gradients) -> Heads:
        """Return the cotangent of the query or key: that of the turned one, turned back."""
        return self.turn(cotangent, cosine, -sine)
