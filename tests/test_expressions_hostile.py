"""An expression from a stranger: it reaches nothing, and it ends soon, in a clear error.

Every text here is refused with one of the two errors of the language, within a second and without much memory.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from blocklaws.expressions import (
    EvaluationError,
    ExpressionError,
    Tolerance,
    Vocabulary,
    evaluate,
    judge,
    parse,
    parse_index,
)
from blocklaws.expressions.parsing import MAX_DEPTH, MAX_ITEMS, MAX_NODES
from blocklaws.expressions.scanning import MAX_BRACKETS, MAX_TEXT
from blocklaws.expressions.signatures import SIGNATURES

VOCABULARY = Vocabulary(sizes=frozenset({"B", "T", "d_model", "norm", "bias"}), picks=frozenset({"p"}))
TOLERANCE = Tolerance(rtol=1e-3, atol=1e-6)
X = np.random.default_rng(3).normal(size=(2, 5, 6))
WORLD: dict[tuple[str, ...], Any] = {
    ("input",): X,
    ("output",): X + 1,
    ("B",): 2,
    ("T",): 5,
    ("d_model",): 6,
    ("norm",): "rms",
    ("bias",): False,
    ("p",): 3,
    ("parameters",): {"attention.query": X[0]},
}

#: Seconds. Most of these take a millisecond.
SOON = 1.0


@contextmanager
def soon() -> Iterator[None]:
    """Fail when the block computes for longer than a second; waiting for other processes does not count."""
    start = time.process_time()
    yield
    assert time.process_time() - start < SOON


ATTRIBUTE_TRICKS = [
    "output.__class__",
    "output.__class__.__mro__[1].__subclasses__()",
    "().__class__.__bases__[0]",
    "''.__class__",
    "(1).__class__",
    "[].append",
    "output.tofile('x')",
    "output.data",
    "output.ctypes",
    "output.dtype.type",
    "output.shape.__len__()",
    "output.base",
    "parameters.keys()",
    "T.real",
    "abs.__globals__",
    "identical.__code__",
    "abs.__self__",
    "gradient.__class__",
    "after.__dict__",
    "attention.__class__",
    "attention_norm.gain.__class__",
    "sum(output).__class__",
    "(output @ output).T.__class__",
    "output.__getattribute__('shape')",
]
CALL_TRICKS = [
    "__import__('os').system('true')",
    "eval('1')",
    "exec('1')",
    "open('x')",
    "getattr(output, 'shape')",
    "globals()",
    "vars()",
    "type(output)",
    "print(1)",
    "breakpoint()",
    "compile('1', 'x', 'eval')",
    "abs(abs)",
    "abs(x := 1)",
    "sum(*[output])",
    "sum(**{})",
    "sum(x for x in output)",
    "(lambda: 1)()",
    "output()",
    "output[0]()",
    "'abs'(1)",
    "(abs)(1)(2)",
    "np.load('x')",
    "numpy.save('x', output)",
    "__builtins__",
    "__name__",
    "_",
    "__debug__",
]
FORM_TRICKS = [
    "[x for x in output]",
    "{1: 2}",
    "{1}",
    "f'{output}'",
    "f'{output!r:>{9999}}'",
    "b'a'",
    "r'a'",
    "u'a'",
    "'a' 'b' + 'c' if 'a' else x",
    "lambda x: x",
    "yield 1",
    "await output",
    "async for",
    "import os",
    "p = 1",
    "p := 1",
    "(p := 1)",
    "del p",
    "print(1); print(2)",
    "1\n2",
    "*output",
    "(*output,)",
    "[*output]",
    "output if 1",
    "1 if else 2",
    "`ls`",
    "$HOME",
    "output; 1",
    "# nothing",
    "output # and identical(output, input)",
    "output \\\n input",
    "'\\x5f\\x5fclass'",
    "T is None",
    "T <> 1",
    "T & 1",
    "T | 1",
    "T ^ 1",
    "~T",
    "1 << 62",
    "T >> 1",
    "T!",
    "T?",
    "1j",
    "0777",
    "1__0",
    "1e",
    "0x",
    "...",
    "print 1",
    "nonlocal T",
    "output[",
    "output]",
    ")(",
    "'",
    '"""',
    "'''a",
    "T = = 2",
]
CHARACTER_TRICKS = [
    "\x00",
    "T\x00 >= 2",
    "T >= 2\x00",
    "\x1b[31mT",
    "T\x07",
    "T\x7f",
    "T\u00a0>= 2",
    "T\u2028>= 2",
    "\u043eutput",  # Cyrillic o
    "\uff54",  # fullwidth t, which Python reads as t
    "\u1d62nput",  # subscript i, which Python reads as i
    "output\u200b",
    "\u202eoutput",
    "out\u00adput",
    "'\u00e9'",
    "\ud800",
    "\U0001f600",
    "\ufeffT",
    "x\x85y",
]
SIZE_TRICKS = [
    "(" * 10_000 + "1" + ")" * 10_000,
    "[" * 500 + "]" * 500,
    "(" * 1900,
    "-" * 1990 + "1",
    "not " * 490 + "bias",
    "+".join("1" * 990),
    "**".join("2" * 600),
    "1 if 1 else " * 150 + "1",
    "abs(" * 400,
    "abs(" * 200 + "1" + ")" * 200,
    "T" + ".shape" * 330,
    "output" + "[0]" * 600,
    "output" + ".a" * 900,
    "[" + "1," * 990 + "]",
    "T<" * 990 + "T",
    "a." * 900 + "a",
    "9" * 1999,
    "1" + "_0" * 900,
    "1" + "e9" * 900,
    "x" * 1999,
    "'" * 1999,
    "lambda:" * 280,
    "1 " * 990,
    "=" * 1999,
    "." * 1999,
    "," * 1999,
    ":" * 1999,
    "*" * 1999,
    "T" * MAX_TEXT + "T",
    " " * 3000,
    "x" * 100_000_000,
    "(" * 100_000_000,
]


