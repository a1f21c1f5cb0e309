"""The argument block: every runtime value of a forward launch, in one small buffer.

The compiled host function takes a pointer to it and reads what it needs. One pointer instead of
some thirty arguments keeps a call cheap, since the DSL converts each argument in Python.
"""

from __future__ import annotations

import ctypes

SIZES = ("batch", "seqlen_q", "seqlen_k", "heads_q", "heads_kv", "head_dim", "head_dim_v")
INTEGERS = (
    *("q", "k", "v", "o", "lse"),  # addresses
    *SIZES,
    *(f"{tensor}_{axis}" for tensor in "qkvo" for axis in ("row", "head", "batch")),  # strides
    *("left", "right"),  # window
    "section",  # heads that share L2, see TileSchedule
    "num_ctas",  # of the persistent grid
    "tile_counter",  # address of the counter of TileQueue (Hopper)
)
NUMBERS = ("softmax_scale", "scale_log2", "softcap")  # see Scales


class ForwardArguments(ctypes.Structure):
    """64-bit fields throughout: INTEGERS as int64, then NUMBERS as double. Strides in elements."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in INTEGERS),
        *((name, ctypes.c_double) for name in NUMBERS),
    )
