"""What JAX costs beside torch on the same cases: wall time, and what is compiled, by stage, by path and by shape.

The cases run one after the other on both backends, case by case, so that a busy machine slows both alike. Both
frameworks are loaded before the clock starts, and nothing is compiled before it does. One thread each.

    python benchmarks/jax_compilations.py [--block NAME]... [--dtype NAME]... [--profile NAME] [--shapes]
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax

from blocklaws.backends.on_jax import compiled
from blocklaws.checking import Case
from blocklaws.known_failures import KnownFailures
from blocklaws.running import prepare, run_cases

BACKENDS = ("torch", "jax")
#: What JAX calls the stages of a compilation.
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}


class Stages:
    """Adds up what JAX reports of its compilations."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.times: Counter[str] = Counter()
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, seconds: float, **_: object) -> None:
        if event in STAGES:
            self.seconds[STAGES[event]] += seconds  # type: ignore[assignment]
            self.times[STAGES[event]] += 1


def pairs(block: str, dtype: str, profile: str) -> Iterator[tuple[Case, Case]]:
    """Yield each case twice, on torch and on jax."""
    on_torch, on_jax = (prepare([name], blocks=[block], dtypes=[dtype], profile=profile).cases for name in BACKENDS)
    other = {(case.name, case.kind.name, case.dtype): case for case in on_jax}
    for case in on_torch:
        yield case, other[case.name, case.kind.name, case.dtype]


def timed(case: Case) -> tuple[float, float]:
    """Run a case that must hold; return its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    (results,) = run_cases([case], KnownFailures())
    took = time.perf_counter() - wall, time.process_time() - cpu
    assert all(result.verdict in ("holds", "unchecked") for result in results), results
    return took


def compare(block: str, dtype: str, profile: str, stages: Stages, shapes: bool) -> tuple[float, float]:
    """Print one block in one dtype; return the wall seconds of torch and of jax."""
    wall, cpu = dict.fromkeys(BACKENDS, 0.0), dict.fromkeys(BACKENDS, 0.0)
    before, seconds, times = compiled.programs(), stages.seconds.copy(), stages.times.copy()
    count = 0
    for cases in pairs(block, dtype, profile):
        count += 1
        for name, case in zip(BACKENDS, cases, strict=True):
            took = timed(case)
            wall[name] += took[0]
            cpu[name] += took[1]
    made = compiled.programs() - before
    print(f"{block}, {dtype}, profile {profile}: {count} cases")
    print(f"  wall seconds: torch {wall['torch']:.1f}, jax {wall['jax']:.1f}, ratio {wall['jax'] / wall['torch']:.2f}")
    print(f"  CPU seconds:  torch {cpu['torch']:.1f}, jax {cpu['jax']:.1f}, ratio {cpu['jax'] / cpu['torch']:.2f}")
    of_stage = {stage: stages.seconds[stage] - seconds[stage] for stage in STAGES.values()}
    told = ", ".join(f"{stage} {took:.1f}" for stage, took in of_stage.items())
    print(f"  of jax's wall seconds: {told}, the rest {wall['jax'] - sum(of_stage.values()):.1f}")
    paths = Counter[str]()
    for program, number in made.items():
        paths[program.path] += number
    told = ", ".join(f"{path} {number}" for path, number in paths.items())
    outside = stages.times["compiling"] - times["compiling"] - sum(made.values())
    again = sum(made.values()) - len(made)
    print(f"  programs: {sum(made.values())} ({told}), {again} of them again, {outside} outside of the four paths")
    if shapes:
        for path in paths:
            found = Counter("x".join(map(str, program.shape)) for program in made if program.path == path)
            told = ", ".join(shape + (f" ({number})" if number > 1 else "") for shape, number in sorted(found.items()))
            print(f"    {path}: {told}")
    print(flush=True)
    return wall["torch"], wall["jax"]


def main() -> None:
    """Compare the chosen blocks and dtypes, then all of them together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--block", action="append", help="llama and gpt otherwise")
    parser.add_argument("--dtype", action="append", help="float64, float32 and bfloat16 otherwise")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--shapes", action="store_true", help="the shape of every program, too")
    chosen = parser.parse_args()
    stages, walls = Stages(), []
    for name in BACKENDS:  # load the framework
        timed(prepare([name], blocks=["plain"], dtypes=["float32"], invariants=["repeatable"]).cases[0])
    compiled.clear_caches()
    for block in chosen.block or ["llama", "gpt"]:
        for dtype in chosen.dtype or ["float64", "float32", "bfloat16"]:
            walls.append(compare(block, dtype, chosen.profile, stages, chosen.shapes))
    torch_seconds, jax_seconds = (sum(each) for each in zip(*walls, strict=True))
    print(f"together: torch {torch_seconds:.1f} s, jax {jax_seconds:.1f} s, ratio {jax_seconds / torch_seconds:.2f}")


if __name__ == "__main__":
    main()