@pytest.mark.parametrize("text", ATTRIBUTE_TRICKS + CALL_TRICKS + FORM_TRICKS + CHARACTER_TRICKS)
def test_what_is_not_listed_cannot_be_said(text: str) -> None:
    """Fails if an attribute, a call, a form or a character outside the language gets through."""
    with soon(), pytest.raises(ExpressionError) as caught:
        parse(text, VOCABULARY)
    assert 1 <= caught.value.column <= len(text) + 1
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable() or "\n" in text


@pytest.mark.parametrize("text", SIZE_TRICKS, ids=lambda text: f"{text[:12]}-{len(text)}")
def test_size_and_depth_end_in_an_error(text: str) -> None:
    """Fails if a large or deep text crashes the parser, runs long, or is quoted whole."""
    with soon(), pytest.raises(ExpressionError) as caught:
        parse(text, VOCABULARY)
    assert len(str(caught.value)) < 2500
    with soon(), pytest.raises(ExpressionError):
        parse_index(text, VOCABULARY)


@pytest.mark.parametrize("thing", [None, 1, True, 2.5, [], {}, ["T"], b"T", object(), ["x"] * 10])
def test_only_text_is_read(thing: Any) -> None:
    """Fails if a YAML list or number ends in a traceback."""
    with pytest.raises(ExpressionError, match="an expression is a text, this is a"):
        parse(thing, VOCABULARY)


def test_the_limits_are_where_they_are_said_to_be() -> None:
    """Fails if a documented limit is not the one that is kept."""
    parse("(" * MAX_BRACKETS + "1" + ")" * MAX_BRACKETS, VOCABULARY)
    parse("[" + "1," * MAX_ITEMS + "]", VOCABULARY)
    parse("T" + " " * (MAX_TEXT - 1), VOCABULARY)
    parse("-" * (MAX_DEPTH - 1) + "1", VOCABULARY)
    with pytest.raises(ExpressionError, match=f"brackets nest deeper than {MAX_BRACKETS}"):
        parse("(" * (MAX_BRACKETS + 1) + "1" + ")" * (MAX_BRACKETS + 1), VOCABULARY)
    with pytest.raises(ExpressionError, match=f"at most {MAX_ITEMS} are allowed"):
        parse("[" + "1," * (MAX_ITEMS + 1) + "]", VOCABULARY)
    with pytest.raises(ExpressionError, match=f"at most {MAX_TEXT} are allowed"):
        parse("T" * (MAX_TEXT + 1), VOCABULARY)
    with pytest.raises(ExpressionError, match=f"nests deeper than {MAX_DEPTH}"):
        parse("-" * MAX_DEPTH + "1", VOCABULARY)
    row = "(" + ",".join("1" * 60) + ")"
    with pytest.raises(ExpressionError, match=f"more than {MAX_NODES} parts"):
        parse("(" + ",".join([row] * 11) + ")", VOCABULARY)


