"""The properties about calls: history, memory layouts and refusals; each with blocks that it must refute."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mapped_support import MAPPINGS
from property_support import Altered, check, faulty

from blocklaws import SpecError
from blocklaws.discovery import find_property
from blocklaws.errors import BlocklawsError
from blocklaws.properties.memory_layouts import LAYOUTS
from blocklaws.replaying import examine

ALL_BOUNDARIES = [
    "head-counts", "component-width", "missing-parameter", "unknown-parameter", "input-rank", "input-width",
    "empty-tokens", "position-range", "released-cache", "empty-batch",
]  # fmt: skip


# --- what every property has ------------------------------------------------------------------------------------------


def test_a_schema_that_is_none_is_the_property_s_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the schema of a property is taken on trust, or its mistake is told as the spec's, or as a traceback."""
    monkeypatch.setattr(type(find_property("call-history")), "schema", {"properties": {"most": {"type": "nonsense"}}})
    with pytest.raises(BlocklawsError, match=r"^property 'call-history': schema\.properties\.most\.type is not JSON"):
        check(tmp_path, "call-history")


# --- call-history ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("block", ["llama", "llama-gqa", "gpt"])
def test_a_right_block_has_no_memory(tmp_path: Path, block: str, dtype: str) -> None:
    """Fails if a right block is refuted, or the calls between are equal calls."""
    result = check(tmp_path, "call-history", block=block, dtype=dtype)
    assert (result.verdict, result.informative) == ("holds", result.examples), result.reason


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("positions-accumulate", ""),
        ("rotary-table-stale", "a second block, called in another order"),
        ("output-buffer-reused", "a later call wrote into it"),
        ("gradient-accumulates", "asked twice"),
        ("parameters-modified", "after a forward of other tokens"),
        ("dropout-in-eval", "after a forward of other tokens"),
    ],
)
def test_what_is_kept_between_calls_is_seen(tmp_path: Path, fault: str, said: str) -> None:
    """Fails if a block with a memory passes."""
    result = check(tmp_path, "call-history", faulty(fault))
    assert result.verdict == "violated", result.reason
    assert said in result.reason


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_frameworks_have_no_memory(tmp_path: Path, backend: str) -> None:
    """Fails if a right block in another framework is refuted by what is asked after what."""
    pytest.importorskip(backend)
    result = check(tmp_path, "call-history", backend, dtype="float32", where="T <= 2")
    assert result.verdict == "holds", result.reason


class Leaking(Altered):
    """Blocks of which one method leaves something that the next call of another is wrong by."""

    def __init__(self, left_by: str, spoils: str, how: str) -> None:
        super().__init__(**{left_by: self._leave, spoils: self._spoil})
        self._left_by, self._spoils, self._how = left_by, spoils, how
        self._left: dict[int, tuple[Any, np.ndarray]] = {}

    def _leave(self, block: Any, x: Any, *rest: Any) -> Any:
        self._left[id(block)] = (block, x.copy())
        return getattr(block, self._left_by)(x, *rest)

    def _spoil(self, block: Any, x: Any, *rest: Any) -> Any:
        _, left = self._left.get(id(block), (block, x))
        if self._how == "stale":  # the tokens of the last call, where they fit
            return getattr(block, self._spoils)(left if left.shape == x.shape else x, *rest)
        found = getattr(block, self._spoils)(x, *rest)
        factor = 2 if self._left.pop(id(block), None) else 1  # the first call after it is doubled
        if isinstance(found, tuple):
            return found[0] * factor, found[1]
        return {name: value * factor for name, value in found.items()} if isinstance(found, dict) else found * factor


