"""The expression language: what is read, what it means, how it judges, and that its documentation is true."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blocklaws.expressions as front_door
from blocklaws.errors import SpecError
from blocklaws.expressions import (
    Budget,
    EvaluationError,
    ExpressionError,
    Judgement,
    Tolerance,
    Vocabulary,
    calibrated,
    evaluate,
    judge,
    parse,
    parse_index,
)
from blocklaws.expressions.reference import MARKERS, function_tables
from blocklaws.expressions.registry import FUNCTIONS, function, show
from blocklaws.expressions.signatures import SIGNATURES
from blocklaws.spec_reading import load_spec

WORDS = frozenset(
    (
        *("B", "T", "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "group", "norm", "norm_eps", "placement"),
        *("feed_forward", "rotary", "rotary_base", "bias", "max_positions", "block", "dtype"),
    )
)
VOCABULARY = Vocabulary(sizes=WORDS, picks=frozenset({"p", "j"}))
TOLERANCE = Tolerance(rtol=1e-3, atol=1e-6, c=4.0, floor=1e-6)

B, T, D, HEADS, HEAD = 2, 5, 12, 3, 4
generator = np.random.default_rng(7)
X = generator.normal(size=(B, T, D))
Y = generator.normal(size=(B, T, D))
Q = generator.normal(size=(B, HEADS, T, HEAD))
VARIED = np.concatenate([Y[:, :3], Y[:, 3:] + 1], axis=1)
WORLD: dict[tuple[str, ...], Any] = {
    ("input",): X,
    ("output",): Y,
    ("after", "output"): VARIED,
    ("query",): Q,
    ("B",): B,
    ("T",): T,
    ("d_model",): D,
    ("n_heads",): HEADS,
    ("d_head",): HEAD,
    ("norm",): "rms",
    ("rotary",): None,
    ("bias",): False,
    ("p",): 3,
    ("j",): 1,
    ("position_offset",): 0,
    ("parameters",): {"attention.query": X[0], "attention.key": Y[0]},
    ("gradient", "parameters"): {"attention.query": X[0] * 2, "attention.key": Y[0] * 2},
    ("attention.query",): X[0],
}


def world(**changed: Any) -> dict[tuple[str, ...], Any]:
    """Return the world above with some plain names changed."""
    here = dict(WORLD)
    here.update({(name,): thing for name, thing in changed.items()})
    return here


def value(text: str, **changed: Any) -> Any:
    """Evaluate ``text`` in the world above."""
    return evaluate(parse(text, VOCABULARY), world(**changed), TOLERANCE)


def judged(text: str, **changed: Any) -> Judgement:
    """Judge ``text`` in the world above."""
    return judge(parse(text, VOCABULARY), world(**changed), TOLERANCE)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "references", "calls", "judges"),
    [
        (
            "identical(after.output[:, :p], output[:, :p])",
            {("after", "output"), ("output",), ("p",)},
            {"identical"},
            True,
        ),
        ("after.gradient.attention.query", {("after", "gradient", "attention.query")}, set(), False),
        ("attention_norm.gain", {("attention_norm.gain",)}, set(), False),
        ("attention_norm.shape == input.shape", {("attention_norm",), ("input",)}, set(), True),
        ("attention.query @ query", {("attention.query",), ("query",)}, set(), False),
        ("feed_forward == 'gelu'", {("feed_forward",)}, set(), True),
        ("feed_forward.gate.shape", {("feed_forward.gate",)}, set(), False),
        ("after.T + T", {("after", "T"), ("T",)}, set(), False),
        ("close(gradient.parameters, reference.gradient.parameters)", None, {"close"}, True),
        ("identical(passed.input, input)", {("passed", "input"), ("input",)}, {"identical"}, True),
        ("identical(cached.output, again.output)", {("cached", "output"), ("again", "output")}, {"identical"}, True),
        (
            "calibrated(query, reference.query, recipe.query)",
            {("query",), ("reference", "query"), ("recipe", "query")},
            {"calibrated"},
            True,
        ),
        ("not bias", {("bias",)}, set(), True),
        ("bias", {("bias",)}, set(), True),
        ("T >= 2 and norm == 'rms'", {("T",), ("norm",)}, set(), True),
        ("True if T > 1 else bias", {("T",), ("bias",)}, set(), True),
        ("1 if T > 1 else bias", {("T",), ("bias",)}, set(), False),
        ("all(input > 0)", {("input",)}, {"all"}, True),
        ("all(input > 0, axis='token')", {("input",)}, {"all"}, False),
        ("sum(input)", {("input",)}, {"sum"}, False),
        ("norm(input) > 0 and norm == 'rms'", {("input",), ("norm",)}, {"norm"}, True),
        ("0", set(), set(), False),
    ],
)
def test_reads(text: str, references: set[tuple[str, ...]] | None, calls: set[str], judges: bool) -> None:
    """Fails if a name resolves to the wrong thing, so that an invariant would need the wrong capability."""
    expression = parse(text, VOCABULARY)
    assert references is None or expression.references == references
    assert expression.calls == calls
    assert expression.is_judgement is judges


def test_every_name_resolves() -> None:
    """Fails if a stage, a parameter or a word of the config cannot be said in some run."""
    for name in (*VOCABULARY.stages, *VOCABULARY.parameters):
        for before in ("", "after.", "reference.", "recipe.", "gradient."):
            if before in ("gradient.", "reference.", "recipe."):
                known = VOCABULARY.parameters if before == "gradient." else VOCABULARY.stages
                if name not in known:
                    continue
            assert parse(before + name, VOCABULARY).references
    for name in WORDS:
        assert parse(name, VOCABULARY).references == {(name,)}


def test_equality_is_by_text() -> None:
    """Fails if two readings of one text count as two expressions."""
    one, other = parse("T >= 2", VOCABULARY), parse("T >= 2", Vocabulary(sizes=frozenset({"T"})))
    assert one == other
    assert hash(one) == hash(other)
    assert one != parse("T >= 3", VOCABULARY)


def test_columns_count_in_the_text_as_given() -> None:
    """Fails if leading spaces or a line break shift the place of an error."""
    assert parse("  T >=\n  after.T", VOCABULARY).columns == {("T",): 3, ("after", "T"): 10}
    with pytest.raises(ExpressionError) as caught:
        parse("  T >=\n  ouput", VOCABULARY)
    assert caught.value.column == 10


UNKNOWN = "after a value there is only .shape, .ndim, .size, .dtype"


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("identical(ouput, input)", "unknown name 'ouput' (did you mean 'output'?)", 11),
        ("identcal(output, input)", "unknown function 'identcal' (did you mean 'identical'?)", 1),
        ("attention.qery", "unknown name 'attention.qery' (did you mean 'attention.query'?)", 1),
        (
            "attention_norm.gian",
            f"attribute access '.gian' is not part of the language (did you mean 'attention_norm.gain'?); {UNKNOWN}",
            16,
        ),
        ("output.shap", f"attribute access '.shap' is not part of the language (did you mean 'shape'?); {UNKNOWN}", 8),
        ("output.__class__", f"attribute access '.__class__' is not part of the language; {UNKNOWN}", 8),
        (
            "output.T",
            "attribute access '.T' is not part of the language; use transpose(x) or swap(x, a, b)",
            8,
        ),
        ("identical", "'identical' is a function; call it: identical(a, b)", 1),
        ("output(1)", "'output' is a value, not a function", 1),
        ("passed", "'passed' is not a value by itself; it goes on as passed.input, passed.cotangent, ", 1),
        ("identical(output)", "identical is not given its argument 'b'; it is identical(a, b)", 1),
        (
            "close(output, input, tims=2)",
            "close has no argument 'tims' (did you mean 'times'?); it is close(a, b, times=1, terms=None)",
            22,
        ),
        ("finite(output, input)", "finite takes 1 positional argument, 2 were given; it is finite(x)", 1),
        (
            "close(1, 2, 3, times=2)",
            "close is given its argument 'times' twice; it is close(a, b, times=1, terms=None)",
            16,
        ),
        ("T = 2", "'=' is not part of the language; write == to compare", 3),
        ("T is 2", "the word 'is' is not part of the language; use ==", 3),
        ("lambda: 1", "the word 'lambda' is not part of the language; there are no functions but the listed ones", 1),
        ("a & b", "the character '&' is not part of the language; use 'and' between judgements, ", 3),
        ("T >= 2  # why", "the character '#' is not part of the language; comments belong outside the expression", 9),
        ("'rms", "the string that begins here has no closing '", 1),
        ("identical(*output)", "'*' before an argument is not part of the language", 11),
        ("close(**input)", "'**' before an argument is not part of the language", 7),
        ("1e999", "the number is too large", 1),
        ("2j", "a complex constant is not part of the language", 1),
        ("...", "'...' stands only in square brackets", 1),
        ("", "the expression is empty", 1),
        ("   ", "the expression is empty", 1),
        ("(T", "this is not an expression (", 1),
    ],
)
def test_refuses_with_the_nearest_right_word(text: str, message: str, column: int) -> None:
    """Fails if a mistake in a spec is reported without what was meant, or at the wrong place."""
    with pytest.raises(ExpressionError, match=re.escape(message)) as caught:
        parse(text, VOCABULARY)
    assert isinstance(caught.value, SpecError)
    assert caught.value.column == column
    assert caught.value.text == text


@pytest.mark.parametrize("word", ["output", "T", "1p", "p q", "lambda", "_p", "gradient", "ö", ""])
def test_picks_are_new_plain_words(word: str) -> None:
    """Fails if a pick can hide a stage, a size or a keyword."""
    with pytest.raises(SpecError, match="pick"):
        Vocabulary(sizes=frozenset({"T"}), picks=frozenset({word}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p:", slice(3, None)),
        (":p", slice(None, 3)),
        ("j", 1),
        ("-1", -1),
        ("1:T-1", slice(1, 4)),
        ("::2", slice(None, None, 2)),
    ],
)
def test_reads_an_index(text: str, expected: object) -> None:
    """Fails if `vary: {input: {tokens: "p:"}}` changes other tokens than it says."""
    assert evaluate(parse_index(text, VOCABULARY), WORLD) == expected


@pytest.mark.parametrize("text", ["p][0", "p:] + x[0", "p, j", "None", "...", "'p'", "", "p] or [1"])
def test_refuses_what_is_no_single_index(text: str) -> None:
    """Fails if a text can leave the brackets that are put around it."""
    with pytest.raises(ExpressionError):
        parse_index(text, VOCABULARY)


# --- meaning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("2 ** -1", 0.5),
        ("7 // 2 + 7 % 2", 4),
        ("-T", -5),
        ("T / 2", 2.5),
        ("1 / 0", float("inf")),
        ("input.shape", (B, T, D)),
        ("input.shape[-1]", D),
        ("input.ndim", 3),
        ("input.size", B * T * D),
        ("input.dtype", "float64"),
        ("input[0, -1, 2]", X[0, -1, 2]),
        ("'pre' if T > 9 else norm", "rms"),
        ("max([T, 2])", 5),
        ("maximum(T, 9)", 9),
        ("prod((B, T))", 10),
        ("names(parameters)", ("attention.query", "attention.key")),
        ("count(parameters)", 2 * T * D),
        ("shapes(parameters)", ((T, D), (T, D))),
        ("len(parameters)", 2),
    ],
)
def test_plain_values(text: str, expected: object) -> None:
    """Fails if a number, a word or a shape is not what Python and NumPy would give."""
    assert value(text) == expected
    assert type(value(text)) is type(expected) or isinstance(expected, np.floating)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("output + input * 2 - 1", Y + X * 2 - 1),
        ("input @ swap(output, 1, 2)", X @ Y.swapaxes(1, 2)),
        ("input[:, None, p:, ..., ::2]", X[:, None, 3:, ..., ::2]),
        ("where(input > 0, input, 0)", np.maximum(X, 0)),
        ("mean(input, axis='feature')", X.mean(2)),
        ("mean(input, axis=('batch', 'token'))", X.mean((0, 1))),
        ("var(input, axis='feature', keepdims=True)", X.var(2, keepdims=True)),
        ("sum(query, axis='head')", Q.sum(1)),
        ("softmax(query @ swap(query, 'token', 'feature'), axis='key')", None),
        ("merge_heads(query)", Q.transpose(0, 2, 1, 3).reshape(B, T, -1)),
        ("split_heads(input, n_heads)", X.reshape(B, T, HEADS, HEAD).transpose(0, 2, 1, 3)),
        ("repeat(query, 2, 'head')", Q.repeat(2, 1)),
        ("tile(query, 2, 'head')", np.tile(Q, (1, 2, 1, 1))),
        ("without(input, token=j)", np.delete(X, 1, 1)),
        ("without(input, token=slice(j, p), feature=-1)", np.delete(np.delete(X, [1, 2], 1), -1, 2)),
        ("only(query, head=1, key=0)", Q[:, 1:2, :, 0:1]),
        ("replace(input, 0, token=slice(p, None))", np.concatenate([X[:, :3], 0 * X[:, 3:]], 1)),
        ("permute(input, 'batch', [1, 0])", X[::-1]),
        ("take(input, [0, 0], 'token')", X[:, [0, 0]]),
        ("flip(input, 'token')", X[:, ::-1]),
        ("roll(input, 1, 'token')", np.roll(X, 1, 1)),
        ("transpose(query, (0, 2, 1, 3))", Q.transpose(0, 2, 1, 3)),
        ("concatenate([input, output], 'token')", np.concatenate([X, Y], 1)),
        ("stack([input, output])", np.stack([X, Y])),
        ("tril(ones((T, T)), -1)", np.tril(np.ones((T, T)), -1)),
        ("causal(2, 3, 1)", np.tril(np.ones((2, 3), bool), 1)),
        ("0 < arange(4) < 3", np.array([False, True, True, False])),
        ("scale_rows(input, input[..., 0])", X * X[..., :1]),
        ("norm(input, axis='feature')", np.linalg.norm(X, axis=2)),
        ("norm(input * 1e300) / 1e300", None),
        ("input != 1 / 0 - 1 / 0", np.zeros_like(X, bool)),
    ],
)
def test_arrays(text: str, expected: np.ndarray[Any, Any] | None) -> None:
    """Fails if a function differs from NumPy's of that name, or takes another axis than the one it was told."""
    found = value(text)
    assert np.isfinite(found).all()
    if expected is not None:
        assert np.asarray(found).dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rotary_turns_pairs_by_complex_multiplication(layout: str) -> None:
    """Fails if pairs, frequencies or the direction of the turn are not those of the design."""
    found = value(f"rotary(query, 3 + arange(T), 100.0, '{layout}')")
    half = HEAD // 2
    a, b = (Q[..., 0::2], Q[..., 1::2]) if layout == "interleaved" else (Q[..., :half], Q[..., half:])
    turns = np.exp(1j * (3 + np.arange(T))[:, None] * 100.0 ** (-2 * np.arange(half) / HEAD))
    turned = (a + 1j * b) * turns
    expected = np.empty_like(Q)
    if layout == "interleaved":
        expected[..., 0::2], expected[..., 1::2] = turned.real, turned.imag
    else:
        expected[..., :half], expected[..., half:] = turned.real, turned.imag
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_arithmetic_is_in_float64_and_moving_keeps_the_dtype(dtype: str) -> None:
    """Fails if a law is judged with the rounding of the dtype under test."""
    low = X.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    exact = low.astype(np.float64)
    for text in ("input + input", "input * 3.1", "mean(input, axis=2)", "exp(input)", "input @ swap(input, 1, 2)"):
        assert value(text, input=low).dtype == np.float64
    np.testing.assert_array_equal(value("input * 3.1", input=low), exact * 3.1)
    for text in (
        "input[:, 1:]",
        "without(input, token=0)",
        "replace(input, 0.1, token=0)",
        "reshape(input, (-1,))",
        "flip(input, 1)",
        "concatenate([input, input])",
    ):
        assert value(text, input=low).dtype == low.dtype
    assert judged("identical(input, astype(input, 'float64'))", input=low).holds
    assert not judged("same_dtype(input, astype(input, 'float64'))", input=low).holds
    assert value("input.dtype", input=low) == dtype