EXPENSIVE = [
    "9**9**9",
    "2**63",
    "(-2)**64",
    "10**18 * 10**18",
    "9223372036854775807 + 1",
    "-9223372036854775807 - 2",
    "'a' * 1000000000",
    "norm * 1000000000",
    "'a' + 'b'",
    "'%s' % 1",
    "[1] * 1000000000",
    "(1, 2) * T",
    "arange(10**18)",
    "arange(-2**62, 2**62)",
    "arange(10**18, 0, -1)",
    "arange(0, 10, 0)",
    "zeros((10**9,))",
    "zeros((100000, 100000))",
    "zeros((1,) * 9)",
    "zeros((1, 1, 1, 1, 1, 1, 1, 1, 1))",
    "zeros((-1, 5))",
    "zeros(10**18)",
    "zeros((10**18, 10**18))",
    "ones((4000, 4000))",
    "eye(10**6)",
    "causal(10**6, 10**6)",
    "repeat(input, 10**9, 0)",
    "repeat(zeros((0,)), -1, 0)",
    "tile(input, 10**9, 0)",
    "take(input, arange(5000000) * 0, 0)",
    "stack([zeros(1000000)] * 2)",
    "zeros(1000000)[:, None] + zeros(1000000)",
    "where(zeros((4000, 1)), zeros((1, 4000)), 0)",
    "minimum(zeros((4000, 1)), zeros((1, 4000)))",
    "scale_rows(zeros((4000, 1)), zeros((1, 4000)))",
    "zeros((4000, 1)) == zeros((1, 4000))",
    "zeros((4000, 1)) @ zeros((1, 4000))",
    "zeros((9000000, 1, 1)) @ zeros((1, 1))",
    "erf(zeros(9000000))",
    "gelu(zeros(9000000))",
    "sin(zeros(9000000) + 1e300)",
    "concatenate([" + "zeros(9000000)," * 30 + "])",
    "+".join(["zeros(9000000)"] * 40),
    "(" + ",".join(["zeros(9000000)"] * 40) + ")",
    "zeros(9000000) if " + " + ".join(["sum(zeros(9000000))"] * 20) + " > 0 else 1",
    "input[10**30]",
    "input[::0]",
    "input[None, None, None, None, None, None]",
    "input[0, 0, 0, 0]",
    "input['a']",
    "input[True]",
    "input[input]",
    "input[(0, 1),]",
    "input.shape[9]",
    "'abc'[0]",
    "parameters['attention.query']",
    "reshape(input, (1,) + (2,))",
    "reshape(input, (7, -1))",
    "reshape(input, (1, 1, 1, 1, 1, 1, 1, 1, -1))",
    "transpose(input, (0, 0, 1))",
    "roll(input, 10**30, 0)",
    "tril(input, 10**30)",
    "slice(0, 1, 0)",
    "replace(input, output, token=0)",
    "replace(input, 'a', token=0)",
    "without(input, token=10**30)",
    "softmax('a')",
    "sum(parameters)",
    "sum(norm)",
    "sum([[1], [1, 2]])",
    "sum([input, output])",
    "mean(slice(0, 1))",
    "astype(input, 'object')",
    "astype(input, input)",
    "len(5)",
    "names(input)",
    "rotary(input, arange(9), 10, 'half')",
    "rotary(input, arange(5), -1, 'half')",
    "rotary(input, arange(5), 10, 'other')",
    "identical(norm, 'rms')",
    "identical(T >= 1, True)",
    "(T >= 1) + 1",
    "close(input, output, times=1/0)",
    "close(input, output, times=input)",
    "(T > 1) == (T > 1)",
    "1 < 'a'",
    "None < 1",
    "[input] == [input]",
]


@pytest.mark.parametrize("text", EXPENSIVE, ids=lambda text: text[:40])
def test_cost_is_bounded_before_it_is_paid(text: str) -> None:
    """Fails if an expression of a few characters can take much time or memory, or end in a traceback."""
    with soon(), pytest.raises((EvaluationError, ExpressionError)) as caught:
        evaluate(parse(text, VOCABULARY), WORLD, TOLERANCE)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text",
    [
        "sum(zeros(9000000) + 1)",
        "erf(zeros(1900000))",
        "softmax(zeros((3000, 2500)))",
        "rotary(zeros((1500, 1000)), arange(1500), 10000.0, 'half')",
        "identical(zeros(4500000), ones(4500000))",
        "close(zeros(4500000), ones(4500000))",
        "zeros((700, 700)) @ zeros((700, 700)) + zeros((700, 700)) @ zeros((700, 700))",
        "zeros((1000000, 1, 1)) @ zeros((1, 1))",
        "permute(zeros(9000000), 0, flip(arange(9000000), 0))",
        " + ".join(["sum(zeros(1000000) ** 0.3)"] * 6),
        "sin(zeros(2000000) + 1e300)",
    ],
)
def test_the_dearest_expressions_that_are_allowed_are_quick(text: str) -> None:
    """Fails if an operation costs more than the budget counts for it."""
    with soon():
        evaluate(parse(text, VOCABULARY), WORLD, TOLERANCE)


