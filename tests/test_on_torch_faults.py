"""The faults of the PyTorch adapter: each is there, runs wherever its block is built, and can be seen."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml

from blocklaws import spec
from blocklaws.backends.on_torch import TorchBackend
from blocklaws.backends.on_torch.adapter import TorchBlock
from blocklaws.backends.on_torch.decoder import DecoderBlock
from blocklaws.backends.on_torch.fault_tools import CallAware, ExplicitAttention
from blocklaws.backends.on_torch.faults import faulty_block_class
from blocklaws.canonical import parameter_shapes, stage_order
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError
from blocklaws.spec_reading import built_in_spec

Array = npt.NDArray[Any]


def read(name: str) -> Any:
    """Return one file of the spec as plain data."""
    return yaml.safe_load(files(spec).joinpath(name).read_text("utf-8"))


SPEC = built_in_spec()
BLOCKS: dict[str, dict[str, Any]] = read("blocks.yaml")
FAULTS: dict[str, dict[str, Any]] = {
    entry["id"]: entry for entry in read("faults.yaml") if "torch" in entry.get("backends", ["torch"])
}
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
#: What two ways of computing the same may differ by, as a part of the largest magnitude; low precisions absorb it.
NOISE = {"float64": 1e-10, "float32": 2e-6, "bfloat16": 0.0, "float16": 0.0}

#: Where a fault cannot be seen, though the spec does not rule it out, and why.
UNSEEN = {
    ("norm-modifies-input", "original"): "a post-norm block norms a sum that nothing else reads, and not the input",
}


@dataclasses.dataclass(frozen=True)
class World:
    """One situation to look at a block in."""

    batch: int = 2
    tokens: int = 5
    offset: int = 3
    input_scale: float = 1.0
    input_shift: float = 0.0
    score_scale: float = 1.0
    vector_scale: float = 1.0
    gate_scale: float = 1.0
    value_scale: float = 1.0
    zero_row: bool = False


WORLDS = (
    World(),
    World(input_scale=1e-3, zero_row=True),
    World(score_scale=300.0),
    World(input_scale=300.0),
    World(input_scale=1e-3, vector_scale=1e-3),
    World(batch=1, tokens=19, offset=40),
    World(gate_scale=1000.0),
    World(input_scale=16.0, input_shift=30000.0),
    World(input_scale=1e6),
    World(value_scale=1e6),
)
#: What the config of a listed block says instead, where the fault is about a word that no kind of block has.
CHOICES = {"gelu-tanh-as-erf": {"feed_forward": "gelu_tanh"}}
#: What a number of the config is instead, where the listed block has the fault's own.
NUMBERS = {
    "eps-clamped": {"norm_eps": 0.0},
    "eps-in-half": {"norm_eps": 1e-8},
    "gradient-eps-fixed": {"norm_eps": 0.25},
    "cache-eps-fixed": {"norm_eps": 0.25},
    "window-fixed": {"window": 2},
    "rotary-fraction-fixed": {"rotary_fraction": 0.25},
}


def config_of(block: str, fault: str = "") -> BlockConfig:
    """Return a small config of one kind of block, in which the fault can be seen; its sizes are all different."""
    entry = {**BLOCKS[block], **CHOICES.get(fault, {}), **NUMBERS.get(fault, {})}
    heads = {"n_heads": 6, "n_kv_heads": 3 if entry.pop("heads") == "grouped" else 6}
    # Two pairs turn, where a part of a head does: one alone has no exponent.
    sizes = {"d_model": 10, "d_head": 8 if "rotary_fraction" in entry else 4, "d_ff": 14, **heads}
    fields = {name: value for name, value in entry.items() if name not in ("says", "source", "by_default")}
    return BlockConfig(**{"block": block, **sizes, **fields})


def blocks_of(fault: str) -> list[str]:
    """Return the blocks in which the spec says that a fault can be seen; further kinds where no other is among them."""
    listed = SPEC.faults[fault].blocks
    return [block for block in listed if SPEC.blocks[block].by_default] or list(listed)


def parameters_of(config: BlockConfig, dtype: str, world: World = WORLDS[0]) -> dict[str, Array]:
    """Return weights at 1/sqrt(fan_in), gains around one and biases, all distinct, scaled as the world says."""
    rng = np.random.default_rng(7)
    arrays = {}
    for name, shape in parameter_shapes(config).items():
        scale = shape[0] ** -0.5 if len(shape) == 2 else 0.3
        array = rng.standard_normal(shape) * scale + name.endswith("gain")
        if name in ("attention.query", "attention.key"):
            array *= world.score_scale
        elif name == "feed_forward.gate":
            array *= world.gate_scale
        elif name == "attention.value":
            array *= world.value_scale
        elif len(shape) == 1:
            array *= world.vector_scale
        with np.errstate(over="ignore"):
            arrays[name] = array.astype(DTYPES[dtype])
    return arrays


def attempt(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or the refusal that it raises."""
    try:
        return call()
    except ValueError as refusal:
        return str(refusal)


