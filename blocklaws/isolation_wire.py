"""What goes between the harness and an isolated worker: a JSON header and the bytes of arrays, with their layout.

Must hold: arrays arrive as they were sent, value, dtype, strides, offset and writeability alike, so that a block
meets in another process what it would meet in this one; whatever the other side sends is data that is checked, and
a message that does not fit is a `WireError`. Must not: unpickle, evaluate or trust anything.
"""

from __future__ import annotations

import ctypes
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from json import dumps, loads
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["Message", "Packer", "WireError", "bytes_of", "receive", "send", "span", "unpack", "unpacked_buffers"]

_PREFIX = struct.Struct("<II")
# A header holds names and shapes; a payload holds arrays of small worlds. More is no answer but an attack on memory.
_MAX_HEADER = 2**24
_MAX_PAYLOAD = 2**31

# Dtypes that NumPy knows go by their code, byte order included; those of ml_dtypes have no code of their own.
_CODE = re.compile(r"[<>|][biufc](?:1|2|4|8|16|32)\Z")
_NAMED: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")
    if hasattr(ml_dtypes, name)
}

Message = tuple[dict[str, Any], list[np.ndarray]]


class WireError(Exception):
    """A message that is none of ours."""


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name under which a dtype travels.

    Raises:
        WireError: it is no dtype of numbers.
    """
    if dtype.name in _NAMED and dtype == _NAMED[dtype.name]:
        return dtype.name
    if _CODE.match(dtype.str):
        return dtype.str
    raise WireError(f"an array of dtype {dtype} cannot be sent; only numbers can")


def _dtype(name: Any) -> np.dtype[Any]:
    if isinstance(name, str):
        if name in _NAMED:
            return _NAMED[name]
        if _CODE.match(name):
            return np.dtype(name)
    raise WireError(f"unknown dtype {name!r:.80}")


def span(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the byte after its last, whatever its strides."""
    low = high = int(array.ctypes.data)
    if array.size:
        high += array.itemsize
        for length, stride in zip(array.shape, array.strides, strict=True):
            reach = (length - 1) * stride
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high


