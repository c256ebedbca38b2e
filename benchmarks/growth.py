"""How the time of a run grows: with the number of invariants, of kinds of block, of dtypes, and with tokens.

Everything is run on one process, with one seed and the profile quick; CPU seconds are counted. A table is printed and
drawn, into build/growth.svg unless `--plot` names another file (extra `bench`, for Matplotlib).

    python benchmarks/growth.py [BACKEND...] [--plot FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before NumPy is imported: threads that wait for each other are counted as CPU seconds, ten times those of the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import blocklaws
from blocklaws.spec_reading import load_spec

PLOT = Path(__file__).resolve().parent.parent / "build" / "growth.svg"

#: Name of a growth -> its steps, each (how much, the arguments of `blocklaws.verify`).
Steps = list[tuple[int, dict[str, Any]]]

LONG = """extends: blocklaws
menus:
  equal:
    - {{B: 2, T: {tokens}, n_heads: 2, d_head: 8, d_ff: 12}}
"""
SEEN = ("output-parity", "prefix-invariance", "cache-parity", "gradient-parity")


def growths(folder: Path) -> dict[str, Steps]:
    """Return what is made larger step by step, from the same small run on."""
    spec = load_spec()
    invariants = [invariant.id for invariant in spec.invariants.values() if not invariant.advisory]
    blocks = [name for name, kind in spec.blocks.items() if kind.by_default]
    few = tuple(invariants[:: max(1, len(invariants) // 16)])
    one: dict[str, Any] = {"blocks": ["llama"], "dtypes": ["float32"]}
    tokens: Steps = []
    for count in (8, 32, 128, 512):
        file = folder / f"tokens-{count}.yaml"
        file.write_text(LONG.format(tokens=count), encoding="utf-8")
        tokens.append((count, {**one, "invariants": SEEN, "spec": file}))
    counts = (8, 16, 32, 64, len(invariants))
    return {
        "invariants": [(count, {**one, "invariants": invariants[:count]}) for count in counts],
        "kinds of block": [
            (count, {"dtypes": ["float32"], "blocks": blocks[:count], "invariants": few})
            for count in range(1, len(blocks) + 1)
        ],
        "dtypes": [
            (count, {"blocks": ["llama"], "invariants": few, "dtypes": dtypes})
            for count, dtypes in ((1, ["float64"]), (2, ["float64", "float32"]))
        ],
        "tokens": tokens,
    }  # fmt: skip


def taken(backend: str, request: dict[str, Any]) -> tuple[int, float]:
    """Return the number of cases of a run, and its CPU seconds."""
    begin = time.process_time()
    report = blocklaws.verify(backend, profile="quick", **request)
    return len(report.cases), time.process_time() - begin


def measured(backends: Sequence[str], show: Callable[[str], None]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return growth -> backend -> (how much, CPU seconds)."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for growth, steps in growths(Path(folder)).items():
            show(f"{growth}:")
            for backend in backends:
                taken(backend, steps[-1][1])  # what compiles has compiled
                line = []
                for count, request in steps:
                    cases, seconds = taken(backend, request)
                    found.setdefault(growth, {}).setdefault(backend, []).append((count, seconds))
                    line.append(f"{count}: {seconds:.2f} s ({cases} cases)")
                show(f"  {backend:<6} {', '.join(line)}")
    return found


def plot(found: dict[str, dict[str, list[tuple[int, float]]]], file: Path) -> None:
    """Draw a curve for each backend, a field for each growth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, (growth, by_backend) in zip(figure.subplots(2, 2).flat, found.items(), strict=True):
        for backend, points in by_backend.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=backend)
        axes.set(xlabel=growth, ylabel="CPU seconds", ylim=(0, None))
        if growth == "tokens":
            axes.set_xscale("log", base=2)
    figure.axes[0].legend()
    figure.savefig(file)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("backends", nargs="*", default=["numpy", "torch", "jax"])
    parser.add_argument(
        "--plot", type=Path, default=PLOT, metavar="FILE", help="an image, by its ending: .svg, .png, .pdf"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and draw where that is asked for."""
    asked = parse(arguments)
    found = measured(asked.backends, lambda line: print(line, flush=True))
    if importlib.util.find_spec("matplotlib") is None:
        print("not drawn: Matplotlib is missing; pip install 'blocklaws[bench]'")
        return
    asked.plot.parent.mkdir(parents=True, exist_ok=True)
    plot(found, asked.plot)
    print(f"wrote {asked.plot}")


if __name__ == "__main__":
    main()
