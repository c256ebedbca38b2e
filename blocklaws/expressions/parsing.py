"""From a text to a checked tree. A spec may come from a stranger: what is not on the list is an error, never a call.

Must hold: every node kind, name, attribute, function and argument is compared with a list; anything else ends in an
`ExpressionError` with its column. Must not import NumPy, and must not evaluate: this module reads only.
"""

from __future__ import annotations

import ast
import dataclasses
import warnings
from collections.abc import Mapping

from blocklaws.expressions import tree
from blocklaws.expressions.problems import ExpressionError
from blocklaws.expressions.scanning import MAX_TEXT, scan, suggestion
from blocklaws.expressions.signatures import SIGNATURES
from blocklaws.expressions.vocabulary import ATTRIBUTES, Vocabulary, table_of, unknown_attribute, unknown_name

__all__ = ["MAX_DEPTH", "MAX_ITEMS", "MAX_NODES", "MAX_TEXT", "Expression", "parse", "parse_index"]

#: Parts of one expression, and how deep they may nest: both far above what can be read.
MAX_NODES = 600
MAX_DEPTH = 60
#: Items of one tuple or list.
MAX_ITEMS = 64
#: Whole numbers stay within 64 bits, here and in every result.
INTEGER_LIMIT = 2**63

UNARY: Mapping[type[ast.unaryop], str] = {ast.USub: "-", ast.UAdd: "+", ast.Not: "not"}
BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
}
COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}

#: Functions that judge only when they are given no axis.
JUDGING_WITHOUT_AXIS = ("all", "any")
#: Config fields that are true or false.
TRUTHS = ("bias",)


@dataclasses.dataclass(frozen=True)
class Expression:
    """A text that was read and found to be of the language. Equal and hashed by its text.

    Attributes:
        text: as it was given.
        root: the checked tree; positions in it count in ``text``.
        references: the paths it mentions: ``("after", "output")``, ``("attention.query",)``, ``("p",)``.
        calls: the functions it calls.
        is_judgement: whether it gives a judgement or a truth value, as far as can be seen without running it.
        columns: path -> the column, from 1, where it is first mentioned.
    """

    text: str
    root: tree.Node = dataclasses.field(compare=False, repr=False)
    references: frozenset[tree.Path] = dataclasses.field(compare=False, repr=False)
    calls: frozenset[str] = dataclasses.field(compare=False, repr=False)
    is_judgement: bool = dataclasses.field(compare=False, repr=False)
    columns: Mapping[tree.Path, int] = dataclasses.field(compare=False, repr=False)


def parse(text: str, vocabulary: Vocabulary) -> Expression:
    """Read an expression.

    >>> sizes = Vocabulary(sizes=frozenset({"T"}), picks=frozenset({"p"}))
    >>> sorted(parse("identical(after.output[:, :p], output[:, :p])", sizes).references)
    [('after', 'output'), ('output',), ('p',)]

    Raises:
        ExpressionError: what is wrong, where, and what was probably meant.
    """
    flat = scan(text)
    lead = len(flat) - len(flat.lstrip())
    return _Reader(text, vocabulary, lead).expression(_parsed(flat.strip(), text, lead))


def parse_index(text: str, vocabulary: Vocabulary) -> Expression:
    """Read what stands in square brackets: ``"p:"``, ``"j"``, ``"1:T"``. Its value is a slice or a whole number.

    >>> parse_index("p:", Vocabulary(picks=frozenset({"p"}))).text
    'p:'

    Raises:
        ExpressionError: as `parse`, or it is more than one index.
    """
    flat = scan(text)
    body = _parsed(f"_[{flat}]", text, -2)
    if not (isinstance(body, ast.Subscript) and isinstance(body.value, ast.Name) and body.value.id == "_"):
        raise ExpressionError("expected one index or slice, such as j or p:", 1, text)
    if isinstance(body.slice, ast.Tuple):
        raise ExpressionError("expected one index or slice along one axis, this has several", 1, text)
    if isinstance(body.slice, ast.Constant) and type(body.slice.value) is not int:
        raise ExpressionError("expected one index or slice, such as j or p:", 1, text)
    return _Reader(text, vocabulary, -2).expression(body.slice)


