"""What a chapter prints and no expression says: slopes compared, boundaries refused, derivatives of a chain, counts.

Must hold: each number is found by the same code that verifies it, and a comparison that fails is a number or a truth
value here, never an exception. Must not: judge, or give a value where nothing was compared (`Unavailable`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

import numpy as np

from blocklaws.checking import Case
from blocklaws.passes import Pass, Unavailable
from blocklaws.properties.central_differences import Differences, Settings
from blocklaws.properties.examining import Refuted
from blocklaws.properties.refusals import is_refused
from blocklaws.properties.stacks import Stack
from blocklaws.worlds import World

__all__ = ["central_differences", "chain", "nonuniform", "parameter_counts", "refusals"]


def nonuniform(world: World) -> World:
    """Return a world whose loss weighs every output differently: with one weight for all, a norm's gradients vanish."""
    weights = 1.0 + np.arange(world.input.size, dtype=np.float64).reshape(world.input.shape) / 7.0
    return world.replace(cotangent=weights)


def central_differences(case: Case, base: Pass) -> Mapping[str, Any]:
    """Compare every coordinate of every gradient that the block gives with a central difference.

    Returns:
        ``input`` and ``parameters``: how many coordinates were compared. ``tolerance``: how far they may be apart.
        ``agree``: whether none is farther, and none was left out.
    """
    world = nonuniform(base.world)
    if world.dtype != "float64":
        raise Unavailable(f"differences over a short step say nothing in {world.dtype}")
    gradients = base.built.gradients(world.input.copy(), world.cotangent.copy(), world.position_offset)
    every = sum(value.size for value in world.parameters.values())
    settings = Settings(**case.invariant.arguments, coordinates=max(1, every))
    differences = Differences(case, world, base.built, settings)
    compared, agree = {"input": 0, "parameters": 0}, True
    for name, value in {"input": world.input, **world.parameters}.items():
        found = gradients.get(name)
        if found is None or found.shape != value.shape:
            agree = False
            continue
        compared["input" if name == "input" else "parameters"] += value.size
        try:
            differences.compare(name, found.astype(np.float64))
        except Refuted:
            agree = False
    return {**compared, "agree": agree, "tolerance": settings.tolerance}


def refusals(case: Case, base: Pass) -> Mapping[str, Any]:
    """Cross boundaries; the arguments are a word for the answer -> the boundaries that it is about.

    Returns:
        Whether all of them were refused by name; nothing for a word whose boundaries this block does not have.
    """
    if getattr(case.subject.backend, "validates", False) is not True:
        raise Unavailable("the backend does not say that it validates (validates = True)")
    answers = {
        word: {is_refused(boundary, case, base.world, base.built) for boundary in boundaries} - {None}
        for word, boundaries in case.invariant.arguments.items()
    }
    return {word: False not in found for word, found in answers.items() if found}


def chain(case: Case, base: Pass) -> Mapping[str, Any]:
    """Pull a cotangent of ones back through ``layers`` equal blocks; without ``skip``, through their branches alone.

    Returns:
        ``layers``, and ``derivative``: that of each coordinate of the input, [B, T, d_model].
    """
    layers = int(case.invariant.arguments["layers"])
    stack = Stack(case.subject, [base.world] * layers)
    x = base.world.input
    found = stack.input_gradient(x, np.ones_like(x), skip=bool(case.invariant.arguments["skip"]))
    if found is None:
        raise Unavailable("gradients does not give input")
    return {"layers": layers, "derivative": found}


def parameter_counts(case: Case, base: Pass) -> Mapping[str, Any]:
    """Count the numbers that the block lists; the arguments are a word for the answer -> a pattern of names."""
    listed = base.parameters()
    return {
        word: sum(array.size for name, array in listed.items() if fnmatch.fnmatchcase(name, pattern))
        for word, pattern in case.invariant.arguments.items()
    }
