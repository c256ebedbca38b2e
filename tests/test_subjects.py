"""What is asked of a backend once, and what of it each time; what it gets to keep."""

from __future__ import annotations

from typing import Any

import pytest

from blocklaws.backends.on_numpy import NumpyBackend
from blocklaws.config import BlockConfig
from blocklaws.discovery import find_subjects
from blocklaws.errors import BackendError
from blocklaws.report import Report
from blocklaws.running import verify
from blocklaws.spec_reading import load_spec
from blocklaws.subjects import Subject
from blocklaws.terminal import Terminal
from blocklaws.worlds import Recipe, World, few_lengths, make_world


class Block:
    """The identity."""

    def forward(self, x, position_offset=0):
        return x


class AtZero:
    """The identity, without an offset."""

    def forward(self, x):
        return x


class Meddler:
    """Writes into each config that it is shown, and counts how often it is asked."""

    name = "meddler"

    def __init__(self, block: Any = Block) -> None:
        self.asked: list[BlockConfig] = []
        self.shown: list[BlockConfig] = []
        self._block = block

    def supports(self, config: BlockConfig) -> None:
        self.asked.append(config)
        object.__setattr__(config, "norm_eps", 1.0)

    def build(self, config: BlockConfig, parameters: Any, dtype: str) -> Any:
        self.shown.append(config)
        object.__setattr__(config, "rotary_base", 2.0)
        return self._block()


def world(size: int = 0) -> World:
    """Return a world of the smallest llama blocks."""
    spec = load_spec(None)
    kind = spec.blocks["llama"]
    return make_world(kind, Recipe(spec.menus[kind.heads][size], "normal", 0), "float32")


def test_a_config_that_is_written_to_is_nobody_elses() -> None:
    """Fails when a backend can change the config of the reference, of its next block or of the next example."""
    backend = Meddler()
    subject = Subject(backend, "meddler")
    for _ in range(2):
        now = world()
        assert subject.refusal(now.config) is None
        subject.build(now)
        assert (now.config.norm_eps, now.config.rotary_base) == (1e-5, 10000.0)
    assert [(config.norm_eps, config.rotary_base) for config in backend.shown] == [(1e-5, 2.0)] * 2


def test_whether_a_config_is_supported_is_asked_once() -> None:
    """Fails when a backend is asked again for each example, or not for each config."""
    backend = Meddler()
    subject = Subject(backend, "meddler")
    for size in (0, 1, 0, 1):
        subject.refusal(world(size).config)
    assert len(backend.asked) == 2


def test_a_refusal_that_raises_is_raised_each_time() -> None:
    """Fails when a backend that raised once passes for one that supports the config."""
    backend = Meddler()
    backend.supports = lambda config: 1 / 0  # type: ignore[method-assign]
    subject = Subject(backend, "meddler")
    for _ in range(2):
        with pytest.raises(Exception, match="supports raised ZeroDivisionError"):
            subject.refusal(world().config)


@pytest.mark.parametrize(("block", "takes_none"), [(Block, False), (AtZero, True)])
def test_offsets_are_found_in_the_signature(block: type, takes_none: bool) -> None:
    """Fails when one class of blocks is taken for another, or a function of an instance for a method."""
    subject = Subject(Meddler(block), "meddler")
    assert [subject.build(world()).at_offset_zero_only for _ in range(2)] == [takes_none] * 2

    def make() -> Any:
        built = block()
        built.forward = lambda x, **options: x
        return built

    assert Subject(Meddler(make), "meddler").build(world()).at_offset_zero_only is False


class FromZero:
    """A block that is called from position 0 alone, and all the same has a cache, which may forget what it holds."""

    def __init__(self, block: Any, *, forgets: bool) -> None:
        self.block, self.forgets = block, forgets

    def forward(self, x: Any) -> Any:
        return self.block.forward(x)

    def forward_cached(self, x: Any, cache: Any) -> Any:
        return self.block.forward_cached(x, None if self.forgets else cache)