@pytest.mark.parametrize(
    ("left_by", "spoils", "how", "said"),
    [
        ("forward", "gradients", "stale", "after a forward of other tokens"),
        ("trace", "gradients", "doubled", "right after a trace"),
        ("trace", "gradients", "stale", "after a "),
        ("trace", "forward", "doubled", "right after a trace"),
        ("trace", "forward", "stale", "after calls of other kinds"),
        ("forward", "trace", "stale", "trace and forward"),
        ("forward", "trace", "doubled", "trace and forward"),
    ],
)
def test_what_one_method_leaves_for_another_is_seen(
    tmp_path: Path, left_by: str, spoils: str, how: str, said: str
) -> None:
    """Fails if state between two methods passes, because between them lies a call that mends it."""
    result = check(tmp_path, "call-history", Leaking(left_by, spoils, how))
    assert result.verdict == "violated", result.reason
    assert said in result.reason


CALLS = ("forward", "trace", "gradients", "forward_cached")


@pytest.mark.parametrize(("left_by", "spoils"), [*itertools.permutations(CALLS, 2)])
@pytest.mark.parametrize("how", ["stale", "doubled"])
def test_no_kind_of_call_goes_by_another(tmp_path: Path, left_by: str, spoils: str, how: str) -> None:
    """Fails if what one kind of call leaves for another is not met, in either direction."""
    # A world asks about a fifth of the pairs: as many worlds as a default run has.
    result = check(tmp_path, "call-history", Leaking(left_by, spoils, how), examples=6)
    assert result.verdict == "violated", result.reason


def _writes(call: str, place: int) -> Altered:
    """Return a backend of which one call writes into one of its arguments."""

    def replaced(block: Any, *given: Any) -> Any:
        found = getattr(block, call)(*given)
        given[place][...] = 1
        return found

    return Altered(**{call: replaced})


@pytest.mark.parametrize(
    ("call", "place"), [("forward", 0), ("trace", 0), ("gradients", 0), ("gradients", 1), ("forward_cached", 0)]
)
def test_a_call_that_writes_into_its_arguments_is_named(tmp_path: Path, call: str, place: int) -> None:
    """Fails if a kind of call may write into what it is given."""
    result = check(tmp_path, "call-history", _writes(call, place))
    assert result.verdict == "violated", result.reason
    assert f"{call} wrote into its arguments" in result.reason


@pytest.mark.parametrize("call", [*CALLS, "parameters"])
def test_a_call_that_writes_into_the_given_parameters_is_seen(tmp_path: Path, call: str) -> None:
    """Fails if a kind of call may write into the arrays that ``build`` got, where no answer shows it."""
    gains: dict[int, Any] = {}

    class Keeping(Altered):
        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            built = super().build(config, parameters, dtype)
            gains[id(built._block)] = parameters["attention_norm.gain"]
            return built

    def replaced(block: Any, *given: Any) -> Any:
        gains[id(block)] *= 1.5
        return getattr(block, call)(*given)

    result = check(tmp_path, "call-history", Keeping(**{call: replaced}))
    assert result.verdict == "violated", result.reason
    assert "written to, by one of forward, gradients" in result.reason


def test_parameters_that_come_to_be_listed_otherwise_are_seen(tmp_path: Path) -> None:
    """Fails if ``parameters`` may list other names the second time."""
    asked: set[int] = set()

    def parameters(block: Any) -> Any:
        found = block.parameters()
        if id(block) in asked:
            found.pop("attention.key")
        asked.add(id(block))
        return found

    result = check(tmp_path, "call-history", Altered(parameters=parameters))
    assert result.verdict == "violated", result.reason
    assert "attention.key" in result.reason
    assert "at first" in result.reason


def test_a_trace_of_another_computation_is_refuted(tmp_path: Path) -> None:
    """Fails if ``trace`` may show an output that ``forward`` does not give."""

    def trace(block: Any, x: Any, position_offset: int = 0) -> Any:
        stages = block.trace(x, position_offset)
        return {**stages, "output": stages["output"] * 1.001}

    result = check(tmp_path, "call-history", Altered(trace=trace))
    assert result.verdict == "violated"
    assert "trace and forward" in result.reason


