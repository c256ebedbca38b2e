"""The table of faulty blocks: the id of a fault in ``spec/faults.yaml`` -> the block that has it.

Must hold: a faulty block is the right block with one step overridden, and differs in nothing that the fault's sentence
does not say; its reverse pass is the derivative of what it computes, unless the fault is a wrong gradient. The
sentences are said once, in the spec. Modules ``faults_*`` fill the table, a family each.
"""

from collections.abc import Callable
from typing import TypeVar

from blocklaws.backends.on_numpy.block import NumpyBlock

__all__ = ["FAULTS", "fault"]

_Block = TypeVar("_Block", bound=type[NumpyBlock])

#: Fault id -> block class, in the order of registration.
FAULTS: dict[str, type[NumpyBlock]] = {}


def fault(identity: str) -> Callable[[_Block], _Block]:
    """Return a class decorator that registers a block under the id of its fault.

    Raises:
        ValueError: the id is taken.
    """
    if identity in FAULTS:
        raise ValueError(f"fault {identity!r} is registered twice, first as {FAULTS[identity].__name__}")

    def register(block: _Block) -> _Block:
        FAULTS[identity] = block
        return block

    return register
