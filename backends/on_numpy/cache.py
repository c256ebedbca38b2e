"""The keys and values of earlier tokens, and the working state of one call.

Must hold: a cache is used once. The call that takes it releases it, so no two continuations can share a history by
accident; a call that is refused before it starts leaves the cache as it was.
"""

import dataclasses

import numpy as np

from blocklaws.backends.on_numpy.shapes import Numbers, Positions

__all__ = ["Call", "KeyValueCache", "KeyValues"]


@dataclasses.dataclass(frozen=True)
class KeyValues:
    """Keys (after rotation) and values of consecutive positions.

    Attributes:
        key: [batch, kv_head, key, d_head].
        value: [batch, kv_head, key, d_head].
    """

    key: np.ndarray
    value: np.ndarray


class KeyValueCache:
    """What ``forward_cached`` hands from one chunk of tokens to the next; it is released by the call that takes it.

    Attributes:
        batch: the number of sequences.
        length: the number of tokens so far, which is the position of the next one.
    """

    def __init__(self, content: KeyValues, length: int) -> None:
        self._content: KeyValues | None = content
        self.batch = len(content.key)
        self.length = length

    def look(self, batch: int) -> KeyValues:
        """Return the keys and values for a batch of that size, without releasing the cache.

        Raises:
            ValueError: the cache was released by an earlier call, or holds a batch of another size.
        """
        if self._content is None:
            raise ValueError(
                f"released cache: this cache of {self.length} tokens was consumed by an earlier call, and a cache is "
                "used once; continue from the cache which that call returned"
            )
        if self.batch != batch:
            raise ValueError(
                f"released cache: the cache holds {self.batch} sequences and the input has {batch}; "
                "continue a cache with the batch that it was made from"
            )
        return self._content

    def release(self) -> None:
        """Mark the cache as consumed and let its arrays go."""
        self._content = None


@dataclasses.dataclass
class Call:
    """The state of one call, so that a block itself has none.

    Attributes:
        positions: the position of each token.
        past: the keys and values of earlier calls, None where there are none.
        present: all keys and values so far, known once the attention has run.
        stages: stage -> array, filled in the order of the computation.
    """

    positions: Positions
    past: KeyValues | None = None
    present: KeyValues | None = None
    stages: dict[str, Numbers] = dataclasses.field(default_factory=dict)
