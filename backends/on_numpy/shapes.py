"""The shapes of the arrays of a block, named once, for the signatures of its steps.

Must hold: each name lists its axes and nothing else; within one signature equal axis names have equal lengths. Named
here rather than written out in place, because pullbacks are made on every call and would build each annotation anew.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

__all__ = [
    "Angles",
    "AnyArray",
    "Features",
    "Frequencies",
    "Heads",
    "Inner",
    "KeyHeads",
    "KeyPositions",
    "KvHeads",
    "KvKeyHeads",
    "LinearInput",
    "LinearOutput",
    "Numbers",
    "Positions",
    "QueryHeads",
    "QueryPositions",
    "Scores",
    "Stream",
    "Visible",
]

#: An array from outside, before it was looked at.
AnyArray = Shaped[np.ndarray, "..."]
#: Real numbers of any shape.
Numbers = Float[np.ndarray, "..."]

Stream = Float[np.ndarray, "batch token d_model"]
#: All heads side by side.
Features = Float[np.ndarray, "batch token features"]
LinearInput = Float[np.ndarray, "batch token width_in"]
LinearOutput = Float[np.ndarray, "batch token width_out"]
Inner = Float[np.ndarray, "batch token d_ff"]

Heads = Float[np.ndarray, "batch head token d_head"]
KvHeads = Float[np.ndarray, "batch kv_head token d_head"]
QueryHeads = Float[np.ndarray, "batch head query d_head"]
KeyHeads = Float[np.ndarray, "batch head key d_head"]
KvKeyHeads = Float[np.ndarray, "batch kv_head key d_head"]

Scores = Float[np.ndarray, "batch head query key"]
#: True where a query may look at a key, for every sequence and head alike unless there are axes for them.
Visible = Bool[np.ndarray, "*rest query key"]

Positions = Int[np.ndarray, " token"]
QueryPositions = Int[np.ndarray, " query"]
KeyPositions = Int[np.ndarray, " key"]
#: Radians a position.
Frequencies = Float[np.ndarray, " pair"]
#: Radians.
Angles = Float[np.ndarray, "token pair"]
