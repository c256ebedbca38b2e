"""What a mapping file may say: the sections, checked and turned into one `Mapping` a variant.

Must hold: whatever can be known to be wrong without importing the layer is refused when the file is loaded, with
``file:line:column``, what was expected and the nearest right word. Must not import a framework or the layer.
"""

from __future__ import annotations

import dataclasses
from collections import abc
from pathlib import Path
from typing import Any

from blocklaws.backends.mapped.driver import DRIVERS
from blocklaws.backends.mapped.hearing import check_heard
from blocklaws.backends.mapped.masks import Mask, parse_mask
from blocklaws.backends.mapped.operations import parse_operations
from blocklaws.backends.mapped.parameters import ParameterMap
from blocklaws.backends.mapped.parts import Part
from blocklaws.backends.mapped.reader import Node, read
from blocklaws.backends.mapped.rotary import LAYOUTS
from blocklaws.backends.mapped.stages import StageRule, parse_stages
from blocklaws.backends.mapped.supports import Supports, parse_supports
from blocklaws.backends.mapped.values import Call, Value, parse_call, parse_value
from blocklaws.canonical import CAPABILITIES, STAGES
from blocklaws.config import SIZES, BlockConfig

__all__ = ["Cached", "Mapping", "Passing", "read_mappings", "words_of"]

DTYPES = ("float64", "float32", "bfloat16", "float16")
#: In which other ways a layer may be asked for its forward.
WAYS = ("training",)

_CONFIG = (*(field.name for field in dataclasses.fields(BlockConfig)), "d_rotary")
#: What the harness makes for each call, beside the config's words and what was built.
_PASSED = (
    "input", "offset", "positions", "batch_positions", "cos", "sin", "mask", "batch", "tokens", "keys",
)  # fmt: skip
_SECTIONS = (
    "name", "says", "framework", "needs", "dtypes", "blocks", "multiples", "deterministic", "supports", "cannot",
    "ways", "rotary", "build", "inputs", "mask", "forward", "cached", "parameters", "stages", "variants",
)  # fmt: skip
_REQUIRED = ("name", "framework", "supports", "build", "mask", "forward", "parameters")


@dataclasses.dataclass(frozen=True)
class Passing:
    """How the layer is called: the call, which part of its result is the output, and the mask it is given."""

    call: Call
    output: Part
    mask: Mask


@dataclasses.dataclass(frozen=True)
class Cached:
    """How the layer is called token by token: ``cache_output`` is where it returns the new cache, None in place."""

    passing: Passing
    start: Value
    cache_output: Part


@dataclasses.dataclass(frozen=True)
class Mapping:
    """One variant of a mapping file, checked."""

    name: str
    path: Path
    node: Node
    framework: str
    needs: abc.Mapping[str, tuple[str | None, Node]]
    dtypes: tuple[str, ...]
    blocks: abc.Mapping[str, Node]
    multiples: abc.Mapping[str, int]
    deterministic: bool
    supports: Supports
    cannot: abc.Mapping[str, str]
    ways: tuple[str, ...]
    rotary: str | None
    build: abc.Mapping[str, Value]
    inputs: abc.Mapping[str, Value]
    passing: Passing
    cached: Cached | None
    parameters: ParameterMap
    stages: tuple[StageRule, ...]


def words_of(config: BlockConfig) -> dict[str, Any]:
    """Return what the names of a config mean in values: its fields, and how many features of a head are turned."""
    return {**config.as_dict(), "d_rotary": config.d_rotary}


def read_mappings(path: Path) -> list[Mapping]:
    """Read a mapping file: one mapping, or one for each of its variants, named ``name[variant]``.

    Raises:
        BackendError: the file cannot be read, or says something that cannot be meant.
    """
    root = read(path)
    entries = root.fields("a mapping file", _SECTIONS, ("name",))
    name = entries["name"].text("name")
    base = Node({key: node for key, node in entries.items() if key != "variants"}, root.place, root.keys)
    if "variants" not in entries:
        return [_parse(base, name, path)]
    variants = entries["variants"].entries("variants")
    if not variants:
        entries["variants"].refuse("variants: expected at least one")
    found = []
    for variant, changes in variants.items():
        changes.fields(f"variants: {variant}", [key for key in _SECTIONS if key not in ("name", "variants")])
        found.append(_parse(changes.over(base), f"{name}[{variant}]", path))
    return found


