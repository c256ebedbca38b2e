"""The closed list of functions: every function that an expression may call, with its arguments.

Must hold: nothing outside this list can be called, and each entry has exactly one implementation with the same
arguments (checked when the implementations are imported). Must not import NumPy: a call is checked when a spec is read.
"""

from __future__ import annotations

import ast
import dataclasses

__all__ = ["GROUPS", "SIGNATURES", "Parameter", "Signature"]

#: Group -> signatures, in the order of the documentation.
GROUPS: dict[str, str] = {
    "Judgements": """
        identical(a, b)
        close(a, b, times=1, terms=None)
        calibrated(candidate, reference, recipe)
        finite(x)
        differs(a, b)
        differs_everywhere(a, b, axis=None)
        apart(a, b)
        same_shape(a, b)
        same_dtype(a, b)
        shares_memory(a, b)
        distinct_storage(parameters)
    """,
    "Element by element": """
        abs(x)
        sign(x)
        floor(x)
        sqrt(x)
        exp(x)
        log(x)
        sin(x)
        cos(x)
        tanh(x)
        erf(x)
        sigmoid(x)
        relu(x)
        silu(x)
        gelu(x)
        gelu_tanh(x)
        minimum(a, b)
        maximum(a, b)
        clip(x, low, high)
        where(condition, a, b)
    """,
    "Along axes": """
        sum(x, axis=None, keepdims=False)
        prod(x, axis=None, keepdims=False)
        mean(x, axis=None, keepdims=False)
        var(x, axis=None, keepdims=False)
        std(x, axis=None, keepdims=False)
        min(x, axis=None, keepdims=False)
        max(x, axis=None, keepdims=False)
        norm(x, axis=None, keepdims=False)
        all(x, axis=None)
        any(x, axis=None)
        softmax(x, axis=-1)
        cumsum(x, axis=-1)
        matmul(a, b)
    """,
    "Rearranging": """
        transpose(x, axes=None)
        swap(x, axis_a, axis_b)
        reshape(x, shape)
        flip(x, axis)
        roll(x, shift, axis)
        permute(x, axis, order)
        take(x, indices, axis)
        concatenate(arrays, axis=0)
        stack(arrays, axis=0)
        repeat(x, times, axis)
        tile(x, times, axis)
        split_heads(x, heads)
        merge_heads(x)
    """,
    "Parts": """
        without(x, *, batch=None, head=None, token=None, query=None, feature=None, key=None)
        only(x, *, batch=None, head=None, token=None, query=None, feature=None, key=None)
        replace(x, value, *, batch=None, head=None, token=None, query=None, feature=None, key=None)
        scale_rows(x, factors)
        tril(x, offset=0)
        slice(start, stop, step=None)
    """,
    "Making arrays": """
        arange(start, stop=None, step=1)
        zeros(shape)
        ones(shape)
        zeros_like(x)
        ones_like(x)
        full_like(x, value)
        eye(n)
        causal(queries, keys, offset=0, window=None)
        astype(x, dtype)
        rotary(x, positions, base, layout, width=None)
    """,
    "Parameters and lengths": """
        count(parameters)
        names(parameters)
        shapes(parameters)
        len(x)
    """,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a function: its name, whether it must be given, and whether only by name."""

    name: str
    required: bool
    keyword_only: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """A function of the list: ``text`` is how it is written, ``group`` where it is documented."""

    name: str
    text: str
    group: str
    parameters: tuple[Parameter, ...]

    def complaint(self, positional: int, keywords: tuple[str, ...]) -> tuple[str, str] | None:
        """Return what is wrong with a call and the keyword that is to blame (or ''), or None if it fits."""
        places = [parameter.name for parameter in self.parameters if not parameter.keyword_only]
        known = [parameter.name for parameter in self.parameters]
        if positional > len(places):
            plural = "" if len(places) == 1 else "s"
            return f"{self.name} takes {len(places)} positional argument{plural}, {positional} were given", ""
        given = places[:positional]
        for name in keywords:
            if name not in known:
                return f"{self.name} has no argument {name!r}", name
            if name in given:
                return f"{self.name} is given its argument {name!r} twice", name
            given.append(name)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in given:
                return f"{self.name} is not given its argument {parameter.name!r}", ""
        return None


def _read(text: str, group: str) -> Signature:
    function = ast.parse(f"def {text}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    places, optional = function.args.args, len(function.args.defaults)
    parameters = [Parameter(a.arg, i < len(places) - optional, False) for i, a in enumerate(places)]
    parameters += [Parameter(a.arg, False, True) for a in function.args.kwonlyargs]
    return Signature(function.name, text, group, tuple(parameters))


#: Name -> signature, in the order of the documentation.
SIGNATURES: dict[str, Signature] = {
    signature.name: signature
    for group, lines in GROUPS.items()
    for signature in (_read(line.strip(), group) for line in lines.strip().splitlines())
}
