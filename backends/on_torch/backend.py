"""The backend: what it is called, what it can build, on which device, with which fault.

Must hold: torch is imported only when a block is built or a device is asked for, so naming this backend costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy.typing as npt

from blocklaws.backends.on_torch.faults import FAULTS, faulty_block_class
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError, did_you_mean

if TYPE_CHECKING:
    from blocklaws.backends.on_torch.adapter import TorchBlock

__all__ = ["CompiledTorchBackend", "TorchBackend"]


class TorchBackend:
    """Builds decoder blocks as ``nn.Module``s.

    Args:
        device: where the blocks compute, a name that torch knows; see `with_device`.
        fault: the id of the fault that the blocks have, or None for right ones; see `with_fault`.
    """

    name = "torch"
    dtypes = ("float64", "float32", "bfloat16", "float16")
    #: Refusals are as docs/architecture.md says, so they can be verified.
    validates = True
    faults = FAULTS
    packages = ("torch",)

    def __init__(self, device: str = "cpu", fault: str | None = None) -> None:
        self.device = device
        self.fault = fault

    def __repr__(self) -> str:
        fault = "" if self.fault is None else f", fault={self.fault!r}"
        return f"TorchBackend(device={self.device!r}{fault})"

    def supports(self, config: BlockConfig) -> str | None:
        """Return None: every config that exists can be built."""
        return None

    def build(self, config: BlockConfig, parameters: Mapping[str, npt.ArrayLike], dtype: str) -> TorchBlock:
        """Return a block with a copy of ``parameters`` (canonical names; matrices [in, out]), computing in ``dtype``.

        Raises:
            ValueError: ``configuration:`` or ``component width:``, for the dtype or the parameters.
        """
        if dtype not in self.dtypes:
            hint = did_you_mean(str(dtype), self.dtypes)
            raise ValueError(f"configuration: dtype={dtype!r} must be one of {list(self.dtypes)}{hint}")
        import torch

        from blocklaws.backends.on_torch.adapter import TorchBlock

        block_class = TorchBlock if self.fault is None else faulty_block_class(self.fault)
        return block_class(config, parameters, dtype, torch.device(self.device))

    def with_device(self, name: str) -> Self:
        """Return this backend on the device ``name`` (``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...).

        Raises:
            BackendError: torch has no such device here.
        """
        import torch

        try:
            device = torch.device(name)
            torch.zeros(1, device=device).cpu()
        # What torch raises depends on the device: AssertionError for a build without CUDA, UserWarning for a missing
        # driver where warnings are errors, NotImplementedError for "meta".
        except (RuntimeError, AssertionError, NotImplementedError, TypeError, Warning) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise BackendError(
                f"torch has no device {name!r} here: {reason}; "
                f"use 'cpu'{_cuda_devices(torch.cuda.device_count())} or install a torch that supports it"
            ) from None
        return type(self)(str(device), self.fault)

    def with_fault(self, fault: str) -> TorchBackend:
        """Return this backend building blocks that have ``fault``, one of `faults`.

        Raises:
            BackendError: there is no such fault on torch.
        """
        if fault not in self.faults:
            raise BackendError(
                f"torch has no fault {fault!r}{did_you_mean(fault, self.faults)}; "
                "'blocklaws list faults' shows which backends have which"
            )
        return TorchBackend(self.device, fault)


class CompiledTorchBackend(TorchBackend):
    """The same blocks, compiled by Inductor: `blocklaws verify blocklaws.backends.on_torch:CompiledTorchBackend`.

    It needs a C++ compiler (Triton on a GPU) and some seconds for each shape: begin with one invariant.
    """

    name = "torch-compiled"
    faults = ()

    def build(self, config: BlockConfig, parameters: Mapping[str, npt.ArrayLike], dtype: str) -> TorchBlock:
        """Return a block as `TorchBackend.build` does, whose `forward` is compiled."""
        import torch

        from blocklaws.backends.on_torch.adapter import CompiledTorchBlock

        return CompiledTorchBlock(config, parameters, dtype, torch.device(self.device))


def _cuda_devices(count: int) -> str:
    return "".join(f", 'cuda:{index}'" for index in range(count))
