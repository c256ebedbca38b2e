"""Which faults this backend can express, and where each one is written.

Must hold: naming the faults imports no torch; a fault's class is its id in capitals, in the module that lists it here.
A fault subclasses `DecoderBlock` and overrides one step, or `TorchBlock` where the contract itself is broken.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklaws.backends.on_torch.adapter import TorchBlock

__all__ = ["FAULTS", "faulty_block_class"]

_MODULES: dict[str, tuple[str, ...]] = {
    "faults_statistics": (
        "norm-over-tokens",
        "norm-over-tokens-and-features",
        "norm-over-batch",
        "norm-divided-by-tokens",
        "variance-unbiased",
        "eps-outside-root",
        "variance-squared",
        "eps-inflated-by-prescale",
        "eps-hard-coded",
        "eps-missing",
        "mean-not-subtracted",
        "mean-subtracted",
        "mean-square-in-half",
        "square-overflows",
        "squares-summed-in-half",
        "eps-from-dtype",
        "norm-modifies-input",
    ),
    "faults_norms": (
        "eps-default-in-second-norm",
        "gain-offset",
        "gain-offset-in-second-norm",
        "gain-missing",
        "norm-bias-missing",
        "norm-shared",
        "second-norm-uses-first",
        "norms-swapped",
        "attention-norm-skipped",
        "feed-forward-norm-skipped",
        "norm-promotes-output",
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
        "branch-order-swapped",
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
    ),
    "faults_cache": (
        "cache-position-restarts",
        "cache-mask-top-left",
        "cache-mask-missing",
        "cache-first-chunk-unmasked",
        "cache-keys-not-turned",
        "cache-drops-oldest",
        "cache-drops-newest",
        "cache-overwrites",
        "cache-on-block",
        "cache-query-position-zero",
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
        "norm-detached",
        "gate-up-gradients-swapped",
        "residual-gradient-dropped",
        "gradient-averaged-over-batch",
        "softmax-gradient-truncated",
        "kv-gradient-wrong-group",
        "statistics-detached",
        "cotangent-modified",
        "gradient-accumulates",
    ),
    "faults_ways": (
        "angles-in-half-by-one-way",
        "norm-in-half-by-one-way",
        "training-gelu-tanh",
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
        "empty-tokens-accepted",
        "position-range-unchecked",
        "wide-input-truncated",
    ),
    "faults_output": (
        "one-token-squeezed",
        "batch-of-one-squeezed",
        "last-token-dropped",
        "output-dtype-changed",
        "weights-rounded",
        "computed-in-float32",
        "matmul-in-tf32",
    ),
}

#: Every fault of `spec/faults.yaml` that can be told on torch.
FAULTS = tuple(fault for faults in _MODULES.values() for fault in faults)


def faulty_block_class(fault: str) -> type[TorchBlock]:
    """Return the class of blocks that have the fault, one of `FAULTS`; this imports torch."""
    from blocklaws.backends.on_torch.adapter import TorchBlock

    name = "".join(part.capitalize() for part in fault.split("-"))
    module = next(module for module, faults in _MODULES.items() if fault in faults)
    found: type = getattr(importlib.import_module(f"blocklaws.backends.on_torch.{module}"), name)
    if issubclass(found, TorchBlock):
        return found
    return type(name, (TorchBlock,), {"module_class": found, "__doc__": found.__doc__})
