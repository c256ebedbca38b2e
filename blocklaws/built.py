"""A built block, called with care.

Must hold: what a block returns is copied at once, and whatever it raises is reported as its own mistake
(`BlockRaised`), never as the harness's. Must not: trust a shape, a dtype or a number that a block returned; that is
what the invariants judge.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import traceback
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from blocklaws.canonical import CAPABILITIES, DTYPES
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError

__all__ = ["PLACE", "BlockRaised", "Built", "FunctionBlock", "plain_text", "raised", "takes_offset", "to_array"]

#: More elements than any world's output has: a broadcast view of exabytes is refused before it is copied.
_MAX_ELEMENTS = 100_000_000
_LIBRARIES = ("site-packages", "dist-packages", "<frozen")
# Where blocks are called from: these frames say nothing of a block.
_HARNESS = {os.path.join(os.path.dirname(__file__), name) for name in ("built.py", "subjects.py")}

#: The attribute of an exception in which an adapter that drives others' code says where it came from.
PLACE = "blocklaws_place"


class BlockRaised(Exception):
    """The backend's own code raised, or returned something that is no array."""

    def __init__(self, call: str, what: str, where: str = "") -> None:
        super().__init__(f"{call} {what}" + (f" ({where})" if where else ""))
        self.call = call


def raised(call: str, error: BaseException) -> BlockRaised:
    """Describe an exception by its type, its message and the innermost line outside the harness."""
    if isinstance(error, KeyboardInterrupt):
        raise error  # the user's; all else that a block raises is its own, sys.exit() and pytest.skip() too
    if isinstance(error, BlockRaised):
        return error  # a block in another process, which described it there
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _HARNESS]
    # The reader's own line tells more than the line inside the library that it called.
    own = [frame for frame in frames if not any(part in frame.filename for part in _LIBRARIES)] or frames
    where = getattr(error, PLACE, None) or (f"{own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno}" if own else "")
    if isinstance(error, BackendError):
        return BlockRaised(call, f"was refused: {plain_text(error, 1000)}")  # it says its own place
    message = plain_text(error)
    return BlockRaised(
        call, f"raised {type(error).__name__}: {message}" if message else f"raised {type(error).__name__}", where
    )