def observations(block: TorchBlock, world: World) -> Iterator[tuple[str, Any]]:
    """Yield (what, value) of all that can be seen of a block from outside, one after the other."""
    rng = np.random.default_rng(3)
    width, dtype = block.config.d_model, block.dtype

    def draw(*shape: int) -> Array:
        with np.errstate(over="ignore"):
            return (rng.standard_normal(shape) * world.input_scale + world.input_shift).astype(dtype)

    x, cotangent = draw(world.batch, world.tokens, width), draw(world.batch, world.tokens, width)
    if world.zero_row:
        x[0, 1] = 0
    listed = block.parameters()
    yield "parameter names", list(listed)
    yield from listed.items()
    sharing = [a for a, b in itertools.combinations(listed, 2) if np.shares_memory(listed[a], listed[b])]
    yield "parameters in the same memory", sharing
    given = x.copy()
    first = block.forward(given, world.offset)
    kept = first.copy()
    yield "forward", first
    yield "the input after forward", given
    for stage, array in block.trace(x.copy(), world.offset).items():
        yield stage, array
    given, tokens = cotangent.copy(), x.copy()
    for _ in range(2):
        for name, array in block.gradients(tokens, given, world.offset).items():
            yield f"gradient of {name}", array
        yield "the cotangent after gradients", given
        yield "the input after gradients", tokens
    for stage, array in block.trace(np.asfortranarray(x), world.offset).items():
        yield f"{stage} of a strided input", array
    cache = None
    for start, stop in itertools.pairwise((0, 1, 3, 4, world.tokens)):
        y, cache = block.forward_cached(x[:, start:stop].copy(), cache)
        yield f"tokens {start} to {stop - 1} through the cache", y
    cache = None
    for start, stop in itertools.pairwise((0, 3, world.tokens)):
        y, cache = block.forward_cached(x[:, start:stop].copy(), cache)
        yield f"tokens {start} to {stop - 1} through another cache", y
    chunk, cache = block.forward_cached(x[:, :2].copy(), None)
    first_chunk = chunk.copy()
    block.forward_cached(cotangent[:, :2].copy(), None)
    yield "the output of a chunk after another sequence's", np.array_equal(chunk, first_chunk)
    yield "a third token after another sequence's first two", block.forward_cached(x[:, 2:3].copy(), cache)[0]
    given = x[:, :2].copy()
    block.forward_cached(given, None)
    yield "the tokens after a cached call", given
    yield "Fortran-ordered tokens through the cache", block.forward_cached(np.asfortranarray(x[:, :2]), None)[0]
    yield "forward again, of something else", block.forward(cotangent.copy(), world.offset)
    yield "the first output after that", np.array_equal(first, kept)
    yield "forward of a strided input", block.forward(np.asfortranarray(x), world.offset)
    yield "forward of one token", block.forward(x[:, :1].copy())
    yield "forward of one sequence", block.forward(x[:1].copy())
    yield "forward of later tokens", block.forward(x.copy(), 90)
    yield "parameters after that", all(np.array_equal(a, listed[name]) for name, a in block.parameters().items())
    yield "forward of no sequences", block.forward(x[:0])
    limit = block.config.max_positions
    yield "forward of no tokens", attempt(lambda: block.forward(x[:, :0]))
    yield "forward past the last position", attempt(lambda: block.forward(x, limit - 1))
    yield "forward of a wide input", attempt(lambda: block.forward(draw(1, 2, width + 1)))


