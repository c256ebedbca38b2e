"""Every fault that this backend can express, gathered from the modules of the families."""

from collections.abc import Mapping

from blocklaws.backends.on_numpy import (
    faults_behaviour,
    faults_cache,
    faults_calls,
    faults_feed_forward,
    faults_further_attention,
    faults_further_wiring,
    faults_gradients,
    faults_heads,
    faults_mask,
    faults_norms,
    faults_parameters,
    faults_residual,
    faults_rotary,
    faults_shape,
)
from blocklaws.backends.on_numpy.block import NumpyBlock
from blocklaws.backends.on_numpy.fault_registry import FAULTS as _REGISTERED

__all__ = ["FAMILIES", "FAULTS"]

#: Fault id -> faulty block.
FAULTS: Mapping[str, type[NumpyBlock]] = _REGISTERED

#: The modules that filled the table.
FAMILIES = (
    faults_norms,
    faults_residual,
    faults_mask,
    faults_heads,
    faults_rotary,
    faults_feed_forward,
    faults_cache,
    faults_parameters,
    faults_gradients,
    faults_behaviour,
    faults_calls,
    faults_shape,
    faults_further_attention,
    faults_further_wiring,
)
