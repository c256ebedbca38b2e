"""Reads a spec: finds its files, follows ``extends``, and makes the records of `blocklaws.specification`.

Must hold: everything that can be refused from the text alone is refused here, with its place; `load_spec` returns a
coherent `Specification` or raises. Must not: import the rooms; the built-in spec is found through
`importlib.resources`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from blocklaws.canonical import DTYPES, STAGES
from blocklaws.config import CHOICES, DEFAULTS, NUMBERS, BlockConfig
from blocklaws.errors import ConfigError, did_you_mean
from blocklaws.fields import Fields, as_mapping, as_sequence
from blocklaws.invariant_reading import choose_blocks, read_invariant
from blocklaws.located_yaml import LocatedDict, Place, load
from blocklaws.models.reading import read_model_fault, read_model_invariant
from blocklaws.specification import BlockKind, Fault, Profile, Sizes, Specification, Tolerance

__all__ = ["BUILT_IN", "built_in_spec", "load_spec", "read_number"]

BUILT_IN = "blocklaws"
_FILES = ("blocks", "worlds", "tolerances", "faults", "invariants", "models")
_SECTIONS = ("extends", "blocks", "menus", "profiles", "tolerances", "faults", "invariants")
_BLOCK_KEYS = ("says", "source", *CHOICES, *NUMBERS, "heads", "max_positions", "by_default")
_MAX_EXTENDS = 8
#: A world of a menu's sizes has at most this many numbers.
_MAX_ELEMENTS = 50_000_000


def load_spec(name: str | Path | None = None, files: Mapping[str, bytes] | None = None) -> Specification:
    """Read the built-in spec, or a user's spec file and everything that it extends.

    A file that does not say ``extends`` brings its own invariants only; the blocks, menus, profiles, tolerances and
    faults that it does not give are the built-in ones. ``extends: blocklaws`` adds to the built-in invariants,
    ``extends: other.yaml`` (a path beside the file) to those of another file. An entry with a known id replaces that
    entry.

    Args:
        name: the file; None or ``blocklaws`` for the built-in spec.
        files: path -> content of the file and of what it extends, as another machine has them; nothing is read here.

    Raises:
        SpecError: a file cannot be read or says something that cannot be meant.
    """
    if name is None or str(name) == BUILT_IN:
        return built_in_spec()
    return _read_user_file(Path(name), (), files)


@functools.cache
def built_in_spec() -> Specification:
    """Return the spec that blocklaws ships."""
    digest = hashlib.sha256()
    sections: dict[str, Any] = {}
    sources = []
    root = importlib.resources.files("blocklaws.spec")
    for stem in _FILES:
        with importlib.resources.as_file(root / f"{stem}.yaml") as path:
            shown = _shown(path)
            digest.update(path.read_bytes())
            data = load(path)
            sources.append(shown)
            if stem == "worlds":
                sections |= {"menus": data["menus"], "profiles": data["profiles"]}
            else:
                sections[stem] = data
    empty = Specification((), "", {}, {}, {}, {}, {}, {})
    return _read_sections(sections, empty, tuple(sources), digest.hexdigest())


def _shown(path: Path) -> str:
    """A path as a reader would type it: relative to the working directory when it lies below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _read_user_file(path: Path, chain: tuple[Path, ...], files: Mapping[str, bytes] | None) -> Specification:
    content = files[str(path)] if files is not None and str(path) in files else None
    data = load(path, content)
    place = Place(str(path), 1, 1)
    if isinstance(data, list):
        sections: Mapping[str, Any] = {"invariants": data}
        fields = None
    else:
        mapping = as_mapping(data, place, "a spec")
        fields = Fields(mapping, _SECTIONS, "the spec")
        sections = mapping
    if not any(section in sections for section in _SECTIONS):
        place.refuse("the spec says nothing: give it invariants, or 'extends'")
    base = built_in_spec()
    if fields is not None and "extends" in fields:
        parent = fields.text("extends")
        if parent != BUILT_IN:
            if Path(parent).is_absolute() or ".." in Path(parent).parts:
                # A spec from a stranger must not read what lies elsewhere.
                fields.refuse("extends", f"{parent!r} must be a file beside this one, or in a folder below it")
            target = path.parent / parent
            try:
                resolved = target.resolve()
            except (OSError, RuntimeError, ValueError):  # no name that a file could have, or links in a circle
                fields.refuse("extends", f"{parent!r:.100} is neither 'blocklaws' nor a file beside this one")
            if resolved in (*chain, path.resolve()) or len(chain) >= _MAX_EXTENDS:
                fields.refuse(
                    "extends", f"{parent!r} leads back to this file or through more than {_MAX_EXTENDS} files"
                )
            if str(target) not in (files or {}) and not os.path.isfile(target):
                fields.refuse("extends", f"{parent!r:.100} is neither 'blocklaws' nor a file beside this one")
            base = _read_user_file(target, (*chain, path.resolve()), files)
    else:
        base = Specification(
            base.sources, base.sha256, base.blocks, base.menus, base.profiles, base.tolerances, base.faults, {},
            model_faults=base.model_faults,
        )  # fmt: skip
    digest = hashlib.sha256(base.sha256.encode() + (path.read_bytes() if content is None else content)).hexdigest()
    return _read_sections(sections, base, (*base.sources, str(path)), digest)


