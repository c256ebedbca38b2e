"""The block of my_block.py with one mistake, the one that shape tests never see: its norms run over the tokens.

``blocklaws verify examples/wrong_block.py:WrongBackend`` shows what a failure looks like; the README follows it.
"""

import numpy as np
from my_block import MyBackend, MyBlock


class WrongBackend(MyBackend):
    """Builds the wrong block."""

    name = "wrong"

    def build(self, config, parameters, dtype):
        """Return the block; the parameters are those of `MyBackend`."""
        return WrongBlock(config, {name: np.asarray(array, dtype) for name, array in parameters.items()})


class WrongBlock(MyBlock):
    """Right in every shape and in every step but one."""

    def norm(self, x, gain):
        """Divide by the root mean square over axis 1, which are the tokens, where axis 2, the features, was meant."""
        wide = x.astype(np.float64)
        mean_square = (wide * wide).mean(axis=1, keepdims=True)
        return (wide / np.sqrt(mean_square + self.config.norm_eps) * gain).astype(x.dtype)
