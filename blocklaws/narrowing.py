"""Narrows a block that cannot be traced: which stage is wrong, as far as `forward` alone can tell.

The block is built again with parameters that take parts of it out of play (a branch zeroed, no scores, one token, rows
that a norm cannot get wrong ...) and each output is held against the float64 reference. A part that is out of play
where the output is wrong is not at fault. A part without which it turns right is at fault only if all that is left
keeps its values: a mistake of some sizes (a clip, a threshold) hides where sizes change. So parts are taken out with
the values of the rest kept, or tried again with larger ones, or named together with the stages whose sizes changed.

Must hold: each experiment is judged by the calibrated bound of its dtype; a conclusion names every experiment that it
rests on, and a group of stages where they cannot be told apart. One fault is assumed. Must not: run where everything
holds, make more than `MOST_CALLS` calls of the block, or change a verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np

from blocklaws import narrowing_worlds as worlds
from blocklaws.built import BlockRaised
from blocklaws.canonical import STAGES
from blocklaws.checking import Case
from blocklaws.narrowing_bench import MOST_CALLS, Bench, Spent
from blocklaws.passes import Pass
from blocklaws.worlds import Recipe, World

__all__ = ["MOST_CALLS", "Narrowed", "narrowed"]

_QUERY = ("attention.query", "attention.query_bias")
_KEY = ("attention.key", "attention.key_bias")
_VALUE = ("attention.value", "attention.value_bias")
_ATTENTION_OUT = ("attention.output", "attention.output_bias")
_FEED_FORWARD_IN = ("feed_forward.gate", "feed_forward.up", "feed_forward.up_bias")
_FEED_FORWARD_OUT = ("feed_forward.down", "feed_forward.down_bias")
# What is off by less than this everywhere has been rounded, not computed otherwise.
_ROUNDED = 1e-2
# What is beyond its bound by less than this turns right by whatever an experiment takes from it: nothing is told of it.
_TELLING = 1.5
# How much larger the sizes are made that an experiment may have made smaller.
_LARGER = 8.0

# With the norms after the additions, what a norm gives is what its half gives: two names of one array.
_FIRST_POST = ("attention_norm", "after_attention")
_SECOND_POST = ("feed_forward_norm", "output")

Conclusion = tuple[tuple[str, ...], str]


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """The stages between which the fault could not be told apart, what they are together, and how it was found."""

    stages: tuple[str, ...]
    says: str
    how: str
    passed: str = ""
    """The pass whose world was experimented on, where that has a config of its own."""


def narrowed(case: Case, passes: Mapping[str, Pass]) -> Narrowed | None:
    """Return what the outputs alone say of where a block is wrong.

    Returns None where its outputs agree with the reference: what failed is then no stage of `forward`; and where they
    are so little beyond their bound that any experiment would hide it.
    """
    for passed in passes.values():
        output = passed.computed("output")
        if output is not None and output.shape != (wanted := passed.world.input.shape):
            return Narrowed(("output",), "its shape", f"the output has shape {output.shape}, the input {wanted}")
    first = next(iter(passes.values())).world.config if passes else None
    bench = Bench(case)
    with np.errstate(all="ignore"), contextlib.suppress(Spent, BlockRaised):
        for name, world in _candidates(case, passes):
            if bench.wrong(world) and bench.excess >= _TELLING:
                stages, says = _Narrowing(bench, world).conclusion()
                named = tuple(stage for stage in STAGES if stage in stages)
                return Narrowed(named, says, "; ".join(bench.seen), name if world.config != first else "")
    return None


def _candidates(case: Case, passes: Mapping[str, Pass]) -> list[tuple[str, World]]:
    """Return the worlds in which the fault is looked for: first one that hides nothing, then those of the failure.

    Each has the name of its pass; the first is of none.
    """
    failing = [(name, passed.world) for name, passed in passes.items()]
    offset = failing[0][1].position_offset if failing else 0
    telling = [
        sizes
        for sizes in case.menu
        if sizes.B > 1 and sizes.T > 2 and sizes.n_heads > 1 and case.subject.refusal(case.kind.config(sizes)) is None
    ]
    return [("", case.world(Recipe(sizes, "normal", 0, offset))) for sizes in telling[:1]] + failing


class _Narrowing:
    """The experiments on one world in which the output is wrong, from the coarse to the fine."""

    def __init__(self, bench: Bench, world: World) -> None:
        self._bench = bench
        self._world = world
        self._pre = world.config.placement == "pre"

    def _wrong(self, world: World | None, condition: str) -> bool | None:
        found = self._bench.wrong(world)
        if found is not None:
            self._bench.seen.append(f"{'wrong' if found else 'right'} {condition}")
        return found

    def _right(self, world: World | None, condition: str) -> bool:
        return self._wrong(world, condition) is False

    def _right_if_larger(self, world: World | None, condition: str, *names: str) -> bool:
        """Whether an output is right, and not because of what the change took from the sizes of the rest.

        Where queries are made larger the other sign is tried too: a score that would show a mistake when it is large
        may be one of the most negative, and then all that is made larger hides it better.
        """
        if world is None or not self._right(world, condition):
            return False
        signs = {1.0: "", -1.0: " and of the other sign"} if names[0] in _QUERY else {1.0: ""}
        return not any(
            self._wrong(
                worlds.scaled(world, sign * _LARGER, *names),
                f"{condition} and {names[0]} {_LARGER:g} times as large{told}",
            )
            for sign, told in signs.items()
        )

    def _alike(self, a: np.ndarray | None, b: np.ndarray | None, sentence: str) -> bool:
        """Whether two arrays agree; kept in words where they do."""
        return self._see(self._bench.alike(a, b) is True, sentence)

    def _differ(self, a: np.ndarray | None, b: np.ndarray | None, sentence: str) -> bool:
        """Whether two arrays differ; kept in words where they do."""
        return self._see(self._bench.alike(a, b) is False, sentence)

    def _see(self, found: bool, sentence: str) -> bool:
        if found:
            self._bench.seen.append(sentence)
        return found

    def conclusion(self) -> Conclusion:
        """Return the stages at fault, and what they are in words."""
        silent = worlds.zeroed(self._world, *_ATTENTION_OUT, *_FEED_FORWARD_OUT)
        if self._wrong(silent, "with both branches zeroed"):
            return self._stream(silent)
        # A mistake of some sizes shows only in the sums that the block makes: they are given to it as its input.
        x = self._world.input.astype(np.float64)
        middle = x + self._bench.reference(self._world, "attention_branch")
        sums = [(middle, "with both branches zeroed and the first sum as the input")]
        if self._pre:
            sums.append((self._bench.reference(self._world), "with both branches zeroed and the output as the input"))
        for given, condition in sums:
            if self._wrong(summed := worlds.with_input(silent, given), condition):
                return self._stream(summed)
        attention = worlds.zeroed(self._world, *_FEED_FORWARD_OUT)
        feed_forward = worlds.zeroed(self._world, *_ATTENTION_OUT)
        attention_wrong = self._wrong(attention, "with the feed-forward branch zeroed")
        feed_forward_wrong = self._wrong(feed_forward, "with the attention branch zeroed")
        if not feed_forward_wrong and not attention_wrong:
            read = worlds.with_input(feed_forward, middle)
            if self._wrong(read, "with the attention branch zeroed and its work in the input"):
                return self._feed_forward_half(read, worlds.with_input(silent, middle), attention)
        if attention_wrong and feed_forward_wrong and (shared := self._both_halves(attention)):
            return shared
        if attention_wrong:
            return self._attention_half(attention, silent)
        if feed_forward_wrong:
            return self._feed_forward_half(feed_forward, silent, attention)
        return self._coupling(attention, feed_forward)

    # --- the residual stream, and what the halves share ---

    def _stream(self, silent: World) -> Conclusion:
        """Wrong though both branches should return zero: one does not, or it is an addition, or a post-norm."""
        if self._right(worlds.zeroed(silent, *_QUERY), "with the queries zeroed too"):
            return ("attention_weights",), "the softmax, which is not finite"
        if self._right(worlds.zeroed(silent, *_VALUE), "with the values zeroed too"):
            return ("attention_branch",), "the attention branch: its output projection is not what ends it"
        if self._right(worlds.zeroed(silent, *_FEED_FORWARD_IN), "with gate and up zeroed too"):
            return ("feed_forward_branch",), "the feed-forward branch: its down matrix is not what ends it"
        return self._additions(silent) if self._pre else self._post_norms(silent)

    def _additions(self, silent: World) -> Conclusion:
        """Pre-norm: tell the first addition from the second by what the feed-forward branch was given."""
        if self._off_by_rounding(silent):
            return ("after_attention", "output"), "the precision of an addition"
        # Small rows: the norm's epsilon then shows how large the stream was that it read.
        small = worlds.even_rows(silent, (silent.config.norm_eps or 1e-6) ** 0.5)
        down = {name: value for name, value in self._world.parameters.items() if name in _FEED_FORWARD_OUT}
        fed = small.replace(parameters={**small.parameters, **down})
        if self._right(small, "with both branches zeroed and small rows"):
            return ("after_attention", "output"), "an addition, for some sizes"
        stream = ("attention_norm", "after_attention", "output")
        if silent.config.residual == "parallel":
            # The feed-forward branch reads the input, and tells nothing of the stream.
            return stream, "the residual stream: an addition, or a norm in its way"
        without, given = self._bench.output(small), self._bench.output(fed)
        if without is None or given is None:
            return stream, "the residual stream"
        branch = self._bench.reference(fed) - small.input.astype(np.float64)
        if self._alike(given - without, branch, "with the attention branch zeroed, the feed-forward branch is right"):
            return ("output",), "the second addition"
        if not without.any():
            return ("after_attention",), "the first addition"
        return stream, "the residual stream: an addition, or a norm in its way"

    def _post_norms(self, silent: World) -> Conclusion:
        """Post-norm: the two norms of the stream are all that is left, and the additions before them."""
        plain = worlds.even_rows(worlds.plain_norm(silent, "attention_norm"))
        if self._right(plain, "with rows that the first norm leaves alone"):
            return (*_FIRST_POST, "output"), "the first norm, or what the second addition starts from"
        if self._right(worlds.plain_norm(plain, "feed_forward_norm"), "with rows that both norms leave alone"):
            second = worlds.even_rows(worlds.plain_norm(silent, "feed_forward_norm"))
            if self._right(second, "with even rows and a second norm of gain one and bias zero"):
                return _SECOND_POST, "the second norm"
            return (*_FIRST_POST, *_SECOND_POST), "the norms, or where they stand"
        return (*_FIRST_POST, *_SECOND_POST), "the additions, or the norms after them"

    def _both_halves(self, attention: World) -> Conclusion | None:
        """Each half is wrong without the other: what they share is their norms (pre-norm) and their arithmetic."""
        norms = ("attention_norm", "feed_forward_norm")
        if self._by_a_factor(attention):
            return ("after_attention", "output"), "the additions, or the scale of what they add"
        if self._pre and self._norm_at_fault("attention_norm", attention):
            return norms, "the norms, which is what the two halves share"
        products = ("query", "key", "value", "attention_branch", "feed_forward_branch")
        if self._off_by_rounding(self._world):
            # Behind an addition a norm makes what both halves share look like the end of each.
            own = self._world.config.placement == "post"
            return products if own else (*norms, *products), "the precision of the arithmetic"
        if self._pre and self._right(
            worlds.zeroed(attention, "attention_norm.gain"), "with a gain of zero in attention_norm"
        ):
            return norms, "the statistics of the norms, which is what the two halves share"
        return (norms, "the norms, which is what the two halves share") if self._pre else None

    def _by_a_factor(self, attention: World) -> bool:
        """Pre-norm, with branches that are scaled: whether the attention branch is added whole, or scaled otherwise."""
        if not self._pre or attention.config.residual_scale == 1:
            return False
        shown, x = self._bench.output(attention), attention.input.astype(np.float64)
        if shown is None:
            return False
        added, right = shown - x, self._bench.reference(attention) - x
        factor = float((added * right).sum()) / (float((right * right).sum()) or 1.0)
        return self._alike(added, factor * right, f"the attention branch is {factor:.3g} times what it should be")

    def _off_by_rounding(self, world: World) -> bool:
        """Whether an output is wrong by so little that it must have been rounded on the way."""
        found, wanted = self._bench.output(world), self._bench.reference(world)
        if found is None or found.shape != wanted.shape or not np.isfinite(found).all():
            return False
        small = bool(np.abs(found - wanted).max(initial=0.0) < _ROUNDED * np.abs(wanted).max(initial=0.0))
        return self._see(small, f"off by less than {_ROUNDED:g} of the largest value")

    def _coupling(self, attention: World, feed_forward: World) -> Conclusion:
        """Each half alone is right, and the two together are wrong."""
        x = self._world.input.astype(np.float64)
        whole, first, second = (self._bench.output(each) for each in (self._world, attention, feed_forward))
        if self._pre and whole is not None and first is not None and second is not None:
            if self._alike(whole - x, first + second - 2 * x, "the two branches of the input simply add up"):
                return ("feed_forward_norm",), "what the second norm reads: the input, not the stream after attention"
            swapped = self._bench.output(worlds.with_input(attention, second))
            if self._alike(whole, swapped, "the halves in the other order give this output"):
                return ("attention_norm",), "the order of the halves: attention comes second"
        return (*self._joined(), "feed_forward_norm", "output"), "how the two halves are joined"

    def _norm_at_fault(self, norm: str, half: World) -> bool:
        """Pre-norm: whether a half is right once its norm has nothing to get wrong, or one norm gives two results."""
        out = _ATTENTION_OUT if norm == "attention_norm" else _FEED_FORWARD_OUT
        if self._right(worlds.even_rows(half, worlds.row_size(half)), "with rows of one size"):
            return True
        if self._right(worlds.without_epsilon(half, norm), "with rows of one size and an epsilon of zero"):
            return True
        if self._right(worlds.large_even_rows(half, norm, *out), "with rows of one large size"):
            return True
        folded = worlds.folded_norm(half, norm)
        if self._right(folded, f"with gain one in {norm} and its gain in what reads it"):
            return True
        readers = (*_QUERY, *_KEY, *_VALUE) if norm == "attention_norm" else _FEED_FORWARD_IN
        plain = worlds.zeroed(folded or half, f"{norm}.bias")
        biased = f"{norm}.bias" in plain.parameters and half.parameters[f"{norm}.bias"].any()
        if biased and self._right_if_larger(plain, f"with that and bias zero in {norm}", *readers):
            return True
        turned = worlds.turned_sign(half, norm)
        a, b = self._bench.output(half), self._bench.output(turned)
        if a is None or b is None:
            return False
        a, b = a - half.input.astype(np.float64), b - turned.input.astype(np.float64)
        return self._differ(a, b, f"the signs of the input and of {norm}'s gain do not cancel")

    def _or_norm(self, norm: str, half: World, found: Conclusion) -> Conclusion:
        """Pre-norm: add the norm where a half is right once nothing in it stands out: that may hide either's fault."""
        readers = (*_QUERY, *_KEY, *_VALUE) if norm == "attention_norm" else _FEED_FORWARD_IN
        level = worlds.level_rows(worlds.zeroed(worlds.folded_norm(half, norm) or half, f"{norm}.bias"))
        condition = f"with features of one size, gain one and bias zero in {norm}"
        if not self._pre or not self._right_if_larger(level, condition, *readers):
            return found
        return (norm, *found[0]), f"{found[1]}; or the norm, for some sizes"

    # --- the attention half ---

    def _attention_half(self, attention: World, silent: World) -> Conclusion:
        shown = self._bench.output(attention)
        # Beside a large stream an attention branch that is there leaves no trace either.
        traced = self._bench.alike(self._bench.reference(attention), self._bench.reference(silent)) is False
        if traced and self._alike(
            shown, self._bench.output(silent), "with the feed-forward branch zeroed, attention leaves no trace"
        ):
            stages = ("after_attention", "output") if self._pre else (*_FIRST_POST, *_SECOND_POST)
            return stages, "the additions: one of them discards the attention branch"
        if self._pre and self._norm_at_fault("attention_norm", attention):
            return ("attention_norm",), "the norm of the attention branch"
        return self._or_norm("attention_norm", attention, self._attention(attention, shown))

    def _attention(self, attention: World, shown: np.ndarray | None) -> Conclusion:
        alone = self._bench.output(worlds.one_sequence(attention))
        if self._differ(
            None if shown is None else shown[-1:], alone, "a sequence's output depends on the other sequences"
        ):
            return ("attention_weights", "attention_branch"), "attention runs across the sequences of the batch"
        one = worlds.one_token(attention)
        if self._wrong(one, "on one token at position 0"):
            return self._one_token(one)
        uniform = worlds.zeroed(attention, *_QUERY)
        if self._right(uniform, "with the queries zeroed"):
            larger = worlds.scaled(uniform, _LARGER, *_VALUE)
            if self._wrong(larger, f"with the queries zeroed and values {_LARGER:g} times as large"):
                return self._value_path()
            return self._scores(attention)
        return self._mixing(uniform)

    def _joined(self) -> tuple[str, ...]:
        """The stages that the first addition shows in."""
        return ("after_attention",) if self._pre else _FIRST_POST

    def _value_path(self) -> Conclusion:
        return ("value", "attention_branch", *self._joined()), "the value path or the addition, for some sizes"

    def _one_token(self, one: World) -> Conclusion:
        """One token sees itself alone: its weight is one, and what is left is a linear map of its norm."""
        shown = self._bench.output(one)
        if self._differ(
            shown, self._bench.output(worlds.zeroed(one, *_QUERY)), "one token's output depends on its query"
        ):
            return ("attention_weights",), "the softmax: the weight of an only key is not one"
        if one.config.group > 1 and self._right_if_larger(
            worlds.equal_heads(one, "key", "value"), "with equal key/value heads", *_VALUE
        ):
            return ("attention_weights", "attention_branch"), "which key/value head a query head reads"
        if self._differ(shown, self._bench.output(worlds.zeroed(one, *_KEY)), "one token's output depends on its key"):
            return ("key", "value") if one.config.group > 1 else ("value",), "the values: the key matrix is in them"
        for name, stage in (("attention.value_bias", "value"), ("attention.output_bias", "attention_branch")):
            if name in one.parameters and self._right_if_larger(
                worlds.zeroed(one, name), f"on one token without {name}", *_VALUE
            ):
                if one.config.bias == "qkv" and self._wrong(
                    worlds.zeroed(self._world, name), f"on all tokens without {name}"
                ):
                    return ("query", "key", "value"), "the biases of query, key and value"
                return (stage,), f"the bias {name}"
        if self._right(worlds.one_head(one), "on one token with one head"):
            return self._heads(one)
        stages = ("value", "attention_weights", "attention_branch", *self._joined())
        if one.config.placement == "inside":
            # What the projections read, the input itself, cannot be told from a norm of it.
            return (
                "query",
                "key",
                *stages,
            ), "the attention half: what it reads, its value path, its norm or the addition"
        return stages, "the value path: its projections, the weight of an only key, or the addition"

    def _heads(self, world: World) -> Conclusion:
        """Right with one head: whether heads are only joined in another way, or split in another way too."""
        if self._right(
            worlds.equal_heads(world, "value", "output"), "with heads that are all alike in value and output"
        ):
            return ("value", "attention_branch"), "the order in which heads are joined"
        return ("query", "key", "value", "attention_branch"), "how heads are split or joined"

    def _scores(self, attention: World) -> Conclusion:
        """Uniform attention is right: projections of query and key, rotation, scale, or the softmax of real scores."""
        if self._right_if_larger(worlds.unturned(attention), "without rotary embedding", *_QUERY):
            return ("query", "key"), "the rotation of queries and keys"
        if attention.config.group > 1 and self._right_if_larger(
            worlds.equal_heads(attention, "key"), "with equal key heads", *_QUERY
        ):
            return ("key", "attention_weights"), "which key head a query head reads"
        if "attention.query_bias" in attention.parameters and self._right_if_larger(
            worlds.zeroed(attention, "attention.query_bias"), "without the query bias", *_QUERY
        ):
            return ("query",), "the bias of the queries"
        if attention.config.n_heads > 1 and self._right_if_larger(
            worlds.equal_heads(attention, "query"), "with equal query heads", *_QUERY
        ):
            return ("query", "attention_weights"), "which query head is which"
        if self._right(worlds.scaled(attention, 2.0**12, *_QUERY), "with scores so large that one key takes all"):
            return ("query", "key", "attention_weights"), "the sizes of the scores, or their softmax"
        return ("query", "key", "attention_weights"), "the score path (query, key, scale, softmax)"

    def _mixing(self, uniform: World) -> Conclusion:
        """Wrong on several tokens without any scores: the mask, or how heads are split and joined."""
        if self._right(worlds.unturned(uniform), "with the queries zeroed and without rotary embedding"):
            return ("value",), "the values: they are turned"
        equal = worlds.equal_tokens(uniform)
        if self._right(equal, "with the queries zeroed and equal tokens"):
            larger = worlds.scaled(equal, _LARGER, *_VALUE)
            if self._wrong(larger, f"with the queries zeroed, equal tokens and values {_LARGER:g} times as large"):
                return self._value_path()
            return ("attention_weights",), "the mask or the softmax"
        if self._right(worlds.one_head(uniform), "with one head"):
            return self._heads(uniform)
        return ("attention_weights", "attention_branch"), "the mixing of tokens (mask, softmax, joining of heads)"

    # --- the feed-forward half ---

    def _feed_forward_half(self, feed_forward: World, silent: World, attention: World) -> Conclusion:
        if not self._pre:
            return ("feed_forward_branch", *_SECOND_POST), "the feed-forward branch, or its addition"
        if self._norm_at_fault("feed_forward_norm", feed_forward):
            # What is wrong by little in one norm may be within the bound in the other.
            small = worlds.even_rows(attention, (attention.config.norm_eps or 1e-6) ** 0.5)
            if self._wrong(small, "with the feed-forward branch zeroed and small rows"):
                return ("attention_norm", "feed_forward_norm"), "the norms"
            return ("feed_forward_norm",), "the norm of the feed-forward branch"
        shown, without = self._bench.output(feed_forward), self._bench.output(silent)
        if shown is not None and without is not None:
            branch, right = shown - without, self._bench.reference(feed_forward) - without
            factor = float((branch * right).sum()) / (float((right * right).sum()) or 1.0)
            if self._alike(branch, factor * right, f"the feed-forward branch is {factor:.3g} times what it should be"):
                return ("feed_forward_branch", "output"), "the feed-forward branch or its addition, by a factor"
        branch_alone = ("feed_forward_branch",), "the feed-forward branch (activation, gate, up or down)"
        return self._or_norm("feed_forward_norm", feed_forward, branch_alone)
