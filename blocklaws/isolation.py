"""A backend in a process of its own: `isolated` gives subjects that are called as any other, across a process boundary.

Must hold: the worker is not trusted. It holds no reference and no expected value, its inputs are copies, its
answers are data that is checked, and they are judged here. A worker that crashes, exits, hangs or eats memory costs
the call that did it, as a `BlockRaised` with the cause; the next call finds a fresh worker. Must not: take this for
a sandbox, which it is not: a worker has the rights of its user (docs/power.md says what follows).
"""

from __future__ import annotations

import dataclasses
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised
from blocklaws.canonical import CAPABILITIES
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError
from blocklaws.isolation_process import Limits, WorkerEnded, WorkerProcess
from blocklaws.isolation_wire import Message, Packer, WireError, unpack
from blocklaws.models.subject import BuildsModels
from blocklaws.subjects import Subject
from blocklaws.surroundings import left_elsewhere

__all__ = ["IsolatedBackend", "Limits", "isolated"]


class IsolatedBackend:
    """The adapter of a backend in a worker process.

    Raises:
        BackendError: the worker cannot find the backend, or ends while it looks.
    """

    def __init__(self, label: str, device: str | None, limits: Limits, variant: int = 0, *, wall: bool = True) -> None:
        self._label, self._device, self._limits, self._variant = label, device, limits, variant
        #: Whether its process refuses to import what could tell an answer; a guarded one only bounds time and memory.
        self.isolated = wall
        self._process: WorkerProcess | None = None
        self._timeouts = 0
        self._refusals: dict[BlockConfig, str | None] = {}
        self._kept: dict[int, weakref.ref[np.ndarray]] = {}
        self.released: list[int] = []
        self.generation = 0
        #: How many worker processes ended in a call.
        self.ends = 0
        try:
            described = self._start()["backends"]
            self.descriptions: list[dict[str, Any]] = list(described)
            mine = self.descriptions[variant]
            self.name, self.dtypes, self.multiples = mine["name"], tuple(mine["dtypes"]), mine["multiples"]
            self.blocks, self.blocks_at = tuple(mine["blocks"]), dict(mine["blocks_at"])
            self.stages_at = {stage: tuple(places) for stage, places in dict(mine["stages_at"]).items()}
            self.claims = {choice: tuple(words) for choice, words in dict(mine["claims"]).items()}
            self.deterministic, self.device = bool(mine["deterministic"]), str(mine["device"])
            self.cannot, self.validates = dict(mine["cannot"]), mine["validates"] is True
            self.preflight = mine["preflight"] is True
            self.packages = tuple(mine["packages"])
        except WorkerEnded as ended:
            raise BackendError(f"backend {label!r}: while it was loaded, it {ended}") from None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BackendError(f"backend {label!r}: its process described itself wrongly: {error}") from None

    def _start(self) -> dict[str, Any]:
        self._process = WorkerProcess(self._limits, echo=not self.isolated)
        self._kept.clear()
        self.released.clear()
        self.generation += 1
        header = {
            "call": "start",
            "label": self._label,
            "device": self._device,
            "variant": self._variant,
            "wall": self.isolated,
            "path": list(sys.path),
        }
        try:
            answer, _ = self._process.ask(header, (), self._limits.start_seconds)
        except WorkerEnded:
            self._process = None
            raise
        if "backends" not in answer:
            self._process.close()
            self._process = None
            refused = BuildsModels if answer.get("models") is True else BackendError
            raise refused(str(answer.get("refused") or answer.get("raised") or "the worker gave no answer"))
        return answer

    @property
    def running(self) -> bool:
        """Whether there is a worker; the next call starts one where there is none."""
        return self._process is not None

    def ask(self, call: str, header: Mapping[str, Any], packer: Packer, key: Any) -> Message:
        """Make a call; apply what it changed to the memory of what was given.

        Raises:
            BlockRaised: the backend raised, returned what is no array, or ended its process.
            BackendError: it refused to build the block.
        """
        try:
            if self._process is None:
                self._start()
            assert self._process is not None
            process, released, self.released = self._process, self.released, []
            answer, buffers = process.ask(
                {"call": call, "released": released, **header}, packer.buffers, self._seconds(key)
            )
        except WorkerEnded as ended:
            self._process = None
            self.ends += 1
            self._timeouts += "no answer" in str(ended)
            raise BlockRaised(call, str(ended), ended.where) from None
        except BackendError as error:
            raise BlockRaised(call, f"could not be made: a new process was needed, and {error}") from None
        process.seen.add(key)
        try:
            self._apply(answer, buffers, packer)
        except (WireError, KeyError, IndexError, TypeError, ValueError) as error:
            raise self.wrong_answer(call, error) from None
        if "refused" in answer and call == "build":
            # As in one process: a mapping that does not fit its layer is refused, and no case is judged by it.
            raise BackendError(str(answer["refused"])[:1000])
        if "raised" in answer or "refused" in answer:
            raise _as_raised(call, answer)
        return answer, buffers

    def wrong_answer(self, call: str, error: Exception) -> BlockRaised:
        """Return what to raise for an answer that does not fit; its process cannot be talked to any further."""
        if self._process is not None:
            self._process.close()
            self._process = None
            self.ends += 1
        return BlockRaised(call, f"was answered by its process with what is no answer: {error}")

    def _seconds(self, key: Any) -> float:
        assert self._process is not None
        if self._timeouts >= self._limits.patience:
            return self._limits.impatient_seconds
        return self._limits.call_seconds if key in self._process.seen else self._limits.first_seconds

    def _apply(self, answer: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> None:
        if left := answer.get("left"):
            left_elsewhere(str(left)[:1000])
        for number, described in answer.get("changed", ()):
            ours, theirs = packer.buffers[number], unpack(described, buffers)
            if theirs.shape == ours.shape and theirs.dtype == np.uint8:
                _overwrite(ours, theirs)
        for number, described in answer.get("kept", ()):
            reference = self._kept.get(number)
            kept = reference() if reference is not None else None
            if kept is not None:
                theirs = unpack(described, buffers)
                if theirs.shape == kept.shape and theirs.dtype == kept.dtype:
                    kept[...] = theirs

    def keep(self, number: Any, array: np.ndarray) -> None:
        """Note an output, so that a later call that changes it over there changes it here."""
        if isinstance(number, int):
            self._kept[number] = weakref.ref(array, lambda _: self._kept.pop(number, None))

    def supports(self, config: BlockConfig) -> str | None:
        """Return what the backend's own ``supports`` says."""
        if config not in self._refusals:
            answer, _ = self.ask("supports", {"config": config.as_dict()}, Packer(), ("supports",))
            refusal = answer.get("refusal")
            self._refusals[config] = None if refusal is None else str(refusal)
        return self._refusals[config]

    def build(self, config: BlockConfig, parameters: dict[str, np.ndarray], dtype: str) -> RemoteBlock:
        """Build a block over there."""
        return RemoteBlock(self, config, parameters, dtype)


def _overwrite(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Copy bytes into memory of ours, also where a view is read-only: the block wrote there all the same."""
    import ctypes

    ctypes.memmove(ours.ctypes.data, theirs.tobytes(), ours.nbytes)


def _as_raised(call: str, answer: Mapping[str, Any]) -> BlockRaised:
    raised = answer.get("raised")
    if isinstance(raised, list) and len(raised) == 2 and all(isinstance(part, str) for part in raised):
        name, text = raised[0][:100], raised[1][:1000]
        return BlockRaised(name, text.removeprefix(f"{name} "))
    return BlockRaised(call, f"was refused: {str(answer.get('refused'))[:1000]}")


@dataclasses.dataclass(eq=False)
class _RemoteCache:
    """A cache that lives in the worker."""

    backend: IsolatedBackend
    generation: int
    number: int

    def __del__(self) -> None:
        if self.generation == self.backend.generation:
            self.backend.released.append(self.number)


class RemoteBlock:
    """A block in a worker; it has the methods that the block there has."""

    def __init__(
        self, backend: IsolatedBackend, config: BlockConfig, parameters: dict[str, np.ndarray], dtype: str
    ) -> None:
        self._backend, self._config, self._parameters, self._dtype = backend, config, parameters, dtype
        self._generation, self._number = -1, -1
        answer = self._build()
        capabilities = answer.get("capabilities")
        if not isinstance(capabilities, list) or not set(map(str, capabilities)) <= set(CAPABILITIES):
            raise backend.wrong_answer("build", WireError(f"capabilities {capabilities!r:.200}"))
        methods = {
            "forward": self._forward if answer.get("offsets") is True else self._forward_at_zero,
            "trace": self._trace,
            "gradients": self._gradients,
            "parameters": self._list_parameters,
            "forward_cached": self._forward_cached,
            "forward_by": self._forward_by if answer.get("offsets") is True else self._forward_by_at_zero,
        }
        self.ways = answer.get("ways", [])
        for name in capabilities:
            setattr(self, name, methods[name])

    def __del__(self) -> None:
        if self._generation == self._backend.generation:
            self._backend.released.append(self._number)

    def _build(self) -> dict[str, Any]:
        packer = Packer()
        header = {
            "config": self._config.as_dict(),
            "dtype": self._dtype,
            "parameters": {name: packer.layout(value) for name, value in self._parameters.items()},
        }
        answer, _ = self._backend.ask("build", header, packer, ("build", self._config, self._dtype))
        if not isinstance(answer.get("block"), int):
            raise self._backend.wrong_answer("build", WireError("no block"))
        self._generation, self._number = self._backend.generation, answer["block"]
        return answer

    def _ask(self, call: str, packer: Packer, **header: Any) -> Message:
        """Make a call of this block, building it anew in a worker that does not have it."""
        if self._generation != self._backend.generation or not self._backend.running:
            self._build()
        shape = tuple(header["x"]["shape"]) if "x" in header else ()
        key = (call, self._config, self._dtype, shape)
        answer, buffers = self._backend.ask(call, {"block": self._number, **header}, packer, key)
        try:
            for name, described in answer.get("parameters", {}).items():
                theirs, ours = unpack(described, buffers), self._parameters[name]
                if theirs.shape == ours.shape:
                    ours[...] = theirs
        except (WireError, KeyError, AttributeError, ValueError) as error:
            raise self._backend.wrong_answer(call, error) from None
        return answer, buffers

    def _arrays(self, call: str, packer: Packer, **header: Any) -> dict[str, np.ndarray]:
        answer, buffers = self._ask(call, packer, **header)
        try:
            return {str(name): unpack(described, buffers) for name, described in answer["arrays"].items()}
        except (WireError, KeyError, AttributeError) as error:
            raise self._backend.wrong_answer(call, error) from None

    def _forward(self, x: np.ndarray, position_offset: int = 0) -> np.ndarray:
        packer = Packer()
        answer, buffers = self._ask("forward", packer, x=packer.layout(x), offset=int(position_offset))
        try:
            if "inside" in answer:
                # The output lies in the memory of the input; so it does here.
                return unpack(answer["inside"], packer.buffers)
            output = unpack(answer["output"], buffers)
            self._backend.keep(answer["kept_as"], output)
            return output
        except (WireError, KeyError) as error:
            raise self._backend.wrong_answer("forward", error) from None

    def _forward_at_zero(self, x: np.ndarray) -> np.ndarray:
        return self._forward(x)

    def _forward_by(self, way: str, x: np.ndarray, position_offset: int = 0) -> np.ndarray:
        packer = Packer()
        answer, buffers = self._ask("forward_by", packer, way=way, x=packer.layout(x), offset=int(position_offset))
        try:
            return unpack(answer["output"], buffers)
        except (WireError, KeyError) as error:
            raise self._backend.wrong_answer("forward_by", error) from None

    def _forward_by_at_zero(self, way: str, x: np.ndarray) -> np.ndarray:
        return self._forward_by(way, x)

    def _trace(self, x: np.ndarray, position_offset: int = 0) -> dict[str, np.ndarray]:
        packer = Packer()
        return self._arrays("trace", packer, x=packer.layout(x), offset=int(position_offset))

    def _gradients(self, x: np.ndarray, cotangent: np.ndarray, position_offset: int = 0) -> dict[str, np.ndarray]:
        packer = Packer()
        given, pulled = packer.layout(x), packer.layout(cotangent)
        return self._arrays("gradients", packer, x=given, cotangent=pulled, offset=int(position_offset))

    def _list_parameters(self) -> dict[str, np.ndarray]:
        return self._arrays("parameters", Packer())

    def _forward_cached(self, x: np.ndarray, cache: Any) -> tuple[np.ndarray, _RemoteCache]:
        if cache is not None and (not isinstance(cache, _RemoteCache) or cache.generation != self._backend.generation):
            raise BlockRaised("forward_cached", "lost its cache: the process that held it has ended")
        packer = Packer()
        number = None if cache is None else cache.number
        answer, buffers = self._ask("forward_cached", packer, x=packer.layout(x), cache=number)
        try:
            output = unpack(answer["output"], buffers)
            self._backend.keep(answer["kept_as"], output)
            return output, _RemoteCache(self._backend, self._backend.generation, int(answer["cache"]))
        except (WireError, KeyError, TypeError, ValueError) as error:
            raise self._backend.wrong_answer("forward_cached", error) from None


def isolated(
    label: str, device: str | None = None, limits: Limits | None = None, *, wall: bool = True
) -> list[Subject]:
    """Return what a name stands for, each backend in a process of its own.

    Args:
        label: a registered name, ``module:attribute``, ``file.py:attribute`` or a mapping file.
        device: where torch and jax compute.
        limits: the time and the memory that a worker may take.
        wall: whether the process refuses to import other backends, the spec and what judges, and keeps what it prints
            to itself; without, only its time and memory are bounded.

    Raises:
        BackendError: it cannot be found, or this system cannot isolate.
    """
    if not hasattr(os, "killpg"):
        raise BackendError(f"backend {label!r}: isolation needs a POSIX system; leave --isolate out")
    limits = limits or Limits()
    first = IsolatedBackend(label, device, limits, wall=wall)
    others = (
        IsolatedBackend(label, device, limits, variant, wall=wall) for variant in range(1, len(first.descriptions))
    )
    return [Subject(backend, label) for backend in (first, *others)]