def _noisy(block: Any, x: Any, position_offset: int = 0) -> Any:
    noise = np.random.default_rng().uniform(-1, 1, x.shape) * 1e-13
    return block.forward(x, position_offset) * (1 + noise)


def test_a_backend_that_says_it_is_not_deterministic_is_judged_closely(tmp_path: Path) -> None:
    """Fails if rounding noise refutes such a backend, or passes one that claims to be deterministic."""
    assert check(tmp_path, "call-history", Altered(forward=_noisy)).verdict == "violated"
    assert check(tmp_path, "call-history", Altered(deterministic=False, forward=_noisy)).verdict == "holds"


@pytest.mark.parametrize(("from_call", "verdict"), [(0, "holds"), (1, "violated")])
def test_a_gradient_that_overflows_each_time_is_the_same(tmp_path: Path, from_call: int, verdict: str) -> None:
    """Fails if a NaN that is there each time is taken for memory, or one that comes later is not."""
    calls: dict[int, list[Any]] = {}

    def gradients(block: Any, *given: Any) -> Any:
        found = block.gradients(*given)
        of = calls.setdefault(id(block), [])
        if len(of) >= from_call:
            found["input"][0, 0, 0] = np.nan
        of.append(block)
        return found

    result = check(tmp_path, "call-history", Altered(gradients=gradients))
    assert result.verdict == verdict, result.reason


def test_gradients_of_such_a_backend_are_judged_closely_too(tmp_path: Path) -> None:
    """Fails if the rounding noise of its gradients refutes it, after whatever they are asked."""

    def gradients(block: Any, *given: Any) -> Any:
        noise = 1 + np.random.default_rng().uniform(-1, 1) * 1e-13
        return {name: value * noise for name, value in block.gradients(*given).items()}

    assert check(tmp_path, "call-history", Altered(gradients=gradients)).verdict == "violated"
    assert check(tmp_path, "call-history", Altered(deterministic=False, gradients=gradients)).verdict == "holds"


def test_a_block_that_raises_is_in_error_and_not_violated(tmp_path: Path) -> None:
    """Fails if an exception is taken for a verdict, or ends the run."""

    def trace(block: Any, *_: Any) -> Any:
        raise RuntimeError("no more memory")

    result = check(tmp_path, "call-history", Altered(trace=trace))
    assert result.verdict == "error"
    assert "no more memory" in result.reason


# --- memory-layouts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_equals_its_input_and_is_no_plain_copy(name: str) -> None:
    """Fails if a layout changes the values, or is the contiguous array that it should not be."""
    x = np.random.default_rng(0).normal(size=(2, 3, 5))
    view = LAYOUTS[name](x)
    assert np.array_equal(view, x)
    assert not np.shares_memory(view, x)
    ordinary = view.flags.c_contiguous and view.flags.aligned and view.flags.writeable
    assert not ordinary or name == "one-element-in"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_right_block_reads_any_layout(tmp_path: Path, dtype: str) -> None:
    """Fails if the copy that a right block makes depends on the layout."""
    result = check(tmp_path, "memory-layouts", block="gpt", dtype=dtype)
    assert result.verdict == "holds", result.reason


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_frameworks_take_any_layout(tmp_path: Path, backend: str) -> None:
    """Fails if a view reaches the framework that cannot take it: torch has no negative strides."""
    pytest.importorskip(backend)
    result = check(tmp_path, "memory-layouts", backend, dtype="bfloat16", where="T <= 2")
    assert result.verdict == "holds", result.reason


@pytest.mark.parametrize("layout", ["fortran", "every-second-feature", "tokens-first"])
def test_memory_that_is_read_in_order_is_seen(tmp_path: Path, layout: str) -> None:
    """Fails if an input is read in memory order and no layout shows it."""
    result = check(
        tmp_path, "memory-layouts", faulty("strides-ignored"), arguments={"layouts": [layout]}, where="T >= 3"
    )
    assert result.verdict == "violated", result.reason
    assert f"layout {layout}" in result.reason