def test_a_name_is_asked_for_once_and_only_when_needed() -> None:
    """Fails if a block is run for a part of an expression that decides nothing."""
    asked: list[tuple[str, ...]] = []

    def scope(path: tuple[str, ...]) -> object:
        asked.append(path)
        return WORLD[path]

    expression = parse("(T > 9 and differs(output, input)) or norm == 'rms' or finite(query)", VOCABULARY)
    assert judge(expression, scope)
    assert asked == [("T",), ("norm",)]
    asked.clear()
    evaluate(parse("output if T > 1 else input", VOCABULARY), scope)
    assert asked == [("T",), ("output",)]
    asked.clear()
    evaluate(parse("output + output * output", VOCABULARY), scope)
    assert asked == [("output",)]


def test_what_the_scope_raises_passes_through() -> None:
    """Fails if "this block has no trace" is turned into a mistake of the spec."""

    class NoTrace(Exception):
        pass

    def scope(path: tuple[str, ...]) -> object:
        raise NoTrace(path)

    with pytest.raises(NoTrace):
        evaluate(parse("abs(query)", VOCABULARY), scope)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input @ output", "shapes (2, 5, 12) and (2, 5, 12) do not fit: 12 columns meet 5 rows"),
        ("1 + 2 * (input + query)", "shapes (2, 5, 12) and (2, 3, 5, 4) do not fit together"),
        ("input[:, 9]", "index 9 is out of bounds for axis 1 with size 5"),
        ("input[0.5]", "an index must be a whole number, got 0.5"),
        ("input[[0, 1]]", "an index is a whole number or a slice; to gather several, use take"),
        ("without(input, token=9)", "token=9 is out of range, there are 5"),
        ("without(input)", "name an axis and a place, such as token=j or token=slice(0, p)"),
        ("sum(input, axis='head')", "an array of rank 3 has no axis 'head', it has batch, token, feature"),
        ("sum(input[0], axis='token')", "an array of rank 2 has no axis names, write the axis as a number"),
        ("sum(input, axis=3)", "axis 3 is out of range for an array of rank 3"),
        ("(1, 2) + (3,)", "+ needs numbers or arrays, one side is a list; lists are not added or repeated"),
        ("'a' + norm", "+ needs numbers or arrays, one side is 'a'"),
        ("T // 0", "division of whole numbers by zero"),
        ("T and True", "expected a judgement or a truth value, got 5"),
        ("not input", "expected a judgement or a truth value, got an array of shape (2, 5, 12) (float64)"),
        ("(input > 0) and True", "an array of shape (2, 5, 12) (bool) is many truth values; say all(...) or any(...)"),
        ("norm < 3", "< orders numbers, not 'rms' and 3"),
        ("parameters == 1", "== does not compare 2 parameters; use identical, or 'and' and 'or'"),
        ("T in 3", "'in' needs a list on its right side, got 3"),
        ("after.T", "after.T has no value here"),
        ("input + parameters", "+ needs numbers or arrays, one side is 2 parameters"),
        ("astype(input, 'complex128')", "unknown dtype 'complex128'; expected one of "),
        ("split_heads(input, 5)", "does not split into 5 heads; expected [batch, token, heads d_head]"),
        ("permute(input, 0, [0, 0])", "order must name each of the 2 places once"),
        ("close(output, input, times=0)", "times must be a positive number, got 0"),
        ("max(zeros((0,)))", "has no largest or smallest value along an empty axis"),
        ("T.shape", "only an array has .shape, this is 5"),
    ],
)
def test_evaluation_errors_name_the_part_that_failed(text: str, message: str) -> None:
    """Fails if an author cannot see which part of an expression does not fit."""
    with pytest.raises(EvaluationError, match=re.escape(message)) as caught:
        value(text)
    assert caught.value.text in text
    assert text[caught.value.column - 1 :].startswith(caught.value.text)


