"""A layer of another project as a block: the adapter contract over one mapping and one driver.

Must hold: the block has exactly the methods its mapping declares (a capability is found by presence), the caller's
arrays are never handed to the layer itself, and errors of the layer pass through as they are, but for a note where they
came from. Must not import a framework.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from blocklaws.backends.mapped.blame import given, in_words, mark
from blocklaws.backends.mapped.driver import Driver
from blocklaws.backends.mapped.operations import Array
from blocklaws.backends.mapped.parameters import Layout
from blocklaws.backends.mapped.rotary import cos_sin
from blocklaws.backends.mapped.schema import Mapping, Passing, words_of
from blocklaws.backends.mapped.stages import capture
from blocklaws.backends.mapped.values import Scope
from blocklaws.config import SIZES, BlockConfig
from blocklaws.errors import BackendError

__all__ = ["MappedBlock"]


#: The attribute of an exception of a layer that says what the layer had been given.
_GIVEN = "__blocklaws_given__"


def _arrays_in(value: Any, of: Any, depth: int = 6) -> Iterator[Any]:
    """Yield the arrays with elements in an object of the layer's library, as far as a few levels show them."""
    if isinstance(value, of):
        if math.prod(value.shape):
            yield value
        return
    if depth == 0:
        return
    if isinstance(value, dict):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set):
        parts = value
    else:
        parts = getattr(value, "__dict__", {}).values()
    for part in list(parts):
        yield from _arrays_in(part, of, depth - 1)


@dataclasses.dataclass(frozen=True)
class _Cache:
    """The layer's own cache and how many tokens it has seen."""

    tokens: int
    native: Any


