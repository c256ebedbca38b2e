"""Which causal models transformers has, and how one of them is built.

Must hold: a model is built from a config alone, without a download; what cannot be built small, or gives no logits for
token ids alone, is refused with the library's own words. The same name gives the same weights.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from blocklaws.backends.transformers_models.model import Model
from blocklaws.backends.transformers_models.shrinking import ATTEMPTS, VOCABULARY, shrunk
from blocklaws.backends.transformers_models.weights import fill
from blocklaws.errors import BackendError, did_you_mean, one_line

__all__ = ["ATTENTIONS", "TransformersModels"]

ATTENTIONS = ("eager", "sdpa")
#: More parameters than any config that was shrunk has: what is larger is not small, whatever its name says.
MOST_PARAMETERS = 3_000_000


class TransformersModels:
    """Builds the causal models of transformers with one implementation of attention.

    Args:
        attention: ``eager`` or ``sdpa``.
        chosen: the name of one class; all where it is empty.

    Raises:
        BackendError: transformers is not installed, or has no causal model of that name.
    """

    dtypes = ("float32",)
    cannot = {  # noqa: RUF012 (a contract of plain attributes)
        "float64": "most models compute norms, routers and angles in float32 whatever the dtype"
    }
    packages = ("transformers", "torch")

    def __init__(self, attention: str, chosen: str = "") -> None:
        self.name, self.attention = f"transformers-{attention}", attention
        known = classes()
        if chosen and chosen not in known:
            raise BackendError(
                f"backend 'transformers-models:{chosen}': this transformers has no causal model {chosen!r}"
                f"{did_you_mean(chosen, known)}"
            )
        self.known_models = tuple(known)
        self.models = (chosen,) if chosen else self.known_models
        self._made: tuple[str, Model | str] | None = None

    def supports_model(self, model: str) -> str | None:
        """Return None for a model that can be built, and otherwise why not."""
        made = self._build(model)
        return made if isinstance(made, str) else None

    def build_model(self, model: str, dtype: str) -> Model:
        """Return a model, the same one each time."""
        made = self._build(model)
        if isinstance(made, str):
            raise ValueError(made)
        return made

    def _build(self, name: str) -> Model | str:
        if self._made is None or self._made[0] != name:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._made = (name, build(name, self.attention))
        return self._made[1]


@functools.cache
def classes() -> dict[str, Any]:
    """Return name of a class -> the class of its config, of every causal model that transformers lists."""
    try:
        import transformers
    except ImportError as error:
        raise BackendError(f"backend 'transformers-models': {error}; install blocklaws[transformers]") from None
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as names

    transformers.logging.set_verbosity_error()
    found: dict[str, Any] = {}
    for kind, name in names.items():
        # A class that several configs share is built from the first that has its own name in the mapping.
        found.setdefault(name, kind)
    return dict(sorted(found.items()))


def build(name: str, attention: str) -> Model | str:
    """Return a built model, or why it cannot be built."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    refusals: list[str] = []
    try:
        listed = CONFIG_MAPPING[classes()[name]]
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING[listed]
    except Exception as error:
        return f"it cannot be imported: {_told(error)}"
    # A composite config has that of its text model inside; the class says which one it takes.
    config_class = getattr(model_class, "config_class", None) or listed
    for attempt in ATTEMPTS:
        try:
            return _attempt(model_class, shrunk(config_class, name, attempt), attention)
        except Exception as error:  # whatever a config or a model raises for sizes that do not fit it
            refusals.append(_told(error))
    # The sizes of the first attempt are the plainest; what it says is the least about a size that we chose.
    return f"it cannot be built small: {refusals[0]}"


def _attempt(model_class: Any, config: Any, attention: str) -> Model:
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class._from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters are left once its config is shrunk")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = model_class._from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
        fill(built)
    model = Model(built)
    ids = torch.full((2, 5), 3, dtype=torch.int64).numpy()
    shape = model.logits(ids).shape
    if shape != (2, 5, VOCABULARY):
        raise ValueError(f"token ids [2, 5] alone give logits of shape {tuple(shape)}, not (2, 5, {VOCABULARY})")
    return model


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error, 200)}"
