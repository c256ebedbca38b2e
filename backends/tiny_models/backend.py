"""The backend of the tiny model: what `blocklaws verify tiny-models` verifies."""

from __future__ import annotations

from blocklaws.backends.tiny_models.faults import FAULTS
from blocklaws.backends.tiny_models.model import TinyModel

__all__ = ["TinyModels"]


class TinyModels:
    """Builds the right model, or one with a fault."""

    name = "tiny-models"
    dtypes = ("float64", "float32")
    models = ("tiny",)
    packages = ("numpy",)
    faults = tuple(FAULTS)

    def __init__(self, made: type[TinyModel] = TinyModel) -> None:
        self._made = made

    def with_fault(self, fault: str) -> TinyModels:
        """Return the backend with one fault planted in its model."""
        return TinyModels(FAULTS[fault])

    def build_model(self, model: str, dtype: str) -> TinyModel:
        """Return the model, the same one each time."""
        return self._made(dtype)
