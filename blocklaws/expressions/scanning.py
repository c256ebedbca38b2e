"""The first look at the text of an expression, before Python's parser sees it.

Must hold: what passes is short printable ASCII made of the language's own characters and words, with shallow brackets,
so that the parser can neither crash, nor be slow, nor be fooled by a lookalike letter. Must not raise anything but
`ExpressionError`, whatever it is given.
"""

from __future__ import annotations

import keyword
import re
import unicodedata

from blocklaws.errors import did_you_mean
from blocklaws.expressions.problems import ExpressionError

__all__ = ["MAX_BRACKETS", "MAX_TEXT", "scan"]

#: The longest text, in characters. The longest expression of our own spec has under 200.
MAX_TEXT = 2000
#: How deep brackets may nest: Python's parser gives up at 200, and nobody can read 30.
MAX_BRACKETS = 30

#: Python's keywords that are also ours.
KEYWORDS = frozenset({"and", "or", "not", "if", "else", "in", "True", "False", "None"})

_TOKEN = re.compile(
    r"""(?P<space>[ ]+)
      | (?P<string>"[^"]*"|'[^']*')
      | (?P<number>(?:\d[\d_]*\.(?!\.)\d*|\.\d+|\d[\d_]*)(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<operator>\*\*|//|==|!=|<=|>=|\.\.\.|[-+*/%@<>=()\[\],.:])""",
    re.VERBOSE,
)

_INSTEAD = {
    "&": "use 'and' between judgements, or * between arrays of truth values",
    "|": "use 'or' between judgements, or maximum of two arrays of truth values",
    "~": "use 'not'",
    "^": "use ** for a power",
    "!": "use 'not', or != to compare",
    "#": "comments belong outside the expression",
    "\\": "strings have no escapes",
    "{": "there are no sets, dictionaries or formatted strings",
    "}": "there are no sets, dictionaries or formatted strings",
    ";": "write one expression",
}
_INSTEAD_OF_WORD = {
    "is": "use ==",
    "lambda": "there are no functions but the listed ones",
    "for": "there are no comprehensions",
}


def scan(text: object) -> str:
    """Return the text with line breaks and tabs as spaces, one for one, so that columns stay true.

    >>> scan("T >= 2")
    'T >= 2'

    Raises:
        ExpressionError: it is not a text, is empty or too long, or has a character, word or nesting that is not ours.
    """
    if not isinstance(text, str):
        hint = "write it in quotes" if isinstance(text, (dict, list)) else "write it as text"
        raise ExpressionError(f"an expression is a text, this is a {type(text).__name__}; {hint}", 1, repr(text)[:50])
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the text has {len(text)} characters, at most {MAX_TEXT} are allowed", 1, text)
    flat = text.replace("\n", " ").replace("\r", " ").replace("\t", " ")
    if not flat.strip():
        raise ExpressionError("the expression is empty", 1, text)
    for position, character in enumerate(flat):
        if not " " <= character <= "~":
            name = unicodedata.name(character, "a control character")
            raise ExpressionError(
                f"character U+{ord(character):04X} ({name}) is not part of the language, which is plain ASCII",
                position + 1,
                ascii(text[: MAX_TEXT // 4]),
            )
    _tokens(flat)
    return flat


def _tokens(text: str) -> None:
    """Look at each token in turn: its characters, its word, and the brackets around it."""
    position, depth, previous = 0, 0, ""
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            _refuse_character(text, position)
            return
        kind, token = match.lastgroup, match.group()
        if kind == "word" and keyword.iskeyword(token) and token not in KEYWORDS:
            hint = _INSTEAD_OF_WORD.get(token, "")
            message = f"the word {token!r} is not part of the language" + (f"; {hint}" if hint else "")
            raise ExpressionError(message, position + 1, text)
        if kind == "string" and "\\" in token:
            _refuse_character(text, position + token.index("\\"))
        if kind == "string" and previous == "word":
            raise ExpressionError("a string has no prefix; write it as 'word' alone", position + 1, text)
        if token in ("(", "["):
            depth += 1
            if depth > MAX_BRACKETS:
                raise ExpressionError(f"brackets nest deeper than {MAX_BRACKETS}", position + 1, text)
        elif token in (")", "]"):
            depth -= 1
        elif token == "=" and depth == 0:
            raise ExpressionError("'=' is not part of the language; write == to compare", position + 1, text)
        previous = kind or ""
        position = match.end()


def _refuse_character(text: str, position: int) -> None:
    character = text[position]
    if character in "\"'":
        raise ExpressionError(f"the string that begins here has no closing {character}", position + 1, text)
    hint = _INSTEAD.get(character, "")
    message = f"the character {character!r} is not part of the language" + (f"; {hint}" if hint else "")
    raise ExpressionError(message, position + 1, text)


def suggestion(word: str, known: list[str]) -> str:
    """Return the hint for a word that is too long to have been meant, or the nearest known one."""
    return did_you_mean(word, known) if len(word) <= 80 else ""
