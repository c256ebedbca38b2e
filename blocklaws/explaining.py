"""What there is, and what each thing means: the commands ``list`` and ``explain``.

Must hold: a name that the spec knows is explained from the spec alone, with its place; its formula is shown as it
stands in the file. Must not: build a block.
"""

from __future__ import annotations

import importlib.resources
import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blocklaws.canonical import STAGES
from blocklaws.config import DEFAULTS
from blocklaws.discovery import find_property, find_subjects, registered
from blocklaws.errors import BlocklawsError, did_you_mean
from blocklaws.failure_text import shown_place
from blocklaws.located_yaml import LocatedList, Place, load
from blocklaws.models.subject import ModelSubject
from blocklaws.specification import BlockKind, Fault, Invariant, Specification

__all__ = ["KINDS", "explain", "listing"]

KINDS = ("blocks", "invariants", "faults", "backends", "properties")
_FORMULA = ("where", "pick", "set", "vary", "variants", "assume", "then", "informative", "property", "with")
_LABEL = 12

Fields = list[tuple[str, str]]


def listing(kind: str, spec: Specification) -> list[tuple[str, str]]:
    """Return (name, one sentence) of everything of one kind."""
    if kind == "backends":
        names = [*registered("backends"), *registered("models")]
        return [*((name, _backend(name)) for name in names), *_mappings()]
    if kind == "properties":
        return [(name, _summary(find_property(name))) for name in registered("properties")]
    table: Mapping[str, Any] = getattr(spec, kind)
    of_models = {"invariants": spec.models, "faults": spec.model_faults}.get(kind, {})
    marks = {name: " (unproven)" for name, one in table.items() if isinstance(one, Invariant) and one.unproven}
    marks |= {name: " (advisory: off unless named)" for name, one in table.items() if getattr(one, "advisory", False)}
    marks |= {
        name: " (where it is named)" for name, one in table.items() if isinstance(one, BlockKind) and not one.by_default
    }
    marks |= dict.fromkeys(of_models, " (of whole models)")
    return [(name, one.says + marks.get(name, "")) for name, one in {**table, **of_models}.items()]


def _backend(name: str) -> str:
    try:
        subject = find_subjects(name)[0]
    except BlocklawsError as error:
        return str(error)
    if isinstance(subject, ModelSubject):
        count = len(subject.models)
        return f"{', '.join(subject.dtypes)}, {count} whole model{'s' * (count > 1)}"
    return ", ".join(subject.dtypes) + (f" on {subject.device}" if subject.device else "")


def _mappings() -> Iterable[tuple[str, str]]:
    """The mapping files that are installed; another one is named by its path."""
    try:
        folder = importlib.resources.files("blocklaws.backends.mappings")
    except ModuleNotFoundError:
        return
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            yield shown_place(str(entry)), "a mapping file: a layer of another project as a backend"


def _summary(one: Any) -> str:
    return (inspect.getdoc(type(one)) or "").partition("\n")[0]


def explain(name: str, spec: Specification) -> list[tuple[str, Fields]]:
    """Return (heading, fields) of every invariant, fault, block and property of that name.

    Raises:
        BlocklawsError: there is none.
    """
    found: list[tuple[str, Fields]] = []
    if name in spec.invariants:
        found.append((f"{name}: an invariant", _invariant(spec.invariants[name], spec)))
    if name in spec.faults:
        found.append((f"{name}: a fault", _fault(spec.faults[name], spec)))
    if name in spec.models:
        found.append((f"{name}: an invariant of whole models", _model_invariant(spec.models[name], spec)))
    if name in spec.model_faults:
        found.append((f"{name}: a fault of whole models", _model_fault(spec.model_faults[name], spec)))
    if name in spec.blocks:
        found.append((f"{name}: a block", _block(spec.blocks[name], spec)))
    if name in registered("properties"):
        found.append((f"{name}: a property", _property(name, spec)))
    if not found:
        known = [*spec.invariants, *spec.faults, *spec.blocks, *registered("properties")]
        known += [*spec.models, *spec.model_faults]
        raise BlocklawsError(
            f"there is no invariant, fault, block or property {name!r}{did_you_mean(name, known)}; "
            "`blocklaws list invariants` (faults, blocks, properties) shows what there is"
        )
    return found