def test_the_failing_part_is_the_innermost() -> None:
    """Fails if the whole expression is blamed for one of its parts."""
    with pytest.raises(EvaluationError) as caught:
        value("1 + 2 * (input + query)")
    assert (caught.value.text, caught.value.column) == ("input + query", 10)


def test_tolerances_are_asked_for_only_by_what_needs_them() -> None:
    """Fails if a `where` can depend on the tolerance of a dtype."""
    assert judge(parse("identical(input, input) and T > 1", VOCABULARY), WORLD)
    with pytest.raises(EvaluationError, match="there is no tolerance here"):
        judge(parse("close(input, input)", VOCABULARY), WORLD)


# --- judging --------------------------------------------------------------------------------------------------------


def changed(array: np.ndarray[Any, Any], place: tuple[int, ...], new: float) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy[place] = new
    return copy


def test_identical_fails_on_one_bit() -> None:
    """Fails if the last bit of one element can change unseen."""
    almost = changed(Y, (1, 2, 3), float(np.nextafter(Y[1, 2, 3], 9)))
    found = judged("identical(output, input)", output=almost, input=Y)
    assert not found.holds
    assert (found.worst, found.wrong, found.total) == ((1, 2, 3), 1, Y.size)
    assert (found.got, found.want) == (almost[1, 2, 3], Y[1, 2, 3])
    assert found.allowed == 0
    assert found.mask is not None
    assert found.mask.sum() == 1
    assert found.mask[1, 2, 3]
    low = Y.astype(ml_dtypes.bfloat16)
    bits = low.view(np.uint16).copy()
    bits[0, 0, 0] ^= 1
    assert not judged("identical(output, input)", output=low, input=bits.view(ml_dtypes.bfloat16))