def _parse(root: Node, name: str, path: Path) -> Mapping:
    entries = root.fields(f"the mapping {name!r}", _SECTIONS, _REQUIRED)
    framework = entries["framework"].word("framework", DRIVERS)
    supports = parse_supports(entries["supports"])
    build = _parse_build(entries["build"])
    rotary = entries["rotary"].word("rotary", LAYOUTS) if "rotary" in entries else None
    inputs = _parse_named("inputs", entries.get("inputs"), (*_CONFIG, *build, *_PASSED))
    known = (*_CONFIG, *build, *_PASSED, *inputs)
    mapping = Mapping(
        name=name,
        path=path,
        node=root,
        framework=framework,
        needs=_parse_needs(entries.get("needs")),
        dtypes=_parse_dtypes(entries.get("dtypes")),
        blocks=_parse_blocks(entries.get("blocks")),
        multiples=_parse_multiples(entries.get("multiples")),
        deterministic=_parse_flag(entries.get("deterministic"), "deterministic"),
        supports=supports,
        cannot=_parse_cannot(entries.get("cannot")),
        ways=tuple(item.word("ways", WAYS) for item in entries["ways"].items("ways")) if "ways" in entries else (),
        rotary=rotary,
        build=build,
        inputs=inputs,
        passing=_parse_passing(entries["forward"], entries["mask"], inputs, known),
        cached=_parse_cached(entries, inputs, known) if "cached" in entries else None,
        parameters=ParameterMap(entries["parameters"]),
        stages=parse_stages(entries["stages"]) if "stages" in entries else (),
    )
    _check_cannot(mapping, entries)
    check_heard(mapping, entries["supports"])
    return mapping


def _parse_build(node: Node) -> dict[str, Value]:
    build: dict[str, Value] = {}
    for name, item in node.entries("build").items():
        if name in (*_CONFIG, *_PASSED, "dtype", "dtype_name", "cache"):
            item.refuse(f"build: {name!r} has a meaning already; give the object another name")
        build[name] = parse_value(item, (*_CONFIG, "dtype", "dtype_name", *build))
    if "layer" not in build:
        node.refuse("build: the key 'layer' is missing; it is the layer that is verified")
    return build


def _parse_named(what: str, node: Node | None, known: tuple[str, ...]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, item in node.entries(what).items() if node is not None else ():
        if name in (*known, "cache"):
            item.refuse(f"{what}: {name!r} has a meaning already; give the value another name")
        values[name] = parse_value(item, (*known, *values))
    return values


def _part(section: Node, node: Node | None, what: str, key: str) -> Part:
    """Read which part of a result is meant: an index, a name, or ``{take: ..., do: [...]}``."""
    if node is None:
        return Part(what, key, None, section)
    if not isinstance(node.value, dict):
        return Part(what, key, _entry(node, f"{what}: {key}"), node)
    entries = node.fields(f"{what}: {key}", ("take", "do"))
    take = _entry(entries["take"], f"{what}: {key}: take") if "take" in entries else None
    known = ("batch", "tokens", *SIZES, "group")
    return Part(what, key, take, node, parse_operations(entries.get("do"), f"{what}: {key}: do", known, one_way=True))


def _cache_part(section: Node, node: Node | None) -> Part:
    take = None if node is None else _entry(node, "cached: cache_output")
    return Part("cached", "cache_output", take, section if node is None else node)


def _entry(node: Node, what: str) -> int | str:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, str)):
        node.refuse(f"{what}: expected an index or a name, found {node.kind}")
    return node.value


