"""The report as data: axes called by what a claim compares, places, the order of the matrix, mistakes of a spec, stale
known failures under filters.

Must hold: nothing in a report names a folder of the machine, unless the user's own spec lies there; a mistake of the
spec is told once, and what was left out of a run is not called stale.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces_support import invoke, write_broken, write_right, write_spec

import blocklaws
from blocklaws.claim_axes import axes_of_claim, axes_of_stage, numbered
from blocklaws.discovery import find_subjects
from blocklaws.expressions import Vocabulary, identical, parse
from blocklaws.failure_text import shown_place
from blocklaws.localising import axis_pattern
from blocklaws.versions import versions_of

STREAM = ("batch", "token", "feature")
VOCABULARY = Vocabulary(
    sizes=frozenset({"T", "n_heads", "norm"}), picks=frozenset({"p", "j"}), variants=frozenset({"after"})
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- axes ---


@pytest.mark.parametrize(
    ("text", "rank", "names"),
    [
        ("identical(after.output[:, :p], output[:, :p])", 3, STREAM),
        ("differs(after.output[:, p], output[:, p])", 2, ("batch", "feature")),
        ("differs(output[..., 0], 1)", 2, ("batch", "token")),
        ("identical(without(after.attention_norm, token=j), without(attention_norm, token=j))", 3, STREAM),
        ("calibrated(attention_weights, reference.attention_weights, recipe.attention_weights)", 4,
         ("batch", "head", "query", "key")),
        ("identical(where(causal(T, T), 0, attention_weights), 0)", 4, ("batch", "head", "query", "key")),
        ("close(sum(attention_weights, 'key'), 1)", 3, ("batch", "head", "query")),
        ("close(mean(attention_norm ** 2, -1), 1)", 2, ("batch", "token")),
        ("close(norm(query, 'feature', True), 1)", 4, ("batch", "head", "token", "feature")),
        ("close(query[:, :, 0], split_heads(matmul(attention_norm, attention.query), n_heads)[:, :, 0])", 3,
         ("batch", "head", "feature")),
        ("all(attention_weights >= 0)", 4, ("batch", "head", "query", "key")),
        ("close(swap(key, 1, 2), 0)", 4, ("batch", "token", "head", "feature")),
        ("identical(gradient.input[:, p:], 0)", 3, STREAM),
        ("close(gradient.feed_forward.down, 0)", 2, ("row", "column")),
        ("close(gradient.attention_norm.gain, 0)", 1, ("feature",)),
        ("close(transpose(output), 0)", 3, STREAM),  # not followed: three axes are most likely a stream
        ("close(stack([output, input]), 0)", 4, numbered(4)),
    ],
)  # fmt: skip
def test_axes_have_the_names_of_what_is_compared(text: str, rank: int, names: tuple[str, ...]) -> None:
    """Fails when an index is told along an axis that it does not belong to."""
    assert axes_of_claim(parse(text, VOCABULARY), text, rank) == names


def test_a_part_of_a_clause_has_its_own_axes() -> None:
    """Fails when the axes are those of another claim of the same line."""
    clause = parse("identical(output, input) and close(sum(attention_weights, 'key'), 1)", VOCABULARY)
    assert axes_of_claim(clause, "close(sum(attention_weights, 'key'), 1)", 3) == ("batch", "head", "query")
    assert axes_of_claim(clause, "identical(output, input)", 3) == STREAM


def test_axes_without_a_clause_or_of_a_set() -> None:
    """Fails when a claim of a Python property, or one about a set of parameters, is told without names."""
    assert axes_of_claim(None, "the block is the same twice", 3) == STREAM
    assert axes_of_claim(None, "anything", 2) == ("axis 0", "axis 1")
    assert axes_of_claim(None, "gradients", 2, "attention.query") == ("row", "column")
    assert axes_of_stage("attention_weights", 4) == ("batch", "head", "query", "key")
    assert axes_of_stage("attention_weights", 3) == numbered(3)


def test_every_claim_of_the_spec_about_numbers_is_followed() -> None:
    """Fails when a function of the language is not followed, and claims that use it are told as axis 0."""
    from blocklaws.claim_axes import _readings
    from blocklaws.expressions import tree
    from blocklaws.spec_reading import built_in_spec

    counted = ("parameters", ".shape", "same_dtype", "names(", "shares_memory")
    for invariant in built_in_spec().invariants.values():
        for clause in invariant.clauses:
            text = clause.expression.text
            if not any(word in text for word in counted) and not text.startswith(("close(mean", "close(feed", "not ")):
                root = clause.expression.root
                # Of a choice between two claims one is made.
                made = (root.yes, root.no) if isinstance(root, tree.Choice) else (root,)
                for claim in (text[node.start : node.end] for node in made):
                    assert any(_readings(clause.expression, claim)), f"{clause.place}: {claim}"


def test_a_failure_names_heads_queries_and_keys() -> None:
    """Fails when weights are told as if they were tokens and features."""
    backend = find_subjects("numpy")[0].with_fault("mask-missing").backend
    report = blocklaws.verify(
        backend, blocks=["llama"], dtypes=["float64"], invariants=["future-weights-are-zero"], profile="quick"
    )
    (result,) = report.failures
    assert "head=" in result.worst
    assert "query=" in result.worst
    assert "key=" in result.worst
    assert "query 0" in result.pattern


@pytest.mark.parametrize(
    ("names", "wrong", "said"),
    [
        (("query", "key"), ([1, 3], [1, 3]), "queries 1, 3, keys 1, 3 (2 of 4 there)"),
        (("query", "key"), ([2, 3], [0, 1]), "queries >= 2, keys <= 1 (2 of 4 there)"),
        (("batch", "token"), ([0, 1], [2, 2]), "batches <= 1, token 2"),
        (("axis 0", "axis 1"), ([1, 2], [3, 3]), "axis 0: 1 to 2, axis 1: 3"),
    ],
)
def test_a_pattern_is_told_in_words_that_exist(
    names: tuple[str, ...], wrong: tuple[list[int], list[int]], said: str
) -> None:
    """Fails when several queries are told as querys, or an axis without a name as if its number were a word."""
    mask = np.zeros((4, 5), bool)
    mask[wrong] = True
    assert axis_pattern(mask, names) == said


def test_a_nan_is_not_told_as_if_it_were_expected() -> None:
    """Fails when two NaNs are told as a value that was got and should have been, or the worst element hides why."""

    def broken(x: np.ndarray, parameters: object, config: object) -> np.ndarray:
        return np.full_like(x, np.nan)

    report = blocklaws.verify(
        broken, blocks=["llama"], dtypes=["float32"], invariants=["no-call-remembers-another"], profile="quick"
    )
    (result,) = report.failures
    for text in (result.worst, result.reason):
        assert "nan, neither is finite, so no difference can be told" in text
        assert "difference| nan" not in text


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        (np.nan, 1.0, "what was got is not finite, so no difference can be told"),
        (1.0, np.nan, "what was expected is not finite, so no difference can be told"),
        (np.nan, np.inf, "neither is finite, so no difference can be told"),
    ],
)
def test_the_side_that_is_not_finite_is_told(got: float, want: float, said: str) -> None:
    """Fails when a reader cannot see which of two values is the broken one."""
    judgement = identical(np.array([got]), np.array([want]))
    assert judgement.detail.endswith(f"got {got!r}, want {want!r}, {said}")


def test_a_nan_that_others_are_held_against_is_the_blocks_own(tmp_path: Path) -> None:
    """Fails when a claim whose measure is the block's own output is called a mistake of the spec where that is NaN."""

    def broken(x: np.ndarray, parameters: object, config: object) -> np.ndarray:
        return np.full_like(x, np.nan)

    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "extends: blocklaws\ninvariants:\n  - id: own-measure\n    says: Twice the same.\n"
        "    then: calibrated(again.output, output, recipe.output)\n    refuted_by: [dropout-in-eval]\n",
        encoding="utf-8",
    )
    choice: dict[str, Any] = {"spec": spec, "blocks": ["llama"], "invariants": ["own-measure"], "profile": "quick"}
    (result,) = blocklaws.verify(broken, dtypes=["float32"], **choice).cases
    assert result.verdict == "violated"
    assert result.reason.startswith("output, where the reference is finite: ")
    assert "are not finite" in result.reason


