"""How a layer's stages are captured: the ``stages:`` section of a mapping.

Must hold: each stage names one place that a forward pass goes through exactly once, or one of its calls by number: the
output or an input of a sub-module, or the result of a function the layer looks up by name. A stage that a pass does not
give, gives twice or gives in another shape is refused, never left out silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from blocklaws.backends.mapped.driver import Driver, Seen, Tap
from blocklaws.backends.mapped.operations import Array, Operation, parse_operations, run_operations
from blocklaws.backends.mapped.parts import Missing, NotAnArray, array_of, part_of
from blocklaws.backends.mapped.reader import Node
from blocklaws.backends.mapped.rotary import restore
from blocklaws.backends.mapped.values import import_module_of
from blocklaws.canonical import STAGES, stage_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import did_you_mean

__all__ = ["StageRule", "capture", "check_modules", "parse_stages"]

#: The stages that a mapping may name: the other two are the call's own input and output.
_CAPTURED = STAGES[1:-1]
_PLACES = ("output_of", "input_of", "result_of")
_SIZES = ("batch", "tokens", "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "group")


@dataclasses.dataclass(frozen=True)
class StageRule:
    """Where one stage is seen and what is done to it afterwards.

    Attributes:
        place: ``output_of`` or ``input_of`` a sub-module, or ``result_of`` a function.
        path: the sub-module's path, or ``package.module:function``.
        call: which of the calls of one pass is meant, from 0; None where there is only one.
    """

    stage: str
    node: Node
    place: str
    path: str
    take: int | str | None
    operations: tuple[Operation, ...]
    call: int | None = None

    def only(self, found: Sequence[Array | Missing | None]) -> Array:
        """Return the one array among what the calls of a pass gave.

        Raises:
            BackendError: there is not the one call that the rule speaks of, or it did not give an array.
        """
        what = f"stages: {self.stage}"
        if self.call is None and len(found) != 1:
            several = "; say which with 'call: 0' (the first) or another number" if found else ""
            self.node.refuse(
                f"{what}: a forward pass went through it {len(found)} times ({self.path}); expected one array{several}"
            )
        if self.call is not None and not 0 <= self.call < len(found):
            self.node.refuse(
                f"{what}: call: there is no call {self.call} of {self.path}; a forward pass made {len(found)}, "
                "counted from 0"
            )
        given = found[self.call or 0]
        if given is None:
            self.node.refuse(f"{what}: a forward pass gave nothing there ({self.path}); expected one array")
        if isinstance(given, NotAnArray):
            hint = "say which with 'take'" if given.several and self.take is None else "expected one array"
            at = "" if self.take is None else f" at {self.take!r}"
            self.node.refuse(f"{what}: {self.path} gave {given.words}{at}; {hint}")
        if isinstance(given, Missing):
            self.node.refuse(f"{what}: take: {given.words} ({self.path})")
        return given

    def finish(self, array: Array, sizes: Mapping[str, int], order: Array | None, expected: tuple[int, ...]) -> Array:
        """Return the captured array as the canonical stage of shape ``expected``.

        Raises:
            BackendError: the operations do not fit it, or it has another shape than the stage.
        """
        try:
            stage, _ = run_operations(array, self.operations, sizes.__getitem__)
        except ValueError as error:
            self.node.refuse(f"stages: {self.stage}: the operations do not fit shape {array.shape}: {error}")
        if stage.shape != expected:
            self.node.refuse(f"stages: {self.stage}: {self.path} gave shape {stage.shape}, the stage has {expected}")
        return restore(stage, order) if self.stage in ("query", "key") else stage


def parse_stages(node: Node) -> tuple[StageRule, ...]:
    """Read the ``stages:`` section."""
    return tuple(_parse_stage(stage, rule) for stage, rule in node.fields("stages", _CAPTURED).items())


def _parse_stage(stage: str, node: Node) -> StageRule:
    what = f"stages: {stage}"
    if isinstance(node.value, str):
        return StageRule(stage, node, "output_of", node.text(what), None, ())
    entries = node.fields(what, (*_PLACES, "take", "call", "do"))
    places = [place for place in _PLACES if place in entries]
    if len(places) != 1:
        node.refuse(f"{what}: expected exactly one of {', '.join(_PLACES)}, found {' and '.join(places) or 'none'}")
    [place] = places
    take = entries.get("take")
    if take is not None and (isinstance(take.value, bool) or not isinstance(take.value, (int, str))):
        take.refuse(f"{what}: take: expected an index or a name, found {take.kind}")
    return StageRule(
        stage,
        node,
        place,
        entries[place].text(what),
        None if take is None else take.value,
        parse_operations(entries.get("do"), what, _SIZES, one_way=True),
        entries["call"].integer(f"{what}: call") if "call" in entries else None,
    )


def check_modules(rules: Sequence[StageRule], modules: Sequence[str]) -> None:
    """Refuse a stage whose sub-module the layer does not have."""
    for rule in rules:
        if rule.place != "result_of" and rule.path not in modules:
            hint = did_you_mean(rule.path, modules)
            rule.node.refuse(
                f"stages: {rule.stage}: the layer has no sub-module {rule.path!r}{hint}; it has {', '.join(modules)}"
            )


def capture(
    rules: Sequence[StageRule],
    driver: Driver,
    layer: Any,
    config: BlockConfig,
    order: Array | None,
    shape: tuple[int, int],
    run: Callable[[], object],
) -> dict[str, Array]:
    """Run a forward pass of the layer and return its stages.

    Args:
        shape: the numbers of sequences and of tokens that the pass is given.
        run: the pass.
        order: the layer's order of the features that rotary positions turn (see `rotary.feature_order`).
    """
    taps = [
        Tap(rule.stage, rule.path, rule.place == "input_of", rule.take, driver.array_type)
        for rule in rules
        if rule.place != "result_of"
    ]
    functions = [rule for rule in rules if rule.place == "result_of"]
    with driver.watch(layer, taps) as seen, _recorded(functions, driver) as results:
        run()
    batch, tokens = shape
    expected = stage_shapes(config, batch, tokens)
    sizes = {"batch": batch, "tokens": tokens} | {name: getattr(config, name) for name in _SIZES[2:]}
    stages: dict[str, Array] = {}
    for rule in rules:
        found = (results if rule.place == "result_of" else seen)[rule.stage]
        stages[rule.stage] = rule.finish(rule.only(found), sizes, order, expected[rule.stage])
    return stages


@contextmanager
def _recorded(rules: Sequence[StageRule], driver: Driver) -> Iterator[Seen]:
    """Replace functions in their modules by recording ones, for the time of one pass.

    A layer has no hook between a projection and its rotation, so this is the only way to see query and key without
    another layer's code. It is seen by every caller of the function meanwhile: a trace is not for many threads.
    """
    seen: dict[str, list[Array | Missing | None]] = {rule.stage: [] for rule in rules}
    by_path: dict[str, list[StageRule]] = {}
    for rule in rules:
        by_path.setdefault(rule.path, []).append(rule)
    restored = []
    try:
        for path, sharing in by_path.items():
            module, name = import_module_of(path, sharing[0].node)
            if not hasattr(module, name):
                hint = did_you_mean(name, dir(module))
                sharing[0].node.refuse(f"stages: {module.__name__} has no {name!r}{hint}")
            original = getattr(module, name)
            restored.append((module, name, original))
            setattr(module, name, _recording(original, sharing, seen, driver))
        yield seen
    finally:
        for module, name, original in reversed(restored):
            setattr(module, name, original)


def _recording(
    original: Callable[..., Any], rules: Sequence[StageRule], seen: Seen, driver: Driver
) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        for rule in rules:
            picked = array_of(part_of(result, rule.take), driver.array_type)
            seen[rule.stage].append(picked if picked is None or isinstance(picked, Missing) else driver.numpy(picked))
        return result

    return call