def _read_sections(
    sections: Mapping[str, Any], base: Specification, sources: tuple[str, ...], sha256: str
) -> Specification:
    def at(section: str) -> Place:
        return sections.values_at[section] if isinstance(sections, LocatedDict) else Place(sources[-1], 1, 1)

    menus = {**base.menus}
    for name, entries in _mapping(sections, "menus", at).items():
        place = sections["menus"].values_at[name]
        menus[name] = tuple(_read_sizes(entry, place) for entry in as_sequence(entries, place, f"menu {name!r}"))
        if not menus[name]:
            place.refuse(f"menu {name!r} is empty")
    blocks = {**base.blocks}
    for name in (section := _mapping(sections, "blocks", at)):
        blocks[name] = _read_block(name, section, menus)
    profiles = {**base.profiles}
    for name in (section := _mapping(sections, "profiles", at)):
        fields = Fields(
            as_mapping(section[name], section.values_at[name], name), ("says", "examples"), f"profile {name!r}"
        )
        profiles[name] = Profile(name, fields.text("says"), int(fields.number("examples", low=1, high=1_000_000)))
    tolerances = {**base.tolerances}
    for name in (section := _mapping(sections, "tolerances", at)):
        if name not in DTYPES:
            section.keys_at[name].refuse(
                f"tolerances: unknown dtype {name!r}{did_you_mean(name, DTYPES)}; dtypes are {', '.join(DTYPES)}"
            )
        tolerances[name] = _read_tolerance(name, section)
    # A kind of block that this file adds is spoken of by every inherited entry whose choices it has.
    faults = {id: dataclasses.replace(fault, blocks=fault.chosen_by(blocks)) for id, fault in base.faults.items()}
    for id, entry, place in _entries(sections, "faults", at):
        faults[id] = _read_fault(id, entry, place, blocks)
    invariants = {id: dataclasses.replace(one, blocks=one.chosen_by(blocks)) for id, one in base.invariants.items()}
    for id, entry, place in _entries(sections, "invariants", at):
        invariants[id] = read_invariant(id, entry, place, blocks, tuple(tolerances), faults)
    models, model_faults = {**base.models}, {**base.model_faults}
    if "models" in sections:
        section = _mapping(sections, "models", at)
        taken = {*faults, *invariants}
        for id, entry, place in _entries(section, "faults", at):
            _refuse_taken(id, place, taken)
            model_faults[id] = read_model_fault(id, entry, place)
        for id, entry, place in _entries(section, "invariants", at):
            _refuse_taken(id, place, taken)
            models[id] = read_model_invariant(id, entry, place, model_faults)
    return Specification(sources, sha256, blocks, menus, profiles, tolerances, faults, invariants, models, model_faults)


def _refuse_taken(id: str, place: Place, taken: Collection[str]) -> None:
    """Refuse an id of models that means something of blocks: `explain` and a filter would mean both."""
    if id in taken:
        place.refuse(f"{id!r} is an id of blocks already; give that of whole models a name of its own")


def _mapping(sections: Mapping[str, Any], name: str, at: Any) -> LocatedDict:
    if name not in sections:
        return LocatedDict()
    return as_mapping(sections[name], at(name), name)


def _entries(sections: Mapping[str, Any], name: str, at: Any) -> list[tuple[str, LocatedDict, Place]]:
    """Return (id, entry, place) of a list of entries, each with an id of its own."""
    if name not in sections:
        return []
    items = as_sequence(sections[name], at(name), name)
    found: dict[str, Place] = {}
    entries = []
    for item, place in zip(items, items.items_at, strict=True):
        entry = as_mapping(item, place, f"an entry of {name}")
        id = entry.get("id")
        if not isinstance(id, str) or not id or not all(part.isalnum() for part in id.split("-")):
            entry.values_at.get("id", place).refuse(
                f"an entry of {name} needs an id of letters, digits and single dashes, such as prefix-invariance"
            )
        if id in found:
            entry.values_at["id"].refuse(f"duplicate id {id!r}; it stands already on line {found[id].line}")
        found[id] = place
        entries.append((id, entry, place))
    return entries