@pytest.mark.parametrize(("forgets", "found"), [(False, "holds"), (True, "violated")])
def test_a_cache_needs_no_position_offset(forgets: bool, found: str) -> None:
    """Fails when a wrong cache is not looked at because `forward` begins at position 0, where a cache begins too."""

    class Backend:
        name = "from-zero"
        dtypes = ("float32",)

        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            return FromZero(NumpyBackend().build(config, parameters, dtype), forgets=forgets)

    invariants = ["cache-parity", "other-numbers-honoured-in-the-cache", "rotary-shift-invariance"]
    report = verify(Backend(), blocks=["llama"], invariants=invariants, profile="quick")
    verdicts = {case.invariant: case.verdict for case in report.cases}
    assert verdicts == {**dict.fromkeys(invariants[:2], found), invariants[2]: "unchecked"}
    assert "the block takes no position offset" in {case.reason for case in report.cases}


def test_few_lengths_stand_for_all() -> None:
    """Fails when cutting tokens off asks a backend that compiles for many shapes, or for none."""
    assert few_lengths(range(1, 2)) == [1]
    assert few_lengths(range(1, 67)) == [33, 66]
    assert few_lengths([]) == []


class Counting:
    """A right backend that says how many programs it has compiled: one for each call of `build`."""

    name = "counting"
    built = 0

    def __init__(self, count: Any = None) -> None:
        if count is not None:
            self.compilations = count

    def build(self, config: BlockConfig, parameters: Any, dtype: str) -> Any:
        Counting.built += 1
        return find_subjects("numpy")[0].backend.build(config, parameters, dtype)


def repeated(backend: Any) -> Report:
    """Return the report of two short cases."""
    return verify(backend, blocks=["llama", "gpt"], dtypes=["float32"], invariants=["repeatable"], profile="quick")


def test_programs_are_told_of_a_backend_that_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when programs of some case are lost, or of one are told twice, or of a backend that does not count."""
    before = Counting.built
    report = repeated(Counting(lambda: Counting.built))
    assert report.as_dict()["backends"][0]["compilations"] == Counting.built - before > 2
    assert [case.compilations > 0 for case in report.cases] == [True, True]
    Terminal().report(report, {}, 0, "everything holds")
    assert f" s; counting compiled {Counting.built - before} programs " in " ".join(capsys.readouterr().out.split())
    assert "compilations" not in repeated(Counting()).as_dict()["backends"][0]


@pytest.mark.parametrize("count", [7, lambda: 1 / 0, lambda: "many", lambda wrong: 1])
def test_what_is_no_number_of_programs_decides_nothing(count: Any) -> None:
    """Fails when a backend loses its verdicts to a number that is only shown."""
    report = repeated(Counting(count))
    assert report.summary["holds"] == 2
    assert "compilations" not in report.as_dict()["backends"][0]


# --- attributes and answers that raise ------------------------------------------------------------------------------


def _raising(name: str) -> Any:
    """Return a backend of which one attribute raises when it is read."""

    def raises(self: Any) -> Any:
        raise RuntimeError("not today")

    return type("Raising", (NumpyBackend,), {name: property(raises)})()


@pytest.mark.parametrize(
    "name",
    [
        "name",
        "dtypes",
        "blocks",
        "multiples",
        "deterministic",
        "validates",
        "cannot",
        "supports",
        "stages_at",
        "claims",
    ],
)
def test_an_attribute_that_raises_is_the_backends_mistake(name: str) -> None:
    """Fails when a property of a backend ends the run with an exception that is none of ours."""
    with pytest.raises(BackendError, match=rf"its attribute {name!r} raised RuntimeError: not today"):
        verify(_raising(name), blocks=["llama"], profile="quick", invariants=["trace-agrees"])


class _Strange(dict[str, Any]):
    """A mapping whose items cannot be had."""

    def items(self) -> Any:
        raise ValueError("no items")


def test_a_mapping_that_raises_costs_the_cases_that_ask_for_it() -> None:
    """Fails when what a trace returns ends the run, or is told of invariants that never asked for it."""

    class Backend(NumpyBackend):
        name = "strange"

        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            block = super().build(config, parameters, dtype)
            block.trace = lambda x, position_offset=0: _Strange()
            return block

    chosen = ["prefix-invariance", "trace-agrees"]
    report = verify(Backend(), blocks=["llama"], dtypes=["float32"], profile="quick", invariants=chosen)
    told = {case.invariant: (case.verdict, case.reason) for case in report.cases}
    assert told["prefix-invariance"] == ("holds", "")
    assert told["trace-agrees"][0] == "error"
    assert told["trace-agrees"][1].startswith("trace raised ValueError: no items")
