"""The stages of one small world, beside those of the float64 reference: what the command ``trace`` shows.

Must hold: a stage is called outside its bound by the same judgement that names the first diverging stage of a failure.
Must not: give a verdict; that is what `verify` is for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import blocklaws
from blocklaws.built import BlockRaised
from blocklaws.canonical import stage_order, stage_shapes
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError, BlocklawsError
from blocklaws.failure_text import config_text, world_text
from blocklaws.passes import Pass, Unavailable
from blocklaws.planning import reference_subject
from blocklaws.recipe_bound import within_bound
from blocklaws.specification import Specification
from blocklaws.stage_table import stage_table
from blocklaws.subjects import Subject
from blocklaws.worlds import Example, Recipe, World, adapted_menu, make_world

__all__ = ["refusal_of", "trace", "trace_text", "trace_world", "traced_dtype", "traced_world_text"]


def trace(subject: Subject, spec: Specification, block: str, dtype: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Return the stages of a small world as data; see `trace_text` for what it looks like.

    Raises:
        BlocklawsError: the backend does not support the block or the dtype, or it raised.
    """
    kind = spec.one("blocks", block)
    dtype = traced_dtype(subject, spec, dtype)
    menu = adapted_menu(spec.menus[kind.heads], subject.multiples)
    possible = [sizes for sizes in menu if refusal_of(subject, kind.config(sizes)) is None]
    # A small world with several heads and at least three tokens, so that its axes can be told apart.
    telling = [sizes for sizes in possible if sizes.T > sizes.n_heads > 1 or sizes.T >= 3] or possible or menu
    return trace_world(subject, spec, make_world(kind, Recipe(telling[0], "normal", seed), dtype))


def traced_dtype(subject: Subject, spec: Specification, dtype: str | None) -> str:
    """Return the dtype that was asked for, or the backend's first one.

    Raises:
        BlocklawsError: it is none of the spec's, or none that the backend offers.
    """
    dtype = dtype or subject.dtypes[0]
    spec.one("tolerances", dtype)
    if dtype not in subject.dtypes:
        raise BlocklawsError(f"backend {subject.name!r} does not offer {dtype}; it offers {', '.join(subject.dtypes)}")
    return dtype


def refusal_of(subject: Subject, config: BlockConfig) -> str | None:
    """Return why a backend does not support a config, or None.

    Raises:
        BackendError: the backend raised.
    """
    try:
        return subject.refusal(config)
    except BlockRaised as error:
        raise BackendError(f"backend {subject.name!r}: {error}") from None


def trace_world(subject: Subject, spec: Specification, world: World) -> dict[str, Any]:
    """Return the stages of one world as data, beside those of the float64 reference.

    Raises:
        BlocklawsError: the backend does not support the world's block or sizes, or it raised.
    """
    config = world.config
    if (reason := refusal_of(subject, config)) is not None:
        raise BlocklawsError(f"backend {subject.name!r} does not support the block {config.block!r}: {reason}")
    passed = Pass(subject, world, reference_subject())
    try:
        shown = dict(passed.stages()) if "trace" in passed.built.capabilities else {}
        # The output is what forward gives; a trace that disagrees is a matter for the invariants.
        shown["output"] = passed.output()
    except BlockRaised as error:
        raise BackendError(f"backend {subject.name!r}: {error}") from None
    except Unavailable as reason:
        raise BlocklawsError(f"backend {subject.name!r} cannot take this world: {reason}") from None
    exact = passed.reference().stages()
    wanted = stage_shapes(config, *world.input.shape[:2])
    rows = [
        _row(stage, shown.get(stage), exact[stage], passed, wanted[stage], spec) for stage in stage_order(config)[1:]
    ]
    return {
        "blocklaws": blocklaws.__version__,
        "backend": subject.name,
        "block": config.block,
        "dtype": world.dtype,
        "config": config.as_dict(),
        "world": Example(world.recipe).as_dict(),
        "stages": rows,
        "table": stage_table({"": passed}, "", spec.tolerances[world.dtype]),
        "first_outside": next((row["stage"] for row in rows if row["within"] is False), None),
    }


def _row(
    stage: str, shown: np.ndarray | None, exact: np.ndarray, passed: Pass, wanted: tuple[int, ...], spec: Specification
) -> dict[str, Any]:
    if shown is None:
        return {"stage": stage, "shape": None, "rms": None, "max": None, "difference": None, "within": None}
    wide = shown.astype(np.float64)
    row: dict[str, Any] = {
        "stage": stage,
        "shape": list(shown.shape),
        "rms": _number(np.sqrt(np.mean(wide**2))) if wide.size else 0.0,
        "max": _number(np.abs(wide).max(initial=0.0)),
        "difference": None,
        "within": False,
    }
    if shown.shape == wanted:
        tolerance = spec.tolerances[passed.world.dtype]
        judgement = within_bound(passed, stage, shown, tolerance)
        row |= {"difference": _number(np.abs(wide - exact).max(initial=0.0)), "within": judgement.holds}
    return row


def _number(value: float) -> float | str:
    """JSON has no infinities and no NaN; they are written as texts."""
    return float(value) if math.isfinite(value) else repr(float(value))


def traced_world_text(data: Mapping[str, Any]) -> str:
    """Return the world of a trace on one line; a fixture fills its arrays itself, so it has no pattern and no seed."""
    sizes = data["world"]["sizes"]
    return f"B {sizes['B']}, T {sizes['T']}, {data['fixture']}" if "fixture" in data else world_text(data["world"])


def trace_text(data: Mapping[str, Any]) -> str:
    """Return a trace as a table."""
    lines = [
        f"{data['backend']}, block {data['block']}, {data['dtype']}",
        f"  config  {config_text(data['config'])}",
        f"  world   {traced_world_text(data)}",
        "",
        f"{'stage':<22}{'shape':<16}{'rms':>11}{'max':>11}{'difference':>12}",
    ]
    for row in data["stages"]:
        if row["shape"] is None:
            lines.append(f"{row['stage']:<22}not shown")
            continue
        shape = "x".join(str(length) for length in row["shape"])
        difference = "wrong shape" if row["difference"] is None else _shown(row["difference"])
        mark = "" if row["within"] else "  outside the bound"
        lines.append(
            f"{row['stage']:<22}{shape:<16}{_shown(row['rms']):>11}{_shown(row['max']):>11}{difference:>12}{mark}"
        )
    lines.append("")
    if data["first_outside"] is not None:
        lines.append(f"the first stage outside the bound of {data['dtype']} is {data['first_outside']}")
    elif all(row["shape"] is None for row in data["stages"][:-1]):
        lines.append("the block shows no stages (it has no trace), and its output lies within the bound")
    else:
        lines.append(f"every stage that is shown lies within the bound of {data['dtype']}")
    return "\n".join(lines)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