def _parsed(source: str, text: str, lead: int) -> ast.expr:
    """Return Python's tree of ``source``; a column of it plus ``lead`` is a column of ``text``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "1if" warns in some versions of Python; it is refused or harmless
            body = ast.parse(source, mode="eval").body
    except SyntaxError as problem:
        column = min(max(1, (problem.offset or 1) + lead), len(text) + 1)
        raise ExpressionError(f"this is not an expression ({problem.msg})", column, text) from None
    except (RecursionError, MemoryError, ValueError, OverflowError):
        raise ExpressionError("the expression nests too deeply", 1, text) from None
    _measure(body, text, lead)
    return body


def _measure(body: ast.expr, text: str, lead: int) -> None:
    """Refuse a tree that is too large or too deep, without recursion."""
    level: list[ast.AST] = [body]
    nodes = depth = 0
    while level:
        nodes, depth = nodes + len(level), depth + 1
        column = max(1, getattr(level[0], "col_offset", 0) + lead + 1)
        if depth > MAX_DEPTH:
            raise ExpressionError(f"the expression nests deeper than {MAX_DEPTH}", column, text)
        if nodes > MAX_NODES:
            raise ExpressionError(f"the expression has more than {MAX_NODES} parts", column, text)
        level = [
            child
            for node in level
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop))
        ]


class _Reader:
    """Turns Python's tree into ours and remembers what it met."""

    def __init__(self, text: str, vocabulary: Vocabulary, lead: int) -> None:
        self.text = text
        self.vocabulary = vocabulary
        self.table = table_of(vocabulary)
        self.lead = lead
        self.calls: set[str] = set()
        self.columns: dict[tree.Path, int] = {}

    def expression(self, body: ast.expr) -> Expression:
        root = self.index_item(body) if isinstance(body, ast.Slice) else self.read(body)
        return Expression(
            text=self.text,
            root=root,
            references=frozenset(self.columns),
            calls=frozenset(self.calls),
            is_judgement=_judges(root),
            columns=self.columns,
        )

    def refuse(self, message: str, node: ast.AST) -> ExpressionError:
        return ExpressionError(message, max(1, self.span(node)[0] + 1), self.text)

    def span(self, node: ast.AST) -> tuple[int, int]:
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None)
        return start + self.lead, (start + 1 if end is None else end) + self.lead

    def read(self, node: ast.expr) -> tree.Node:
        match node:
            case ast.Constant():
                return self.constant(node)
            case ast.Name() | ast.Attribute():
                return self.dotted(node)
            case ast.Call():
                return self.call(node)
            case ast.Tuple() | ast.List():
                return tree.Sequence(*self.span(node), self.items(node))
            case ast.UnaryOp(op, operand) if type(op) in UNARY:
                return tree.Unary(*self.span(node), UNARY[type(op)], self.read(operand))
            case ast.BinOp(left, op, right) if type(op) in BINARY:
                return tree.Binary(*self.span(node), BINARY[type(op)], self.read(left), self.read(right))
            case ast.Compare(left, ops, comparators) if all(type(op) in COMPARISONS for op in ops):
                operands = tuple(self.read(operand) for operand in (left, *comparators))
                return tree.Comparison(*self.span(node), operands, tuple(COMPARISONS[type(op)] for op in ops))
            case ast.BoolOp(op, values):
                operator = "and" if isinstance(op, ast.And) else "or"
                return tree.Logical(*self.span(node), operator, tuple(self.read(value) for value in values))
            case ast.IfExp(test, yes, no):
                return tree.Choice(*self.span(node), self.read(test), self.read(yes), self.read(no))
            case ast.Subscript(value, index):
                items = index.elts if isinstance(index, ast.Tuple) else [index]
                read = tuple(self.index_item(item) for item in items)
                return tree.Index(*self.span(node), self.read(value), read)
            case ast.Slice():
                raise self.refuse("a slice stands in square brackets; elsewhere write slice(a, b)", node)
            case ast.Starred():
                raise self.refuse("'*' before a value is not part of the language", node)
        raise self.refuse(f"{_kind(node)} is not part of the language", node)

    def constant(self, node: ast.Constant) -> tree.Node:
        value = node.value
        if value is None or isinstance(value, (bool, str)):
            return tree.Constant(*self.span(node), value)
        if isinstance(value, int) and -INTEGER_LIMIT < value < INTEGER_LIMIT:
            return tree.Constant(*self.span(node), value)
        if isinstance(value, float) and abs(value) != float("inf"):
            return tree.Constant(*self.span(node), value)
        if value is ...:
            raise self.refuse("'...' stands only in square brackets", node)
        if isinstance(value, (int, float)):
            raise self.refuse("the number is too large", node)
        raise self.refuse(f"a {type(value).__name__} constant is not part of the language", node)

    def items(self, node: ast.Tuple | ast.List) -> tuple[tree.Node, ...]:
        if len(node.elts) > MAX_ITEMS:
            raise self.refuse(f"a list of {len(node.elts)} items is too long, at most {MAX_ITEMS} are allowed", node)
        return tuple(self.read(item) for item in node.elts)

    def index_item(self, node: ast.expr) -> tree.Node:
        if isinstance(node, ast.Slice):
            ends = [None if end is None else self.read(end) for end in (node.lower, node.upper, node.step)]
            return tree.Slice(*self.span(node), *ends)
        if isinstance(node, ast.Constant) and node.value is ...:
            return tree.Constant(*self.span(node), ...)
        return self.read(node)

    def dotted(self, node: ast.Name | ast.Attribute) -> tree.Node:
        words, inner = _chain(node)
        if not isinstance(inner, ast.Name):
            return self.attributes(self.read(inner), words, node)
        words = (inner.id, *words)
        for length in range(len(words), 0, -1):
            path = self.table.get(words[:length])
            if path is not None:
                start = self.span(inner)[0]
                end = _ends(node, len(words) - length) + self.lead
                self.columns.setdefault(path, start + 1)
                return self.attributes(tree.Reference(start, end, path), words[length:], node, words)
        raise self.refuse(unknown_name(words, self.table), inner)

    def attributes(
        self, value: tree.Node, names: tuple[str, ...], node: ast.expr, words: tuple[str, ...] = ()
    ) -> tree.Node:
        for number, name in enumerate(names):
            end = _ends(node, len(names) - number - 1) + self.lead
            if name not in ATTRIBUTES:
                column = end - len(name) + 1
                raise ExpressionError(unknown_attribute(name, words, self.table), column, self.text)
            value = tree.Attribute(value.start, end, value, name)
        return value

    def call(self, node: ast.Call) -> tree.Node:
        if not isinstance(node.func, ast.Name):
            words, inner = _chain(node.func)
            shown = ".".join((inner.id, *words)) if isinstance(inner, ast.Name) else "." + ".".join(words)
            what = repr(shown) if words else "this"
            raise self.refuse(f"{what} cannot be called; only the listed functions can", node.func)
        name = node.func.id
        signature = SIGNATURES.get(name)
        if signature is None:
            if (name,) in self.table:
                raise self.refuse(f"{name!r} is a value, not a function", node.func)
            raise self.refuse(f"unknown function {name!r}" + suggestion(name, list(SIGNATURES)), node.func)
        for starred in (argument for argument in node.args if isinstance(argument, ast.Starred)):
            raise self.refuse("'*' before an argument is not part of the language", starred)
        keywords = []
        for argument in node.keywords:
            if argument.arg is None:
                raise self.refuse("'**' before an argument is not part of the language", argument)
            keywords.append((argument.arg, argument))
        complaint = signature.complaint(len(node.args), tuple(name for name, _ in keywords))
        if complaint:
            message, culprit = complaint
            known = [parameter.name for parameter in signature.parameters]
            hint = suggestion(culprit, known) if culprit and culprit not in known else ""
            place: ast.AST = next((argument for name, argument in keywords if name == culprit), node)
            raise self.refuse(f"{message}{hint}; it is {signature.text}", place)
        self.calls.add(name)
        return tree.Call(
            *self.span(node),
            name,
            tuple(self.read(argument) for argument in node.args),
            tuple((name, self.read(argument.value)) for name, argument in keywords),
        )


