"""Which faults this backend can express, and where: the table is read without JAX, a module when its fault is built.

Must hold: a fault is a subclass of `Steps` that overrides what its sentence in ``spec/faults.yaml`` says and no more,
or a subclass of `JaxBlock` where the fault is in what surrounds the mathematics. Must not: import a module of faults
before one of its faults is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from blocklaws.errors import BackendError, did_you_mean

if TYPE_CHECKING:
    from blocklaws.backends.on_jax.block import JaxBlock
    from blocklaws.backends.on_jax.steps import Steps

__all__ = ["FAULTS", "fault", "load"]

#: Module of faults -> the ids that it defines, in the order of the list of faults.
_MODULES: dict[str, tuple[str, ...]] = {
    "faults_norm": (
        "norm-over-tokens",
        "norm-over-tokens-and-features",
        "norm-over-batch",
        "norm-divided-by-tokens",
        "variance-unbiased",
        "eps-outside-root",
        "variance-squared",
        "eps-inflated-by-prescale",
        "eps-hard-coded",
        "eps-clamped",
        "config-on-class",
        "eps-default-in-second-norm",
        "eps-missing",
        "gain-offset",
        "gain-offset-in-second-norm",
        "gain-missing",
        "norm-bias-missing",
        "mean-not-subtracted",
        "mean-subtracted",
        "norm-shared",
        "second-norm-uses-first",
        "norms-swapped",
        "attention-norm-skipped",
        "feed-forward-norm-skipped",
        "norm-promotes-output",
        "gains-rounded",
        "mean-square-in-half",
        "inside-norm-in-half",
        "variance-in-one-pass",
        "eps-in-half",
        "square-overflows",
        "squares-summed-in-half",
        "eps-from-dtype",
    ),
    "faults_residual": (
        "residual-from-norm",
        "feed-forward-residual-from-norm",
        "residual-dropped",
        "feed-forward-residual-dropped",
        "feed-forward-residual-from-input",
        "second-norm-reads-input",
        "stream-overwritten",
        "residual-scaled",
        "branch-scaled",
        "placement-swapped",
        "placement-ignored",
        "post-norm-on-branch",
        "residual-rounded",
        "stream-in-float16",
        "branch-order-swapped",
        "inside-as-pre",
        "inside-as-post",
        "parallel-as-sequential",
        "parallel-shared-norm",
        "parallel-input-twice",
        "residual-scale-ignored",
        "residual-scale-on-attention-only",
        "residual-scale-on-sum",
    ),
    "faults_mask": (
        "mask-off-by-one",
        "self-hidden",
        "mask-missing",
        "mask-inverted",
        "mask-missing-in-last-head",
        "mask-missing-in-later-batches",
        "window-never-asked",
        "long-context-truncated",
        "partial-key-block-dropped",
        "first-token-hidden",
        "cache-mask-top-left",
        "cache-mask-missing",
        "cache-first-chunk-unmasked",
        "window-ignored",
        "window-off-by-one",
        "window-short-by-one",
        "window-fixed",
        "window-ignored-in-cache",
        "window-cache-cut-early",
    ),
    "faults_softmax": (
        "mask-after-softmax",
        "mask-multiplied",
        "mask-too-small",
        "mask-fill-zero-point",
        "softmax-over-queries",
        "softmax-over-heads",
        "softmax-without-maximum",
        "softmax-in-half",
        "softmax-one-more",
        "weights-not-normalised",
        "scale-by-d-model",
        "scale-missing",
        "scale-twice",
        "scale-by-n-heads",
        "softmax-gradient-truncated",
        "gradient-flushes-small-weights",
        "softcap-missing",
        "softcap-after-mask",
        "softcap-before-scale",
        "softcap-multiplies-scores",
        "softcap-not-multiplied-back",
    ),
    "faults_heads": (
        "heads-not-transposed",
        "merge-not-transposed",
        "heads-interleaved",
        "heads-merged-in-reverse",
        "head-weights-shared",
        "batch-and-tokens-swapped",
        "value-from-key",
        "query-key-swapped",
        "fused-split-by-group",
        "output-matrix-transposed",
        "output-projection-skipped",
        "query-bias-missing",
        "value-bias-missing",
        "output-bias-missing",
        "kv-heads-tiled",
        "query-heads-averaged",
        "kv-head-off-by-one",
        "one-kv-head-for-all",
        "value-heads-tiled",
        "kv-gradient-wrong-group",
        "qkv-bias-dropped",
    ),
    "faults_qk_norm": (
        "qk-norm-missing",
        "qk-norm-after-rotary",
        "qk-norm-over-all-heads",
        "qk-norm-per-head",
        "qk-norm-on-values",
        "qk-gain-shared",
    ),
    "faults_rotary": (
        "rotary-layout-swapped",
        "rotary-layout-fixed",
        "rotary-angles-mispaired",
        "rotary-frequency-off-by-one",
        "rotary-base-fixed",
        "rotary-positions-over-heads",
        "value-rotated",
        "rotary-missing",
        "rotary-key-not-turned",
        "rotary-backwards",
        "rotary-key-backwards",
        "rotary-sine-missing",
        "rotary-angles-in-half",
        "rotary-frequencies-rounded",
        "rotary-offset-ignored",
        "positions-from-one",
        "rotary-partial",
        "rotary-exponent-by-d-model",
        "positions-capped",
        "cache-position-restarts",
        "cache-keys-not-turned",
        "cache-query-position-zero",
        "rotary-fraction-ignored",
        "rotary-fraction-fixed",
        "rotary-fraction-exponent-by-d-head",
        "rotary-turns-last-features",
        "rotary-fraction-pairs-across-head",
    ),
    "faults_feed_forward": (
        "gelu-tanh-for-erf",
        "gelu-tanh-as-erf",
        "gelu-quick",
        "gate-and-up-swapped",
        "activation-on-product",
        "gate-sigmoid",
        "gate-ignored",
        "activation-missing",
        "activation-overflows",
        "relu-leaky",
        "up-bias-missing",
        "down-bias-missing",
        "feed-forward-token-shift",
        "feed-forward-width-cut",
        "geglu-as-swiglu",
        "geglu-tanh-as-erf",
        "geglu-erf-as-tanh",
    ),
    "faults_cache": (
        "cache-drops-oldest",
        "cache-drops-newest",
        "cache-overwrites",
        "cache-on-block",
        "cache-input-modified",
        "cache-output-reused",
        "cache-strides-ignored",
        "cache-eps-fixed",
        "cache-in-float16",
    ),
    "faults_calls": (
        "cache-begins-at-last-offset",
        "gradient-input-modified",
        "trace-strides-ignored",
        "trace-dtype-changed",
        "gradient-dtype-changed",
        "parameters-dtype-changed",
    ),
    "faults_parameters": (
        "bias-left-on",
        "bias-not-listed",
        "parameters-out-of-order",
        "key-value-tied",
        "parameter-not-registered",
        "parameters-transposed",
    ),
    "faults_gradients": (
        "gain-gradient-missing",
        "gradient-eps-fixed",
        "norm-detached",
        "gate-up-gradients-swapped",
        "residual-gradient-dropped",
        "gradient-averaged-over-batch",
        "statistics-detached",
        "cotangent-modified",
        "gradient-accumulates",
    ),
    "faults_ways": (
        "angles-in-half-by-one-way",
        "norm-in-half-by-one-way",
    ),
    "faults_behaviour": (
        "input-modified",
        "parameters-modified",
        "output-buffer-reused",
        "dropout-in-eval",
        "positions-accumulate",
        "rotary-table-stale",
        "strides-ignored",
        "later-batches-zero",
        "batch-mixed",
    ),
    "faults_output": (
        "one-token-squeezed",
        "batch-of-one-squeezed",
        "last-token-dropped",
        "output-dtype-changed",
        "empty-tokens-accepted",
        "position-range-unchecked",
        "wide-input-truncated",
        "weights-rounded",
        "weights-through-float16",
        "computed-in-float32",
        "matmul-in-tf32",
    ),
}

#: Fault id -> the module that defines it.
FAULTS: dict[str, str] = {identifier: module for module, names in _MODULES.items() for identifier in names}

_defined: dict[str, type[Steps] | type[JaxBlock]] = {}

Class = TypeVar("Class", bound="type[Steps] | type[JaxBlock]")


def fault(identifier: str) -> Callable[[Class], Class]:
    """Return a decorator that gives a class to a fault.

    Raises:
        BackendError: the table has no such fault, or it has a class already.
    """
    if identifier not in FAULTS or identifier in _defined:
        raise BackendError(f"fault: {identifier!r} is defined twice, or is not in the table of {__name__}")

    def register(cls: Class) -> Class:
        _defined[identifier] = cls
        return cls

    return register


def load(identifier: str) -> type[JaxBlock]:
    """Return the class of blocks that have a fault.

    Raises:
        BackendError: this backend cannot express the fault.
    """
    check(identifier)
    importlib.import_module(f"blocklaws.backends.on_jax.{FAULTS[identifier]}")
    from blocklaws.backends.on_jax.block import JaxBlock

    found = _defined[identifier]
    if issubclass(found, JaxBlock):
        return found
    return type(f"{found.__name__}Block", (JaxBlock,), {"steps_class": found})


def check(identifier: str) -> None:
    """Refuse the id of a fault that this backend does not have.

    Raises:
        BackendError: with the nearest id.
    """
    if identifier not in FAULTS:
        hint = did_you_mean(str(identifier), FAULTS)
        raise BackendError(
            f"fault: the jax backend has no fault {identifier!r}{hint}; `faults` lists the {len(FAULTS)}"
        )