def differs(seen: Any, right: Any, noise: float) -> bool:
    """Return whether two observations differ by more than another order of the same sums may explain."""
    if not (isinstance(seen, np.ndarray) and isinstance(right, np.ndarray)):
        return bool(type(seen) is not type(right) or seen != right)
    if seen.shape != right.shape or seen.dtype != right.dtype:
        return True
    a, b = seen.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)):
        return True
    # Not less than a thousandth: the gradient of a key bias is zero but for rounding, which has no scale of its own.
    largest = np.abs(b[finite]).max(initial=1e-3)
    return bool((np.abs(a[finite] - b[finite]) > noise * largest).any())


def seen_in(fault: str, block: str, dtype: str) -> str | None:
    """Return the first thing in which a fault shows, or None."""
    config = config_of(block, fault)
    for world in WORLDS:
        parameters = parameters_of(config, dtype, world)
        right = observations(TorchBackend().build(config, parameters, dtype), world)
        faulty = observations(TorchBackend().with_fault(fault).build(config, parameters, dtype), world)
        # The newest block is one of another config: none that is right hears of it.
        TorchBackend().with_fault(fault).build(config.replace(norm_eps=0.5), parameters, dtype)
        for (what, expected), (_, got) in zip(right, faulty, strict=False):
            if differs(got, expected, NOISE[dtype]):
                return f"{what} in {world}"
    return None


CASES = [(fault, block) for fault, entry in FAULTS.items() for block in blocks_of(fault) if entry["family"] != "ways"]


@functools.cache
def dtypes_of(fault: str) -> tuple[str, ...]:
    """Return the dtypes in which the spec says that a fault can be seen."""
    return tuple(FAULTS[fault].get("dtypes", DTYPES))


def test_every_fault_of_the_spec_is_here() -> None:
    """Fails if the spec names a fault for torch that is not written, or one is written that the spec does not name."""
    assert sorted(TorchBackend.faults) == sorted(FAULTS)
    assert len(set(TorchBackend.faults)) == len(TorchBackend.faults)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_says_what_it_is(fault: str) -> None:
    """Fails if a fault has no description, or is not written as a small override."""
    faulty = faulty_block_class(fault)
    assert faulty.__doc__
    assert faulty.__doc__.endswith(".")
    changed = faulty if faulty.module_class is DecoderBlock else faulty.module_class
    assert changed not in (TorchBlock, DecoderBlock)


def test_an_unknown_fault_is_refused_with_the_nearest_one() -> None:
    """Fails if a misspelt fault is taken for none."""
    with pytest.raises(BackendError, match=r"^torch has no fault 'mask-mising' \(did you mean 'mask-missing'\?\); "):
        TorchBackend().with_fault("mask-mising")


def test_the_right_block_shows_no_fault() -> None:
    """Fails if what is observed differs between two builds of the same right block."""
    for block, dtype, world in itertools.product(BLOCKS, DTYPES, WORLDS):
        parameters = parameters_of(config_of(block), dtype, world)
        pair = [observations(TorchBackend().build(config_of(block), parameters, dtype), world) for _ in range(2)]
        for (what, one), (_, other) in zip(*pair, strict=True):
            assert not differs(one, other, 0.0), what


@pytest.mark.parametrize(("fault", "block"), CASES)
def test_a_fault_can_be_seen(fault: str, block: str) -> None:
    """Fails if a fault changes nothing that can be observed, in a dtype in which the spec says that it does."""
    unseen = [dtype for dtype in dtypes_of(fault) if seen_in(fault, block, dtype) is None]
    if (fault, block) in UNSEEN:
        assert unseen, f"{fault} can be seen in {block} after all"
    else:
        assert not unseen


def test_no_word_of_the_config_is_changed_for_nothing() -> None:
    """Fails if a fault for which the tests change the config shows without that, in the block as it is listed."""
    for fault in CHOICES:
        for block in blocks_of(fault):
            parameters = parameters_of(config_of(block), "float64")
            right = observations(TorchBackend().build(config_of(block), parameters, "float64"), World())
            other = TorchBackend().with_fault(fault).build(config_of(block), parameters, "float64")
            for (what, expected), (_, got) in zip(right, observations(other, World()), strict=True):
                assert not differs(got, expected, 0.0), what


