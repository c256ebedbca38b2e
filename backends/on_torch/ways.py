"""Other ways to run the same module: compiled, and in training mode.

Must hold: the module is in evaluation mode before and after, and what `torch.compile` was told by the user's process
stays as it was. Nothing here computes: whatever the ways give comes from the module of `decoder`.

`torch.compile` traces the module and rewrites it without mutation and views (AOT Autograd); which code is then made is
the compiler's choice. ``aot_eager`` runs the rewritten graph operation by operation: half a second for a shape, where
Inductor and a C++ compiler take five. `CompiledTorchBackend` is for verifying Inductor itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.parts import Pass

__all__ = ["WAYS", "compiled", "run_way"]

# Every block of every config is one Python function to the compiler, which gives up after eight versions of one.
# (Both have newer names; these work in every version.)
_LIMITS: dict[str, Any] = {"cache_size_limit": 4096, "accumulated_cache_size_limit": 4096}


def compiled(module: DecoderBlock, x: Tensor, run: Pass, compiler: str = "aot_eager") -> Tensor:
    """Return the output of ``x`` from the module compiled whole: what the compiler cannot take is an error.

    Another module of the same config costs no compilation, and neither does another offset but zero.
    """
    whole: Callable[[Tensor, Pass], Tensor] = torch.compile(module, backend=compiler, dynamic=False, fullgraph=True)
    with torch.inference_mode(), torch._dynamo.config.patch(**_LIMITS):
        return whole(x, run)


def _eager(module: DecoderBlock, x: Tensor, run: Pass) -> Tensor:
    with torch.inference_mode():
        output: Tensor = module(x, run)
    return output


def _training(module: DecoderBlock, x: Tensor, run: Pass) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad(), _training_mode(module):
        output: Tensor = module(x, run)
    return output.detach()


@contextmanager
def _training_mode(module: DecoderBlock) -> Iterator[None]:
    module.train()
    try:
        yield
    finally:
        module.eval()


#: Way -> the same forward, computed so.
WAYS: dict[str, Callable[[DecoderBlock, Tensor, Pass], Tensor]] = {
    "compiled": compiled,
    "eager": _eager,
    "training": _training,
}


def run_way(way: str, module: DecoderBlock, x: Tensor, run: Pass) -> Tensor:
    """Return the output of ``x`` [batch, token, d_model], computed in a way of `WAYS`.

    Raises:
        ValueError: ``configuration:``, there is no such way.
    """
    if way not in WAYS:
        raise ValueError(f"configuration: way={way!r} must be one of {list(WAYS)}")
    return WAYS[way](module, x, run)