def bytes_of(array: np.ndarray) -> np.ndarray | None:
    """Return an array's own memory as a view of bytes, or None where it is not one run of memory."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    if array.flags.f_contiguous:
        return array.T.reshape(-1).view(np.uint8)
    return None


class Packer:
    """Collects the arrays of one message; arrays that share memory share a buffer."""

    def __init__(self) -> None:
        self.buffers: list[np.ndarray] = []
        self._spans: list[tuple[int, int]] = []
        self._owners: list[np.ndarray] = []

    def values(self, array: np.ndarray) -> dict[str, Any]:
        """Pack the values of an array; it arrives C-contiguous in memory of its own."""
        dtype_name(array.dtype)  # before its bytes are looked at
        plain = np.ascontiguousarray(array).reshape(array.shape)
        return self._described(plain, self._add(plain.reshape(-1).view(np.uint8)))

    def layout(self, array: np.ndarray) -> dict[str, Any]:
        """Pack an array with the memory that it looks at, gaps and margins included."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        low, high = span(array)
        for number, (begin, end) in enumerate(self._spans):
            if begin <= low and high <= end and array.size:
                return self._described(array, number, low_of=begin)
        raw = bytes_of(owner)
        if raw is None:
            return self.values(array)
        begin, end = span(owner)
        if not begin <= low <= high <= end:
            return self.values(array)
        number = self._add(raw)
        self._spans[number] = (begin, end) if raw.size else (0, 0)
        return self._described(array, number, low_of=begin)

    def together(self, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        """Pack the values of named arrays, and which memory they share."""
        spans = {name: span(array) for name, array in arrays.items()}
        packed: dict[str, dict[str, Any]] = {}
        shared: list[list[Any]] = []  # [low, high, names], disjoint
        for name, (low, high) in sorted(spans.items(), key=lambda item: item[1]):
            if shared and low < shared[-1][1] and low < high:
                shared[-1][1] = max(shared[-1][1], high)
                shared[-1][2].append(name)
            else:
                shared.append([low, high, [name]])
        for low, high, names in shared:
            if len(names) == 1:
                packed[names[0]] = self.values(arrays[names[0]])
                continue
            # One run of memory under several arrays, which are alive: reading it reads nothing else.
            number = self._add(np.frombuffer(ctypes.string_at(low, high - low), np.uint8))
            for name in names:
                packed[name] = self._described(arrays[name], number, low_of=low)
        return {name: packed[name] for name in arrays}

    def inside(self, array: np.ndarray, spans: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
        """Describe an array by where it lies in memory that the other side has too, or return None."""
        low, high = span(array)
        for number, (begin, end) in enumerate(spans):
            if begin <= low and high <= end and low < high:
                return self._described(array, number, low_of=begin)
        return None

    def _add(self, raw: np.ndarray) -> int:
        self.buffers.append(raw)
        self._spans.append((0, 0))
        self._owners.append(raw)  # an address means something only while its memory is held
        return len(self.buffers) - 1

    @staticmethod
    def _described(array: np.ndarray, number: int, low_of: int | None = None) -> dict[str, Any]:
        described: dict[str, Any] = {"buffer": number, "dtype": dtype_name(array.dtype), "shape": list(array.shape)}
        if low_of is not None:
            described |= {"offset": int(array.ctypes.data) - low_of, "strides": list(array.strides)}
            if not array.flags.writeable:
                described["frozen"] = True
        return described


def unpack(described: Any, buffers: Sequence[np.ndarray]) -> np.ndarray:
    """Return the array that is described.

    Raises:
        WireError: it does not lie inside its buffer, or it is no description.
    """
    try:
        number = described["buffer"]
        if not isinstance(number, int) or not 0 <= number < len(buffers):
            raise WireError(f"there is no buffer {number!r:.80}")
        if any(type(length) is not int or length < 0 for length in described["shape"]):
            raise WireError(f"no shape: {described['shape']!r:.80}")
        strides = described.get("strides")
        array: np.ndarray = np.ndarray(
            tuple(described["shape"]),
            _dtype(described["dtype"]),
            buffer=buffers[number],
            offset=int(described.get("offset", 0)),
            strides=None if strides is None else tuple(strides),
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, MemoryError) as error:
        raise WireError(f"no array can be made of what was sent: {error}") from None
    if described.get("frozen"):
        array.flags.writeable = False
    return array


def send(connection: socket.socket, header: Mapping[str, Any], buffers: Sequence[np.ndarray] = ()) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone.
    """
    head = dumps({**header, "sizes": [raw.nbytes for raw in buffers]}).encode()
    total = sum(raw.nbytes for raw in buffers)
    prefix = _PREFIX.pack(len(head), total)
    if total <= 65_536:
        connection.sendall(b"".join((prefix, head, *(raw.tobytes() for raw in buffers))))
        return
    connection.sendall(prefix + head)
    for raw in buffers:
        connection.sendall(raw.data)


def receive(read_into: Callable[[memoryview], None]) -> Message:
    """Read one message by a function that fills a buffer, or raises.

    Raises:
        WireError: what came is no message.
    """
    prefix = bytearray(_PREFIX.size)
    read_into(memoryview(prefix))
    length, total = _PREFIX.unpack(prefix)
    if length > _MAX_HEADER or total > _MAX_PAYLOAD:
        raise WireError(f"a message of {length} + {total} bytes is longer than any that is meant")
    head = bytearray(length)
    read_into(memoryview(head))
    try:
        header = loads(head)
        sizes = header["sizes"]
        if not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) != total:
            raise WireError("the sizes of a message do not add up")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError(f"no header: {error}") from None
    buffers = []
    for size in sizes:
        buffer = np.empty(size, np.uint8)
        if size:
            read_into(buffer.data)
        buffers.append(buffer)
    return header, buffers


def unpacked_buffers(buffers: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Return the spans of received buffers."""
    return [span(buffer) for buffer in buffers]