def test_identical_overlooks_the_sign_of_zero_and_the_dtype_only() -> None:
    """Fails if x + 0 counts as a change, or float32 and float64 of one value as two."""
    assert judged("identical(output, input)", output=np.array([0.0, 1.0]), input=np.array([-0.0, 1.0], np.float32))
    tiny = np.array([5e-324, 1.0])
    assert not judged("identical(output, input)", output=tiny, input=np.array([0.0, 1.0]))


def test_identical_is_close_where_a_backend_is_not_deterministic() -> None:
    """Fails if such a backend is refuted by its last bits, or is let off altogether."""
    expression = parse("identical(output, input)", VOCABULARY)
    bound = TOLERANCE.atol + TOLERANCE.rtol * np.abs(Y).max(-1, keepdims=True)
    near, far = world(output=Y + 0.5 * bound, input=Y), world(output=Y + 10 * bound, input=Y)
    assert not judge(expression, near, TOLERANCE)
    assert judge(expression, near, TOLERANCE, exact=False)
    assert not judge(expression, far, TOLERANCE, exact=False)


def test_close_fails_at_ten_times_the_tolerance_and_holds_at_half() -> None:
    """Fails if the tolerance is not the one of the table: relative to the row, plus the absolute part."""
    scale = np.abs(Y).max(-1, keepdims=True)
    bound = TOLERANCE.atol + TOLERANCE.rtol * scale
    assert judged("close(output, input)", output=Y + 0.5 * bound, input=Y)
    assert not judged("close(output, input)", output=Y + 10 * bound, input=Y)
    assert judged("close(output, input, times=20)", output=Y + 10 * bound, input=Y)
    one = changed(Y, (0, 1, 2), float(Y[0, 1, 2] + 10 * bound[0, 1, 0]))
    found = judged("close(output, input)", output=one, input=Y)
    assert (found.holds, found.wrong, found.worst) == (False, 1, (0, 1, 2))
    assert found.difference is not None
    assert found.allowed is not None
    assert found.difference == pytest.approx(10 * found.allowed, rel=0.05)