@pytest.mark.parametrize(("fault", "block"), CASES)
def test_a_fault_runs_wherever_its_block_is_built(fault: str, block: str) -> None:
    """Fails if a faulty block crashes: a crash would refute it for the wrong reason."""
    config = config_of(block, fault)
    small = config.replace(d_model=2, n_heads=config.group, n_kv_heads=1, d_head=2, d_ff=1)
    square = config.replace(d_model=8 * config.group, n_heads=2 * config.group, n_kv_heads=2)
    dtype = dtypes_of(fault)[0]
    for changed in (small, square):
        built = TorchBackend().with_fault(fault).build(changed, parameters_of(changed, dtype), dtype)
        for what, value in observations(built, World()):
            assert value is not None, what


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        ("angles-in-half-by-one-way", "compiled"),
        ("norm-in-half-by-one-way", "compiled"),
        ("training-gelu-tanh", "training"),
    ],
)
def test_a_fault_of_one_way_shows_in_that_way_alone(fault: str, way: str) -> None:
    """Fails if the fault shows in forward, or does not show in its own way."""
    config = config_of(blocks_of(fault)[0])
    right, faulty = (
        backend.build(config, parameters_of(config, "float64"), "float64")
        for backend in (TorchBackend(), TorchBackend().with_fault(fault))
    )
    x = np.random.default_rng(0).standard_normal((2, 5, config.d_model))
    expected = right.forward(x, 3)
    assert not differs(right.forward_by(way, x, 3), expected, NOISE["float64"])
    assert not differs(faulty.forward(x, 3), expected, NOISE["float64"])
    assert differs(faulty.forward_by(way, x, 3), expected, NOISE["float64"])


STAGED = [f for f, entry in FAULTS.items() if "stage" in entry or entry["family"] in ("gradients", "parameters")]


@pytest.mark.parametrize("fault", [fault for fault in STAGED if FAULTS[fault]["family"] != "cache"])
def test_a_fault_shows_first_at_its_stage(fault: str) -> None:
    """Fails if the first stage that diverges is another one than the spec says; without a stage, none may."""
    block, dtype = blocks_of(fault)[0], dtypes_of(fault)[0]
    config = config_of(block, fault)
    order = list(stage_order(config))
    if config.placement == "post":
        # The norms come last in their halves, and are what leaves them.
        order = [stage for stage in order if not stage.endswith("_norm")]
    first = None
    for world in (*WORLDS, World(tokens=1)):
        parameters = parameters_of(config, dtype, world)
        x = np.random.default_rng(0).standard_normal((world.batch, world.tokens, config.d_model))
        with np.errstate(over="ignore"):
            x = (x * world.input_scale + world.input_shift).astype(DTYPES[dtype])
        right = TorchBackend().build(config, parameters, dtype)
        faulty = TorchBackend().with_fault(fault).build(config, parameters, dtype)
        # Twice, for those that remember.
        for offset in (world.offset, world.offset + 20):
            expected, got = right.trace(x.copy(), offset), faulty.trace(x.copy(), offset)
            first = first or next((s for s in order if differs(got[s], expected[s], NOISE[dtype])), None)
    assert first == FAULTS[fault].get("stage")


@pytest.mark.parametrize("base", [ExplicitAttention, CallAware])
@pytest.mark.parametrize("block", BLOCKS)
def test_what_faults_are_built_on_is_right(base: type[DecoderBlock], block: str) -> None:
    """Fails if a fault brings along a second mistake, from the class that it shares with others."""
    config, parameters = config_of(block), parameters_of(config_of(block), "float64")
    shared = type("Shared", (TorchBlock,), {"module_class": base})
    right = observations(TorchBackend().build(config, parameters, "float64"), WORLDS[0])
    other = observations(shared(config, parameters, "float64", torch.device("cpu")), WORLDS[0])
    for (what, expected), (_, got) in zip(right, other, strict=True):
        assert not differs(got, expected, NOISE["float64"]), what


def test_a_faulty_backend_keeps_its_device() -> None:
    """Fails if choosing a fault forgets the device, or choosing a device the fault."""
    backend = TorchBackend().with_fault("mask-missing").with_device("cpu")
    assert (backend.fault, backend.device) == ("mask-missing", "cpu")
    assert torch.device(backend.with_fault("norm-shared").device) == torch.device("cpu")