def test_memory_stays_small() -> None:
    """Fails if the dearest allowed expression takes more than a gigabyte."""
    probe = (
        "import resource\n"
        "from blocklaws.expressions import Tolerance, Vocabulary, evaluate, parse\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for text in ('close(zeros(6000000), ones(6000000))', 'softmax(zeros((3000, 3000)))',\n"
        "             '+'.join(['zeros(9000000)'] * 30), 'erf(zeros(1900000))',\n"
        "             '(' + ','.join(['zeros(9000000)'] * 9) + ')'):\n"
        "    try:\n"
        "        evaluate(parse(text, Vocabulary()), {}, Tolerance(1e-3, 1e-6))\n"
        "    except Exception as refusal:\n"
        "        assert type(refusal).__name__ == 'EvaluationError', refusal\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert peak - before < 1_000_000, peak - before\n"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_nothing_warns() -> None:
    """Fails if dividing by zero or the mean of nothing prints a warning, which our tests make an error."""
    for text in (
        "input / 0",
        "0 * input / 0",
        "log(input - 10)",
        "sqrt(-1)",
        "exp(input * 1e9)",
        "mean(input[:0])",
        "var(input[:0], axis=0)",
        "astype(input * 1e300, 'float16')",
        "astype(input / 0, 'int64')",
        "(input * 1e300) ** 9",
        "1e308 * 10",
        "1 / 0",
        "0 / 0",
        "1e308 ** 2",
        "(-1) ** 0.5",
        "softmax(input * (1 / 0))",
        "norm(input * 1e308)",
        "close(input / 0, output / 0)",
        "identical(input / 0, -output / 0)",
        "5.0 % 0",
        "input // 0.0",
    ):
        evaluate(parse(text, VOCABULARY), WORLD, TOLERANCE)


class Trap(np.ndarray[Any, Any]):
    """An array whose operators would run code of its own."""

    def __array_ufunc__(self, *arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("code of an array ran")

    def __array_function__(self, *arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("code of an array ran")

    def __eq__(self, other: object) -> Any:
        raise AssertionError("code of an array ran")


def test_arrays_that_a_block_returns_run_no_code() -> None:
    """Fails if a block can pass by returning an array that says it is equal to everything."""
    trap = X.view(Trap)
    for text in ("identical(output, input)", "close(output + 1, input)", "finite(output)", "all(output == input)"):
        judge(parse(text, VOCABULARY), {**WORLD, ("output",): trap}, TOLERANCE)


@pytest.mark.parametrize(
    "thing",
    [np.array([object()]), np.array(["a"]), np.array([1j]), object(), {"a": object()}, {1, 2}, lambda: 1, b"a"],
    ids=lambda thing: type(thing).__name__,
)
def test_what_is_no_value_is_refused(thing: Any) -> None:
    """Fails if an object with code of its own comes into the language through the scope."""
    with pytest.raises(EvaluationError, match="is no value of the language"):
        evaluate(parse("output", VOCABULARY), {("output",): thing})


WORDS = [
    *("input", "output", "T", "p", "parameters", "norm", "0", "1", "2.5", "'token'", "None", "True", "-1", "x", "..."),
    *(" + ", " * ", " @ ", " ** ", " == ", " < ", " and ", " or ", "not ", "(", ")", "[", "]", ", ", ":", ".shape"),
    *(" if ", " else ", " in ", "axis=", ".", "'", *(f"{name}(" for name in SIGNATURES)),
]


@pytest.mark.parametrize("seed", range(20))
def test_random_texts_end_in_a_value_or_in_one_of_the_two_errors(seed: int) -> None:
    """Fails if some text ends in another exception, a warning, or late."""
    chance = random.Random(seed)
    for _ in range(100):
        text = "".join(chance.choice(WORDS) for _ in range(chance.randint(1, 12)))
        with soon(), suppress(ExpressionError, EvaluationError):
            evaluate(parse(text, VOCABULARY), WORLD, TOLERANCE)


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_function_takes_every_kind_of_value_or_refuses_it(name: str) -> None:
    """Fails if an argument of the wrong kind ends in a traceback."""
    signature = SIGNATURES[name]
    needed = max(1, sum(parameter.required for parameter in signature.parameters))
    kinds = ["input", "T", "2.5", "-1", "'token'", "None", "True", "(1, 2)", "()", "parameters", "slice(0, 1)"]
    kinds += ["T > 1", "input[:0]", "input > 0", "1 / 0", "0 / 0", "[input, output]", "astype(input, 'bfloat16')"]
    optional = [parameter.name for parameter in signature.parameters if not parameter.required]
    for kind in kinds:
        for other in kinds:
            arguments = ", ".join([kind] + [other] * (needed - 1))
            for more in ("", *(f", {word}={other}" for word in optional)):
                text = f"{name}({arguments}{more})"
                with suppress(ExpressionError, EvaluationError):
                    evaluate(parse(text, VOCABULARY), WORLD, TOLERANCE)
