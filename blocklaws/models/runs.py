"""What the names of a model's invariant stand for: the calls of the model, each made when it is first needed.

Must hold: every run is the model itself on ids that follow from the example alone. Must not: judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blocklaws.models.subject import BuiltModel

__all__ = ["Runs"]


class Runs:
    """The scope of the expressions of one example.

    Args:
        model: the built model.
        ids: [B, T].
        picks: the values of the invariant's picks.
    """

    def __init__(self, model: BuiltModel, ids: np.ndarray, picks: Mapping[str, Any]) -> None:
        self.model, self.ids, self.picks = model, ids, picks
        self.logits: dict[str, np.ndarray] = {}

    def __call__(self, path: tuple[str, ...]) -> Any:
        """Return the value of a path: a size, a pick, ``ids``, ``logits``, or ``RUN.logits``."""
        if len(path) == 1 and path[0] in self.picks:
            return self.picks[path[0]]
        batch, tokens = self.ids.shape
        model = self.model
        sizes = {"B": batch, "T": tokens, "vocabulary": model.vocabulary, "ordinary": model.vocabulary - model.reserved}
        if len(path) == 1 and path[0] in sizes:
            return sizes[path[0]]
        run, name = path if len(path) == 2 else ("", path[0])
        if name == "ids":
            return self._changed() if run == "changed" else self.ids
        if run not in self.logits:
            self.logits[run] = self._run(run)
        return self.logits[run]

    def _run(self, run: str) -> np.ndarray:
        model, ids = self.model, self.ids
        runs: dict[str, Callable[[], np.ndarray]] = {
            "": lambda: model.logits(ids),
            "repeated": lambda: model.logits(ids),
            "changed": lambda: model.logits(self._changed()),
            "cut": lambda: model.logits(ids[:, : self.picks["p"]]),
            "alone": lambda: np.concatenate([model.logits(row[None]) for row in ids]),
            "padded": self._padded,
            "stepped": lambda: self._cached([self.picks["p"], *[1] * (ids.shape[1] - self.picks["p"])]),
            "chunked": lambda: self._cached(self.picks["chunks"]),
        }
        if run == "repeated":
            self(("logits",))  # the first call comes first
        return runs[run]()

    def _moved(self, ids: np.ndarray, shift: int) -> np.ndarray:
        """Return other ordinary ids: each moved by ``shift`` around the circle of them."""
        first, count = self.model.reserved, self.model.vocabulary - self.model.reserved
        return np.where(ids < first, ids, (ids - first + shift) % count + first)

    def _changed(self) -> np.ndarray:
        p = self.picks["p"]
        return np.concatenate([self.ids[:, :p], self._moved(self.ids[:, p:], self.picks["shift"])], axis=1)

    def _padded(self) -> np.ndarray:
        """Return the logits of the first sequence, [1, T, vocabulary], behind its padding."""
        padding, batch = self.picks["padding"], len(self.ids)
        assert self.model.padding is not None
        # The other sequences are full, as in a batch of prompts of several lengths.
        text = np.resize(self._moved(self.ids, 1), (batch, padding))
        before = np.concatenate([np.full((1, padding), self.model.padding), text[1:]])
        mask = np.ones((batch, padding + self.ids.shape[1]), np.int64)
        mask[0, :padding] = 0
        return self.model.logits(np.concatenate([before, self.ids], axis=1), mask)[:1, padding:]

    def _cached(self, chunks: list[int]) -> np.ndarray:
        parts, cache, at = [], None, 0
        for length in chunks:
            part, cache = self.model.logits_cached(self.ids[:, at : at + length], cache)
            parts.append(part)
            at += length
        return np.concatenate(parts, axis=1)