def test_a_write_beside_the_view_is_seen(tmp_path: Path) -> None:
    """Fails if a block may scribble over its caller's array between the elements that it was given."""

    def forward(block: Any, x: Any, position_offset: int = 0) -> Any:
        output = block.forward(x, position_offset)
        if x.base is not None and x.base.flags.writeable and x.base.ndim == 3:
            x.base[..., -1] = 0
        return output

    arguments = {"layouts": ["inside-a-larger-array"]}
    result = check(tmp_path, "memory-layouts", Altered(forward=forward), arguments=arguments)
    assert result.verdict == "violated"
    assert "written to" in result.reason


def _cotangent_read(how: Callable[[Any], Any], of: str = "numpy") -> Altered:
    """Return a backend whose gradients read the cotangent in some way."""

    def gradients(block: Any, x: Any, cotangent: Any, position_offset: int = 0) -> Any:
        return block.gradients(x, how(cotangent), position_offset)

    return Altered(of=of, gradients=gradients)


def _in_memory_order(cotangent: Any) -> Any:
    return cotangent.ravel(order="K").reshape(cotangent.shape)


def _from_the_first_byte(cotangent: Any) -> Any:
    owner = cotangent if cotangent.base is None else cotangent.base
    return owner.reshape(-1)[: cotangent.size].reshape(cotangent.shape)


@pytest.mark.parametrize(
    ("how", "layout"), [(_in_memory_order, "fortran"), (_from_the_first_byte, "every-second-feature")]
)
def test_a_cotangent_that_is_read_in_memory_order_is_seen(
    tmp_path: Path, how: Callable[[Any], Any], layout: str
) -> None:
    """Fails if the strides of a cotangent are ignored and only those of the input are looked at."""
    result = check(tmp_path, "memory-layouts", _cotangent_read(how), where="T >= 3")
    assert result.verdict == "violated", result.reason
    assert f"cotangent layout {layout}" in result.reason


@pytest.mark.parametrize(
    ("dtype", "tokens", "d_head", "d_ff", "seed"), [("float16", 64, 18, 5, 492187), ("bfloat16", 2, 4, 3, 203998)]
)
def test_another_order_of_summation_is_no_mistake(dtype: str, tokens: int, d_head: int, d_ff: int, seed: int) -> None:
    """Fails if a gradient that half precision knows badly must be as near as others: that of PyTorch was not."""
    pytest.importorskip("torch")
    n_heads = 3 if dtype == "float16" else 1
    sizes = {"B": 1, "T": tokens, "n_heads": n_heads, "n_kv_heads": n_heads, "d_head": d_head, "d_ff": d_ff}
    result = examine(
        str(MAPPINGS / "torch_encoder.yaml"),
        invariant="memory-layout-independence",
        block="original",
        dtype=dtype,
        name="torch_encoder[post]",
        example={
            "sizes": {**sizes, "d_model": n_heads * d_head},
            "pattern": "shifted",
            "seed": seed,
            "position_offset": 0,
            "picks": {},
        },
    )
    assert result.verdict == "holds", result.reason


@pytest.mark.parametrize("block", ["gpt", "original"])
@pytest.mark.parametrize("how", [_in_memory_order, _from_the_first_byte])
def test_what_rounding_may_do_hides_no_layout(tmp_path: Path, how: Callable[[Any], Any], block: str) -> None:
    """Fails if what half precision is allowed lets a cotangent through that is read in memory order."""
    pytest.importorskip("torch")
    backend = _cotangent_read(how, of="torch")
    result = check(tmp_path, "memory-layouts", backend, block=block, dtype="bfloat16", where="T >= 3 and T <= 8")
    assert result.verdict == "violated", result.reason
    assert "cotangent layout" in result.reason


