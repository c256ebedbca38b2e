"""The compiled functions: module-level, so that every block of one config shares them.

Must hold: weights, input and offset are traced, so new ones compile nothing; each function compiles once a config,
dtype and shape, and is counted (`programs`). Where the process keeps compiled programs on disk
(``JAX_COMPILATION_CACHE_DIR``), these are kept too. Must hold: the process's own settings stay as they are. 64-bit
types are allowed inside `precise()` only, for blocks of every dtype: a narrower block has explicit dtypes throughout
and takes its rotary angles in float64, and one setting gives one cache key whatever the user's process has switched on.

`forward` and `trace` are two programs: XLA fuses and orders their sums differently, so their outputs agree closely, not
bit for bit.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from blocklaws.backends.on_jax.numerics import KeyValues, Parameters, Stages
from blocklaws.backends.on_jax.steps import Steps

__all__ = [
    "COMPILER_OPTIONS",
    "MAX_COMPILED",
    "Program",
    "accepted",
    "clear_caches",
    "compilations",
    "forward",
    "forward_cached",
    "forward_each",
    "gradients",
    "precise",
    "programs",
    "trace",
]

Given = ParamSpec("Given")
Result = TypeVar("Result")

#: A compiled program holds several memory maps, of which a process may have about 65 thousand, and some 3 MB.
MAX_COMPILED = 400

#: A run takes one dtype after another. When more than so many programs are held, those of the one before go.
MAX_OF_OTHER_DTYPES = 64

#: Programs that take less than this many seconds to compile are not kept on disk, unless a process says otherwise.
KEPT_FROM = 1.0


class Program(NamedTuple):
    """What a compiled program is for; ``capacity`` is that of a cache, None without one."""

    path: str
    steps: Steps
    dtype: str
    shape: tuple[int, ...]
    capacity: int | None


_programs: Counter[Program] = Counter()
#: Dtype -> how many of its programs are held.
_held: Counter[str] = Counter()


# It moved from jax.experimental to jax.
_home = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
_enable_x64: Any = _home.enable_x64

#: Blocks are small and many, so compiling is what costs, not running. Without LLVM's optimizations it takes about half
#: as long, and with the emitters that write LLVM's language at once, into one module, a quarter of that.
COMPILER_OPTIONS: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def accepted(options: dict[str, bool | int]) -> dict[str, bool | int]:
    """Return those of the options that this version of XLA knows: they save time and are never needed."""
    if "compiler_options" not in inspect.signature(jax.jit).parameters:
        return {}
    if _compiles_with(options):
        return options
    return {name: value for name, value in options.items() if _compiles_with({name: value})}


def _compiles_with(options: dict[str, bool | int]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(np.float32(0)).compile()
    except RuntimeError:  # INVALID_ARGUMENT: No such compile option
        return False
    return True


_options = accepted(COMPILER_OPTIONS)
_given: dict[str, Any] = {"compiler_options": _options} if _options else {}


def compile_once(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return `jax.jit` of a function whose first argument, ``steps``, and a ``capacity``, if any, are static."""
    static = [name for name in ("steps", "capacity") if name in inspect.signature(function).parameters]
    compiled: Callable[Given, Result] = jax.jit(function, static_argnames=static, **_given)
    return compiled


def programs() -> Counter[Program]:
    """Return program -> how often it was compiled in this process: once, unless `clear_caches` came between."""
    return _programs.copy()


def compilations() -> dict[str, int]:
    """Return function name -> how many of its programs were compiled in this process."""
    counts = dict.fromkeys(("forward", "forward_each", "trace", "gradients", "forward_cached"), 0)
    for program, times in _programs.items():
        counts[program.path] += times
    return counts


def clear_caches() -> None:
    """Let go of every compiled program of this process; the next call of a function compiles it anew."""
    _held.clear()
    jax.clear_caches()  # type: ignore[no-untyped-call]