def _parse_passing(
    forward: Node, mask_node: Node, inputs: dict[str, Value], known: tuple[str, ...], what: str = "forward"
) -> Passing:
    entries = forward.fields(what, ("call", "args", "with", "output"))
    bare = Node({key: item for key, item in entries.items() if key != "output"}, forward.place, forward.keys)
    call, mask = parse_call(bare, known, target="layer"), parse_mask(mask_node)
    used = set(call.names())
    for name in reversed(inputs):  # an input may mention only those before it
        used |= set(inputs[name].names()) if name in used else set()
    if "input" not in used:
        forward.refuse(f"{what}: nothing passes $input, the block's input")
    if "mask" in used and mask.form == "builtin":
        mask_node.refuse("mask: 'builtin' means that the layer is given no mask, but $mask is passed")
    if "mask" not in used and mask.form != "builtin":
        if what == "cached":
            forward.refuse(
                f"cached: nothing passes $mask here, so with a cache the layer never sees this {mask.form!r} mask; "
                "pass it, or say 'mask: builtin' in cached if the layer then needs none"
            )
        mask_node.refuse(f"mask: nothing passes $mask, so the layer would never see this {mask.form!r} mask")
    return Passing(call, _part(forward, entries.get("output"), what, "output"), mask)


def _parse_cached(entries: abc.Mapping[str, Node], inputs: dict[str, Value], known: tuple[str, ...]) -> Cached:
    node = entries["cached"]
    parts = node.fields("cached", ("start", "args", "with", "output", "mask", "cache_output"), ("start",))
    changes = Node({key: parts[key] for key in ("args", "with", "output") if key in parts}, node.place, node.keys)
    laid = changes.over(entries["forward"])
    passing = _parse_passing(
        Node(laid.value, node.place, laid.keys), parts.get("mask", entries["mask"]), inputs, (*known, "cache"), "cached"
    )
    if "cache" not in set(passing.call.names()):
        node.refuse("cached: nothing passes $cache, what 'start' or the call before gave")
    start = parse_value(parts["start"], (*_CONFIG, "batch", *(name for name in known if name not in _PASSED)))
    return Cached(passing, start, _cache_part(node, parts.get("cache_output")))


def _parse_needs(node: Node | None) -> dict[str, tuple[str | None, Node]]:
    needs: dict[str, tuple[str | None, Node]] = {}
    for name, item in node.entries("needs").items() if node is not None else ():
        if item.value is not None and not isinstance(item.value, str):
            item.refuse(f'needs: {name}: expected a version in quotes, as in "5.24", found {item.kind}')
        needs[name] = (item.value, item)
    return needs


def _parse_dtypes(node: Node | None) -> tuple[str, ...]:
    if node is None:
        return ("float32",)
    return tuple(item.word("dtypes", DTYPES) for item in node.items("dtypes"))


def _parse_blocks(node: Node | None) -> dict[str, Node]:
    return {item.text("blocks"): item for item in (node.items("blocks") if node is not None else ())}


def _parse_multiples(node: Node | None) -> dict[str, int]:
    entries = node.fields("multiples", (*SIZES, "B", "T")) if node is not None else {}
    return {name: item.integer(f"multiples: {name}") for name, item in entries.items()}


def _parse_flag(node: Node | None, what: str) -> bool:
    if node is None:
        return True
    if not isinstance(node.value, bool):
        node.refuse(f"{what}: expected true or false, found {node.kind}")
    return node.value


def _parse_cannot(node: Node | None) -> dict[str, str]:
    allowed = (*DTYPES, *CAPABILITIES[1:], *STAGES[1:-1], "position_offset", "refusals", "empty_batch")
    entries = node.fields("cannot", allowed) if node is not None else {}
    return {name: item.text(f"cannot: {name}") for name, item in entries.items()}


def _check_cannot(mapping: Mapping, entries: abc.Mapping[str, Node]) -> None:
    offered = {*mapping.dtypes, *(rule.stage for rule in mapping.stages)}
    offered |= {"trace"} if mapping.stages else set()
    offered |= {"forward_cached"} if mapping.cached else set()
    offered |= {"forward_by"} if mapping.ways else set()
    for name in mapping.cannot:
        if name in offered:
            entries["cannot"].value[name].refuse(
                f"cannot: {name!r} is offered elsewhere in the file; say one of the two"
            )
