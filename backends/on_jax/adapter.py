"""The adapter: what the engine sees of this backend, without importing JAX before a block or a device is asked for.

Must hold: importing this module, making a `JaxBackend`, naming its faults and naming a fault that does not exist import
no JAX. Must not: keep anything between blocks but the choice of a device and of a fault.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blocklaws.backends.on_jax import faults
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError

if TYPE_CHECKING:
    import jax

    from blocklaws.backends.on_jax.block import JaxBlock

__all__ = ["JaxBackend", "clear_caches"]


def clear_caches() -> None:
    """Let go of every compiled program of this process (one kept for each config, dtype and shape)."""
    from blocklaws.backends.on_jax import compiled

    compiled.clear_caches()


class JaxBackend:
    """Builds decoder blocks of pure functions, compiled with `jax.jit`.

    Attributes:
        name: shown in test ids.
        dtypes: all of them; float64 works whatever ``jax_enable_x64`` says, and leaves it as it is.
        faults: the ids of the faults that `with_fault` knows.
        device: the device named in `with_device`, or None for JAX's default one.
        fault: the fault named in `with_fault`, or None.
    """

    name = "jax"
    dtypes = ("float64", "float32", "bfloat16", "float16")
    #: Refusals are as docs/architecture.md says, so they can be verified.
    validates = True

    faults: tuple[str, ...] = tuple(faults.FAULTS)
    packages = ("jax", "jaxlib")

    def __init__(self, device: str | None = None, fault: str | None = None) -> None:
        self.device = device
        self.fault = fault

    def __repr__(self) -> str:
        return f"{type(self).__name__}(device={self.device!r}, fault={self.fault!r})"

    def supports(self, config: BlockConfig) -> str | None:
        """Return None: every config is supported."""
        return None

    def build(self, config: BlockConfig, parameters: Mapping[str, Any], dtype: str) -> JaxBlock:
        """Build a block from canonical names -> arrays.

        Raises:
            ValueError: ``configuration:`` or ``component width:``.
            BackendError: the device went away.
        """
        if self.fault is None:
            from blocklaws.backends.on_jax.block import JaxBlock

            return JaxBlock(config, parameters, dtype, self._device())
        return faults.load(self.fault)(config, parameters, dtype, self._device())

    def with_device(self, name: str) -> JaxBackend:
        """Return this backend on a device: ``cpu``, ``cuda`` (or ``gpu``), ``tpu`` ..., ``cuda:1`` for the second.

        Raises:
            BackendError: JAX has no such device.
        """
        backend = JaxBackend(device=name, fault=self.fault)
        backend._device()
        return backend

    def with_fault(self, identifier: str) -> JaxBackend:
        """Return this backend with a fault of ``spec/faults.yaml``.

        Raises:
            BackendError: `faults` has no such id.
        """
        faults.check(identifier)
        return JaxBackend(device=self.device, fault=identifier)

    def compilations(self) -> int:
        """Return how many programs this process has compiled so far, for blocks with faults too."""
        compiled = sys.modules.get("blocklaws.backends.on_jax.compiled")
        return 0 if compiled is None else sum(compiled.compilations().values())

    def _device(self) -> jax.Device | None:
        if self.device is None:
            return None
        import jax

        platform, _, index = self.device.partition(":")
        try:
            return jax.devices(platform)[int(index or 0)]
        except (RuntimeError, IndexError, ValueError) as error:
            found = ", ".join(sorted({device.platform for device in jax.devices()}))
            raise BackendError(
                f"device: jax {jax.__version__} has no device {self.device!r} here (its default devices: {found}); "
                "name one of those, or install the jax build for that device"
            ) from error
