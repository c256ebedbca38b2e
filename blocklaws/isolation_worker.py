"""The worker of `blocklaws.isolation`: it finds one backend, calls it as it is told, and answers with what came back.

Must hold: this process holds no reference and no expected value, and behind a wall refuses to import them; every call
is answered once, whatever the backend raises; what a call changed besides its answer (its input, its parameters, an
array returned before) is part of the answer. Must not: judge, or read a spec.
"""

from __future__ import annotations

import collections
import faulthandler
import importlib.abc
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.canonical import CAPABILITIES
from blocklaws.config import BlockConfig
from blocklaws.discovery import find_subjects, registered
from blocklaws.errors import BackendError, BlocklawsError, one_line
from blocklaws.isolation_wire import Packer, WireError, receive, send, span, unpack
from blocklaws.lifelines import hold_on
from blocklaws.models.subject import NOT_ISOLATED, BuildsModels, only_blocks
from blocklaws.subjects import Subject
from blocklaws.surroundings import Surroundings
from blocklaws.worlds import World

__all__ = ["main"]

# What an adapter may meet of the package: the contract, and what this process itself runs on.
_OPEN = (
    "canonical",
    "claims",
    "config",
    "discovery",
    "errors",
    "isolation_wire",
    "isolation_worker",
    "specification",
    "subjects",
    "surroundings",
    "worlds",
)

# What the conversation stands on, as it was before a backend could replace it.
_exit, _getpid = os._exit, os.getpid

# Arrays returned by forward and forward_cached that are looked at again after later calls: so many, and not above so
# many bytes together.
_KEPT, _KEPT_BYTES = 16, 2**26


class _Wall(importlib.abc.MetaPathFinder):
    """Refuses to import what could tell an answer: other backends, the spec, the properties, the judging."""

    def __init__(self, own: str) -> None:
        self._own = own

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Raise for a module behind the wall; leave every other to the finders after this one."""
        package, _, rest = fullname.partition(".")
        if package != "blocklaws" or not rest or rest.split(".")[0] in _OPEN or rest == "backends":
            return
        if self._own and (fullname == self._own or fullname.startswith(f"{self._own}.")):
            return
        raise ImportError(f"{fullname} cannot be imported by an isolated backend: it could tell the answer")


def _own_package(label: str) -> str:
    """Return the package of blocklaws' own adapters that a label names, or nothing."""
    points = registered("mappings") if label.endswith((".yaml", ".yml")) else registered("backends")
    point = points.get("layer" if label.endswith((".yaml", ".yml")) else label)
    module = point.value.partition(":")[0] if point is not None else label.partition(":")[0]
    return ".".join(module.split(".")[:3]) if module.startswith("blocklaws.backends.") else ""


def _raised(call: str, error: BaseException) -> BlockRaised:
    message = one_line(error, 300)
    return BlockRaised(
        call, f"raised {type(error).__name__}: {message}" if message else f"raised {type(error).__name__}"
    )


