"""The command that verifies published libraries: what it installs and runs, what its page says, and that it is never
lenient.
"""

from __future__ import annotations

import json
import sys
import tomllib
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


def reported(cases: dict[str, Any], **parts: Any) -> Any:
    """Return what the run of a library left, as far as the page reads it."""
    from reports import LibraryReport

    return LibraryReport(cases, **parts)


def library(name: str = "torch", **changes: Any) -> Any:
    from libraries import Library

    given = {"says": "PyTorch's own layer", "install": ("torch==2.13.0",), "versions": ("torch", "numpy")}
    return Library(name, **{**given, "mappings": ("torch_encoder.yaml",), **changes})


def test_every_mapping_is_verified_by_one_library() -> None:
    """Fails if a mapping is added and no library's environment ever runs it."""
    from libraries import load_libraries

    verified = [mapping for one in load_libraries().values() for mapping in one.mappings]
    assert sorted(verified) == sorted(path.name for path in MAPPINGS.glob("*.yaml"))


def test_every_test_that_make_test_skips_runs_in_an_environment_that_has_its_library() -> None:
    """Fails if a layer or an example needs a library that `make test` does not install, and its tests run nowhere."""
    import test_examples
    import test_mapped_frameworks
    from libraries import load_libraries

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]["test"][0].partition("[")[2].strip("]").split(",")
    libraries = load_libraries().values()
    ran = {(file, one.name): one.named for one in libraries for file in one.tests}
    for one in libraries:
        needed = {requirement.partition("==")[0] for requirement in one.install} - {"numpy"}
        for mapping in one.mappings if needed - set(extras) else ():
            assert ran["test_mapped.py", one.name] in mapping
            for name, layer in test_mapped_frameworks.LAYERS.items():
                assert layer.file != mapping or ran["test_mapped_frameworks.py", one.name] in name
    for example in test_examples.EXAMPLES:
        if example.imports:
            [one] = [one for one in libraries if f"examples/{example.file}:{example.attribute}" in one.backends]
            assert ran["test_examples.py", one.name] in example.id