def test_the_terms_of_a_sum_that_cancels_set_its_scale() -> None:
    """Fails if noise of terms that cancel is refuted, or the terms of one row excuse another."""
    terms = np.zeros_like(Y)
    terms[0, 1] = 1000.0
    noise = 500 * TOLERANCE.rtol
    there, elsewhere = (changed(Y, at, float(Y[at]) + noise) for at in ((0, 1, 2), (1, 0, 2)))
    assert not judged("close(output, input)", output=there, input=Y)
    assert judged("close(output, input, terms=query)", output=there, input=Y, query=-terms)
    assert not judged("close(output, input, terms=query)", output=elsewhere, input=Y, query=terms)
    with pytest.raises(EvaluationError, match="terms have rows of"):
        judged("close(output, input, terms=query)", output=there, input=Y, query=terms[0])


def test_apart_begins_where_ten_times_close_ends() -> None:
    """Fails if what is neither close nor apart passes for either."""
    bound = TOLERANCE.atol + TOLERANCE.rtol * np.abs(Y).max(-1, keepdims=True)
    assert not judged("apart(output, input)", output=Y + 5 * bound, input=Y)
    assert judged("apart(output, input)", output=Y + 15 * bound, input=Y)
    assert not judged("close(output, input)", output=Y + 5 * bound, input=Y)