def test_a_write_beside_the_cotangent_is_seen(tmp_path: Path) -> None:
    """Fails if a block may write between the elements of the cotangent that it was given."""

    def scribble(cotangent: Any) -> Any:
        values = cotangent.copy()
        if cotangent.base is not None and cotangent.base.shape[-1] == 2 * cotangent.shape[-1]:
            cotangent.base[..., 1::2] = 0
        return values

    result = check(tmp_path, "memory-layouts", _cotangent_read(scribble))
    assert result.verdict == "violated"
    assert "cotangent layout every-second-feature: written to" in result.reason


@pytest.mark.parametrize("layout", ["fortran", "every-second-feature"])
@pytest.mark.parametrize("call", ["trace", "gradients"])
def test_another_call_that_reads_memory_in_order_is_seen(tmp_path: Path, call: str, layout: str) -> None:
    """Fails if only ``forward`` is handed an input in another order."""

    def replaced(block: Any, x: Any, *rest: Any) -> Any:
        wanted = x.flags.f_contiguous if layout == "fortran" else not (x.flags.c_contiguous or x.flags.f_contiguous)
        read = (_in_memory_order if layout == "fortran" else _from_the_first_byte)(x) if wanted else x
        return getattr(block, call)(np.ascontiguousarray(read), *rest)

    result = check(tmp_path, "memory-layouts", Altered(**{call: replaced}), where="T >= 3")
    assert result.verdict == "violated", result.reason
    assert f"layout {layout}" in result.reason


@pytest.mark.parametrize("call", ["trace", "gradients"])
def test_another_call_that_writes_beside_its_input_is_seen(tmp_path: Path, call: str) -> None:
    """Fails if a trace or gradients may write between the elements of the input that they were given."""

    def replaced(block: Any, x: Any, *rest: Any) -> Any:
        found = getattr(block, call)(x, *rest)
        if x.base is not None and x.base.shape[-1] == 2 * x.shape[-1]:
            x.base[..., 1::2] = 0
        return found

    result = check(tmp_path, "memory-layouts", Altered(**{call: replaced}))
    assert result.verdict == "violated", result.reason
    assert "layout every-second-feature: written to" in result.reason


def test_a_trace_that_shows_less_of_a_view_is_seen(tmp_path: Path) -> None:
    """Fails if a stage may be missing where the input is a view."""

    def trace(block: Any, x: Any, position_offset: int = 0) -> Any:
        stages = block.trace(x, position_offset)
        return stages if x.flags.c_contiguous else {"output": stages["output"]}

    result = check(tmp_path, "memory-layouts", Altered(trace=trace), where="T >= 3")
    assert result.verdict == "violated", result.reason
    assert "as it did before" in result.reason


def test_a_refused_cotangent_is_no_wrong_answer(tmp_path: Path) -> None:
    """Fails if a block may not refuse a layout of the cotangent, which it may of the input."""

    def refuse(cotangent: Any) -> Any:
        if not cotangent.flags.c_contiguous:
            raise ValueError("cotangent: only C-contiguous arrays")
        return cotangent

    result = check(tmp_path, "memory-layouts", _cotangent_read(refuse))
    assert result.verdict == "holds", result.reason


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ALL_BOUNDARIES)
@pytest.mark.parametrize("block", ["llama-gqa", "gpt"])
def test_a_right_block_refuses(tmp_path: Path, block: str, boundary: str) -> None:
    """Fails if a refusal in the words of docs/architecture.md is not one."""
    result = check(tmp_path, "refusals", block=block, arguments={"boundaries": [boundary]}, examples=0.3)
    assert result.verdict == "holds", result.reason


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends_refuse(tmp_path: Path, backend: str) -> None:
    """Fails if a built-in backend accepts what another refuses."""
    pytest.importorskip(backend)
    result = check(
        tmp_path, "refusals", backend, arguments={"boundaries": ALL_BOUNDARIES}, examples=0.3, where="T <= 2",
        dtype="float32",
    )  # fmt: skip
    assert result.verdict == "holds", result.reason