@pytest.mark.parametrize(
    ("claim", "changed", "said"),
    [
        ("apart(after.output, output)", "0 * input", "both sides are 0, and they should differ by more than "),
        ("differs(after.output, output)", "0 * input", "both sides are 0, and they should differ ("),
        ("apart(after.output, output)", "1.000001 * input", " differ by "),
    ],
)
def test_a_claim_that_two_differ_does_not_expect_what_was_got(
    folder: Path, claim: str, changed: str, said: str
) -> None:
    """Fails if "got 0.7, expected 0.7" is said of two that are equal and should not be."""
    text = f"""
extends: blocklaws
invariants:
  - id: another-output
    says: Another input gives another output.
    vary: {{input: "{changed}"}}
    then: {claim}
    refuted_by: [batch-mixed]
"""
    write_spec(folder, text)

    def scaled(x: np.ndarray, parameters: object, config: object) -> np.ndarray:
        return x * np.float32(0 if changed.startswith("0") else 1)

    report = blocklaws.verify(
        scaled, spec="spec.yaml", blocks=["llama"], dtypes=["float32"], invariants=["another-output"], profile="quick"
    )
    (result,) = report.failures
    assert said in result.worst
    assert "expected" not in result.worst


# --- places ---


def test_the_built_in_spec_has_a_place_in_the_package(folder: Path) -> None:
    """Fails when a report of the built-in spec names a folder of the machine that made it."""
    name = write_broken(folder)
    invoke(
        "verify", name, "--block", "llama", "--dtype", "float64", "--invariant", "prefix-invariance",
        "--json", "report.json", "--profile", "quick",
    )  # fmt: skip
    text = (folder / "report.json").read_text(encoding="utf-8")
    (case,) = json.loads(text)["cases"]
    assert case["location"].startswith("blocklaws/spec/invariants.yaml:")
    assert case["clause_at"].startswith("blocklaws/spec/invariants.yaml:")
    assert str(Path(str(blocklaws.__file__)).parent.parent) not in text
    assert str(folder) not in text


