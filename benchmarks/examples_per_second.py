"""Examples per second, beside the test that one would write by hand, and where the time of an example goes.

Both sides make the same checks on the same sizes, block and dtype, and run one after the other in slices, so that a
busy machine slows both alike. By hand means: a Hypothesis test whose input and parameters are
`hypothesis.extra.numpy.arrays`, and which builds its block anew for each example. Such a strategy draws element by
element (`fill=nothing()`), or, by default, draws few elements and fills the rest with one value: that is quicker, and
many of its inputs are constant, so that no token can be told from another. Sizes of more than five tokens are left out
on both sides, since Hypothesis discards an example with so many elements. CPU seconds are counted; what compiles has
compiled before. One thread each.

    python benchmarks/examples_per_second.py [BACKEND...]
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

# Before NumPy is imported: threads that wait for each other are counted as CPU seconds, ten times those of the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import hypothesis
import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from blocklaws.built import Built
from blocklaws.canonical import parameter_shapes
from blocklaws.checking import Case
from blocklaws.discovery import find_search, find_subjects
from blocklaws.planning import Choice, plan, properties_of
from blocklaws.spec_reading import load_spec
from blocklaws.specification import BlockKind, Sizes
from blocklaws.subjects import Subject

CHECKS = ("shape-preservation", "prefix-invariance", "zero-branch-identity", "norm-axis-locality")
BLOCK, DTYPE = "llama", "float32"
SLICES, EXAMPLES = 4, 60
MOST_TOKENS = 5
PARTS = ("backend", "reference", "filling arrays", "judging", "engine", "Hypothesis and drawing")

SIDES = ("blocklaws", "each drawn", "filled")

# Its functions are put under a clock.
expression: Any = importlib.import_module("blocklaws.properties.expression")

Check = Callable[["Draw", Subject, BlockKind, tuple[Sizes, ...]], None]


# --- by hand --------------------------------------------------------------------------------------------------------


class Draw:
    """Draws what a test by hand needs, and counts the examples that are begun and the inputs that are constant."""

    begun = constant = 0
    # XLA flushes subnormal numbers to zero, which a test by hand would take for a change.
    _elements = st.floats(-3, 3, width=32, allow_subnormal=False)

    def __init__(self, data: st.DataObject, filled: bool) -> None:
        self.draw = data.draw
        self._fill = None if filled else st.nothing()

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw an array."""
        return self.draw(hnp.arrays(np.float32, shape, elements=self._elements, fill=self._fill))

    def situation(self, kind: BlockKind, menu: tuple[Sizes, ...], least: int) -> tuple[Any, Any, Any, Sizes]:
        """Draw sizes, parameters and an input."""
        Draw.begun += 1
        sizes = self.draw(st.sampled_from([one for one in menu if least <= one.T]))
        config = kind.config(sizes)
        parameters = {name: self.array(shape) for name, shape in parameter_shapes(config).items()}
        x = self.array((sizes.B, sizes.T, config.d_model))
        Draw.constant += bool((x == x.flat[0]).all())
        return config, parameters, x, sizes


def shape_by_hand(draw: Draw, subject: Subject, kind: BlockKind, menu: tuple[Sizes, ...]) -> None:
    """`shape-preservation`."""
    config, parameters, x, _ = draw.situation(kind, menu, 1)
    output = np.asarray(subject.backend.build(config, parameters, DTYPE).forward(x, 0))
    assert output.shape == x.shape
    assert output.dtype == x.dtype
    assert np.isfinite(output).all()


def prefix_by_hand(draw: Draw, subject: Subject, kind: BlockKind, menu: tuple[Sizes, ...]) -> None:
    """`prefix-invariance`."""
    config, parameters, x, sizes = draw.situation(kind, menu, 2)
    cut = draw.draw(st.integers(1, sizes.T - 1))
    block = subject.backend.build(config, parameters, DTYPE)
    changed = x.copy()
    changed[:, cut:] = draw.array(changed[:, cut:].shape)
    assert np.array_equal(np.asarray(block.forward(x, 0))[:, :cut], np.asarray(block.forward(changed, 0))[:, :cut])


