"""The names of the axes of what a claim compares, read off the claim.

``identical(after.output[:, :p], ...)`` is about [batch, token, feature], ``sum(attention_weights, 'key')`` about
[batch, head, query].

Must hold: a name is given only where it follows from the text; an array that cannot be followed has axes by number.
Must not: evaluate anything, or import NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator

from blocklaws.canonical import PARAMETER_NAMES, STAGES
from blocklaws.expressions import Expression, tree
from blocklaws.expressions.signatures import SIGNATURES

__all__ = ["axes_of_claim", "axes_of_stage", "numbered"]

Axes = tuple[str, ...]

_STREAM: Axes = ("batch", "token", "feature")
_HEADS: Axes = ("batch", "head", "token", "feature")
_STAGES: dict[str, Axes] = {
    **dict.fromkeys((*STAGES, "cotangent"), _STREAM),
    **dict.fromkeys(("query", "key", "value"), _HEADS),
    "attention_weights": ("batch", "head", "query", "key"),
    # Of a whole model.
    "ids": ("batch", "token"),
    "logits": ("batch", "token", "id"),
}
_ORIGINS = {"astype", "clip", "flip", "permute", "replace", "roll", "rotary", "scale_rows", "softmax", "cumsum", "tril"}
_ORIGINS |= {"only", "repeat", "take", "tile", "without", "zeros_like", "ones_like", "full_like"}
_REDUCTIONS = {"sum", "prod", "mean", "var", "std", "min", "max", "norm", "all", "any"}


def numbered(rank: int) -> Axes:
    """Return names for axes of which nothing is known."""
    return tuple(f"axis {axis}" for axis in range(rank))


def axes_of_stage(stage: str, rank: int) -> Axes:
    """Return the names of a stage's or a parameter's axes.

    >>> axes_of_stage("attention_weights", 4)
    ('batch', 'head', 'query', 'key')
    """
    names = _named((stage,))
    return names if names is not None and len(names) == rank else numbered(rank)


def axes_of_claim(expression: Expression | None, claim: str, rank: int, parameter: str = "") -> Axes:
    """Return the names of the axes of what a claim compared.

    Args:
        expression: the clause that the claim is a part of; None when a property made the claim.
        claim: the text of the claim.
        rank: of the array that was compared.
        parameter: which array of a set was compared.
    """
    if parameter in PARAMETER_NAMES:
        return axes_of_stage(parameter, rank)
    found = [names for names in _readings(expression, claim) if names is not None and len(names) == rank]
    if found:
        return found[0]
    return _STREAM if rank == 3 else numbered(rank)


def _readings(expression: Expression | None, claim: str) -> Iterator[Axes | None]:
    """Yield what each argument of the claim says of the axes; one of them may be a mere number."""
    if expression is None:
        return
    for node in _nodes(expression.root):
        if expression.text[node.start : node.end].strip() == claim.strip():
            match node:
                case tree.Call(function="all" | "any", arguments=arguments):
                    yield _axes(arguments[0])
                case tree.Call(arguments=arguments):
                    yield from map(_axes, arguments)
                case tree.Comparison(operands=operands):
                    yield from map(_axes, operands)


def _nodes(node: tree.Node) -> Iterator[tree.Node]:
    """Yield the parts of an expression that can be claims."""
    yield node
    match node:
        case tree.Logical(operands=operands):
            inner: tuple[tree.Node, ...] = operands
        case tree.Unary(operand=operand):
            inner = (operand,)
        case tree.Choice(test=test, yes=yes, no=no):
            inner = (test, yes, no)
        case _:
            return
    for each in inner:
        yield from _nodes(each)


def _named(path: tree.Path) -> Axes | None:
    name = path[-1]
    if name in _STAGES:
        return _STAGES[name]
    if name in PARAMETER_NAMES:
        return ("feature",) if name.endswith(("bias", "gain")) else ("row", "column")
    return None


def _axes(node: tree.Node) -> Axes | None:
    """Return the names of the axes of an expression's value; () is a number, None is unknown."""
    match node:
        case tree.Constant():
            return ()
        case tree.Reference(path=path):
            return _named(path)
        case tree.Unary(operand=operand):
            return _axes(operand)
        case tree.Binary(operator="@", left=left, right=right):
            return _product(left, right)
        case tree.Binary(left=left, right=right):
            return _widest(left, right)
        case tree.Comparison(operands=operands):
            return _widest(*operands)
        case tree.Choice(yes=yes, no=no):
            return _widest(yes, no)
        case tree.Index(value=value, items=items):
            return _indexed(_axes(value), items)
        case tree.Call():
            return _called(node)
    return None