def _invariant(one: Invariant, spec: Specification) -> Fields:
    needs = one.needs or (find_property(one.property_name).needs(one.arguments) if not one.clauses else frozenset())
    capabilities = sorted({need.partition(":")[0] for need in needs})
    named = {word for clause in one.clauses for path in clause.expression.references for word in path}
    stages = [stage for stage in STAGES if stage in named]
    parts = sorted({", ".join(sorted(clause.capabilities)) for clause in one.clauses})
    fields = [("says", one.says), ("why", one.why), ("source", one.source), ("family", one.family)]
    fields += [("formula", _formula(one))]
    fields += [
        ("needs", ", ".join(capabilities) + ("; each claim is judged with what it needs" if len(parts) > 1 else ""))
    ]
    fields += [("stages", ", ".join(stages)), ("blocks", _all_or(one.blocks, spec.blocks))]
    fields += [("dtypes", ", ".join(one.dtypes) if one.dtypes else "every dtype of the backend")]
    fields += [
        ("worlds", ", ".join(one.worlds)),
        ("off", "unless it is named with --invariant" if one.advisory else ""),
    ]
    if one.unproven:
        fields.append(("unproven", "it names no fault that it refutes (refuted_by)"))
    fields += _with_says("refutes", one.refuted_by, spec.faults)
    if one.means:
        fields.append(("if violated", one.means))
    elif one.refuted_by:
        fields.append(("if violated", "it is usually one of the mistakes above, or one like them"))
    return [*_present(fields), ("stands in", _place(one.place))]


def _fault(one: Fault, spec: Specification) -> Fields:
    refuting = [invariant.id for invariant in spec.invariants.values() if one.id in invariant.refuted_by]
    fields = [("says", one.says), ("modelled on", one.modelled_on), ("family", one.family), ("step", one.step)]
    fields += [("stage", one.stage or "none: it shows in no stage of a plain forward")]
    fields += [("blocks", _all_or(one.blocks, spec.blocks)), ("dtypes", ", ".join(one.dtypes or ()))]
    fields += [("backends", ", ".join(one.backends or ()))]
    fields += _with_says("refuted by", refuting, spec.invariants) or [("refuted by", "no invariant names it")]
    return [*_present(fields), ("stands in", _place(one.place))]


def _model_invariant(one: Invariant, spec: Specification) -> Fields:
    needs = sorted(frozenset().union(*(clause.needs for clause in one.clauses)))
    fields = [("says", one.says), ("why", one.why), ("source", one.source), ("formula", _formula(one))]
    fields += [("needs", ", ".join(needs)), *_with_says("refutes", one.refuted_by, spec.model_faults)]
    fields += [("if violated", one.means)]
    return [*_present(fields), ("stands in", _place(one.place))]


def _model_fault(one: Fault, spec: Specification) -> Fields:
    refuting = [invariant.id for invariant in spec.models.values() if one.id in invariant.refuted_by]
    fields = [("says", one.says), ("modelled on", one.modelled_on), *_with_says("refuted by", refuting, spec.models)]
    return [*_present(fields), ("stands in", _place(one.place))]