def identity_by_hand(draw: Draw, subject: Subject, kind: BlockKind, menu: tuple[Sizes, ...]) -> None:
    """`zero-branch-identity`."""
    config, parameters, x, _ = draw.situation(kind, menu, 1)
    for name in ("attention.output", "feed_forward.down"):
        parameters[name] = np.zeros_like(parameters[name])
    cotangent = draw.array(x.shape)
    block = subject.backend.build(config, parameters, DTYPE)
    assert np.array_equal(np.asarray(block.forward(x, 0)), x)
    assert np.array_equal(np.asarray(block.gradients(x, cotangent, 0)["input"]), cotangent)


def locality_by_hand(draw: Draw, subject: Subject, kind: BlockKind, menu: tuple[Sizes, ...]) -> None:
    """`norm-axis-locality`."""
    config, parameters, x, sizes = draw.situation(kind, menu, 2)
    parameters["attention.output"] = np.zeros_like(parameters["attention.output"])
    token = draw.draw(st.integers(0, sizes.T - 1))
    changed = x.copy()
    changed[:, token] = draw.array(changed[:, token].shape)
    block = subject.backend.build(config, parameters, DTYPE)
    others = np.arange(sizes.T) != token
    one, two = block.trace(x, 0), block.trace(changed, 0)
    assert np.array_equal(np.asarray(block.forward(x, 0))[:, others], np.asarray(block.forward(changed, 0))[:, others])
    for stage in ("attention_norm", "feed_forward_norm"):
        assert np.array_equal(np.asarray(one[stage])[:, others], np.asarray(two[stage])[:, others])


BY_HAND: dict[str, Check] = dict(
    zip(CHECKS, (shape_by_hand, prefix_by_hand, identity_by_hand, locality_by_hand), strict=True)
)


def run_by_hand(check: Check, filled: bool, case: Case, seed: int) -> int:
    """Run the test of one check; return how many examples it looked at."""
    seen = 0

    @hypothesis.seed(seed)
    @settings(
        max_examples=EXAMPLES, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def test(data: st.DataObject) -> None:
        nonlocal seen
        check(Draw(data, filled), case.subject, case.kind, case.menu)
        seen += 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)
        test()
    return seen


# --- blocklaws ------------------------------------------------------------------------------------------------------


def cases_of(backend: str) -> dict[str, Case]:
    """Return the cases of the checks, each with a budget of a slice."""
    spec = load_spec()
    menus = {heads: tuple(sizes for sizes in menu if sizes.T <= MOST_TOKENS) for heads, menu in spec.menus.items()}
    spec = dataclasses.replace(spec, menus=menus)
    planned = plan(spec, find_subjects(backend), Choice((BLOCK,), (DTYPE,), CHECKS))
    return {
        case.invariant.id: dataclasses.replace(case, profile=dataclasses.replace(case.profile, examples=EXAMPLES))
        for case in planned
    }


def run_case(case: Case, seed: int) -> int:
    """Search one case; return how many examples it looked at."""
    case = dataclasses.replace(case, seed=seed)
    outcome = find_search()(case, properties_of([case.invariant])[case.invariant.property_name])
    assert outcome.verdict == "holds", outcome.reason
    return int(outcome.examples)


class Clock:
    """Tells the time of each part apart: while an inner part runs, the outer one stands still."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._running = ["Hypothesis and drawing"]
        self._since = time.process_time()

    def _stop(self) -> None:
        now = time.process_time()
        self.spent[self._running[-1]] += now - self._since  # type: ignore[assignment]
        self._since = now

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside as a part."""
        self._stop()
        self._running.append(name)
        try:
            yield
        finally:
            self._stop()
            self._running.pop()

    def counted(self, function: Callable[..., Any], name: str | Callable[..., str]) -> Callable[..., Any]:
        """Return a function whose calls count as a part, named or told by its arguments."""

        @functools.wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            with self.part(name if isinstance(name, str) else name(*arguments)):
                return function(*arguments, **options)

        return wrapper


