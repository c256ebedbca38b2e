"""In an example the block is called first, the reference after the last of its calls: there is nothing to be found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blocklaws.discovery import find_subjects
from blocklaws.planning import Choice, plan, properties_of
from blocklaws.spec_reading import load_spec
from blocklaws.subjects import Subject
from blocklaws.worlds import Example, Recipe


class Recorder:
    """The NumPy backend, noting who is called."""

    dtypes = ("float64", "float32", "float16")

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self._events = name, events
        self._right = find_subjects("numpy")[0].backend

    def build(self, config, parameters, dtype):
        built = self._right.build(config, parameters, dtype)

        def noted(method: Callable) -> Callable:
            def call(*arguments, **options):
                self._events.append(self.name)
                return method(*arguments, **options)

            return call

        for name in ("forward", "trace", "gradients", "forward_cached"):
            setattr(built, name, noted(getattr(built, name)))
        return built


@pytest.mark.parametrize("pattern", ["normal", "huge", "extreme-scores"])
@pytest.mark.parametrize(
    ("invariant", "block", "dtype"),
    [
        ("output-parity", "llama", "float32"),
        ("output-parity", "llama", "float16"),
        ("stage-parity", "llama", "float32"),
        ("stage-parity", "llama", "float16"),
        ("gradient-parity", "original", "float32"),
    ],
)
def test_the_reference_is_asked_last(invariant: str, block: str, dtype: str, pattern: str) -> None:
    """Fails when an expected value, or whether a world is finite, is computed before the block's last call."""
    events: list[str] = []
    spec = load_spec(None)
    subject = Subject(Recorder("block", events), "block")
    reference = Subject(Recorder("reference", events), "reference")
    cases = plan(spec, [subject], Choice((block,), (dtype,), (invariant,)), reference)
    properties = properties_of(case.invariant for case in cases)
    for case in cases:
        events.clear()
        properties[case.invariant.property_name].examine(case, Example(Recipe(case.menu[1], pattern, 5), {}))
        assert "block" in events
        after = events[events.index("reference") :] if "reference" in events else []
        assert "block" not in after