@pytest.mark.parametrize(
    ("fault", "boundary"),
    [
        ("empty-tokens-accepted", "empty-tokens"),
        ("wide-input-truncated", "input-width"),
        ("position-range-unchecked", "position-range"),
    ],
)
def test_what_is_accepted_is_seen(tmp_path: Path, fault: str, boundary: str) -> None:
    """Fails if a block that accepts what cannot be meant passes."""
    result = check(tmp_path, "refusals", faulty(fault), arguments={"boundaries": [boundary]}, examples=0.3)
    assert result.verdict == "violated", result.reason
    assert "was accepted" in result.reason


def test_a_refusal_in_other_words_does_not_name_the_boundary(tmp_path: Path) -> None:
    """Fails if any exception will do: the NumPy error of a shape that happens not to fit tells nobody what is wrong."""

    def forward(block: Any, x: Any, position_offset: int = 0) -> Any:
        if x.ndim != 3:
            raise IndexError("tuple index out of range")
        return block.forward(x, position_offset)

    result = check(
        tmp_path, "refusals", Altered(forward=forward), arguments={"boundaries": ["input-rank"]}, examples=0.3
    )
    assert result.verdict == "violated"
    assert "does not name the boundary 'input rank'" in result.reason
    assert "tuple index out of range" in result.reason


def test_a_refusal_that_leaves_something_behind_is_seen(tmp_path: Path) -> None:
    """Fails if a block may be half-changed by a call that it refused."""
    refused: list[Any] = []

    def forward(block: Any, x: Any, position_offset: int = 0) -> Any:
        try:
            return block.forward(x, position_offset) + len([1 for other in refused if other is block])
        except ValueError:
            refused.append(block)
            raise

    result = check(
        tmp_path, "refusals", Altered(forward=forward), arguments={"boundaries": ["input-rank"]}, examples=0.3
    )
    assert result.verdict == "violated"
    assert "after input-rank" in result.reason


def test_an_empty_batch_that_changes_shape_is_seen(tmp_path: Path) -> None:
    """Fails if an empty batch may come back in another shape."""

    def forward(block: Any, x: Any, position_offset: int = 0) -> Any:
        return block.forward(x, position_offset) if len(x) else np.zeros((0,))

    result = check(
        tmp_path, "refusals", Altered(forward=forward), arguments={"boundaries": ["empty-batch"]}, examples=0.3
    )
    assert result.verdict == "violated"
    assert "got shape (0,)" in result.reason


def test_a_backend_that_does_not_say_it_validates_is_unchecked(tmp_path: Path) -> None:
    """Fails if the adapter contract, which obliges nobody to refuse, is made stricter by an invariant."""
    result = check(tmp_path, "refusals", Altered(validates=False), arguments={"boundaries": ["input-rank"]})
    assert result.verdict == "unchecked"
    assert "does not say that it validates" in result.reason


@pytest.mark.parametrize(
    ("property", "arguments", "said"),
    [
        ("refusals", {}, "'boundaries' is a required property"),
        ("refusals", {"boundaries": ["input-rang"]}, "'input-rang' is not one of"),
        ("memory-layouts", {"layouts": ["sideways"]}, "'sideways' is not one of"),
        ("memory-layouts", {"layouts": []}, "with.layouts"),
        ("call-history", {"depth": 2}, "'depth'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_place(
    tmp_path: Path, property: str, arguments: dict[str, Any], said: str
) -> None:
    """Fails if a mistyped argument is ignored."""
    with pytest.raises(SpecError, match=r"spec\.yaml:\d+:\d+: invariant 'under-test': with") as raised:
        check(tmp_path, property, arguments=arguments)
    assert said in str(raised.value)