def test_a_checkout_has_its_own_places(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Fails when whoever edits the spec cannot follow a place."""
    monkeypatch.chdir(root)
    assert shown_place(f"{root / 'spec' / 'invariants.yaml'}:7") == "spec/invariants.yaml:7"


def test_a_users_spec_keeps_a_place_that_can_be_followed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Fails when the place of a user's own invariant leads nowhere."""
    write_spec(folder)
    assert shown_place(f"{folder / 'spec.yaml'}:6:3") == "spec.yaml:6:3"
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "laws.yaml"
    assert shown_place(f"{elsewhere}:6") == f"{elsewhere}:6"
    assert shown_place("blocklaws/spec/invariants.yaml:6") == "blocklaws/spec/invariants.yaml:6"


# --- the matrix, and mistakes of a spec ---

MIXED = """\
menus:
  equal:
    - {B: 1, T: 2, n_heads: 1, d_head: 4, d_ff: 3}
invariants:
  - id: first
    says: The output is finite.
    blocks: [gpt]
    then: finite(output)
  - id: second
    says: The output is finite.
    then: finite(output)
"""

MISTAKEN = """\
menus:
  equal:
    - {B: 1, T: 2, n_heads: 1, d_head: 4, d_ff: 3}
invariants:
  - id: mistaken
    says: Asks for a token that is not there.
    then: identical(output[:, T + 5], output[:, 0])
"""


def test_the_matrix_is_in_the_order_of_the_spec(folder: Path) -> None:
    """Fails when an invariant that the first block does not have comes last."""
    write_spec(folder, MIXED)
    done = invoke("verify", write_right(folder), "--spec", "spec.yaml", "--block", "llama", "--block", "gpt")
    assert done.stdout.index("\nfirst (unproven)") < done.stdout.index("\nsecond (unproven)")


def test_a_mistake_of_the_spec_is_told_once(folder: Path) -> None:
    """Fails when one line that cannot be evaluated is told once a backend, block and dtype."""
    write_spec(folder, MISTAKEN)
    done = invoke(
        "verify", write_right(folder), write_broken(folder), "--spec", "spec.yaml", "--block", "llama", "--block", "gpt"
    )
    assert done.exit_code == 1
    assert done.stdout.count("ERROR mistaken") == 1
    assert done.stdout.count("spec.yaml:7:11: invariant 'mistaken'") == 1
    assert "  also     7 other cases with the same mistake of the spec" in done.stdout
    assert "             mistaken, broken, llama, float64\n" in done.stdout


# --- numbers and versions ---


def test_a_claim_of_difference_has_no_error(folder: Path) -> None:
    """Fails when two things that must differ, and do, are told as an error of that size."""
    backend = write_right(folder)
    for claim, errors in (("differs(output, 0)", [None, None]), ("close(output, output)", [0.0, None])):
        write_spec(folder, MIXED.replace("then: finite(output)", f"then: {claim}", 1))
        report = blocklaws.verify(backend, spec="spec.yaml", blocks=["gpt"], dtypes=["float32"])
        assert [(case.verdict, case.max_error) for case in report.cases] == [("holds", error) for error in errors]


def test_the_versions_are_those_that_a_backend_names(folder: Path) -> None:
    """Fails when a report does not say which framework its verdicts are about, or a wrong name ends a run."""
    write_right(folder)
    with (folder / "right.py").open("a", encoding="utf-8") as stream:
        stream.write("\n\nBackend.packages = ('pytest', 'no-such-package', '', 7)\n")
    report = blocklaws.verify("right.py:Backend", blocks=["llama"], invariants=["shape-preservation"], profile="quick")
    assert list(report.versions) == ["python", "numpy", "hypothesis", "pytest"]
    assert report.versions["pytest"] == pytest.__version__
    torch, jax, numpy = (versions_of([find_subjects(name)[0].backend]) for name in ("torch", "jax", "numpy"))
    assert "torch" in torch
    assert {"jax", "jaxlib"} <= set(jax)
    assert set(numpy) == {"python", "numpy", "hypothesis"}


# --- stale entries under filters ---


def stale(folder: Path, entry: str, *arguments: str) -> list[str]:
    """Return what is called stale in a run over a right backend."""
    write_spec(folder)
    (folder / "known.yaml").write_text(entry, encoding="utf-8")
    invoke(
        "verify", write_right(folder), "--spec", "spec.yaml", "--known-failures", "known.yaml", "--json", "report.json",
        "--profile", "quick", *arguments,
    )  # fmt: skip
    found: list[str] = json.loads((folder / "report.json").read_text(encoding="utf-8"))["stale_known_failures"]
    return found


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        ("- {invariant: no-look-ahead, block: gpt, reason: r}", ("--block", "llama")),
        ("- {invariant: no-look-ahead, dtype: float64, reason: r}", ("--block", "llama", "--dtype", "float32")),
        ("- {invariant: no-look-ahead, reason: r}", ("--block", "llama", "--invariant", "same-shape")),
        ("- {invariant: no-look-ahead, backend: torch, reason: r}", ("--block", "llama")),
        ("- {invariant: no-look-ahead, device: cuda, reason: r}", ("--block", "llama")),
        ("- {invariant: no-look-ahead, version: numpy < 1.0, reason: r}", ("--block", "llama")),
    ],
)
def test_what_was_left_out_is_not_stale(folder: Path, entry: str, arguments: tuple[str, ...]) -> None:
    """Fails when a list of known failures stops anybody from looking at a part of them."""
    assert stale(folder, entry + "\n", *arguments) == []


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        ("- {invariant: no-look-ahead, dtype: float63, reason: r}", ("--block", "llama")),
        ("- {invariant: no-look-ahead, block: llama, reason: r}", ("--block", "llama", "--invariant", "no-look-ahead")),
    ],
)
def test_what_was_asked_for_is_stale(folder: Path, entry: str, arguments: tuple[str, ...]) -> None:
    """Fails when a misspelt name, or a failure that is mended, goes unnoticed."""
    assert stale(folder, entry + "\n", *arguments)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            "- {invariant: prefix-invarance, reason: r}",
            "unknown invariant 'prefix-invarance' (did you mean 'prefix-invariance'?)",
        ),
        ("- {invariant: prefix-invariance, block: lama, reason: r}", "unknown block 'lama' (did you mean 'llama'?)"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(folder: Path, entry: str, told: str) -> None:
    """Fails when a misspelt name hides behind a filter."""
    (folder / "known.yaml").write_text(entry + "\n", encoding="utf-8")
    done = invoke("verify", "numpy", "--block", "llama", "--known-failures", "known.yaml")
    assert done.exit_code == 2
    assert told in done.stderr