def precise() -> AbstractContextManager[object]:
    """Return a context in which this thread may use 64-bit types; caches are bounded here, outside of traces."""
    if (held := _held.total()) >= MAX_COMPILED or (len(_held) > 1 and held > MAX_OF_OTHER_DTYPES):
        clear_caches()
    allowed: AbstractContextManager[object] = _enable_x64(True)
    return _keeping(allowed) if _keeps_too_little() else allowed


def _keeps_too_little() -> bool:
    """Whether the process keeps compiled programs on disk, and has not said from how many seconds on."""
    settings: Any = jax.config
    return bool(settings.jax_compilation_cache_dir) and settings.jax_persistent_cache_min_compile_time_secs == KEPT_FROM


@contextlib.contextmanager
def _keeping(inner: AbstractContextManager[object]) -> Iterator[None]:
    """Enter a context in which every program is kept on disk, however quickly it was compiled."""
    name = "jax_persistent_cache_min_compile_time_secs"
    jax.config.update(name, 0.0)  # type: ignore[no-untyped-call]
    try:
        with inner:
            yield
    finally:
        jax.config.update(name, KEPT_FROM)  # type: ignore[no-untyped-call]


def _count(path: str, steps: Steps, x: jax.Array, capacity: int | None = None) -> None:
    """Count a compilation: the body of a jitted function runs once for each."""
    dtype = str(x.dtype)
    _programs[Program(path, steps, dtype, x.shape, capacity)] += 1
    _held[dtype] += 1


@compile_once
def forward(steps: Steps, parameters: Parameters, x: jax.Array, offset: jax.Array) -> jax.Array:
    """Return the output [B, T, d_model] of x [B, T, d_model]; offset is an int32 scalar."""
    _count("forward", steps, x)
    return steps.block(parameters, x, offset)[0]["output"]


@compile_once
def forward_each(steps: Steps, parameters: Parameters, x: jax.Array, offset: jax.Array) -> jax.Array:
    """Return the output of each sequence of x under parameters of its own, each [B, *shape]."""
    _count("forward_each", steps, x)

    def one(its: Parameters, row: jax.Array) -> jax.Array:
        return steps.block(its, row[None], offset)[0]["output"][0]

    output: jax.Array = jax.vmap(one)(parameters, x)
    return output


@compile_once
def trace(steps: Steps, parameters: Parameters, x: jax.Array, offset: jax.Array) -> Stages:
    """Return every stage of x."""
    _count("trace", steps, x)
    return steps.block(parameters, x, offset)[0]


@compile_once
def gradients(
    steps: Steps, parameters: Parameters, x: jax.Array, cotangent: jax.Array, offset: jax.Array
) -> tuple[Parameters, jax.Array]:
    """Return the gradients of sum(output * cotangent): those of the parameters, and that of x."""
    _count("gradients", steps, x)

    def output(parameters: Parameters, x: jax.Array) -> jax.Array:
        return steps.block(parameters, x, offset)[0]["output"]

    y, pullback = jax.vjp(output, parameters, x)
    parameter_gradients, input_gradient = pullback(cotangent.astype(y.dtype))
    return parameter_gradients, input_gradient


@compile_once
def forward_cached(
    steps: Steps, capacity: int, parameters: Parameters, x: jax.Array, cache: KeyValues, offset: jax.Array
) -> tuple[jax.Array, KeyValues]:
    """Return the output of a chunk whose first token is at ``offset``, and the cache with the chunk in it.

    Its buffers have ``capacity`` slots. The length is traced and capacities are few (see `block`), so a chunk compiles
    once for each number of tokens, the first one too, and generation one token at a time once a capacity. Buffers are
    copied, not donated: one that grows cannot be.
    """
    _count("forward_cached", steps, x, capacity)
    if (more := capacity - cache.key.shape[2]) > 0:
        room = ((0, 0), (0, 0), (0, more), (0, 0))
        cache = KeyValues(jnp.pad(cache.key, room), jnp.pad(cache.value, room), cache.length)
    stages, extended = steps.block(parameters, x, offset, cache)
    assert extended is not None
    return stages["output"], extended
