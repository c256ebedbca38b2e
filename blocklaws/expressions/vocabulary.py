"""Which names an expression may say, and what each of them stands for.

Must hold: every name that resolves is listed here; a dotted chain takes its longest match, so ``attention_norm.gain``
is a parameter and ``attention_norm.shape`` the shape of a stage. Must not import NumPy: specs are read before it is.
"""

from __future__ import annotations

import dataclasses
import functools
import keyword
from collections.abc import Iterator, Mapping

from blocklaws import canonical
from blocklaws.errors import SpecError
from blocklaws.expressions.scanning import suggestion
from blocklaws.expressions.signatures import SIGNATURES
from blocklaws.expressions.tree import Path

__all__ = ["ATTRIBUTES", "Vocabulary", "table_of", "unknown_attribute", "unknown_name"]

#: What may be asked of a value after a dot.
ATTRIBUTES = ("shape", "ndim", "size", "dtype")

#: Names that are always there, beside stages and parameters.
PLAIN = ("parameters", "position_offset", "cotangent")
#: Kinds of run that have something to show, and what.
RUNS = {
    "passed": ("input", "cotangent", "parameters"),  # the arrays handed to the block, as they are after the call
    "cached": ("output",),  # through the cache, chunk by chunk
    "again": ("output",),  # a second, equal call
    "kept": ("output",),  # the very array that the first call returned, as it is after every call
    "traced": ("output",),  # the output as the trace shows it
    "given": ("parameters",),  # what the block was built from
}
ORACLES = ("reference", "recipe")

#: Words that a pick or a variant may not take.
RESERVED = frozenset({*PLAIN, *RUNS, *ORACLES, "gradient", "attention", "feed_forward"})


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The names that one invariant may use.

    Attributes:
        sizes: sizes and choices of the world and its config: ``T``, ``d_model``, ``norm`` ...
        picks: names that the invariant's ``pick`` declares.
        stages: the stages of a block.
        parameters: the dotted names of parameters.
        variants: names of varied runs; ``after.output`` is the output of the varied run.

    Raises:
        SpecError: a pick or a variant is no plain word, or means something already.
    """

    sizes: frozenset[str] = frozenset()
    picks: frozenset[str] = frozenset()
    stages: tuple[str, ...] = canonical.STAGES
    parameters: tuple[str, ...] = canonical.PARAMETER_NAMES
    variants: frozenset[str] = frozenset({"after"})

    def __post_init__(self) -> None:
        taken = self.sizes | set(self.stages) | RESERVED
        for kind, names in (("pick", self.picks), ("variant", self.variants)):
            for name in sorted(names):
                if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name.startswith("_"):
                    raise SpecError(f"{kind} {name!r} is not a name; use a short word of letters, such as 'p'")
                if name in taken:
                    raise SpecError(f"{kind} {name!r} already means something else; choose another word")
        if both := sorted(self.picks & self.variants):
            raise SpecError(f"{both[0]!r} is both a pick and a variant; choose another word for one of them")


def _outcomes(vocabulary: Vocabulary) -> Iterator[Path]:
    """Yield what a block computes: its stages and its gradients."""
    yield from ((stage,) for stage in vocabulary.stages)
    yield from (("gradient", name) for name in ("input", "parameters", *vocabulary.parameters))


def _run(vocabulary: Vocabulary) -> Iterator[Path]:
    """Yield every path of one run, varied or not."""
    yield from ((name,) for name in (*sorted(vocabulary.sizes), *PLAIN, *vocabulary.parameters))
    yield from _outcomes(vocabulary)
    yield from ((run, name) for run, names in RUNS.items() for name in names)
    yield from ((oracle, *path) for oracle in ORACLES for path in _outcomes(vocabulary))


@functools.lru_cache(maxsize=512)
def table_of(vocabulary: Vocabulary) -> dict[tuple[str, ...], Path]:
    """Return every chain of words that is a name, with the path it stands for.

    >>> table = table_of(Vocabulary(sizes=frozenset({"T"})))
    >>> table["after", "gradient", "attention", "query"]
    ('after', 'gradient', 'attention.query')
    """
    paths: list[Path] = [(pick,) for pick in sorted(vocabulary.picks)]
    for path in _run(vocabulary):
        paths.append(path)
        paths.extend((variant, *path) for variant in sorted(vocabulary.variants))
    return {tuple(".".join(path).split(".")): path for path in paths}


def unknown_name(words: tuple[str, ...], table: Mapping[tuple[str, ...], Path]) -> str:
    """Return what to say of a chain that is no name, with the nearest one."""
    name = ".".join(words)
    if name in SIGNATURES:
        return f"{name!r} is a function; call it: {SIGNATURES[name].text}"
    longer = [".".join(chain) for chain in table if chain[: len(words)] == words]
    if longer:
        shown = ", ".join(longer[:4]) + (" ..." if len(longer) > 4 else "")
        return f"{name!r} is not a value by itself; it goes on as {shown}"
    return f"unknown name {name!r}" + suggestion(name, [".".join(chain) for chain in table])


def unknown_attribute(name: str, words: tuple[str, ...], table: Mapping[tuple[str, ...], Path]) -> str:
    """Return what to say of ``.name`` after a value; ``words`` is the whole dotted chain, empty after other values."""
    message = f"attribute access '.{name}' is not part of the language"
    if name == "T":
        return f"{message}; use transpose(x) or swap(x, a, b)"
    near = suggestion(name, list(ATTRIBUTES))
    if words and not near:
        near = suggestion(".".join(words), [".".join(chain) for chain in table])
    return f"{message}{near}; after a value there is only .{', .'.join(ATTRIBUTES)}"