def _read_sizes(entry: Any, place: Place) -> Sizes:
    mapping = as_mapping(entry, place, "an entry of a menu")
    names = ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")
    fields = Fields(mapping, names, "an entry of a menu")

    def size(name: str, default: int | None = None) -> int:
        value = fields.number(name, default, low=1, high=65_536)
        if not isinstance(value, int):
            fields.refuse(name, f"must be a whole number, but here is {value}")
        return value

    heads, width = size("n_heads"), size("d_head")
    sizes = Sizes(
        B=size("B"), T=size("T"), n_heads=heads, n_kv_heads=size("n_kv_heads", heads), d_head=width,
        d_ff=size("d_ff"), d_model=size("d_model", heads * width),
    )  # fmt: skip
    elements = sizes.B * sizes.T * sizes.d_model + sizes.B * heads * sizes.T**2
    elements += sizes.d_model * (sizes.d_ff + heads * width)
    if elements > _MAX_ELEMENTS:
        mapping.place.refuse(f"a world of these sizes has {elements:,} numbers; the most is {_MAX_ELEMENTS:,}")
    if heads % sizes.n_kv_heads:
        mapping.place.refuse(f"n_kv_heads={sizes.n_kv_heads} does not divide n_heads={heads}")
    return sizes


def _read_block(name: str, section: LocatedDict, menus: Mapping[str, tuple[Sizes, ...]]) -> BlockKind:
    what = f"block {name!r}"
    place = section.keys_at[name]
    mapping = as_mapping(section[name], section.values_at[name], what)
    fields = Fields(mapping, _BLOCK_KEYS, what)
    choices: dict[str, Any] = {
        choice: fields.word(choice, words, DEFAULTS.get(choice, ...)) for choice, words in CHOICES.items()
    }
    choices |= {choice: read_number(fields, choice, bounds) for choice, bounds in NUMBERS.items()}
    choices["max_positions"] = int(fields.number("max_positions", low=1, high=10_000_000))
    heads = fields.word("heads", tuple(menus))
    kind = BlockKind(
        name, fields.text("says"), fields.text("source"), heads, choices, place, fields.flag("by_default", True)
    )
    for sizes in menus[kind.heads]:
        try:
            config: BlockConfig = kind.config(sizes)
        except ConfigError as error:
            place.refuse(f"{what} with the sizes of menu {kind.heads!r}: {error}")
        if config.max_positions < sizes.T:
            place.refuse(f"{what}: max_positions={config.max_positions} is less than T={sizes.T} of its menu")
    return kind


def read_number(
    fields: Fields, choice: str, bounds: tuple[float, float] = (float("-inf"), float("inf"))
) -> float | None:
    """Read a choice that is a number; null, where it may be, means that the block has no such thing."""
    low, high = bounds
    default = DEFAULTS.get(choice, ...)
    if default is None:
        value = fields.number_or_null(choice, low, high)
    else:
        value = fields.number(choice, None if default is ... else default, low, high)
    if choice != "window":
        return None if value is None else float(value)
    if value is not None and not isinstance(value, int):
        fields.refuse(choice, f"must be a whole number of keys, but here is {value}")
    return value


def _read_tolerance(name: str, section: LocatedDict) -> Tolerance:
    what = f"tolerance of {name!r}"
    words = ("rtol", "atol", "c", "floor")
    fields = Fields(as_mapping(section[name], section.values_at[name], what), words, what)
    values, reasons = {}, {}
    for word in words:
        entry = Fields(
            as_mapping(fields.mapping.get(word), fields.place(word), word), ("value", "reason"), f"{what}: {word}"
        )
        values[word] = float(entry.number("value", low=0, high=1e6))
        reasons[word] = entry.text("reason")
    return Tolerance(dtype=name, reasons=reasons, **values)


def _read_fault(id: str, entry: LocatedDict, place: Place, blocks: Mapping[str, BlockKind]) -> Fault:
    keys = ("id", "says", "modelled_on", "family", "step", "stage", "blocks", "dtypes", "backends")
    fields = Fields(entry, keys, f"fault {id!r}")
    chooser = choose_blocks(fields, blocks)
    return Fault(
        id=id,
        says=fields.text("says"),
        modelled_on=fields.text("modelled_on", ""),
        family=fields.text("family", "own"),
        step=fields.text("step", "unknown"),
        stage=fields.word("stage", STAGES) if entry.get("stage") is not None else None,
        blocks=chooser(blocks),
        chosen_by=chooser,
        dtypes=fields.words("dtypes") or None,
        backends=fields.words("backends") or None,
        place=place,
    )
