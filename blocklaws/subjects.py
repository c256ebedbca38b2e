"""A backend as the engine sees it: any object or function that fits the adapter contract, asked with care.

Must hold: a block gets private copies of the parameters that it is built from, and whatever a backend raises is
reported as its own mistake. Must not: take an attribute of a backend for what the contract says before it is checked.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blocklaws.abilities import Abilities
from blocklaws.built import BlockRaised, Built, FunctionBlock, raised, takes_offset
from blocklaws.canonical import DTYPES, PARAMETER_NAMES, STAGES
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError, did_you_mean, missing_module
from blocklaws.surroundings import Surroundings
from blocklaws.worlds import World

__all__ = ["Subject", "attribute", "made"]

_MULTIPLES = ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")


def made(backend: Any, label: str) -> Any:
    """Return a backend that was given as an object, or an object of the class that was given.

    Raises:
        BackendError: the class cannot be called without arguments.
    """
    if not inspect.isclass(backend):
        return backend
    try:
        return backend()
    except BaseException as error:
        raise BackendError(
            f"backend {label!r}: {raised('its class', error)}; it must be made without arguments"
        ) from None


def attribute(backend: Any, label: str, name: str, default: Any) -> Any:
    """Return an attribute of a backend, which may be a property that raises.

    Raises:
        BackendError: it does.
    """
    try:
        return getattr(backend, name, default)
    except BaseException as error:
        raise BackendError(f"backend {label!r}: {raised(f'its attribute {name!r}', error)}") from None


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
        self.backend = backend = made(backend, label)
        build, forward = self._read("build", None), self._read("forward", None)
        self._is_asked = self._read("supports", None) is not None
        self.is_function = build is None and callable(backend) and forward is None
        if not self.is_function and not callable(build):
            hint = (
                " (this has forward: it is a built block, wrap it in an object with build)"
                if forward is not None
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
        self.blocks = self._blocks()
        #: Where each of them is named, as in ``layer.yaml:7:10``, for who has to correct it.
        places = self._read("blocks_at", {})
        self.blocks_at = {str(name): str(at) for name, at in places.items()} if isinstance(places, Mapping) else {}
        self.stages_at = self._stages_at()
        self.claims = self._claims()
        self.multiples = self._multiples()
        self.deterministic = self._flag("deterministic", True)
        self.validates = self._flag("validates", False)
        #: Whether it is asked for a block of each kind before anything is judged.
        self.preflight = self._flag("preflight", False)
        self.device = str(self._read("device", "") or "")
        #: Whether its blocks are in a process of their own.
        self.isolated = self._read("isolated", False) is True
        self.cannot = self._cannot()
        self._abilities: dict[tuple[str, str], Abilities | BlockRaised] = {}
        self._left: dict[BlockConfig, str] = {}
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

    def _read(self, name: str, default: Any) -> Any:
        return attribute(self.backend, self.label, name, default)

    def _name(self) -> str:
        name = self._read("name", None)
        if name is None:
            name = self._read("__name__", None) or self.label
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise BackendError(f"backend {self.label!r}: name={name!r} must be a printable text")
        return name

    def _dtypes(self) -> tuple[str, ...]:
        dtypes = self._read("dtypes", ("float32",))
        if isinstance(dtypes, str) or not isinstance(dtypes, list | tuple) or not dtypes:
            raise BackendError(
                f"backend {self.label!r}: dtypes={dtypes!r} must be a tuple of names from {', '.join(DTYPES)}"
            )
        for dtype in dtypes:
            if dtype not in DTYPES:
                raise BackendError(
                    f"backend {self.label!r}: unknown dtype {dtype!r}{did_you_mean(str(dtype), DTYPES)}; "
                    f"dtypes are {', '.join(DTYPES)}"
                )
        return tuple(dict.fromkeys(dtypes))

    def _blocks(self) -> tuple[str, ...]:
        """The kinds of block that it is verified with unasked, beside those that every backend is."""
        blocks = self._read("blocks", ())
        if not isinstance(blocks, list | tuple) or not all(isinstance(name, str) for name in blocks):
            raise BackendError(
                f"backend {self.label!r}: blocks={blocks!r:.60} must be a tuple of names of further kinds of block, "
                "such as ('mistral',)"
            )
        return tuple(dict.fromkeys(blocks))

    def _stages_at(self) -> Mapping[str, tuple[str, ...]]:
        """Stage -> where the backend says that it comes from, for the reader of a failure; no verdict depends on it."""
        places = self._read("stages_at", {})
        if not isinstance(places, Mapping):
            return {}
        return {
            str(stage): tuple(map(str, at))
            for stage, at in places.items()
            if stage in STAGES and isinstance(at, list | tuple)
        }

    def _claims(self) -> Mapping[str, tuple[Any, ...]]:
        """Choice -> the words that the backend says it takes, to tell which no block of a run has; as `_stages_at`."""
        claims = self._read("claims", {})
        if not isinstance(claims, Mapping):
            return {}
        return {str(name): tuple(words) for name, words in claims.items() if isinstance(words, list | tuple)}

    def _multiples(self) -> Mapping[str, int]:
        multiples = self._read("multiples", {})
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
        value = self._read(name, default)
        if not isinstance(value, bool):
            raise BackendError(f"backend {self.label!r}: {name}={value!r:.60} must be True or False")
        return value

    def _cannot(self) -> Mapping[str, str]:
        cannot = self._read("cannot", None)
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
        return tuple(self._read("faults", ()))

    def compilations(self) -> int:
        """Return how many programs the backend has compiled in this process; 0 where it does not count them."""
        count = self._read("compilations", None)
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
        if self._read("with_device", None) is None:
            raise BackendError(
                f"backend {self.name!r} cannot choose a device (it has no with_device); leave --device out"
            )
        return Subject(self.backend.with_device(device), self.label)

    def refusal(self, config: BlockConfig) -> str | None:
        """Return why the backend does not support a config, or None when it does; it is asked once for each config."""
        if config not in self._refusals:
            surroundings = Surroundings()
            try:
                self._refusals[config] = self._asked(config)
            finally:
                self._left[config] = surroundings.restored()
        return self._refusals[config]

    def left_by_supports(self, configs: Iterable[BlockConfig]) -> str:
        """Return what ``supports`` has changed that all share when it was asked about some configs; empty for nothing.

        It is asked once a config, and what it leaves is every case's of such a block.
        """
        return "; ".join(dict.fromkeys(left for config in configs if (left := self._left.get(config))))

    def _asked(self, config: BlockConfig) -> str | None:
        if not self._is_asked:
            return None
        try:
            answer = self.backend.supports(copy.copy(config))
        except BaseException as error:
            raise raised("supports", error) from None
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

    def abilities(self, block: str, dtype: str, world: Callable[[], World]) -> Abilities:
        """Return what blocks of a kind can do; asked of one of a world, once for each kind and dtype.

        Raises:
            BlockRaised: the block cannot be built.
        """
        key = (block, dtype)
        if key not in self._abilities:
            try:
                self._abilities[key] = self._probe(world())
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
            # What such a call leaves behind is told by the cases that make it: this one belongs to none.
            surroundings = Surroundings()
            try:
                given = set(call()) | ({"parameters"} if method == "gradients" else set())
            except BlockRaised:
                given = set(names)  # it claims to; the cases that need it will say what it raised
            finally:
                surroundings.restored()
            shown |= {f"{method}:{name}" for name in names if name in given}
        # A parameter that this kind of block does not have is nobody's lack.
        shown |= {f"gradients:{name}" for name in PARAMETER_NAMES if name not in world.parameters}
        return Abilities(frozenset(shown), not built.at_offset_zero_only, self.cannot)

    def build(self, world: World) -> Built:
        """Build the block of a world from copies of its config and its parameters."""
        config = copy.copy(world.config)
        parameters = {name: value.copy() for name, value in world.parameters.items()}
        if self.is_function:
            return Built(FunctionBlock(self.backend, parameters, config), parameters, at_offset_zero_only=True)
        try:
            block = self.backend.build(config, parameters, world.dtype)
        except BackendError:
            raise  # a mapping that does not fit its layer: nothing of it can be used
        except ModuleNotFoundError as error:
            raise BackendError(f"backend {self.label!r}: {missing_module(error)}") from None
        except BaseException as error:
            raise raised("build", error) from None
        if block is None or not callable(getattr(block, "forward", None)):
            raise BlockRaised("build", f"returned a {type(block).__name__} without a forward method")
        return Built(block, parameters, at_offset_zero_only=not takes_offset(block.forward))
