"""A backend as the engine sees it: any object or function that fits the adapter contract, called with care.

Must hold: a block gets private copies of what it is called with, what it returns is copied at once, and whatever it
raises is reported as its own mistake (`BlockRaised`), never as the harness's. Must not: trust a shape, a dtype or a
number that a backend returned; that is what the invariants judge.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import traceback
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from blocklaws.abilities import Abilities
from blocklaws.canonical import CAPABILITIES, PARAMETER_NAMES, STAGES
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError, did_you_mean, missing_module
from blocklaws.worlds import World

__all__ = ["BlockRaised", "Built", "Subject", "to_array"]

_MULTIPLES = ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")
_DTYPES = ("float64", "float32", "bfloat16", "float16")

#: More elements than any world's output has: a broadcast view of exabytes is refused before it is copied.
_MAX_ELEMENTS = 100_000_000
_LIBRARIES = ("site-packages", "dist-packages", "<frozen")


class BlockRaised(Exception):
    """The backend's own code raised, or returned something that is no array."""

    def __init__(self, call: str, what: str, where: str = "") -> None:
        super().__init__(f"{call} {what}" + (f" ({where})" if where else ""))
        self.call = call


def _raised(call: str, error: BaseException) -> BlockRaised:
    """Describe an exception by its type, its message and the innermost line outside the harness."""
    if isinstance(error, KeyboardInterrupt):
        raise error  # the user's; all else that a block raises is its own, sys.exit() and pytest.skip() too
    if isinstance(error, BlockRaised):
        return error  # a block in another process, which described it there
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    # The reader's own line tells more than the line inside the library that it called.
    own = [frame for frame in frames if not any(part in frame.filename for part in _LIBRARIES)] or frames
    where = f"{own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno}" if own else ""
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
    if array.dtype.kind not in "fiub" and str(array.dtype) not in _DTYPES:
        what = f"returned a {type(value).__name__} of dtype {array.dtype}"
        raise BlockRaised(call, f"{what}, not an array of real numbers")
    if array.size > _MAX_ELEMENTS:
        raise BlockRaised(call, f"returned an array of shape {array.shape}, more than any world asks for")
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            raise BlockRaised(call, "returned a masked array with masked elements; their values are not known")
        array = np.asarray(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class Subject:
    """A backend under verification.

    Args:
        backend: an object with ``build(config, parameters, dtype)``, a class of such objects, or a function
            ``f(x, parameters, config)``.
        label: what the user called it, used when it has no name of its own.

    Raises:
        BackendError: it is neither, or its attributes are not what the contract says.
    """

    def __init__(self, backend: Any, label: str) -> None:
        self.label = label
        if inspect.isclass(backend):
            try:
                backend = backend()
            except BaseException as error:
                raise BackendError(
                    f"backend {label!r}: {_raised('its class', error)}; it must be made without arguments"
                ) from None
        self.backend = backend
        self.is_function = not hasattr(backend, "build") and callable(backend) and not hasattr(backend, "forward")
        if not self.is_function and not callable(getattr(backend, "build", None)):
            hint = (
                " (this has forward: it is a built block, wrap it in an object with build)"
                if hasattr(backend, "forward")
                else ""
            )
            raise BackendError(
                f"backend {label!r} is a {type(backend).__name__}{hint}: "
                "a backend has build(config, parameters, dtype), "
                "or is a function f(x, parameters, config)"
            )
        if self.is_function:
            self._check_function()
        self.name = self._name()
        self.dtypes = self._dtypes()
        self.multiples = self._multiples()
        self.deterministic = self._flag("deterministic", True)
        self.validates = self._flag("validates", False)
        self.device = str(getattr(backend, "device", "") or "")
        #: Whether its blocks are in a process of their own.
        self.isolated = getattr(backend, "isolated", False) is True
        self.cannot = self._cannot()
        self._abilities: dict[tuple[str, str], Abilities | BlockRaised] = {}
        self._refusals: dict[BlockConfig, str | None] = {}

    def _check_function(self) -> None:
        try:
            inspect.signature(self.backend).bind(None, None, None)
        except TypeError:
            raise BackendError(
                f"backend {self.label!r} is a function that cannot be called as f(x, parameters, config)"
            ) from None
        except ValueError:  # a builtin without a signature: the call will tell
            pass

    def _name(self) -> str:
        name = getattr(self.backend, "name", None)
        if name is None:
            name = getattr(self.backend, "__name__", None) or self.label
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise BackendError(f"backend {self.label!r}: name={name!r} must be a printable text")
        return name

    def _dtypes(self) -> tuple[str, ...]:
        dtypes = getattr(self.backend, "dtypes", ("float32",))
        if isinstance(dtypes, str) or not isinstance(dtypes, list | tuple) or not dtypes:
            raise BackendError(
                f"backend {self.label!r}: dtypes={dtypes!r} must be a tuple of names from {', '.join(_DTYPES)}"
            )
        for dtype in dtypes:
            if dtype not in _DTYPES:
                raise BackendError(
                    f"backend {self.label!r}: unknown dtype {dtype!r}{did_you_mean(str(dtype), _DTYPES)}; "
                    f"dtypes are {', '.join(_DTYPES)}"
                )
        return tuple(dict.fromkeys(dtypes))

    def _multiples(self) -> Mapping[str, int]:
        multiples = getattr(self.backend, "multiples", {})
        if not isinstance(multiples, Mapping):
            raise BackendError(f"backend {self.label!r}: multiples={multiples!r} must be a mapping such as {{'T': 16}}")
        for size, multiple in multiples.items():
            if size not in _MULTIPLES:
                raise BackendError(
                    f"backend {self.label!r}: multiples names an unknown size {size!r}"
                    f"{did_you_mean(str(size), _MULTIPLES)}; "
                    f"sizes are {', '.join(_MULTIPLES)}"
                )
            if not isinstance(multiple, int) or isinstance(multiple, bool) or not 1 <= multiple <= 4096:
                raise BackendError(
                    f"backend {self.label!r}: multiples[{size!r}]={multiple!r} must be a whole number from 1 to 4096"
                )
        return dict(multiples)

    def _flag(self, name: str, default: bool) -> bool:
        value = getattr(self.backend, name, default)
        if not isinstance(value, bool):
            raise BackendError(f"backend {self.label!r}: {name}={value!r:.60} must be True or False")
        return value

    def _cannot(self) -> Mapping[str, str]:
        cannot = getattr(self.backend, "cannot", None)
        if cannot is None:
            return {}
        texts = isinstance(cannot, Mapping) and all(isinstance(part, str) for item in cannot.items() for part in item)
        if not texts:
            raise BackendError(
                f"backend {self.label!r}: cannot={cannot!r:.60} must be a mapping of names to sentences, "
                "such as {'float64': 'the kernel has none'}"
            )
        return dict(cannot)

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of the spec that the backend can express; built-in backends have some."""
        return tuple(getattr(self.backend, "faults", ()))

    def compilations(self) -> int:
        """Return how many programs the backend has compiled in this process; 0 where it does not count them."""
        count = getattr(self.backend, "compilations", None)
        try:
            found = count() if callable(count) else 0
        except Exception:  # a number that is shown, and decides nothing
            found = 0
        return found if isinstance(found, int) else 0

    def with_fault(self, fault: str) -> Subject:
        """Return the backend with one fault planted in it."""
        return Subject(self.backend.with_fault(fault), self.label)

    def with_device(self, device: str) -> Subject:
        """Return the backend on a device.

        Raises:
            BackendError: the backend cannot choose a device, or there is no such device.
        """
        if not hasattr(self.backend, "with_device"):
            raise BackendError(
                f"backend {self.name!r} cannot choose a device (it has no with_device); leave --device out"
            )
        return Subject(self.backend.with_device(device), self.label)

    def refusal(self, config: BlockConfig) -> str | None:
        """Return why the backend does not support a config, or None when it does; it is asked once for each config."""
        if config not in self._refusals:
            self._refusals[config] = self._asked(config)
        return self._refusals[config]

    def _asked(self, config: BlockConfig) -> str | None:
        if not hasattr(self.backend, "supports"):
            return None
        try:
            answer = self.backend.supports(copy.copy(config))
        except BaseException as error:
            raise _raised("supports", error) from None
        if answer is None or isinstance(answer, str):
            return answer
        # A bool is what people write first; True means "yes" to them.
        if answer is True:
            return None
        return "the backend does not support it (and gives no reason)" if answer is False else str(answer)

    def misfit(self, world: World) -> str | None:
        """Return which size of a world the backend's ``multiples`` do not divide, or None when all fit."""
        if not self.multiples:
            return None
        batch, tokens, _ = world.input.shape
        sizes = {**world.config.as_dict(), "B": batch, "T": tokens}
        for name, multiple in self.multiples.items():
            if sizes[name] % multiple:
                return f"{name}={sizes[name]} is no multiple of {multiple}, which the backend asks for"
        return None

    def abilities(self, world: World) -> Abilities:
        """Return what blocks like this world's can do; asked of the block once for each kind and dtype.

        Raises:
            BlockRaised: the block cannot be built.
        """
        key = (world.config.block, world.dtype)
        if key not in self._abilities:
            try:
                self._abilities[key] = self._probe(world)
            except BlockRaised as error:
                self._abilities[key] = error
        found = self._abilities[key]
        if isinstance(found, BlockRaised):
            raise found
        return found

    def _probe(self, world: World) -> Abilities:
        built = self.build(world)
        shown = set(built.capabilities)
        calls: dict[str, tuple[tuple[str, ...], Any]] = {
            "trace": (STAGES, lambda: built.trace(world.input.copy(), 0)),
            "gradients": (
                ("input", "parameters", *world.parameters),
                lambda: built.gradients(world.input.copy(), world.cotangent.copy(), 0),
            ),
        }
        for method, (names, call) in calls.items():
            if method not in shown:
                continue
            try:
                given = set(call()) | ({"parameters"} if method == "gradients" else set())
            except BlockRaised:
                given = set(names)  # it claims to; the cases that need it will say what it raised
            shown |= {f"{method}:{name}" for name in names if name in given}
        # A parameter that this kind of block does not have is nobody's lack.
        shown |= {f"gradients:{name}" for name in PARAMETER_NAMES if name not in world.parameters}
        return Abilities(frozenset(shown), not built.at_offset_zero_only, self.cannot)

    def build(self, world: World) -> Built:
        """Build the block of a world from copies of its config and its parameters."""
        config = copy.copy(world.config)
        parameters = {name: value.copy() for name, value in world.parameters.items()}
        if self.is_function:
            return Built(_FunctionBlock(self.backend, parameters, config), parameters, at_offset_zero_only=True)
        try:
            block = self.backend.build(config, parameters, world.dtype)
        except BackendError:
            raise  # a mapping that does not fit its layer: nothing of it can be used
        except ModuleNotFoundError as error:
            raise BackendError(f"backend {self.label!r}: {missing_module(error)}") from None
        except BaseException as error:
            raise _raised("build", error) from None
        if block is None or not callable(getattr(block, "forward", None)):
            raise BlockRaised("build", f"returned a {type(block).__name__} without a forward method")
        return Built(block, parameters, at_offset_zero_only=not _takes_offset(block.forward))


def _takes_offset(forward: Any) -> bool:
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


@dataclasses.dataclass
class _FunctionBlock:
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
    """

    def __init__(self, block: Any, given_parameters: dict[str, np.ndarray], *, at_offset_zero_only: bool) -> None:
        self._block = block
        self.given_parameters = given_parameters
        self.at_offset_zero_only = at_offset_zero_only
        self.capabilities = frozenset(name for name in CAPABILITIES if callable(getattr(block, name, None)))

    def forward(self, x: np.ndarray, position_offset: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the output as (a copy, the array that the block returned)."""
        returned = self._call("forward", x, **self._offset(position_offset))
        array = to_array(returned, "forward")
        return array.copy(), array

    def forward_each(
        self, x: np.ndarray, parameters: Mapping[str, np.ndarray], position_offset: int
    ) -> np.ndarray | None:
        """Return the outputs of sequences that each have parameters of their own, ``name -> [batch, *shape]``.

        No capability: a block that has such a method saves the rebuilding of many blocks. None where it has not.
        """
        if not callable(getattr(self._block, "forward_each", None)):
            return None
        returned = self._call("forward_each", x, parameters, **self._offset(position_offset))
        return to_array(returned, "forward_each").copy()

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
        """Return (output, cache) of the next tokens."""
        returned = self._call("forward_cached", x, cache)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise BlockRaised(
                "forward_cached", f"returned a {type(returned).__name__} where (output, cache) was expected"
            )
        return to_array(returned[0], "forward_cached").copy(), returned[1]

    def _offset(self, position_offset: int) -> dict[str, int]:
        return {} if self.at_offset_zero_only else {"position_offset": position_offset}

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._block, method)(*arguments, **options)
        except BaseException as error:
            raise _raised(method, error) from None

    def _arrays(self, call: str, returned: Any, *, copy: bool = True) -> dict[str, np.ndarray]:
        if not isinstance(returned, Mapping):
            raise BlockRaised(
                call, f"returned a {type(returned).__name__} where a mapping of names to arrays was expected"
            )
        arrays = {}
        for name, value in returned.items():
            if not isinstance(name, str):
                raise BlockRaised(call, f"returned the name {name!r}, which is no text")
            array = to_array(value, f"{call}[{name!r}]")
            arrays[name] = array.copy() if copy else array
        return arrays
