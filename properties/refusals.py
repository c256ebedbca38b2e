"""What cannot be meant is refused, in words, and leaves nothing behind.

Must hold: a refusal is an exception, of any type, whose text names the boundary that was crossed; after it the block
answers a right call as it did before. Asked only of a backend that says ``validates = True``: the adapter contract
obliges nobody.
Must not: ask for more than one thing to be wrong in a call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from blocklaws.built import BlockRaised, Built
from blocklaws.checking import Case, Examination
from blocklaws.errors import ConfigError
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.examining import PythonProperty, Refuted, refuted, require, same
from blocklaws.worlds import World

__all__ = ["BOUNDARIES", "RefusalsProperty", "is_refused"]


_BUILDING = ("head-counts", "component-width", "missing-parameter", "unknown-parameter")


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """One call that must be refused: what is wrong with it, and the words that the refusal must have."""

    what: str
    words: str
    call: Callable[[], Any]


class RefusalsProperty(PythonProperty):
    """Each boundary is refused by name, and the block works on."""

    name = "refusals"
    schema: Mapping[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["boundaries"],
        "properties": {
            "boundaries": {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {
                    "enum": [
                        "head-counts", "component-width", "missing-parameter", "unknown-parameter", "input-rank",
                        "input-width", "empty-tokens", "position-range", "released-cache", "empty-batch",
                    ]
                },
            },
        },
    }  # fmt: skip

    def needs(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return ``forward_cached`` where nothing but a released cache is asked for."""
        return frozenset({"forward_cached"} if list(arguments["boundaries"]) == ["released-cache"] else ())

    def check(self, case: Case, world: World, base: Pass) -> Examination:
        """Cross each boundary, and call rightly after it."""
        if getattr(case.subject.backend, "validates", False) is not True:
            why = case.subject.cannot.get("refusals", "the backend does not say that it validates (validates = True)")
            raise Unavailable(str(why))
        built, output = base.built, base.output()
        for boundary in case.invariant.arguments["boundaries"]:
            if boundary == "empty-batch":
                _check_empty_batch(world, built)
            else:
                for attempt in BOUNDARIES[boundary](case, world, built):
                    _require_refusal(attempt)
            # What a refused build leaves behind would be met by the next build, what a refused call does by the next
            # call.
            for after in (built, case.subject.build(world)) if boundary in _BUILDING else (built,):
                try:
                    answer, _ = after.forward(world.input.copy(), world.position_offset)
                except BlockRaised as error:
                    raise refuted("a right call after refusals", f"after {boundary}: {error}") from None
                require(same(case, answer, output, "a right call after refusals"), f"after {boundary}")
        return Examination()


def _require_refusal(attempt: _Attempt) -> None:
    claim = f"{attempt.what} is refused"
    try:
        returned = attempt.call()
    except (BlockRaised, ConfigError) as refusal:
        if attempt.words not in str(refusal).lower():
            raise refuted(claim, f"the refusal does not name the boundary {attempt.words!r}: {refusal}") from None
        return
    array = returned[0] if isinstance(returned, tuple) else returned
    shown = f"an array of shape {array.shape}" if isinstance(array, np.ndarray) else f"a {type(returned).__name__}"
    raise refuted(claim, f"{attempt.what} was accepted and gave {shown}; expected an error that says '{attempt.words}'")


def is_refused(boundary: str, case: Case, world: World, built: Built) -> bool | None:
    """Return whether every attempt to cross a boundary is refused by its name; None where there is nothing to try."""
    tried = False
    try:
        for attempt in BOUNDARIES[boundary](case, world, built):
            tried = True
            _require_refusal(attempt)
    except Refuted:
        return False
    return True if tried else None


def _check_empty_batch(world: World, built: Built) -> None:
    output, _ = built.forward(world.input[:0].copy(), world.position_offset)
    if output.shape != world.input[:0].shape:
        raise refuted(
            "a batch of 0 sequences gives an empty output",
            f"got shape {output.shape} where {world.input[:0].shape} was expected",
        )


# --- building --------------------------------------------------------------------------------------------------------


def _building(case: Case, world: World, what: str, words: str, parameters: Mapping[str, np.ndarray]) -> _Attempt:
    def call() -> Built:
        built = case.subject.build(world.replace(parameters=parameters))
        if case.subject.is_function:  # it meets its parameters when it is called
            built.forward(world.input.copy(), 0)
        return built

    return _Attempt(what, words, call)