def test_an_infinite_value_is_close_to_itself_alone() -> None:
    """Fails if infinity stretches the bound of its row until everything in it is close."""
    spoiled = changed(Y, (0, 0, 0), np.inf)
    found = judged("close(output, input)", output=spoiled, input=Y)
    assert (found.holds, found.wrong) == (False, 1)
    beside = changed(spoiled, (0, 0, 1), 99.0)
    assert judged("close(output, input)", output=beside, input=spoiled).wrong == 1
    assert judged("close(output, input)", output=spoiled, input=spoiled)
    assert not judged("close(output, -input)", output=spoiled, input=spoiled)
    assert not judged("close(output, input, times=1e300)", output=spoiled, input=changed(Y, (0, 0, 1), 1e300))


def test_calibrated_follows_the_error_of_the_recipe() -> None:
    """Fails if a candidate ten times worse than the recipe is let through, or one as good is refused."""
    recipe = Y.astype(ml_dtypes.bfloat16).astype(np.float64)
    text = "calibrated(output, input, query)"
    assert judged(text, output=recipe, input=Y, query=recipe)
    worse = Y + 10 * np.abs(recipe - Y).max()
    assert not judged(text, output=worse, input=Y, query=recipe)
    assert calibrated(recipe, Y, recipe, TOLERANCE)
    # An exact recipe leaves the floor, relative to the row of the reference.
    floor = TOLERANCE.floor * np.abs(Y).max(-1, keepdims=True)
    assert judged(text, output=Y + 0.5 * floor, input=Y, query=Y)
    assert not judged(text, output=Y + 10 * floor, input=Y, query=Y)


@pytest.mark.parametrize(
    ("dtype", "flushed", "told"),
    [("float64", 1e-301, 1e-299), ("float32", 1e-31, 1e-29), ("bfloat16", 1e-31, 1e-29), ("float16", 0.0, 1e-7)],
)
def test_what_underflows_may_be_zero(dtype: str, flushed: float, told: float) -> None:
    """Fails if a processor that flushes subnormal numbers is accused, or zeros pass for what can be told from zero."""
    tolerance = dataclasses.replace(TOLERANCE, underflow=load_spec().tolerances[dtype].underflow)
    zeros, ones = np.zeros_like(Y), np.ones_like(Y)
    assert calibrated(zeros, ones * flushed, ones * flushed, tolerance)
    assert not calibrated(zeros, ones * told, ones * told, tolerance)


@pytest.mark.parametrize(("spoiled", "name"), [("input", "reference"), ("query", "recipe")])
def test_calibrated_needs_a_finite_reference_and_recipe(spoiled: str, name: str) -> None:
    """Fails if a recipe that overflowed allows everything, or it is not told which of the two did."""
    with pytest.raises(EvaluationError, match=f"1 of {Y.size} elements of what stands for the {name} are not finite"):
        judged("calibrated(output, input, query)", **{"input": Y, "query": Y, spoiled: changed(Y, (0, 0, 0), np.inf)})


def test_differs_needs_one_element_and_everywhere_needs_all() -> None:
    """Fails if an example in which nothing changed counts as informative."""
    one = changed(Y, (0, 1, 2), 9.0)
    assert judged("differs(output, input)", output=one, input=Y)
    found = judged("differs(output, input)", output=Y, input=Y)
    assert (found.holds, found.wrong, found.total) == (False, Y.size, Y.size)
    assert not judged("differs_everywhere(output, input)", output=one, input=Y)
    assert judged("differs_everywhere(output, input)", output=Y + 1, input=Y)
    tokens = judged("differs_everywhere(output, input, axis='token')", output=one, input=Y)
    assert (tokens.holds, tokens.wrong, tokens.total) == (False, T - 1, T)
    assert tokens.mask is not None
    assert tokens.mask.any(axis=(0, 2)).tolist() == [True, False, True, True, True]
    assert judged("differs_everywhere(after.output[:, p:], output[:, p:], axis='token')")


def test_finite_fails_on_one_element() -> None:
    """Fails if one infinity or NaN among many numbers is overlooked."""
    assert judged("finite(output)")
    for bad in (np.inf, -np.inf, np.nan):
        assert judged("finite(output)", output=changed(Y, (1, 0, 0), bad)).worst == (1, 0, 0)


