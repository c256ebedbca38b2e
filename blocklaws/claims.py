"""What a backend says that it supports, beside the blocks that a run has: a claim that nothing looked at is no verdict.

Must hold: a word is called met only where a block of the run that the backend takes has it. Must not: judge, or ask a
backend for more than `supports`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blocklaws.built import BlockRaised
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError, plain_word

if TYPE_CHECKING:
    from blocklaws.checking import Case
    from blocklaws.subjects import Subject

__all__ = ["ANY_NUMBER", "HEADS", "claimed_of", "means", "never_met", "never_met_of"]

#: The word for every number, as in ``window: [null, number]``.
ANY_NUMBER = "number"
#: The words of ``heads``, which is no field of a config.
HEADS = ("equal", "grouped")


def claimed_of(config: BlockConfig, choice: str) -> Any:
    """Return what a config has of a choice that a backend may make a claim of."""
    return HEADS[config.group != 1] if choice == "heads" else getattr(config, choice, None)


def means(word: Any, value: Any) -> bool:
    """Whether a value of a config is what a word of a claim means.

    >>> [means(True, 1), means("number", 2.5), means("number", None), means(None, None)]
    [False, True, False, True]
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # `==` alone would let 1 pass for true.
    return (word == ANY_NUMBER and number) or (type(value) is type(word) and bool(value == word))


def never_met(claims: Mapping[str, Sequence[Any]], configs: Iterable[BlockConfig]) -> tuple[str, ...]:
    """Return the claimed words that no config has, as ``feed_forward relu``; nothing where there is no config."""
    configs = list(configs)
    return tuple(
        f"{choice} {plain_word(word)}"
        for choice, words in claims.items()
        for word in words
        if configs and not any(means(word, claimed_of(config, choice)) for config in configs)
    )


def never_met_of(subject: Subject, cases: Iterable[Case]) -> tuple[str, ...]:
    """Return what a backend claims and none of its blocks in a run has; nothing of a backend that makes no claims."""
    claims = getattr(subject, "claims", {})
    if not claims:
        return ()
    mine = (case for case in cases if case.subject is subject and case.dtype in subject.dtypes)
    kinds = {case.kind.name: case for case in mine}
    try:
        return never_met(
            claims,
            [
                config
                for case in kinds.values()
                for config in map(case.kind.config, case.menu)
                if subject.refusal(config) is None
            ],
        )
    except (BackendError, BlockRaised):
        return ()  # its cases say what it raised
