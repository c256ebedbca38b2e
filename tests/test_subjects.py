"""What is asked of a backend once, and what of it each time; what it gets to keep."""

from __future__ import annotations

from typing import Any

import pytest

from blocklaws.config import BlockConfig
from blocklaws.spec_reading import load_spec
from blocklaws.subjects import Subject
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


def test_few_lengths_stand_for_all() -> None:
    """Fails when cutting tokens off asks a backend that compiles for many shapes, or for none."""
    assert few_lengths(range(1, 2)) == [1]
    assert few_lengths(range(1, 67)) == [33, 66]
    assert few_lengths([]) == []