class MappedBlock:
    """One layer, filled and ready.

    Args:
        mapping: what the file says.
        driver: the framework.
        layer: the layer with its parameters assigned.
        built: name -> object of the ``build:`` section.
        layout: the parameters as the layer holds them.
        order: the layer's order of the rotated features (see `rotary.feature_order`).
        dtype: the NumPy dtype of inputs.
    """

    def __init__(
        self,
        mapping: Mapping,
        driver: Driver,
        layer: Any,
        built: dict[str, Any],
        layout: Layout,
        order: Array | None,
        config: BlockConfig,
        dtype: np.dtype[np.generic],
    ) -> None:
        self._mapping, self._driver, self._layer, self._built = mapping, driver, layer, built
        self._layout, self._order, self._config, self._dtype = layout, order, config, dtype
        # Capabilities are found by presence, so a method that the mapping does not declare must not be there at all.
        self.forward: Callable[..., Array] = self._forward
        if "position_offset" in mapping.cannot:
            self.forward = self._forward_from_zero
        self.trace: Callable[..., dict[str, Array]]
        self.gradients: Callable[..., dict[str, Array]]
        self.parameters: Callable[[], dict[str, Array]]
        self.forward_cached: Callable[[Any, Any], tuple[Array, Any]]
        self.forward_by: Callable[..., Array]
        self.ways = mapping.ways
        if mapping.stages:
            self.trace = self._trace
        if "gradients" not in mapping.cannot:
            self.gradients = self._gradients
        if "parameters" not in mapping.cannot:
            self.parameters = self._parameters
        if mapping.cached is not None:
            self.forward_cached = self._forward_cached
        if mapping.ways:
            self.forward_by = self._forward_by

    def try_out(self, batch: int, tokens: int, after: int) -> None:
        """Make each call that the mapping describes once, on an input of ones: a slip is told before any verdict.

        Args:
            batch, tokens: the sizes of the input; they differ, so that a transposed output shows.
            after: how many tokens follow those in a cache.

        Raises:
            BackendError: a call fails or gives another shape, with the place in the file. The output is looked at
                before the stages: with a wrong part of the result no stage fits.
        """
        x = np.ones((batch, tokens, self._config.d_model))
        mapping, cached = self._mapping, self._mapping.cached
        output = self._tried(mapping.passing, "", lambda: self.forward(x))
        mapping.passing.output.check_shape(output.shape, x.shape)
        if mapping.stages:
            self._tried(mapping.passing, "with its stages watched, ", lambda: self._trace(x))
        if cached is not None:
            passing = cached.passing
            output, cache = self._tried(passing, "", lambda: self._forward_cached(x, None))
            passing.output.check_shape(output.shape, x.shape)
            rows = x[:, :after]
            output, _ = self._tried(
                passing, "after the first tokens, ", lambda: self._forward_cached(rows, cache),
                lambda: self._untaken(cache.native),
            )  # fmt: skip
            passing.output.check_shape(output.shape, rows.shape)

    def _tried(self, passing: Passing, when: str, call: Callable[[], Any], hint: Callable[[], str] = lambda: "") -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a framework thinks of a wrong part stands in the refusal
            try:
                return call()
            except BackendError:
                raise
            except Exception as error:
                layer = type(self._layer).__name__
                shapes = getattr(error, _GIVEN, "")
                passing.call.node.refuse(
                    f"{passing.output.what}: {when}calling {layer} failed: {in_words(error)}{shapes}{hint()}"
                )

    def _untaken(self, cache: Any) -> str:
        """Say that the layer left a cache as empty as it was, where it did: it may not have taken it."""
        if cache is None:
            return "; the first call gave back no cache"
        empty = not any(_arrays_in(cache, self._driver.array_type))
        return "; the cache was still empty after the first call: does the layer take it by this name?" if empty else ""

    def _forward(self, x: Any, position_offset: int = 0) -> Array:
        """Return the output [batch, token, d_model] for an input of that shape."""
        x = self._admit(x)
        with self._driver.inference():
            return self._driver.numpy(self._output(self._layer, self._driver.array(x), x.shape, position_offset))

    def _forward_from_zero(self, x: Any) -> Array:
        """Return the output of a layer that can be called at position 0 alone."""
        return self._forward(x)

    def _forward_by(self, way: str, x: Any, position_offset: int = 0) -> Array:
        """Return the output computed in another way: ``training``, with the layer in that mode for this one call."""
        assert way in self.ways
        x = self._admit(x)
        with self._driver.inference(), self._driver.training(self._layer) as layer:
            return self._driver.numpy(self._output(layer, self._driver.array(x), x.shape, position_offset))

    def _trace(self, x: Any, position_offset: int = 0) -> dict[str, Array]:
        """Return the stages that the mapping captures, with the input and the output."""
        x = self._admit(x)
        output: Array = x

        def run() -> None:
            nonlocal output
            output = self._forward(x, position_offset)

        shape = (x.shape[0], x.shape[1])
        stages = capture(self._mapping.stages, self._driver, self._layer, self._config, self._order, shape, run)
        # What is seen before the layer's own cast back, as a softmax in float32 is, is rounded as the layer rounds it.
        # The output is not: of that the layer's dtype is the promise.
        rounded = {
            stage: array.astype(self._dtype) if array.dtype.itemsize > self._dtype.itemsize else array
            for stage, array in stages.items()
        }
        return {"input": x, **rounded, "output": output}

    def _gradients(self, x: Any, cotangent: Any, position_offset: int = 0) -> dict[str, Array]:
        """Return the gradient of sum(output * cotangent) by the input and by each canonical parameter."""
        x = self._admit(x)

        def function(layer: Any, native: Any) -> Any:
            return self._output(layer, native, x.shape, position_offset)

        by_input, by_parameter = self._driver.gradients(
            function, self._layer, x, np.asarray(cotangent).astype(self._dtype)
        )
        return {"input": by_input, **self._layout.read(by_parameter, difference=True)}

    def _parameters(self) -> dict[str, Array]:
        """Return the parameters as the layer holds them, in canonical names and layouts."""
        return self._layout.read(self._driver.read(self._layer))

    def _forward_cached(self, x: Any, cache: _Cache | None) -> tuple[Array, _Cache]:
        """Return the output of tokens that follow those in ``cache`` (None: the first ones), and the cache after."""
        assert self._mapping.cached is not None
        x, cached = self._admit(x), self._mapping.cached
        with self._driver.inference():
            if cache is None:
                words = {**words_of(self._config), **self._built, "batch": x.shape[0]}
                cache = _Cache(0, cached.start.resolve(Scope(words, {}, self._driver.array)))
            native = self._driver.array(x)
            result = self._call(cached.passing, self._layer, native, x.shape, cache.tokens, cache)
            after = cache.native if cached.cache_output.take is None else cached.cache_output.of(result)
            output = self._driver.numpy(self._part(cached.passing, result, x.shape))
        return output, _Cache(cache.tokens + x.shape[1], after)

    def _admit(self, x: Any) -> Array:
        x = np.asarray(x)
        if x.ndim != 3:  # positions and mask are made from its shape, so the harness itself cannot go on
            raise ValueError(
                f"input rank: x has shape {x.shape}; expected [batch, token, d_model={self._config.d_model}]"
            )
        admitted: Array = x.astype(self._dtype)  # a copy, always
        return admitted

    def _output(self, layer: Any, native: Any, shape: tuple[int, ...], offset: int) -> Any:
        passing = self._mapping.passing
        return self._part(passing, self._call(passing, layer, native, shape, offset), shape)

    def _part(self, passing: Passing, result: Any, shape: tuple[int, ...]) -> Any:
        """Return the output [batch, token, d_model] in what a call returned, an array of the framework."""
        config = self._config
        sizes = {name: getattr(config, name) for name in (*SIZES, "group")} | {"batch": shape[0], "tokens": shape[1]}
        return passing.output.array(result, self._driver.array_type, sizes.__getitem__)

    def _call(
        self,
        passing: Passing,
        layer: Any,
        native: Any,
        shape: tuple[int, ...],
        offset: int,
        cache: _Cache | None = None,
    ) -> Any:
        """Call the layer with what the harness makes for this input; ``cache`` is known as ``$cache``.

        Without a cache the keys are the tokens of this call, wherever they are; with one they begin at position 0.
        """
        config, (batch, tokens) = self._config, shape[:2]
        positions = np.arange(offset, offset + tokens)
        cos, sin = (table.astype(self._dtype) for table in cos_sin(config, self._mapping.rotary, positions))
        before = 0 if cache is None else cache.tokens
        ready: dict[str, Any] = {
            **words_of(config),
            **self._built,
            "layer": layer,
            "input": native,
            "offset": offset,
            "positions": positions,
            "batch_positions": np.broadcast_to(positions, (batch, tokens)),
            "cos": cos,
            "sin": sin,
            "batch": batch,
            "tokens": tokens,
            "keys": before + tokens,
            "cache": None if cache is None else cache.native,
        }
        if passing.mask.form != "builtin":
            ready["mask"] = passing.mask.array(before, batch, config.n_heads, tokens, self._dtype, config.window)
        function, arguments, keywords = passing.call.parts(Scope(ready, self._mapping.inputs, self._driver.array))
        try:
            return function(*arguments, **keywords)
        except BackendError:
            raise
        except Exception as error:
            mark(error, passing.call.node.place)
            if shapes := given(function, arguments, keywords):
                setattr(error, _GIVEN, f"; given {shapes} (batch {batch}, tokens {tokens}, keys {before + tokens})")
            raise