def test_shape_and_dtype() -> None:
    """Fails if a wrong shape or dtype goes unseen."""
    assert judged("same_shape(output, input)")
    assert not judged("same_shape(output, query)")
    assert judged("same_dtype(output, input)")
    assert not judged("same_dtype(output, input)", input=X.astype(np.float32))


def test_memory_judgements_see_slices_of_one_matrix() -> None:
    """Fails if parameters that are views of one array pass for separate, or disjoint columns for shared."""
    fused = np.zeros((D, 2 * D))
    columns = {"attention.query": fused[:, :D], "attention.key": fused[:, D:]}
    assert judged("distinct_storage(parameters)", parameters=columns)
    tied = {**columns, "attention.value": fused[1:, D - 1 :]}
    found = judged("distinct_storage(parameters)", parameters=tied)
    assert not found.holds
    assert "attention.query and attention.value share memory" in found.detail
    assert judged("shares_memory(output, input)", output=fused[1:], input=fused)
    assert not judged("shares_memory(output, input)", output=fused.copy(), input=fused)


PAIRWISE = ["identical", "close", "differs", "apart", "differs_everywhere"]


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("negated", ["", "not "])
@pytest.mark.parametrize("sides", ["left", "right", "both"])
def test_nan_satisfies_no_judgement(name: str, negated: str, sides: str) -> None:
    """Fails if NaN is a wildcard, on either side, plain or under `not`."""
    spoiled = changed(Y, (0, 0, 0), np.nan)
    left, right = (Y if sides == "right" else spoiled), (Y if sides == "left" else spoiled)
    assert not judged(f"{negated}{name}(output, input)", output=left, input=right)
    several = {"attention.query": left, "attention.key": X}
    others = {"attention.query": right, "attention.key": Y}
    if name != "differs_everywhere":
        here = {**WORLD, ("parameters",): several, ("gradient", "parameters"): others}
        expression = parse(f"{negated}{name}(parameters, gradient.parameters)", VOCABULARY)
        assert not judge(expression, here, TOLERANCE)


def test_nan_in_a_candidate_is_never_calibrated() -> None:
    """Fails if NaN passes the calibrated bound."""
    assert not judged("calibrated(output, input, input)", output=changed(X, (0, 0, 0), np.nan))


@pytest.mark.parametrize("symbol", ["==", "!=", "<", "<=", ">", ">="])
def test_nan_makes_every_comparison_false(symbol: str) -> None:
    """Fails if a claim about a number holds because the number is NaN."""
    for text in (f"1/0 - 1/0 {symbol} 1", f"not 1/0 - 1/0 {symbol} 1", f"any(input * 0 / 0 {symbol} 1)"):
        assert not judged(text)


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("negated", ["", "not "])
def test_shapes_that_differ_are_a_failed_judgement(name: str, negated: str) -> None:
    """Fails if a block with a wrong shape stops the run, or passes by broadcasting."""
    found = judged(f"{negated}{name}(output, input)", output=Y[:, :1], input=Y)
    assert not found.holds
    assert "(2, 1, 12)" in found.detail
    assert "(2, 5, 12)" in found.detail


def test_a_number_goes_with_any_shape() -> None:
    """Fails if `identical(attention_branch, 0)` cannot be said."""
    assert judged("identical(output, 0)", output=np.zeros((2, 3)))
    assert judged("identical(output, 0)", output=changed(np.zeros((2, 3)), (1, 1), 1.0)).wrong == 1


def test_nothing_to_compare_shows_in_the_total() -> None:
    """Fails if an empty comparison cannot be told from a real one, or counts as a difference."""
    found = judged("identical(output, input)", output=Y[:0], input=Y[:0])
    assert (found.holds, found.total) == (True, 0)
    assert judged("close(output, input) and finite(output)", output=Y[:0], input=Y[:0]).total == 0
    assert not judged("differs(output, input)", output=Y[:0], input=Y[:0])
    assert not judged("apart(output, input)", output=Y[:0], input=Y[:0])


def test_sets_of_parameters_are_judged_name_by_name() -> None:
    """Fails if one wrong or missing parameter hides among right ones."""
    here = dict(WORLD)
    text = parse("identical(gradient.parameters, parameters)", VOCABULARY)
    right = {"attention.query": X[0], "attention.key": Y[0]}
    here["gradient", "parameters"] = right
    assert judge(text, here).total == 2 * X[0].size
    here["gradient", "parameters"] = {**right, "attention.key": Y[0] + 1}
    found = judge(text, here)
    assert (found.holds, found.name) == (False, "attention.key")
    assert found.detail.startswith("attention.key: 60 of 60 elements wrong")
    del here["gradient", "parameters"]["attention.key"]
    assert judge(text, here).detail == "the two sets differ in attention.key"


def test_logic_keeps_the_judgement_that_decides() -> None:
    """Fails if a report shows another clause than the one that failed."""
    found = judged("T > 1 and identical(output, input) and finite(output)")
    assert found.claim == "identical(output, input)"
    assert judged("T > 9 or p > 9").detail == "left is 5, right is 9; left is 3, right is 9"
    assert judged("not T > 1").detail == "T > 1 holds"
    assert judged("bias or norm == 'rms'").claim == "norm == 'rms'"
    assert judged("norm in ('rms', 'layer') and rotary == None and T not in (1, 2)")
    found = judged("p == T")
    assert (found.got, found.want, found.difference) == (3, 5, 2)