def where_time_goes(cases: dict[str, Case], seed: int) -> dict[str, float]:
    """Return part -> its share of the time of the searches."""
    clock, references = Clock(), {id(case.reference) for case in cases.values()}
    build, call = Subject.build, Built._call
    saved = (build, call, Case.world, expression.judge, expression.evaluate, expression.assign)
    examine = expression.ExpressionProperty.examine

    def whose(subject: Subject, *_: Any) -> str:
        return "reference" if id(subject) in references else "backend"

    def build_and_tell(subject: Subject, world: Any) -> Built:
        built = build(subject, world)
        built.whose = whose(subject)  # type: ignore[attr-defined]
        return built

    try:
        Subject.build = clock.counted(build_and_tell, whose)  # type: ignore[method-assign]
        Built._call = clock.counted(call, lambda built, *_: built.whose)  # type: ignore[method-assign]
        Case.world = clock.counted(Case.world, "filling arrays")  # type: ignore[method-assign]
        expression.judge = clock.counted(expression.judge, "judging")
        expression.evaluate = clock.counted(expression.evaluate, "judging")
        expression.assign = clock.counted(expression.assign, "filling arrays")
        expression.ExpressionProperty.examine = clock.counted(examine, "engine")
        for case in cases.values():
            run_case(case, seed)
        clock._stop()
    finally:
        Subject.build, Built._call, Case.world = saved[:3]  # type: ignore[method-assign]
        expression.judge, expression.evaluate, expression.assign = saved[3:]
        expression.ExpressionProperty.examine = examine
    whole = sum(clock.spent.values())
    return {part: clock.spent[part] / whole for part in PARTS}


# --- side by side ---------------------------------------------------------------------------------------------------


def timed(run: Callable[[], int]) -> tuple[int, float]:
    """Return how many examples were looked at, in how many CPU seconds."""
    begin = time.process_time()
    seen = run()
    return seen, time.process_time() - begin


def compare(backend: str, first: int) -> None:
    """Print the rates of each side for each check, and where the time of ours goes; seeds are counted from one on."""
    cases = cases_of(backend)
    for case in cases.values():
        case.split()  # what blocks can do is asked once a run
    seen: Counter[tuple[str, str]] = Counter()
    seconds: dict[tuple[str, str], float] = dict.fromkeys(((side, id) for side in SIDES for id in CHECKS), 0.0)
    constant: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    for number in range(first, first + SLICES + 1):
        for id, case in cases.items():
            for side in SIDES:
                Draw.constant = Draw.begun = 0
                run = (
                    functools.partial(run_case, case, number)
                    if side == "blocklaws"
                    else functools.partial(run_by_hand, BY_HAND[id], side == "filled", case, number)
                )
                examples, took = timed(run)
                if number > first:  # the first slice compiles and fills caches
                    seen[side, id] += examples
                    seconds[side, id] += took
                    constant[side] += Draw.constant
                    begun[side] += Draw.begun
    print(f"{backend}: examples per CPU second, {SLICES} slices of {EXAMPLES} examples, block {BLOCK}, {DTYPE}")
    print(f"  {'check':24}{'blocklaws':>11}{'by hand, each drawn':>22}{'ratio':>7}{'by hand, filled':>18}{'ratio':>7}")
    for ids in (*((id,) for id in CHECKS), CHECKS):
        rates = {side: sum(seen[side, id] for id in ids) / sum(seconds[side, id] for id in ids) for side in SIDES}
        ours, drawn, filled = (rates[side] for side in SIDES)
        name = ids[0] if len(ids) == 1 else "together"
        print(f"  {name:24}{ours:>11.0f}{drawn:>22.0f}{ours / drawn:>7.1f}{filled:>18.0f}{ours / filled:>7.1f}")
    total = {side: sum(seen[side, id] for id in CHECKS) for side in SIDES}
    for side in SIDES[1:]:
        discarded = f"{100 * (1 - total[side] / begun[side]):.0f} % of the examples discarded as too large"
        print(f"  by hand, {side}: {100 * constant[side] / total[side]:.0f} % of the inputs constant, {discarded}")
    parts = where_time_goes(cases, first + SLICES + 1)
    print("  of blocklaws' time: " + ", ".join(f"{part} {100 * share:.0f} %" for part, share in parts.items()) + "\n")


def main(backends: list[str]) -> None:
    """Compare on each backend."""
    # Each has seeds of its own: what was drawn for one backend is not drawn again for the next.
    for number, backend in enumerate(backends or ["numpy", "torch", "jax"]):
        compare(backend, 100 * number)


if __name__ == "__main__":
    main(sys.argv[1:])