RIGHT = "{says: x, versions: [torch], install: [torch==2], mappings: [torch_encoder.yaml]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch: ]", "1:8: not valid YAML: "),
        ("- torch", "1:1: the libraries must be a mapping (key: value), but here is a list"),
        ("torch: torch==2", "1:8: torch must be a mapping (key: value), but here is 'torch==2'"),
        (RIGHT.replace("says: x, ", ""), "1:8: torch has no 'says', which it must have"),
        (RIGHT.replace("install: [torch==2], ", ""), "1:8: torch has no 'install', which it must have"),
        (
            RIGHT.replace("versions", "version"),
            "1:18: torch has an unknown key 'version' (did you mean 'versions'?); the keys are says, install, ",
        ),
        (RIGHT.replace("==2", ">=2"), "torch: install: 'torch>=2' has no exact version; write name==version"),
        (RIGHT.replace("[torch==2]", "torch==2"), "torch: install must be a list, but here is 'torch==2'"),
        (RIGHT.replace("_encoder", "_decoder"), "torch: mappings: backends/mappings has no 'torch_decoder.yaml'"),
        (
            RIGHT.replace(", mappings: [torch_encoder.yaml]", ""),
            "1:8: torch has neither 'mappings' nor 'backends': nothing would be verified",
        ),
        (RIGHT.replace("{says", "{tests: [test_none.py], says"), "torch: tests: tests has no 'test_none.py'"),
        (RIGHT.replace("{says", "{named: x, says"), "torch: named: chooses among 'tests', and there are none"),
        (RIGHT.replace("{says", "{constraints: none, says"), "must be true or false, but here is 'none'"),
        (
            RIGHT.replace("{says", "{variables: {XLA_FLAGS: 0}, says"),
            "1:32: torch: variables: XLA_FLAGS must be a text; write it in quotes",
        ),
    ],
)
def test_a_file_of_libraries_that_says_too_little_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Fails if two runs of one checkout could install different versions, or a misspelt key runs less."""
    from libraries import ConformanceError, load_libraries

    path = tmp_path / "libraries.yaml"
    path.write_text(text if text[0] != "{" else f"torch: {text}", encoding="utf-8")
    with pytest.raises(ConformanceError) as caught:
        load_libraries(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:1:")
    assert "\n" not in str(caught.value)


def test_the_page_tells_every_verdict() -> None:
    """Fails if a violation stands on the page without its number, or what was not checked looks like what holds."""
    from page import page

    text = page(
        {"torch": library(), "jax": library("jax")},
        {
            "torch": reported(
                report(
                    case(),
                    case("violated", "rounded twice", dtype="bfloat16"),
                    case("unchecked", invariant="cache-parity"),
                    case("unchecked", block="gpt"),  # a kind that the layer is not
                    case(invariant="prefix-invariance"),
                    case("unchecked", invariant="prefix-invariance", dtype="float64"),
                )
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
    assert "## Tests and whole models" not in text


def test_the_page_tells_what_else_ran() -> None:
    """Fails if the reader cannot know that the tests of a library and its whole models were run."""
    from page import page
    from reports import Tests

    models = report(case(block="A"), case("violated", "by design: it looks ahead", block="B"))
    text = page(
        {"torch": library(models="transformers-models"), "mlx": library("mlx", tests=("test_mapped.py",), named="mlx")},
        {"torch": reported(report(case()), models=models), "mlx": reported(report(case()), tests=Tests(3))},
    )
    assert "| mlx | 3 tests of `tests/test_mapped.py` with `mlx` in their names: all pass |" in text
    told = "2 classes, 2 cases: 1 hold, 1 violated (all explained), 0 unchecked, see [models.md](models.md)"
    assert f"| torch | `blocklaws verify transformers-models`: {told} |" in text


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
        page(
            {name: library(name) for name in reports or ("torch",)},
            {name: reported(one) for name, one in reports.items()},
        )
    assert str(caught.value) == message


def test_a_page_is_refused_where_a_test_or_a_model_did_not_do_as_it_should() -> None:
    """Fails if what ran beside the invariants can be bad and the page is written all the same."""
    from libraries import ConformanceError
    from page import page
    from reports import Tests

    chosen = {"torch": library(tests=("test_mapped.py",), models="transformers-models")}
    for parts, message in [
        ({"tests": Tests(2, 1)}, "the tests of torch: 2 passed, 1 failed, 0 skipped; all must run and pass"),
        ({"tests": Tests(2, 0, 1)}, "the tests of torch: 2 passed, 0 failed, 1 skipped; all must run and pass"),
        ({"tests": Tests()}, "the tests of torch: 0 passed, 0 failed, 0 skipped; all must run and pass"),
        ({"models": report(case("violated"))}, "output-parity on llama, layer[fast] has no explanation"),
        ({"models": report(sha="9876543210")}, "torch, torch: reports of different specs or profiles; run all"),
    ]:
        with pytest.raises(ConformanceError) as caught:
            page(chosen, {"torch": reported(report(case()), **parts)})
        assert str(caught.value) == message


def test_a_run_that_was_broken_off_counts_as_none(tmp_path: Path) -> None:
    """Fails if the page can join what two runs of a library left."""
    from libraries import ConformanceError
    from reports import Reports, Tests

    reports, chosen = Reports(tmp_path), {"torch": library(tests=("test_mapped.py",))}
    reports.verdicts("torch").write_text(json.dumps(report(case())), encoding="utf-8")
    assert reports.read(chosen) == {}
    reports.tests("torch").write_text("<testsuites><testsuite", encoding="utf-8")
    with pytest.raises(ConformanceError, match=r"^torch\.tests\.xml: not a report of pytest: "):
        reports.read(chosen)
    counts = '<testsuite tests="7" failures="1" errors="1" skipped="2"/>'
    reports.tests("torch").write_text(f"<testsuites>{counts}</testsuites>", encoding="utf-8")
    assert reports.read(chosen)["torch"].tests == Tests(passed=3, failed=2, skipped=2)
    reports.forget("torch")
    assert reports.read(chosen) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("def test_right(): pass", 0, "1 passed"),
        ("def test_wrong(): assert 1 == 2", 1, "1 failed"),
        (
            "def test_other(): import pytest; pytest.skip('not installed')",
            1,
            "1 test was skipped in the environment of",
        ),
        ("", 1, "no tests ran"),
    ],
    ids=["passed", "failed", "skipped", "none"],
)
def test_a_test_that_is_skipped_fails_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], body: str, status: int, told: str
) -> None:
    """Fails if a library that is not there after all makes its tests pass."""
    from run import run_tests

    file = tmp_path / "test_of_a_layer.py"
    file.write_text(body + "\n", encoding="utf-8")
    chosen = library(tests=(str(file),), named="test_" if body else "")
    assert run_tests(chosen, Path(sys.executable), tmp_path / "reports" / "torch.tests.xml") == status
    assert told in capfd.readouterr().out


def test_an_explanation_of_a_backend_that_nobody_has_is_told(tmp_path: Path) -> None:
    """Fails if an explanation outlives the mapping that it speaks of."""
    from run import of_nothing

    from blocklaws.known_failures import KnownFailures

    path = tmp_path / "explanations.yaml"
    entries = "- {invariant: x, backend: 'layer*', reason: y}\n- {invariant: x, backend: lair, reason: y}\n"
    path.write_text(entries, encoding="utf-8")
    told = of_nothing(KnownFailures.load(path), {"torch": reported(report(case()))})
    assert told == [f"{path}:2:3: no library has a backend 'lair'; remove the entry"]


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
    assert verify(chosen, chosen.names, Path(sys.executable), explanations, written) == 1
    told = capfd.readouterr().out
    assert "is listed as a known failure but holds; remove the entry" in told
    verdicts = {one["invariant"]: one["verdict"] for one in json.loads(written.read_text())["cases"]}
    assert verdicts["prefix-invariance"] == "violated"