def test_all_and_any_point_at_an_element() -> None:
    """Fails if a false element cannot be found again."""
    found = judged("all(output < 9)", output=changed(Y, (1, 4, 7), 10.0))
    assert (found.worst, found.wrong) == ((1, 4, 7), 1)
    assert not judged("any(output > 99)")
    assert value("any(output > 99, axis='feature')").shape == (B, T)


def test_a_judgement_holds_how_near_it_came() -> None:
    """Fails if a report cannot show the largest error of a case that holds."""
    bound = TOLERANCE.atol + TOLERANCE.rtol * np.abs(Y).max(-1, keepdims=True)
    found = judged("close(output, input)", output=Y + 0.5 * bound, input=Y)
    assert found.difference is not None
    assert found.allowed is not None
    assert found.difference / found.allowed == pytest.approx(0.5, rel=0.01)
    assert (found.detail, found.mask) == ("", None)


def test_judgements_and_errors_survive_pickling() -> None:
    """Fails if a verdict cannot come back from a worker."""
    found = pickle.loads(pickle.dumps(judged("identical(output, input)")))
    assert found.mask.shape == Y.shape
    error = pickle.loads(pickle.dumps(ExpressionError("unknown name 'x'", 3, "T x")))
    assert (str(error), error.column) == ("unknown name 'x', at column 3 of \"T x\"", 3)
    failure = pickle.loads(pickle.dumps(EvaluationError("no", 3, "x")))
    assert (str(failure), failure.column) == ('no, in "x" at column 3', 3)


def test_the_budget_is_the_callers() -> None:
    """Fails if a caller with larger worlds cannot allow them, or with smaller ones forbid them."""
    expression = parse("sum(input)", VOCABULARY)
    with pytest.raises(EvaluationError, match="takes more than 10 element operations"):
        evaluate(expression, WORLD, budget=Budget(work=10))
    with pytest.raises(EvaluationError, match="at most 10 are allowed"):
        evaluate(parse("input + 1", VOCABULARY), WORLD, budget=Budget(elements=10))


# --- the list, the documentation, the front door ----------------------------------------------------------------------

MODULES = [
    importlib.import_module(f"blocklaws.expressions.{module.name}")
    for module in pkgutil.iter_modules(front_door.__path__)
]
DOCUMENT = Path(__file__).parents[1] / "docs" / "expressions.md"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[1])
def test_examples_are_true(module: Any) -> None:
    """Fails if an example in a docstring no longer gives what it shows."""
    assert doctest.testmod(module, extraglobs={"show": show}).failed == 0


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_function_has_one_line_and_an_example(name: str) -> None:
    """Fails if a function of the list is undocumented."""
    documentation = FUNCTIONS[name].call.__doc__ or ""
    assert re.match(r".{10,}\.\n", documentation), "the first line is one sentence"
    examples = doctest.DocTestParser().get_examples(documentation)
    assert any(f"{name}(" in example.source for example in examples)


def test_the_list_is_closed() -> None:
    """Fails if a function can be added without being listed, or listed with other arguments than it has."""
    assert set(FUNCTIONS) == set(SIGNATURES)
    with pytest.raises(TypeError, match=re.escape("system(command) is not on the list")):

        @function()
        def system(command: object) -> None: ...

    with pytest.raises(TypeError, match=re.escape("finite(y) is not on the list")):

        @function()
        def finite(y: object) -> None: ...


def test_documentation_lists_the_functions() -> None:
    """Fails if docs/expressions.md and the docstrings of the functions say different things."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = MARKERS
    assert text.count(begin) == text.count(end) == 1
    between = text.split(begin)[1].split(end)[0].strip()
    assert between == function_tables().strip(), "run: python -m blocklaws.expressions.reference docs/expressions.md"


def test_documentation_examples_are_read() -> None:
    """Fails if an example of the documentation is not an expression."""
    blocks = re.findall(r"```expression\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) > 10
    for line in lines:
        parse(line, VOCABULARY)


def test_front_door() -> None:
    """Fails if a listed name is not there."""
    assert len(set(front_door.__all__)) == len(front_door.__all__)
    for name in front_door.__all__:
        assert getattr(front_door, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        front_door.nothing  # noqa: B018


@pytest.mark.parametrize(("planted", "status"), [("", 0), ("import numpy; ", 3)])
def test_reading_imports_no_numpy(planted: str, status: int) -> None:
    """Fails if a spec cannot be read without NumPy; the planted import shows that the probe can fail."""
    probe = (
        f"{planted}import sys; from blocklaws.expressions import Vocabulary, parse; "
        "parse('close(output, input)', Vocabulary()); sys.exit(3 * ('numpy' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == status
