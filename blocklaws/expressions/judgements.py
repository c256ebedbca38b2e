"""The judgement functions: what an expression may claim of two arrays, or of one.

Must hold: NaN satisfies no judgement, neither of equality nor of difference; a shape that does not fit is a failed
judgement and not an error, because a block is to blame; an infinite value never widens a bound. A comparison that NaN
or a shape made meaningless is marked, so that its negation fails too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from blocklaws.expressions.judging import Judgement, failed, judge_elements, judge_mask, judge_some, no_evidence
from blocklaws.expressions.problems import EvaluationError
from blocklaws.expressions.registry import Context, function
from blocklaws.expressions.values import Array, Value, array_of, axis_of, describe, is_number, named, widened

__all__: list[str] = []

#: `apart` asks for this many times the tolerance of `close`, so that what lies between the two is neither.
APART = 10.0


# --- every element must ---------------------------------------------------------------------------------------------


def _pair(context: Context, a: Value, b: Value) -> tuple[Array, Array] | Judgement:
    """Return both sides in float64, or the judgement that their shapes differ; a plain number goes with any shape."""
    x, y = array_of(a), array_of(b)
    if x.shape != y.shape and not (is_number(a) or is_number(b)):
        detail = f"shapes differ: got {x.shape}, want {y.shape}"
        return failed(context, detail, shape=x.shape, undecided=True)
    return widened(x), widened(y)


def _difference(a: Array, b: Array) -> Array:
    """Return |a - b|, zero where both are equal (so that inf agrees with inf), NaN where either is."""
    return np.where(a == b, 0.0, np.abs(a.astype(np.float64) - b.astype(np.float64)))


def _gap(a: Array, b: Array) -> Array:
    """Return |a - b|, above zero wherever the values differ at all: whole numbers past 2**53 lose theirs in float64."""
    return np.where(a == b, 0.0, np.maximum(_difference(a, b), np.nextafter(0.0, 1.0)))


def _row_scale(*arrays: Array) -> Array:
    """Return the largest finite |value| of each row (the last axis), with that axis kept at length 1."""
    sizes = [np.abs(np.where(np.isfinite(array), array, 0.0)) for array in arrays]
    scale = sizes[0] if len(sizes) == 1 else np.maximum(*sizes)
    return scale.max(axis=-1, keepdims=True, initial=0.0) if scale.ndim else scale


def _each(context: Context, judge: Callable[..., Judgement], some: bool, *values: Value) -> Judgement:
    """Judge arrays, or sets of named arrays name by name: all must hold, or one where ``some`` is said."""
    if not any(isinstance(value, Mapping) for value in values):
        return judge(context, *values)
    sets = [named(value) for value in values]
    for other in sets[1:]:
        if set(other) != set(sets[0]):
            odd = sorted(set(other) ^ set(sets[0]))
            detail = f"the two sets differ in {', '.join(odd[:4])}{' ...' if len(odd) > 4 else ''}"
            return failed(context, detail, undecided=True)
    if some and any(np.isnan(widened(array)).any() for one in sets for array in one.values()):
        return failed(context, "some elements are NaN, which is no difference", undecided=True)
    found = [dataclasses.replace(judge(context, *(s[name] for s in sets)), name=name) for name in sets[0]]
    if not found:
        return Judgement(True, context.claim) if not some else failed(context, "there is nothing to compare")
    deciding = next((j for j in found if j.holds == some), found[0] if some else max(found, key=_margin))
    return dataclasses.replace(
        deciding,
        detail=f"{deciding.name}: {deciding.detail}" if deciding.detail else "",
        total=sum(j.total for j in found),
        undecided=any(j.undecided for j in found),
    )


def _margin(judgement: Judgement) -> float:
    return (judgement.difference or 0.0) / (judgement.allowed or 1.0)


@function(weight=3)
def identical(context: Context, a: Value, b: Value) -> Judgement:
    """Every value of ``a`` equals that of ``b`` bit for bit, but for the sign of zero; the dtypes may differ.

    Values are compared after an exact step to float64. NaN equals nothing. ``b`` may be one number. For a backend that
    is not deterministic this is `close`.

    >>> show("identical(output, input + input)")
    holds: identical(output, input + input)
    >>> show("identical([1, 2], [1, 3])")
    fails: identical([1, 2], [1, 3]): 1 of 2 elements wrong, worst at (1,): got 2.0, want 3.0, difference 1, allowed 0
    """
    return _each(context, _identical, False, a, b) if context.exact else close(context, a, b)


def _identical(context: Context, a: Value, b: Value) -> Judgement:
    pair = _pair(context, a, b)
    if isinstance(pair, Judgement):
        return pair
    x, y = pair
    return judge_elements(context, x, y, _gap(x, y), 0.0)


@function(weight=4)
def close(context: Context, a: Value, b: Value, times: Value = 1, terms: Value = None) -> Judgement:
    """``|a - b| <= times (atol + rtol r)``, ``r`` the largest finite magnitude of the two rows (along the last axis).

    ``atol`` and ``rtol`` are those of the dtype under test, in ``spec/tolerances.yaml``. Where values are sums that may
    cancel to nothing, ``terms`` gives the magnitudes that were added: ``r`` is not less than the largest in its row.

    >>> show("close(output, input + input * 1.0000001)")
    holds: close(output, input + input * 1.0000001)
    """
    factor = _factor(times)
    least = None if terms is None else _row_scale(widened(array_of(terms)))
    return _each(context, lambda c, x, y: _close(c, x, y, factor, least), False, a, b)


def _factor(times: Value) -> float:
    if not is_number(times) or not 0 < times < float("inf"):
        raise EvaluationError(f"times must be a positive number, got {describe(times)}")
    return float(times)


def _bound(context: Context, x: Array, y: Array, least: Array | float = 0.0) -> Array:
    return context.tolerance.atol + context.tolerance.rtol * np.maximum(_row_scale(x, y), least)


def _close(context: Context, a: Value, b: Value, factor: float, least: Array | None) -> Judgement:
    pair = _pair(context, a, b)
    if isinstance(pair, Judgement):
        return pair
    x, y = np.broadcast_arrays(*pair)
    if least is None:
        return judge_elements(context, x, y, _difference(x, y), factor * _bound(context, x, y))
    if (rows := x.shape[:-1]) != least.shape[:-1] or x.ndim != least.ndim:
        raise EvaluationError(f"terms have rows of {least.shape[:-1]}, and what is compared of {rows}")
    return judge_elements(context, x, y, _difference(x, y), factor * _bound(context, x, y, least))


@function(weight=4)
def calibrated(context: Context, candidate: Value, reference: Value, recipe: Value) -> Judgement:
    """The candidate's error is at most ``c`` times the recipe's largest error, plus ``floor`` times the row's scale.

    Errors are distances to the float64 reference; the recipe is the same computation in the dtype under test; ``c`` and
    ``floor`` are those of the dtype. What underflows in it may be zero. Raises an error where reference or recipe is
    not finite: there is no bound then.

    >>> show("calibrated(output, 2 * input, astype(2 * input, 'float32'))")
    holds: calibrated(output, 2 * input, astype(2 * input, 'float32'))
    """
    # Sets are judged name by name, but in the scale of the whole set: a gradient that is zero in exact arithmetic has
    # no scale of its own, only the rounding noise of the others.
    whole = 0.0
    if isinstance(reference, Mapping):
        whole = max((float(np.max(np.abs(widened(value)), initial=0.0)) for value in reference.values()), default=0.0)
    return _each(context, lambda c, x, y, z: _calibrated(c, x, y, z, whole), False, candidate, reference, recipe)


def _calibrated(context: Context, candidate: Value, reference: Value, recipe: Value, whole: float) -> Judgement:
    x, exact, rounded = (widened(value) for value in (candidate, reference, recipe))
    if exact.shape != rounded.shape:
        raise EvaluationError(f"reference and recipe have shapes {exact.shape} and {rounded.shape}")
    for name, value in (("reference", exact), ("recipe", rounded)):
        if broken := int((~np.isfinite(value)).sum()):
            raise EvaluationError(
                f"{broken} of {value.size} elements of what stands for the {name} are not finite, so nothing can be "
                "judged against it"
            )
    if x.shape != exact.shape:
        detail = f"shapes differ: got {x.shape}, want {exact.shape}"
        return failed(context, detail, shape=x.shape, undecided=True)
    error = float(np.max(np.abs(rounded - exact), initial=0.0))
    allowed = context.tolerance.c * error + context.tolerance.floor * np.maximum(_row_scale(exact), whole)
    allowed += context.tolerance.underflow
    return judge_elements(context, x, exact, _difference(x, exact), allowed)


@function(weight=2)
def finite(context: Context, x: Value) -> Judgement:
    """Every value is a number: no NaN, no infinity.

    >>> show("finite(output)")
    holds: finite(output)
    >>> show("finite([1, 1 / 0])")
    fails: finite([1, 1 / 0]): 1 of 2 elements are not finite, the first at (1,): inf
    """
    return _each(context, _finite, False, x)


def _finite(context: Context, x: Value) -> Judgement:
    array = widened(x)
    mask = ~np.isfinite(array)
    return judge_mask(context, array, mask, "are not finite")


# --- some element must ----------------------------------------------------------------------------------------------


@function(weight=3)
def differs(context: Context, a: Value, b: Value) -> Judgement:
    """At least one value of ``a`` is not that of ``b``, and the shapes are equal; a NaN on either side fails it.

    >>> show("differs(output, input)")
    holds: differs(output, input)
    >>> show("differs(input, input)")
    fails: differs(input, input): none of 24 elements differ, the largest difference is 0
    """
    return _each(context, _differs, True, a, b)


def _differs(context: Context, a: Value, b: Value) -> Judgement:
    pair = _pair(context, a, b)
    if isinstance(pair, Judgement):
        return pair
    x, y = pair
    return judge_some(context, x, y, _gap(x, y), 0.0, "differ")


@function(weight=4)
def apart(context: Context, a: Value, b: Value) -> Judgement:
    """At least one value differs by more than ten times what `close` allows; a NaN on either side fails it.

    >>> show("apart(output, input)")
    holds: apart(output, input)
    """
    return _each(context, _apart, True, a, b)


def _apart(context: Context, a: Value, b: Value) -> Judgement:
    pair = _pair(context, a, b)
    if isinstance(pair, Judgement):
        return pair
    x, y = np.broadcast_arrays(*pair)
    return judge_some(context, x, y, _difference(x, y), APART * _bound(context, x, y), "are apart")


@function(weight=3)
def differs_everywhere(context: Context, a: Value, b: Value, axis: Value = None) -> Judgement:
    """At each index along ``axis`` some value differs; without an axis, every value does. A NaN fails it.

    >>> show("differs_everywhere(output, input, axis='token')")
    holds: differs_everywhere(output, input, axis='token')
    >>> show("differs_everywhere(output, input)")
    fails: differs_everywhere(output, input): 1 of 24 places do not differ, the first at (0, 0, 0): 0.0
    """
    pair = _pair(context, a, b)
    if isinstance(pair, Judgement):
        return pair
    x, y = np.broadcast_arrays(*pair)
    if (nothing := no_evidence(context, x, y, x.shape)) is not None:
        return nothing
    same = x == y
    if axis is not None:
        kept = axis_of(axis, x.ndim)
        same = same.all(axis=tuple(i for i in range(x.ndim) if i != kept), keepdims=True)
    found = judge_mask(context, np.broadcast_to(x, x.shape)[tuple(slice(0, n) for n in same.shape)], same, "")
    if found.holds:
        return found
    detail = f"{found.wrong} of {found.total} places do not differ, the first at {found.worst}: {found.got!r}"
    return dataclasses.replace(found, detail=detail, mask=np.broadcast_to(same, x.shape), shape=x.shape)


# --- form and memory ------------------------------------------------------------------------------------------------


@function(weight=0)
def same_shape(context: Context, a: Value, b: Value) -> Judgement:
    """Both have the same shape.

    >>> show("same_shape(output, input)")
    holds: same_shape(output, input)
    """
    return _each(context, _same_shape, False, a, b)


def _same_shape(context: Context, a: Value, b: Value) -> Judgement:
    got, want = array_of(a).shape, array_of(b).shape
    if got == want:
        return Judgement(True, context.claim, total=1, shape=got)
    return failed(context, f"shapes differ: got {got}, want {want}", shape=got)


@function(weight=0)
def same_dtype(context: Context, a: Value, b: Value) -> Judgement:
    """Both have the same dtype; the other judgements compare values alone.

    >>> show("same_dtype(output, astype(output, 'float32'))")
    fails: same_dtype(output, astype(output, 'float32')): dtypes differ: got float64, want float32
    """
    return _each(context, _same_dtype, False, a, b)


def _same_dtype(context: Context, a: Value, b: Value) -> Judgement:
    got, want = array_of(a).dtype, array_of(b).dtype
    if got == want:
        return Judgement(True, context.claim, total=1)
    return failed(context, f"dtypes differ: got {got.name}, want {want.name}")


#: Steps that the exact search for a shared element may take; slices of one matrix need a handful.
MEMORY_WORK = 10_000


def _overlap(a: Array, b: Array) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=MEMORY_WORK))  # type: ignore[arg-type]  # any number is meant
    except RuntimeError:  # NumPy's TooHardError, which has moved between its versions
        raise EvaluationError("the memory of the two arrays is laid out in too complex a way to compare") from None


@function(weight=0)
def shares_memory(context: Context, a: Value, b: Value) -> Judgement:
    """Some element of ``a`` lies in the memory of ``b``.

    >>> show("shares_memory(input[:, 1:], input)")
    holds: shares_memory(input[:, 1:], input)
    >>> show("not shares_memory(output, input)")
    holds: not shares_memory(output, input)
    """
    if _overlap(array_of(a), array_of(b)):
        return Judgement(True, context.claim, total=1)
    return failed(context, "the two lie in separate memory")


@function(weight=0)
def distinct_storage(context: Context, parameters: Value) -> Judgement:
    """No two of the parameters share memory: an update of one must not change another.

    >>> show("distinct_storage(parameters)")
    holds: distinct_storage(parameters)
    """
    arrays = list(named(parameters).items())
    pairs = [(a, b) for i, a in enumerate(arrays) for b in arrays[:i]]
    for (name, array), (other, earlier) in pairs:
        if _overlap(array, earlier):
            return failed(context, f"{other} and {name} share memory", total=len(pairs), name=name)
    return Judgement(True, context.claim, total=len(pairs))
