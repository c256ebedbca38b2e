"""The command that verifies published libraries: what it installs, what its page says, and that it is never lenient."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mapped_support import ENCODER, MAPPINGS, needs_torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the modules of the folder as its own script does."""
    monkeypatch.syspath_prepend(str(ROOT / "conformance"))


def case(verdict: str = "holds", known: str = "", **changes: Any) -> dict[str, Any]:
    """Return a case of a report, as far as the page reads it."""
    parts = {"invariant": "output-parity", "backend": "layer[fast]", "block": "llama", "dtype": "float32"}
    return {**parts, "verdict": verdict, "known": known, **changes}


def report(*cases: dict[str, Any], sha: str = "0123456789") -> dict[str, Any]:
    """Return a report, as far as the page reads it."""
    return {
        "spec": {"sha256": sha},
        "profile": "quick",
        "seed": 0,
        "versions": {"numpy": "2.4.6", "torch": "2.13.0"},
        "backends": [{"name": "layer[fast]"}],
        "cases": list(cases),
    }


def library(name: str = "torch", **changes: Any) -> Any:
    from libraries import Library

    given = {"says": "PyTorch's own layer", "install": ("torch==2.13.0",), "versions": ("torch", "numpy")}
    return Library(name, **{**given, "mappings": ("torch_encoder.yaml",), **changes})


def test_every_mapping_is_verified_by_one_library() -> None:
    """Fails if a mapping is added and no library's environment ever runs it."""
    from libraries import load_libraries

    verified = [mapping for one in load_libraries().values() for mapping in one.mappings]
    assert sorted(verified) == sorted(path.name for path in MAPPINGS.glob("*.yaml"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("install: [torch>=2]", "'torch>=2' has no exact version; write name==version"),
        ("install: [torch==2], pin: [x]", "unknown keys ['pin'], missing keys []"),
        ("", "missing keys ['install']"),
    ],
)
def test_a_library_that_says_too_little_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    """Fails if two runs of one checkout could install different versions."""
    from libraries import ConformanceError, load_libraries

    path = tmp_path / "libraries.yaml"
    rest = "says: x, versions: [x], mappings: [x.yaml]"
    path.write_text(f"torch: {{{', '.join(filter(None, [rest, entry]))}}}", encoding="utf-8")
    with pytest.raises(ConformanceError) as caught:
        load_libraries(path)
    assert message in str(caught.value)


def test_the_page_tells_every_verdict() -> None:
    """Fails if a violation stands on the page without its number, or what was not checked looks like what holds."""
    from page import page

    text = page(
        {"torch": library(), "jax": library("jax")},
        {
            "torch": report(
                case(),
                case("violated", "rounded twice", dtype="bfloat16"),
                case("unchecked", invariant="cache-parity"),
                case("unchecked", block="gpt"),  # a kind that the layer is not
                case(invariant="prefix-invariance"),
                case("unchecked", invariant="prefix-invariance", dtype="float64"),
            )
        },
    )
    assert "5 cases: 2 hold, 1 violated (and explained below), of 2 nothing is known." in text
    assert "| `layer[fast]` | torch 2.13.0, numpy 2.4.6 | llama | 2 | 1 | 2 |" in text
    assert "Not verified with this spec so far: jax." in text
    assert "1. rounded twice (1 case: layer[fast] bfloat16)" in text
    assert "| output-parity | 32 **b16** [1] |" in text
    assert "| prefix-invariance | 32 |" in text
    assert "cache-parity" not in text  # nothing was checked of it on any implementation


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        ({}, "there is no report; run a library first"),
        ({"torch": report(case("violated"))}, "output-parity on layer[fast], float32 has no explanation"),
        ({"torch": report(case("error"))}, "output-parity on layer[fast], float32 has no explanation"),
        (
            {"torch": report(case()), "jax": report(case(), sha="9876543210")},
            "torch, jax: reports of different specs or profiles; run all",
        ),
    ],
)
def test_a_page_that_would_not_be_true_is_refused(reports: dict[str, Any], message: str) -> None:
    """Fails if the page can hide a violation, or mix what two specs said."""
    from libraries import ConformanceError
    from page import page

    with pytest.raises(ConformanceError) as caught:
        page({name: library(name) for name in reports or ("torch",)}, reports)
    assert str(caught.value) == message


@needs_torch
@pytest.mark.slow
def test_a_violation_without_explanation_and_an_explanation_without_violation_fail(
    write: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fails if a library can break an invariant, or be mended, without the command noticing."""
    from run import verify

    broken = write(ENCODER[: ENCODER.index("variants:")], ("mask: {form: hide", "mask: {form: keep"))
    explanations = tmp_path / "explanations.yaml"
    explanations.write_text(
        "- {invariant: parameter-count, backend: torch_encoder, reason: it has one too many}\n", encoding="utf-8"
    )
    written = tmp_path / "reports" / "torch.json"
    chosen = library(mappings=(str(broken),), blocks=("gpt",), dtypes=("float32",))
    assert verify(chosen, Path(sys.executable), explanations, written) == 1
    told = capfd.readouterr().out
    assert "is listed as a known failure but holds; remove the entry" in told
    verdicts = {one["invariant"]: one["verdict"] for one in json.loads(written.read_text())["cases"]}
    assert verdicts["prefix-invariance"] == "violated"
