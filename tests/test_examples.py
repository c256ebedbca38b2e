"""The examples, run as a reader runs them, and refuted once they are broken as such code breaks.

Must hold: they need nothing from blocklaws, every block they claim is checked and holds, what they cannot do is
unchecked with a reason, and one wrong character in each is found. Those that stand on a runtime which `make test` does
not install are run where it is there: `make conformance` installs it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True)
class Example:
    """One example: what it is named by, what it can build, and an edit that makes it wrong.

    Attributes:
        source: the file that the edit is made in, where the backend is not all in one.
        imports: what it imports beside NumPy and the standard library.
    """

    file: str
    attribute: str
    blocks: frozenset[str]
    right: str
    wrong: str
    source: str = ""
    imports: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """Return the name that a test id shows."""
        return self.file.removesuffix(".py")


LLAMAS = frozenset({"llama", "llama-gqa", "plain"})
EXAMPLES = [
    # A mask one diagonal too far: each token sees the next one.
    Example("my_block.py", "MyBackend", LLAMAS, "bool), k=1)", "bool), k=2)"),
    # Key/value heads tiled over the query heads instead of repeated for neighbours.
    Example("plain_function.py", "block", LLAMAS | {"gpt", "original"}, "(np.repeat(heads,", "(tile(heads,"),
    # The running sum is not rescaled when a later tile raises the maximum: only inputs of several tiles show it.
    Example("tiled_block.py", "TiledBackend", LLAMAS - {"llama"}, "total = total * shrink", "total = total"),
    # Positions start again at each call: only the cache shows it.
    Example("c_block.py", "CBackend", LLAMAS, "position = offset + past + t", "position = offset + t", "c_block.c"),
    # The new rows of the mask start again at each call.
    Example(
        "onnx_block.py", "OnnxBackend", LLAMAS, "positions(past, tokens)", "positions(first, tokens)",
        imports=frozenset({"onnx", "onnxruntime"}),
    ),
    # The two ways to pair features, taken for each other.
    Example(
        "mlx_block.py", "MlxBackend", LLAMAS, 'rotary == "interleaved"', 'rotary == "half"',
        imports=frozenset({"mlx"}),
    ),
]  # fmt: skip
TILE_HELPER = "\n\ndef tile(heads, times, axis):\n    return np.concatenate([heads] * times, axis=axis)\n"

every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
every_installed_example = pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            example,
            id=example.id,
            marks=[
                pytest.mark.skipif(
                    importlib.util.find_spec(name) is None, reason=f"{name} is not installed; `make conformance` has it"
                )
                for name in sorted(example.imports)
            ],
        )
        for example in EXAMPLES
    ],
)


def verify(blocklaws: Any, named: str, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run ``blocklaws verify`` on a backend; return its exit status, its JSON report, and what it printed."""
    report = tmp_path / "report.json"
    done = blocklaws("verify", named, "--seed", "1", "--json", report, *options)
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed, printed
    assert report.exists(), printed
    return done.returncode, json.loads(report.read_text(encoding="utf-8")), printed


def test_no_example_is_forgotten(root: Path) -> None:
    """Fails when an example is added that nobody runs."""
    wrong_on_purpose = {"wrong_block.py"}  # the README shows how it fails, and test_documents.py runs that
    files = {path.name for path in (root / "examples").glob("*.py")}
    assert files == {example.file for example in EXAMPLES} | wrong_on_purpose


@every_example
def test_an_example_needs_nothing_from_blocklaws(root: Path, example: Example) -> None:
    """Fails when a reader who copies the file has to import something for it."""
    tree = ast.parse((root / "examples" / example.file).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"} | example.imports


@pytest.mark.slow
@every_installed_example
def test_an_example_holds(root: Path, blocklaws: Any, tmp_path: Path, example: Example) -> None:
    """Fails when an example that people copy is wrong, or when what it claims to build was never checked."""
    named = f"examples/{example.file}:{example.attribute}"
    status, report, printed = verify(blocklaws, named, tmp_path, "--profile", "quick")
    assert status == 0, printed
    assert report["summary"]["violated"] == report["summary"]["error"] == 0
    cases = report["cases"]
    assert {case["block"] for case in cases if case["verdict"] == "holds"} == example.blocks
    assert all(case["reason"] for case in cases if case["verdict"] == "unchecked")


@pytest.mark.slow
@every_installed_example
def test_a_broken_example_is_refuted(root: Path, blocklaws: Any, tmp_path: Path, example: Example) -> None:
    """Fails when the example above holds because nothing was looked at."""
    broken = tmp_path / (example.source or example.file)
    source = (root / "examples" / broken.name).read_text(encoding="utf-8")
    assert source.count(example.right) == 1, "the edit must be of one place; adapt it to the example"
    if broken.name != example.file:
        shutil.copy(root / "examples" / example.file, tmp_path)
    broken.write_text(source.replace(example.right, example.wrong), encoding="utf-8")
    with (tmp_path / example.file).open("a", encoding="utf-8") as file:
        file.write(TILE_HELPER)
    status, report, printed = verify(blocklaws, f"{tmp_path / example.file}:{example.attribute}", tmp_path)
    assert status == 1, printed
    violated = [case for case in report["cases"] if case["verdict"] == "violated"]
    assert violated, printed
    assert all(case["counterexample"] and case["replay"] for case in violated)


@pytest.mark.slow
def test_a_size_that_an_example_refuses_is_not_drawn(blocklaws: Any, tmp_path: Path) -> None:
    """Fails when `multiples` is not listened to, so that a kernel is handed sizes that it has said it cannot run."""
    _, report, printed = verify(
        blocklaws, "examples/tiled_block.py:TiledBackend", tmp_path, "--block", "plain", "--profile", "quick"
    )
    refused = [case for case in report["cases"] if "must be a" in (case["reason"] or "")]
    assert refused == [], printed