def _widest(*nodes: tree.Node) -> Axes | None:
    """Return the axes of what is broadcast together: those of the part with most of them."""
    known = [names for names in map(_axes, nodes) if names is not None]
    return max(known, key=len) if known else None


def _product(left: tree.Node, right: tree.Node) -> Axes | None:
    a, b = _axes(left), _axes(right)
    if a is None or not a:
        return None
    # A projection of a stream gives features again, whatever the columns of its matrix are called.
    return (*a[:-1], "feature" if b is None or len(b) < 3 else b[-1])


def _indexed(names: Axes | None, items: tuple[tree.Node, ...]) -> Axes | None:
    if names is None:
        return None
    before, after = list(items), []
    for place, item in enumerate(items):
        if isinstance(item, tree.Constant) and item.value is ...:
            before, after = list(items[:place]), list(items[place + 1 :])
    if len(before) + len(after) > len(names):
        return None
    filler: list[tree.Node | None] = [None] * (len(names) - len(before) - len(after))
    return tuple(
        name
        for name, item in zip(names, [*before, *filler, *after], strict=True)
        if item is None or isinstance(item, tree.Slice)
    )


def _called(call: tree.Call) -> Axes | None:
    places = [parameter.name for parameter in SIGNATURES[call.function].parameters if not parameter.keyword_only]
    given = dict(zip(places, call.arguments, strict=False)) | dict(call.keywords)
    function = call.function
    if function in _ORIGINS or SIGNATURES[function].group == "Element by element":
        if function in ("where", "minimum", "maximum"):
            return _widest(*given.values())
        return _axes(call.arguments[0])
    if function in _REDUCTIONS:
        return _reduced(_axes(given["x"]), given.get("axis"), given.get("keepdims"))
    if function in ("split_heads", "merge_heads"):
        return _HEADS if function == "split_heads" else _STREAM
    if function == "matmul":
        return _product(given["a"], given["b"])
    if function == "concatenate" and isinstance(given["arrays"], tree.Sequence):
        return _widest(*given["arrays"].items)
    if function == "swap":
        return _swapped(_axes(given["x"]), given["axis_a"], given["axis_b"])
    return None


def _place(names: Axes, node: tree.Node | None) -> int | None:
    """Return which axis a constant means, by its name or its number."""
    value = node.value if isinstance(node, tree.Constant) else None
    if isinstance(node, tree.Unary) and isinstance(node.operand, tree.Constant) and isinstance(node.operand.value, int):
        value = -node.operand.value
    if isinstance(value, str) and value in names:
        return names.index(value)
    if isinstance(value, int) and -len(names) <= value < len(names):
        return value % len(names)
    return None


def _reduced(names: Axes | None, axis: tree.Node | None, keepdims: tree.Node | None) -> Axes | None:
    if names is None or (isinstance(keepdims, tree.Constant) and keepdims.value is True):
        return names
    if axis is None or (isinstance(axis, tree.Constant) and axis.value is None):
        return ()
    gone = {_place(names, each) for each in (axis.items if isinstance(axis, tree.Sequence) else (axis,))}
    return None if None in gone else tuple(name for place, name in enumerate(names) if place not in gone)


def _swapped(names: Axes | None, a: tree.Node, b: tree.Node) -> Axes | None:
    if names is None:
        return None
    first, second = _place(names, a), _place(names, b)
    if first is None or second is None:
        return None
    swapped = list(names)
    swapped[first], swapped[second] = names[second], names[first]
    return tuple(swapped)