class _Worker:
    """The backend, its built blocks and their caches, each by a number."""

    def __init__(self) -> None:
        self._subject: Subject | None = None
        self._blocks: dict[int, tuple[Built, dict[str, np.ndarray]]] = {}
        self._caches: dict[int, Any] = {}
        self._kept: collections.deque[tuple[int, np.ndarray, np.ndarray]] = collections.deque()
        self._number = 0

    def answer(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray]) -> tuple[dict[str, Any], Packer]:
        """Make one call; return the header of the answer and its arrays."""
        packer = Packer()
        for number in header.get("released", ()):
            self._blocks.pop(number, None)
            self._caches.pop(number, None)
        before = [buffer.copy() for buffer in buffers]
        surroundings = Surroundings()
        try:
            answer = _CALLS[header["call"]](self, header, buffers, packer)
        except BlockRaised as error:
            answer = {"raised": [error.call, str(error)]}
        except BlocklawsError as error:
            answer = {"refused": str(error), "models": isinstance(error, BuildsModels)}
        except WireError as error:
            answer = {"raised": [header["call"], f"{header['call']} returned what cannot be sent: {error}"]}
        except KeyboardInterrupt as error:
            # No interrupt of the user's reaches a process of another session: the backend raised it.
            answer = {"raised": [header["call"], str(_raised(header["call"], error))]}
        if (left := surroundings.restored()) and header["call"] != "start":
            answer["left"] = left
        self._tell_changes(answer, packer, before, buffers, header.get("block"))
        return answer, packer

    def start(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Find the backend and describe what its name stands for."""
        sys.path += [folder for folder in header["path"] if folder not in sys.path]
        if header["wall"]:
            sys.meta_path.insert(0, _Wall(_own_package(header["label"])))
        subjects = find_subjects(header["label"])
        if header["device"]:
            subjects = [subject.with_device(header["device"]) for subject in subjects]
        if not 0 <= header["variant"] < len(subjects):
            raise BackendError(
                f"backend {header['label']!r} stands for {len(subjects)} backends, and not for the same as before"
            )
        self._subject = only_blocks(subjects[header["variant"]], NOT_ISOLATED)
        return {"backends": [_description(subject) for subject in subjects]}

    def supports(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Ask the backend whether it supports a config."""
        return {"refusal": self._found.refusal(BlockConfig(**header["config"]))}

    def build(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Build a block."""
        parameters = {name: unpack(each, buffers) for name, each in header["parameters"].items()}
        nothing = cast(Any, None)  # a block is built from its config and parameters alone
        world = World(BlockConfig(**header["config"]), header["dtype"], nothing, parameters, nothing, nothing)
        built = self._found.build(world)
        number = self._next()
        self._blocks[number] = (built, parameters)
        return {
            "block": number,
            "capabilities": sorted(built.capabilities),
            "offsets": not built.at_offset_zero_only,
            "ways": list(built.ways),
        }

    def forward(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Call ``forward``; an output inside the input's memory is told by its place there."""
        output, kept = self._built(header).forward(unpack(header["x"], buffers), header["offset"])
        inside = packer.inside(kept, [span(buffer) for buffer in buffers])
        if inside is not None:
            return {"inside": inside}
        return {"output": packer.values(output), "kept_as": self._keep(kept, output)}

    def trace(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Call ``trace``."""
        shown = self._built(header).trace(unpack(header["x"], buffers), header["offset"])
        return {"arrays": {name: packer.values(array) for name, array in shown.items()}}

    def gradients(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Call ``gradients``."""
        x, cotangent = unpack(header["x"], buffers), unpack(header["cotangent"], buffers)
        given = self._built(header).gradients(x, cotangent, header["offset"])
        return {"arrays": {name: packer.values(array) for name, array in given.items()}}

    def parameters(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Call ``parameters``; which of them share memory is part of the answer."""
        return {"arrays": packer.together(self._built(header).parameters())}

    def forward_cached(
        self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer
    ) -> dict[str, Any]:
        """Call ``forward_cached``; the cache stays here and goes by a number."""
        given = header["cache"]
        cache = None if given is None else self._caches[given]
        output, kept, cache = self._built(header).forward_cached_kept(unpack(header["x"], buffers), cache)
        number = self._next()
        self._caches[number] = cache
        return {"output": packer.values(output), "kept_as": self._keep(kept, output), "cache": number}

    def forward_by(self, header: Mapping[str, Any], buffers: Sequence[np.ndarray], packer: Packer) -> dict[str, Any]:
        """Call ``forward_by``."""
        output = self._built(header).forward_by(header["way"], unpack(header["x"], buffers), header["offset"])
        return {"output": packer.values(output)}

    @property
    def _found(self) -> Subject:
        assert self._subject is not None
        return self._subject

    def _built(self, header: Mapping[str, Any]) -> Built:
        return self._blocks[header["block"]][0]

    def _keep(self, returned: np.ndarray, values: np.ndarray) -> int:
        """Keep an array that a call returned, to see what later calls make of it; return its number."""
        number = self._next()
        if returned.nbytes <= _KEPT_BYTES:
            self._kept.append((number, returned, values))
            while len(self._kept) > _KEPT or sum(each[1].nbytes for each in self._kept) > _KEPT_BYTES:
                self._kept.popleft()
        return number

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _tell_changes(
        self,
        answer: dict[str, Any],
        packer: Packer,
        before: Sequence[np.ndarray],
        after: Sequence[np.ndarray],
        block: int | None,
    ) -> None:
        """Add what the call changed of what it was given, and of what earlier calls returned."""
        changed = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if not _equal(old, new)]
        if changed:
            answer["changed"] = [[number, packer.values(after[number])] for number in changed]
        if block in self._blocks:
            built, known = self._blocks[block]
            for name, value in built.given_parameters.items():
                if name in known and not _equal(value, known[name]):
                    answer.setdefault("parameters", {})[name] = packer.values(value)
                    known[name] = value.copy()
        for place, (number, kept, last) in enumerate(self._kept):
            if not _equal(kept, last):
                answer.setdefault("kept", []).append([number, packer.values(kept)])
                self._kept[place] = (number, kept, kept.copy())


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same bytes: NaN equals itself, and zero has a sign."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _description(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "dtypes": list(subject.dtypes),
        "blocks": list(subject.blocks),
        "blocks_at": subject.blocks_at,
        "stages_at": subject.stages_at,
        "claims": subject.claims,
        "multiples": dict(subject.multiples),
        "deterministic": subject.deterministic,
        "device": subject.device,
        "cannot": {str(name): str(why) for name, why in subject.cannot.items()},
        "validates": getattr(subject.backend, "validates", False) is True,
        "preflight": subject.preflight,
        "packages": [str(name) for name in getattr(subject.backend, "packages", ())],
    }


_CALLS: Mapping[str, Callable[..., dict[str, Any]]] = {
    name: getattr(_Worker, name) for name in ("start", "supports", "build", *CAPABILITIES)
}


def main(descriptor: int, lifeline: int) -> None:
    """Answer calls until the other side closes the connection; end when it is gone."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold_on(lifeline, group=True)
    connection = socket.socket(fileno=descriptor)
    # A process that the backend starts or forks off is no party to the conversation, and must not hold it open.
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)
    home = _getpid()

    def read_into(view: memoryview) -> None:
        while view:
            count = connection.recv_into(view)
            if count == 0:
                _exit(0)  # threads that the backend left behind must not keep the process
            view = view[count:]

    worker = _Worker()
    try:
        while True:
            answer, packer = worker.answer(*receive(read_into))
            if _getpid() != home:
                _exit(0)  # a fork of this process has come back from the call, too
            send(connection, answer, packer.buffers)
    except Exception as error:
        told = one_line(error, 200)
        print(f"what the worker stands on has failed it, {type(error).__name__}: {told}", file=sys.stderr, flush=True)
        _exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
