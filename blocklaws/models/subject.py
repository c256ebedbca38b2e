"""A backend of whole models, and a built model, called with care.

Must hold: what a model raises or returns is its own, as it is of a block; ids and masks are handed over as copies, and
logits are copied at once. Must not: build a model that nobody asked for, or keep more than the last one.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised, raised, to_array
from blocklaws.errors import BackendError, BlocklawsError, missing_module
from blocklaws.subjects import Subject, attribute, made

__all__ = ["BuildsModels", "BuiltModel", "ModelSubject", "only_blocks", "subject_of"]

#: The name of the model of a backend that names none.
ONLY = "model"
#: What is said of models where a backend is to be isolated.
NOT_ISOLATED = ", which cannot be isolated; leave --isolate out"


class BuildsModels(BackendError):
    """A backend of whole models was given where blocks are built."""


def subject_of(backend: Any, label: str) -> Subject:
    """Return a backend as a subject: of whole models where it has ``build_model``, and of blocks otherwise."""
    builds_models = attribute(backend, label, "build_model", None) is not None
    return ModelSubject(backend, label) if builds_models else Subject(backend, label)


def only_blocks(subject: Subject, why: str) -> Subject:
    """Return a subject that builds blocks.

    Raises:
        BuildsModels: it builds whole models; ``why`` says what that means for the call.
    """
    if isinstance(subject, ModelSubject):
        raise BuildsModels(f"backend {subject.name!r} builds whole models{why}")
    return subject


class BuiltModel:
    """A built model.

    Attributes:
        vocabulary: ids run from 0 to ``vocabulary - 1``.
        reserved: how many of the first ids mean something else than text (padding, beginning, end): none is drawn.
        padding: the id of padding; None where the model has none.
        max_tokens: the most tokens that it takes.
        capabilities: ``logits_cached``, and ``padding`` where it has an id for it and takes an attention mask.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.vocabulary = _whole(model, "vocabulary", None, 2)
        self.reserved = _whole(model, "reserved", 0, 0)
        self.padding = None if getattr(model, "padding", None) is None else _whole(model, "padding", None, 0)
        self.max_tokens = _whole(model, "max_tokens", 2**31, 1)
        if self.vocabulary - self.reserved < 2:
            raise BlockRaised(
                "build_model", f"returned a model with {self.vocabulary - self.reserved} ids to draw from; 2 are needed"
            )
        self.capabilities = frozenset({"logits"})
        if callable(getattr(model, "logits_cached", None)):
            self.capabilities |= {"logits_cached"}
        if self.padding is not None and _takes_mask(model.logits):
            self.capabilities |= {"padding"}

    def logits(self, ids: np.ndarray, attention_mask: np.ndarray | None = None) -> np.ndarray:
        """Return the logits [B, T, vocabulary] of token ids [B, T]; a mask is 1 at a token and 0 at padding."""
        given = {} if attention_mask is None else {"attention_mask": attention_mask.copy()}
        return to_array(self._call("logits", ids.copy(), **given), "logits").copy()

    def logits_cached(self, ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """Return the logits of the next tokens [B, T], and the cache for the call after."""
        returned = self._call("logits_cached", ids.copy(), cache)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise BlockRaised("logits_cached", f"returned a {type(returned).__name__}, not (logits, cache)")
        return to_array(returned[0], "logits_cached").copy(), returned[1]

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._model, method)(*arguments, **options)
        except BaseException as error:
            raise raised(method, error) from None


def _whole(model: Any, name: str, default: int | None, least: int) -> int:
    value = getattr(model, name, default)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BlockRaised(
            "build_model", f"returned a model with {name}={value!r:.60}; it must be a whole number from {least} on"
        )
    return int(value)


def _takes_mask(logits: Any) -> bool:
    try:
        inspect.signature(logits).bind(None, attention_mask=None)
    except (TypeError, ValueError):
        return False
    return True


class ModelSubject(Subject):
    """A backend with ``build_model(model, dtype)``: what builds whole models, each by its name.

    Args:
        backend: the object, or a class of such objects; ``models`` lists the names, and ``supports_model(name)`` says
            why one cannot be built, as ``supports`` does of blocks.
        label: what the user called it.

    Raises:
        BackendError: its attributes are not what the contract says.
    """

    def __init__(self, backend: Any, label: str) -> None:
        self.label = label
        self.backend = backend = made(backend, label)
        self.is_function = False
        self.name = self._name()
        self.dtypes = self._dtypes()
        self.multiples = {}
        self.deterministic = self._flag("deterministic", True)
        self.validates = False
        self.device = ""
        self.isolated = False
        self.cannot = self._cannot()
        self.blocks = ()
        self.models = self._models()
        #: All that there are, where ``models`` are those that were chosen: a list of known failures speaks of all.
        self.known_models = tuple(getattr(backend, "known_models", self.models))
        self._told: dict[str, str | None] = {}
        self._built: tuple[tuple[str, str], BuiltModel] | None = None

    def _models(self) -> tuple[str, ...]:
        models = getattr(self.backend, "models", (ONLY,))
        if (
            not isinstance(models, tuple | list)
            or not models
            or not all(isinstance(one, str) and one for one in models)
        ):
            raise BackendError(f"backend {self.label!r}: models={models!r:.60} must be a tuple of names")
        return tuple(dict.fromkeys(models))

    def with_fault(self, fault: str) -> Subject:
        """Return the backend with one fault planted in it."""
        return ModelSubject(self.backend.with_fault(fault), self.label)

    def with_device(self, device: str) -> Subject:
        """Refuse: models are small, and run where their adapter runs them.

        Raises:
            BackendError: always.
        """
        return only_blocks(self, ", which have no --device; leave it out")

    def model_refusal(self, model: str) -> str | None:
        """Return why a model cannot be built, or None; it is asked once for each."""
        if model not in self._told:
            supports = getattr(self.backend, "supports_model", None)
            try:
                answer = None if supports is None else supports(model)
            except BaseException as error:
                raise raised("supports_model", error) from None
            self._told[model] = None if answer is None or answer is True else str(answer)
        return self._told[model]

    def model(self, model: str, dtype: str) -> BuiltModel:
        """Return a built model; cases of one model follow each other, so the last one is kept.

        Raises:
            BlockRaised: it cannot be built.
        """
        if self._built is None or self._built[0] != (model, dtype):
            try:
                model_built = self.backend.build_model(model, dtype)
            except BlocklawsError:
                raise
            except ModuleNotFoundError as error:
                raise BackendError(f"backend {self.label!r}: {missing_module(error)}") from None
            except BaseException as error:
                raise raised("build_model", error) from None
            if not callable(getattr(model_built, "logits", None)):
                raise BlockRaised("build_model", f"returned a {type(model_built).__name__} without a logits method")
            self._built = ((model, dtype), BuiltModel(model_built))
        return self._built[1]
