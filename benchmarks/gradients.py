"""Every coordinate of a small block by central differences, beside the gradient checkers of torch and JAX.

Both sides check the same coordinates of the same block, all of its parameters and its input, in float64: 132 for the
smallest llama block. `torch.autograd.gradcheck` perturbs each alone by its nature. `jax.test_util.check_grads` takes
one random direction a call, so it is called once for each coordinate, along it. Sides take turns in one process and
the median of their times counts; what compiles has compiled before. The growth shows how they go on to wider blocks:
past 300 parameters blocklaws checks every coordinate of the input and random directions of each parameter, in which
all of its coordinates take part; the others still take one coordinate after the other, and are left out from some
width on.

    python benchmarks/gradients.py [--repeat N] [--widest D_MODEL]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import torch
from jax.flatten_util import ravel_pytree
from jax.test_util import check_grads

from blocklaws.checking import Case
from blocklaws.discovery import find_subjects
from blocklaws.passes import Pass
from blocklaws.planning import Choice, plan, properties_of, reference_subject
from blocklaws.spec_reading import load_spec
from blocklaws.specification import Sizes
from blocklaws.worlds import Recipe, World, make_world

CHECK = "gradients-match-central-differences"
#: B, T, n_heads, n_kv_heads, d_head, d_ff; the first has 132 coordinates.
SMALLEST = Sizes(B=1, T=3, n_heads=2, n_kv_heads=2, d_head=2, d_ff=4, d_model=4)


def wider(d_model: int) -> Sizes:
    """Return the smallest block, made wider."""
    return dataclasses.replace(SMALLEST, d_head=d_model // 2, d_ff=d_model, d_model=d_model)


def cases() -> dict[str, Case]:
    """Return the case of each backend."""
    spec = load_spec()
    subjects = [subject for name in ("numpy", "torch", "jax") for subject in find_subjects(name)]
    choice = Choice(("llama",), ("float64",), (CHECK,), "quick", 0)
    return {case.subject.name: case for case in plan(spec, subjects, choice)}


def ours(case: Case, world: World) -> Callable[[], Any]:
    """Return the check of blocklaws: it raises where a gradient is not the slope."""
    check = properties_of([case.invariant])[case.invariant.property_name].check  # type: ignore[attr-defined]
    block = Pass(case.subject, world, None)  # built once, as the others' are
    return lambda: check(case, world, Pass(case.subject, world, reference_subject(), block))


def by_torch(case: Case, world: World) -> Callable[[], Any]:
    """Return `gradcheck` of the torch block, by its input and all its parameters."""
    block: Any = case.subject.backend.build(world.config, world.parameters, "float64")
    module = block.module
    names = [name for name, _ in module.named_parameters()]
    given = (torch.tensor(world.input), *(value.detach().clone() for _, value in module.named_parameters()))
    arguments = [value.requires_grad_() for value in given]

    def forward(x: torch.Tensor, *parameters: torch.Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    return lambda: torch.autograd.gradcheck(forward, arguments, eps=1e-6, atol=1e-4)


def by_jax(case: Case, world: World) -> Callable[[], Any]:
    """Return `check_grads` of the JAX block, once along each coordinate of its input and its parameters."""
    block: Any = case.subject.backend.build(world.config, world.parameters, "float64")
    offset = jax.numpy.int32(0)
    with jax.enable_x64(True):
        flat, back = ravel_pytree((world.input, dict(block.operands)))

    @jax.jit
    def moved(amount: Any, axis: Any) -> Any:
        x, parameters = back(flat + amount * axis)
        return block.steps.block(parameters, x, offset)[0]["output"]

    axes = np.eye(flat.size)

    def check() -> None:
        with jax.enable_x64(True):
            for axis in axes:
                check_grads(
                    lambda amount, axis=axis: moved(amount, axis), (np.float64(0),),
                    order=1, modes=("rev",), eps=1e-6, atol=1e-4, rtol=1e-4,
                )  # fmt: skip

    return check


def medians(sides: Sequence[Callable[[], Any]], repeat: int) -> list[float]:
    """Return the median seconds of each side; they take turns."""
    for side in sides:
        side()  # compiled, and everything imported
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(repeat):
        for side, its in zip(sides, taken, strict=True):
            begin = time.perf_counter()
            side()
            its.append(time.perf_counter() - begin)
    return [statistics.median(its) for its in taken]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--widest", type=int, default=64, help="d_model of the last block of the growth")
    parser.add_argument("--others", type=int, default=16, help="d_model of the last block that the others check")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each width: coordinates, seconds, ratios."""
    asked = parse(arguments)
    found = cases()
    print("d_model  coordinates  blocklaws on numpy, torch, jax  gradcheck          check_grads")
    d_model = SMALLEST.d_model
    while d_model <= asked.widest:
        kind = found["torch"].kind
        world = make_world(kind, Recipe(wider(d_model), "normal", 1, 0), "float64")
        coordinates = world.input.size + sum(value.size for value in world.parameters.values())
        # The checkers of others grow with the square of the width and more; past some width one turn is enough.
        repeat = asked.repeat if d_model < 16 else 1
        sides = [ours(found[name], world) for name in ("numpy", "torch", "jax")]
        others = [by_torch(found["torch"], world), by_jax(found["jax"], world)]
        if d_model > asked.others:
            others = []
        seconds = medians([*sides, *others], repeat)
        line = f"{d_model:>7}  {coordinates:>11}  " + " ".join(f"{one:>9.4f} s" for one in seconds[:3])
        if others:
            theirs, jaxs = seconds[3:]
            line += f"  {theirs:.3f} s, {theirs / seconds[1]:.0f} x torch's"
            line += f"  {jaxs:.3f} s, {jaxs / seconds[2]:.0f} x jax's"
        print(line, flush=True)
        d_model *= 2


if __name__ == "__main__":
    main()
