"""The keys and values of the tokens so far, used by exactly one call.

Must hold: a cache is consumed by the call that it is given to, so two continuations can never share one and a stale one
is refused and not silently extended. It holds keys after rotation, before they are repeated for the query heads.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """Keys and values, each [batch, n_kv_heads, key, d_head], of the positions 0 .. ``tokens`` - 1."""

    def __init__(self, pair: tuple[Tensor, Tensor], tokens: int) -> None:
        self._pair: tuple[Tensor, Tensor] | None = pair
        self.batch = pair[0].shape[0]
        self.tokens = tokens

    def check(self, batch: int) -> None:
        """Refuse a second use, or an input of another batch size.

        Raises:
            ValueError: ``released cache: ...``.
        """
        if self._pair is None:
            raise ValueError(
                f"released cache: this cache of {self.tokens} tokens was already used by an earlier call; "
                "continue from the cache that call returned"
            )
        if batch != self.batch:
            raise ValueError(
                f"released cache: this cache belongs to a batch of {self.batch}, the input has a batch of {batch}; "
                "start each batch with cache=None"
            )

    def take(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values and release the cache; refuses as `check` does."""
        self.check(batch)
        assert self._pair is not None
        pair, self._pair = self._pair, None
        return pair