def plain_text(error: BaseException, longest: int = 300) -> str:
    """Return an exception's message on one line, without control characters; whatever its ``__str__`` does."""
    try:
        text = " ".join(str(error).split())
    except BaseException as second:
        if isinstance(second, KeyboardInterrupt):
            raise
        text = f"(its message raised {type(second).__name__})"
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def to_array(value: Any, call: str) -> np.ndarray:
    """Return what a block returned as an array of its own: NumPy, `np.asarray` or DLPack takes it out.

    Raises:
        BlockRaised: it is no array of numbers.
    """
    if value is None:
        raise BlockRaised(call, "returned nothing (None) where an array was expected")
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype == object and hasattr(value, "__dlpack__"):
            array = np.from_dlpack(value)
    except Exception as error:
        try:
            array = np.from_dlpack(value)
        except Exception:
            message = plain_text(error, 200)
            raise BlockRaised(
                call, f"returned a {type(value).__name__} that neither np.asarray nor DLPack can read: {message}"
            ) from None
    if array.dtype.kind not in "fiub" and str(array.dtype) not in DTYPES:
        what = f"returned a {type(value).__name__} of dtype {array.dtype}"
        raise BlockRaised(call, f"{what}, not an array of real numbers")
    if array.size > _MAX_ELEMENTS:
        raise BlockRaised(call, f"returned an array of shape {array.shape}, more than any world asks for")
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise BlockRaised(call, "returned a masked array with masked elements; their values are not known")
    if type(array) is not np.ndarray:
        # A subclass may define anything anew: what == means, or whether an array has a truth.
        array = np.asarray(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def takes_offset(forward: Any) -> bool:
    """Return whether ``forward(x, position_offset=0)`` is a call that its signature allows."""
    if isinstance(forward, types.MethodType) and isinstance(forward.__func__, types.FunctionType):
        return _allows(forward.__func__, None, None)
    return _allows.__wrapped__(forward, None)


@functools.lru_cache(maxsize=256)
def _allows(function: Any, *positional: None) -> bool:
    """Return whether a function takes a position offset; it is read from each function once."""
    try:
        inspect.signature(function).bind(*positional, position_offset=0)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _ways(block: Any) -> tuple[str, ...]:
    ways = getattr(block, "ways", None)
    if not isinstance(ways, tuple | list) or not ways or not all(isinstance(way, str) and way for way in ways):
        raise BlockRaised(
            "build", f"returned a block with forward_by and ways={ways!r:.60}; name the ways, such as ('compiled',)"
        )
    return tuple(ways)


@dataclasses.dataclass
class FunctionBlock:
    """A backend that is a function ``f(x, parameters, config)``, as a block."""

    function: Any
    parameters_given: Mapping[str, np.ndarray]
    config: BlockConfig

    def forward(self, x: np.ndarray) -> Any:
        return self.function(x, self.parameters_given, self.config)


class Built:
    """A built block: its capabilities, and its calls with every returned value copied out.

    Attributes:
        capabilities: what it can do, found by presence.
        given_parameters: the very arrays that ``build`` got, as they are now.
        at_offset_zero_only: whether it takes no position offset.
        ways: other ways in which the block computes the same forward, for `forward_by`.
    """

    def __init__(self, block: Any, given_parameters: dict[str, np.ndarray], *, at_offset_zero_only: bool) -> None:
        self._block = block
        self.given_parameters = given_parameters
        self.at_offset_zero_only = at_offset_zero_only
        self.capabilities = frozenset(name for name in CAPABILITIES if callable(getattr(block, name, None)))
        self.ways = _ways(block) if "forward_by" in self.capabilities else ()

    def forward(self, x: np.ndarray, position_offset: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the output as (a copy, the array that the block returned)."""
        returned = self._call("forward", x, **self._offset(position_offset))
        array = to_array(returned, "forward")
        return array.copy(), array

    def forward_each(
        self, x: np.ndarray, parameters: Mapping[str, np.ndarray], position_offset: int
    ) -> np.ndarray | None:
        """Return the outputs of sequences that each have parameters of their own, ``name -> [batch, *shape]``.

        No capability: a block that has such a method saves the rebuilding of many blocks. None where it has not, or
        where the method gives None.
        """
        if not callable(getattr(self._block, "forward_each", None)):
            return None
        returned = self._call("forward_each", x, parameters, **self._offset(position_offset))
        return None if returned is None else to_array(returned, "forward_each").copy()

    def trace(self, x: np.ndarray, position_offset: int) -> dict[str, np.ndarray]:
        """Return stage -> array, copied."""
        return self._arrays("trace", self._call("trace", x, **self._offset(position_offset)))

    def gradients(self, x: np.ndarray, cotangent: np.ndarray, position_offset: int) -> dict[str, np.ndarray]:
        """Return "input" and parameter names -> array, copied."""
        return self._arrays("gradients", self._call("gradients", x, cotangent, **self._offset(position_offset)))

    def parameters(self) -> dict[str, np.ndarray]:
        """Return name -> array in the block's order, not copied: whether two share storage is asked of them."""
        return self._arrays("parameters", self._call("parameters"), copy=False)

    def forward_cached(self, x: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """Return (output, cache) of the next tokens; the output is a copy."""
        output, _, cache = self.forward_cached_kept(x, cache)
        return output, cache

    def forward_cached_kept(self, x: np.ndarray, cache: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return the output of the next tokens as (a copy, the array that the block returned), and the cache."""
        returned = self._call("forward_cached", x, cache)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise BlockRaised(
                "forward_cached", f"returned a {type(returned).__name__} where (output, cache) was expected"
            )
        output = to_array(returned[0], "forward_cached")
        if output.shape != x.shape:
            raise BlockRaised("forward_cached", f"returned shape {output.shape} for a chunk of shape {x.shape}")
        return output.copy(), output, returned[1]

    def forward_by(self, way: str, x: np.ndarray, position_offset: int) -> np.ndarray:
        """Return the output as one of `ways` computes it."""
        return to_array(self._call("forward_by", way, x, **self._offset(position_offset)), "forward_by").copy()

    def _offset(self, position_offset: int) -> dict[str, int]:
        return {} if self.at_offset_zero_only else {"position_offset": position_offset}

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._block, method)(*arguments, **options)
        except BaseException as error:
            raise raised(method, error) from None

    def _arrays(self, call: str, returned: Any, *, copy: bool = True) -> dict[str, np.ndarray]:
        if not isinstance(returned, Mapping):
            raise BlockRaised(
                call, f"returned a {type(returned).__name__} where a mapping of names to arrays was expected"
            )
        try:
            items = list(returned.items())
        except BaseException as error:  # a mapping of the backend's own
            raise raised(call, error) from None
        arrays = {}
        for name, value in items:
            if not isinstance(name, str):
                raise BlockRaised(call, f"returned the name {name!r}, which is no text")
            array = to_array(value, f"{call}[{name!r}]")
            arrays[name] = array.copy() if copy else array
        return arrays