def _chain(node: ast.expr) -> tuple[tuple[str, ...], ast.expr]:
    """Return the attribute names after the innermost value, in order, and that value."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return tuple(reversed(names)), node


def _ends(node: ast.expr, dropped: int) -> int:
    """Return where a dotted chain ends in the source when its last ``dropped`` names are left off."""
    for _ in range(dropped):
        assert isinstance(node, ast.Attribute)
        node = node.value
    return node.end_col_offset or 0


def _kind(node: ast.AST) -> str:
    names = {
        ast.JoinedStr: "a formatted string",
        ast.NamedExpr: "an assignment",
        ast.Dict: "a dictionary",
        ast.Set: "a set",
    }
    return names.get(type(node), f"this form ({type(node).__name__})")


def _judges(node: tree.Node) -> bool:
    """Say whether a node gives a judgement or a truth value, as far as its form shows."""
    match node:
        case tree.Call(function=name):
            if name in JUDGING_WITHOUT_AXIS:
                return len(node.arguments) == 1 and not node.keywords
            return SIGNATURES[name].group == "Judgements"
        case tree.Comparison() | tree.Logical() | tree.Unary(operator="not"):
            return True
        case tree.Constant(value=value):
            return isinstance(value, bool)
        case tree.Reference(path=path):
            return path[-1] in TRUTHS
        case tree.Choice(yes=yes, no=no):
            return _judges(yes) and _judges(no)
    return False