def _head_counts(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    config = world.config
    yield _Attempt(
        "a config whose head counts do not divide",
        "configuration",
        lambda: config.replace(n_heads=config.n_kv_heads * 2 + 1, n_kv_heads=config.n_kv_heads * 2),
    )
    wider = (world.config.n_heads + 1) * world.config.d_head
    query = np.resize(world.parameters["attention.query"], (config.d_model, wider))
    yield _building(
        case, world, "build with the query matrix of another number of heads", "component width",
        {**world.parameters, "attention.query": query},
    )  # fmt: skip
    key = np.resize(world.parameters["attention.key"], (config.d_model, (config.n_kv_heads + 1) * config.d_head))
    yield _building(
        case, world, "build with the key matrix of another number of heads", "component width",
        {**world.parameters, "attention.key": key},
    )  # fmt: skip


def _component_width(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    for name, value in world.parameters.items():
        for axis, axis_name in enumerate(("in", "out") if value.ndim == 2 else ("width",)):
            shape = list(value.shape)
            shape[axis] += 1
            yield _building(
                case, world, f"build with {name} one wider ({axis_name})", "component width",
                {**world.parameters, name: np.resize(value, shape)},
            )  # fmt: skip


def _missing_parameter(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    for name in world.parameters:
        rest = {other: value for other, value in world.parameters.items() if other != name}
        yield _building(case, world, f"build without {name}", "configuration", rest)


def _unknown_parameter(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    more = {**world.parameters, "attention.gain": world.parameters["attention_norm.gain"]}
    yield _building(case, world, "build with the unknown parameter attention.gain", "configuration", more)


# --- calling ---------------------------------------------------------------------------------------------------------


def _calls(
    world: World, built: Built, x: np.ndarray, what: str, words: str, offset: int | None = None
) -> Iterator[_Attempt]:
    """Yield every call that takes an input and that the block has."""
    at = world.position_offset if offset is None else offset
    yield _Attempt(f"forward of {what}", words, lambda: built.forward(x.copy(), at))
    if "trace" in built.capabilities:
        yield _Attempt(f"trace of {what}", words, lambda: built.trace(x.copy(), at))
    if "gradients" in built.capabilities:
        yield _Attempt(f"gradients of {what}", words, lambda: built.gradients(x.copy(), x.copy(), at))
    if "forward_cached" in built.capabilities and offset is None:
        yield _Attempt(f"forward_cached of {what}", words, lambda: built.forward_cached(x.copy(), None))


def _input_rank(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    for x in (world.input[0], world.input[None], world.input[0, 0]):
        yield from _calls(world, built, x, f"an input with {x.ndim} axes", "input rank")


def _input_width(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    wide = np.concatenate([world.input, world.input[..., :1]], axis=-1)
    for x in (wide, world.input[..., :-1], world.input[..., :0]):
        yield from _calls(world, built, x, f"an input of width {x.shape[-1]}", "input width")


def _empty_tokens(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    yield from _calls(world, built, world.input[:, :0], "an input without tokens", "empty tokens")


def _position_range(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    if built.at_offset_zero_only:
        return
    first_too_far = world.config.max_positions - world.input.shape[1] + 1
    for offset in (first_too_far, world.config.max_positions, -1):
        yield from _calls(world, built, world.input, f"tokens from position {offset} on", "position range", offset)
    # A cache reaches the end token by token. Only on the smallest world: another config is another compilation.
    if "forward_cached" in built.capabilities and world.recipe.sizes == case.menu[0]:
        short = case.subject.build(world.replace(config=world.config.replace(max_positions=world.input.shape[1])))
        _, cache = short.forward_cached(world.input.copy(), None)
        yield _Attempt(
            "forward_cached past the last position",
            "position range",
            lambda: short.forward_cached(world.input.copy(), cache),
        )


def _released_cache(case: Case, world: World, built: Built) -> Iterator[_Attempt]:
    if "forward_cached" not in built.capabilities:
        return
    _, cache = built.forward_cached(world.input.copy(), None)
    built.forward_cached(world.input.copy(), cache)
    yield _Attempt(
        "a cache used a second time", "released cache", lambda: built.forward_cached(world.input.copy(), cache)
    )


#: Boundary -> the attempts to cross it.
BOUNDARIES: Mapping[str, Callable[[Case, World, Built], Iterator[_Attempt]]] = {
    "head-counts": _head_counts,
    "component-width": _component_width,
    "missing-parameter": _missing_parameter,
    "unknown-parameter": _unknown_parameter,
    "input-rank": _input_rank,
    "input-width": _input_width,
    "empty-tokens": _empty_tokens,
    "position-range": _position_range,
    "released-cache": _released_cache,
}
