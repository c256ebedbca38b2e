"""A built block as the contract sees it: NumPy in, NumPy out, refusals in words.

Must hold: arguments are never changed and results never alias them; nothing global of torch is left changed; what is
refused is refused before anything is computed, with a ``ValueError`` that begins with the boundary that was crossed.
Gradients are autograd's, of the same module that `forward` runs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from blocklaws.backends.on_torch.arrays import NUMPY_DTYPES, Array, to_numpy, to_tensor
from blocklaws.backends.on_torch.cache import KeyValueCache
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.parts import Pass
from blocklaws.canonical import STAGES, parameter_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import did_you_mean

__all__ = ["CompiledTorchBlock", "TorchBlock"]


class TorchBlock:
    """One block on one device.

    Args:
        config: sizes and choices.
        parameters: canonical name -> array, each of its canonical shape; copied, and cast to ``dtype``.
        dtype: ``"float64"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        device: where it computes.

    Raises:
        ValueError: ``configuration:`` for a parameter that is missing or unknown, ``component width:`` for a shape.
    """

    #: A fault of a step swaps this class for a subclass of it; a fault of the contract subclasses `TorchBlock`.
    module_class: type[DecoderBlock] = DecoderBlock
    #: Other ways to the same output, for `forward_by`.
    ways: ClassVar[tuple[str, ...]] = ("compiled", "training")

    def __init__(
        self, config: BlockConfig, parameters: Mapping[str, npt.ArrayLike], dtype: str, device: torch.device
    ) -> None:
        self.config = config
        self.dtype = NUMPY_DTYPES[dtype]
        self.device = device
        arrays = self._checked_parameters(parameters)
        # A tensor made in somebody's inference mode could never require a gradient.
        with torch.inference_mode(False):
            self.module = self.module_class(config, {name: to_tensor(a, device) for name, a in arrays.items()})
        self.module.eval()

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        """Return the output of the block, [batch, token, d_model], for positions from ``position_offset`` on.

        Raises:
            ValueError: ``input rank:``, ``input width:``, ``input dtype:``, ``empty tokens:`` or ``position range:``.
        """
        x, offset = self._checked_input(x, position_offset)
        with torch.inference_mode():
            return self.emitted(self.module(self.received(x), Pass(offset)))

    def trace(self, x: Array, position_offset: int = 0) -> dict[str, Array]:
        """Return stage -> array, in the order of the computation; refuses as `forward` does."""
        x, offset = self._checked_input(x, position_offset)
        stages: dict[str, torch.Tensor] = {}
        with torch.inference_mode():
            y = self.module(self.received(x), Pass(offset, stages=stages))
            arrays = {stage: to_numpy(stages[stage]) for stage in STAGES}
            return {**arrays, "output": self.emitted(y)}

    def gradients(self, x: Array, cotangent: Array, position_offset: int = 0) -> dict[str, Array]:
        """Return the gradients of sum(output * cotangent): ``input``, then each parameter by its canonical name.

        Raises:
            ValueError: as `forward`; ``cotangent shape:`` where it is not that of the input.
        """
        x, offset = self._checked_input(x, position_offset)
        cotangent = np.asarray(cotangent)
        if cotangent.shape != x.shape:
            raise ValueError(
                f"cotangent shape: got {cotangent.shape}, the output has {x.shape}; give one number for each"
            )
        self._check_dtype(cotangent, "cotangent")
        named = list(self.module.canonical_parameters())
        with torch.inference_mode(False), torch.enable_grad():
            source = self.received(x).requires_grad_()
            found = torch.autograd.grad(
                self.module(source, Pass(offset)),
                [source, *(parameter for _, parameter, _ in named)],
                to_tensor(cotangent, self.device),
                allow_unused=True,
                materialize_grads=True,
            )
        gradients = {"input": to_numpy(found[0])}
        for (name, _, transposed), gradient in zip(named, found[1:], strict=True):
            gradients[name] = to_numpy(gradient.T if transposed else gradient)
        return gradients

    def parameters(self) -> dict[str, Array]:
        """Return canonical name -> a copy of that parameter, matrices [in, out], in canonical order."""
        # One array for each parameter: were two names one parameter, the arrays would show it.
        arrays: dict[int, Array] = {}
        listed = {}
        for name, parameter, transposed in self.module.canonical_parameters():
            if id(parameter) not in arrays:
                arrays[id(parameter)] = to_numpy(parameter.T if transposed else parameter)
            listed[name] = arrays[id(parameter)]
        return listed

    def forward_cached(self, x: Array, cache: KeyValueCache | None) -> tuple[Array, KeyValueCache]:
        """Return the outputs of the next tokens, [batch, token, d_model], and the cache to continue from.

        ``cache`` is None at position 0 and is consumed; a refused call leaves it as it was.

        Raises:
            ValueError: as `forward`; ``released cache:`` where it was used before or has another batch size.
        """
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise ValueError(
                f"released cache: got a {type(cache).__name__}; give None or the cache of an earlier forward_cached"
            )
        x, offset = self._checked_input(x, 0 if cache is None else cache.tokens)
        run = Pass(offset, None if cache is None else cache.take(x.shape[0]))
        with torch.inference_mode():
            y = self.emitted(self.module(self.received(x), run))
        assert run.cached is not None
        return y, KeyValueCache(run.cached, offset + x.shape[1])

    def forward_by(self, way: str, x: Array, position_offset: int = 0) -> Array:
        """Return the output as one of `ways` computes it; refuses as `forward` does."""
        from blocklaws.backends.on_torch.ways import run_way  # the compiler takes seconds to import

        x, offset = self._checked_input(x, position_offset)
        return self.emitted(run_way(way, self.module, self.received(x), Pass(offset)))

    def forward_each(self, x: Array, parameters: Mapping[str, Array], position_offset: int = 0) -> Array | None:
        """Return the output of each sequence under parameters of its own: ``parameters`` has name -> [batch, *shape].

        One call stands for many blocks, of which central differences take hundreds. None where `torch.vmap` cannot
        follow the block, as where a step reads values to decide. Refuses as `forward` does.
        """
        x, offset = self._checked_input(x, position_offset)
        paths = {id(value): path for path, value in self.module.named_parameters()}
        given = {
            paths[id(value)]: to_tensor(
                np.swapaxes(parameters[name], -1, -2) if turned else parameters[name], self.device
            )
            for name, value, turned in self.module.canonical_parameters()
            if name in parameters
        }

        def one(row: torch.Tensor, its: dict[str, torch.Tensor]) -> torch.Tensor:
            y: torch.Tensor = torch.func.functional_call(self.module, its, (row[None], Pass(offset)))
            return y[0]

        try:
            # The fused kernels of attention have no rule for `torch.vmap`, and would be called a sequence at a time.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                return self.emitted(torch.vmap(one)(self.received(x), given))
        except RuntimeError:
            return None

    def received(self, x: Array) -> torch.Tensor:
        """Return the input as a tensor of its own, on the device."""
        return to_tensor(x, self.device)

    def emitted(self, y: torch.Tensor) -> Array:
        """Return the output as an array of its own."""
        return to_numpy(y)

    def _checked_parameters(self, parameters: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        shapes = parameter_shapes(self.config)
        for name in parameters:
            if name not in shapes:
                raise ValueError(
                    f"configuration: parameter {name!r} is not one of a {self.config.block!r} block"
                    f"{did_you_mean(str(name), shapes)}; give exactly {list(shapes)}"
                )
        missing = [name for name in shapes if name not in parameters]
        if missing:
            raise ValueError(f"configuration: missing parameters {missing}; give exactly {list(shapes)}")
        arrays = {}
        for name, shape in shapes.items():
            array = np.asarray(parameters[name])
            if array.shape != shape:
                raise ValueError(f"component width: {name} has shape {array.shape}; this config needs {shape}")
            arrays[name] = array.astype(self.dtype, copy=False)
        return arrays

    def _check_dtype(self, array: Array, what: str) -> None:
        if array.dtype != self.dtype:
            raise ValueError(
                f"input dtype: the {what} is {array.dtype}, the block computes in {self.dtype}; convert one of them"
            )

    def _checked_input(self, x: Array, position_offset: int) -> tuple[Array, int]:
        x = np.asarray(x)
        if x.ndim != 3:
            raise ValueError(f"input rank: got shape {x.shape}; give [batch, token, feature]")
        _, tokens, width = x.shape
        if width != self.config.d_model:
            raise ValueError(f"input width: got {width} features in shape {x.shape}; d_model={self.config.d_model}")
        self._check_dtype(x, "input")
        if tokens == 0:
            raise ValueError(f"empty tokens: got shape {x.shape}; give at least one token")
        try:
            offset = operator.index(position_offset)
        except TypeError:
            raise ValueError(f"position range: position_offset={position_offset!r} must be an integer") from None
        self._check_positions(offset, tokens, self.config.max_positions)
        return x, offset

    def _check_positions(self, offset: int, tokens: int, limit: int) -> None:
        if offset < 0 or offset + tokens > limit:
            raise ValueError(
                f"position range: {tokens} tokens from position_offset={offset} need positions "
                f"{offset} to {offset + tokens - 1}; max_positions={limit} allows 0 to {limit - 1}"
            )


class CompiledTorchBlock(TorchBlock):
    """A block whose `forward` is compiled by Inductor, PyTorch's own compiler; its other ways are uncompiled."""

    ways = ("eager", "training")

    def forward(self, x: Array, position_offset: int = 0) -> Array:
        """Return the output of the block, [batch, token, d_model]; refuses as `TorchBlock.forward` does."""
        from blocklaws.backends.on_torch.ways import compiled

        x, offset = self._checked_input(x, position_offset)
        return self.emitted(compiled(self.module, self.received(x), Pass(offset), "inductor"))