def _block(one: BlockKind, spec: Specification) -> Fields:
    choices = ", ".join(
        f"{name} {'none' if value is None else str(value).lower()}"
        for name, value in one.choices.items()
        if name not in DEFAULTS or value != DEFAULTS[name]
    )
    menu = [
        ", ".join(
            f"{name} {getattr(sizes, name)}"
            for name in ("B", "T", "n_heads", "n_kv_heads", "d_head", "d_ff", "d_model")
        )
        for sizes in spec.menus[one.heads]
    ]
    specific = [invariant.id for invariant in spec.invariants.values() if set(invariant.blocks) != set(spec.blocks)]
    own = [id for id in specific if one.name in spec.invariants[id].blocks]
    fields = [("says", one.says), ("source", one.source), ("choices", choices), ("sizes", "\n".join(menu))]
    if not one.by_default:
        fields.append(("verified", f"where it is named, by --block {one.name} or by the backend's `blocks`"))
    count = sum(one.name in invariant.blocks for invariant in spec.invariants.values())
    fields += [("invariants", f"{count} speak of it" + (f"; of some blocks only: {', '.join(own)}" if own else ""))]
    return [*_present(fields), ("stands in", _place(one.place))]


def _property(name: str, spec: Specification) -> Fields:
    one = find_property(name)
    users = [invariant.id for invariant in spec.invariants.values() if invariant.property_name == name]
    used = ", ".join(users) if name != "expression" else f"every invariant with 'then' ({len(users)})"
    try:
        needs = ", ".join(sorted(one.needs({})))
    except (KeyError, TypeError):
        needs = "depends on its arguments"
    fields = [("says", inspect.getdoc(type(one)) or ""), ("needs", needs)]
    fields += [("arguments", json.dumps(one.schema.get("properties", {}))), ("used by", used)]
    source = inspect.getsourcefile(type(one))
    line = inspect.getsourcelines(type(one))[1]
    return [*_present(fields), ("stands in", f"{shown_place(source)}:{line}" if source else type(one).__module__)]


def _present(fields: Fields) -> Fields:
    return [(label, text) for label, text in fields if text]


def _place(place: Place) -> str:
    return shown_place(f"{place.file}:{place.line}")


def _all_or(names: Iterable[str], known: Iterable[str]) -> str:
    names = list(names)
    return "all" if set(names) == set(known) else ", ".join(names)


def _with_says(label: str, names: Iterable[str], table: Mapping[str, Any]) -> Fields:
    names = list(names)
    return [(label, "\n".join(f"{name}: {table[name].says}" for name in names))] if names else []


def _formula(one: Invariant) -> str:
    """Return the lines of the invariant that say what is computed, as they stand in the file."""
    try:
        text = Path(one.place.file).read_text(encoding="utf-8-sig").splitlines()
        data = load(one.place.file)
    except (OSError, UnicodeDecodeError, BlocklawsError):
        return "\n".join(clause.expression.text for clause in one.clauses)
    entries: LocatedList = data if isinstance(data, LocatedList) else data["invariants"]
    at = [place.line for place in entries.items_at]
    index = at.index(one.place.line)
    entry = entries[index]
    end = at[index + 1] if index + 1 < len(at) else len(text) + 1
    starts = {key: place.line for key, place in entry.keys_at.items()}
    if len(set(starts.values())) < len(starts):  # several keys on one line
        return "\n".join(f"{key}: {json.dumps(entry[key])}" for key in _FORMULA if key in entry)
    lines: list[str] = []
    for key in _FORMULA:
        if key in starts:
            stop = min([line for line in starts.values() if line > starts[key]] + [end])
            block = text[starts[key] - 1 : stop - 1]
            while block and (not block[-1].strip() or block[-1].lstrip().startswith("#")):
                block.pop()
            # The first key of an entry stands after its dash.
            lines += textwrap.dedent(
                "\n".join(line.replace("- ", "  ", 1) if line.startswith("- ") else line for line in block)
            ).splitlines()
    return "\n".join(lines)


def told(heading: str, fields: Fields, width: int) -> str:
    """Return an explanation as text, wrapped but for the formula."""
    lines = [heading]
    for label, text in fields:
        for number, line in enumerate(text.splitlines() or [""]):
            start = f"  {label if number == 0 else '':<{_LABEL}}"
            if label == "formula":
                lines.append(start + line)
                continue
            lines += textwrap.wrap(
                line, max(width, 40), initial_indent=start, subsequent_indent=" " * (_LABEL + 2),
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return "\n".join(lines)
