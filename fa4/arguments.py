"""The argument block: every runtime value of a launch, in one small buffer.

The compiled host function takes a pointer to it and reads what it needs. One pointer instead of
some thirty arguments keeps a call cheap, and so does the order: what differs from call to call
comes first, and what shapes, strides and options decide is packed once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

PER_CALL = (
    *("q", "k", "v", "o", "lse"),  # addresses
    "tile_counter",  # address of the counter of TileQueue (Hopper)
    "num_ctas",  # of the persistent grid
)
SIZES = ("batch", "seqlen_q", "seqlen_k", "heads_q", "heads_kv", "head_dim", "head_dim_v")
INTEGERS = (
    *PER_CALL,
    *SIZES,
    *(f"{tensor}_{axis}" for tensor in "qkvo" for axis in ("row", "head", "batch")),  # strides
    *("left", "right"),  # window
    "lse_rows",  # seqlen_q; 0 where nobody asks for the LSE, and none is written
    *("section", "last_section"),  # heads that share L2, see TileSchedule
)
NUMBERS = ("softmax_scale", "scale_log2", "softcap")  # see Scales

# 64-bit fields throughout: INTEGERS as int64, then NUMBERS as double. Strides in elements.
_REST = struct.Struct(f"={len(INTEGERS) - len(PER_CALL)}q{len(NUMBERS)}d")

pack_per_call = struct.Struct(f"={len(PER_CALL)}q").pack
"""(q, k, v, o, lse, tile_counter, num_ctas) -> the first bytes of a block."""


def pack_rest(values: Mapping[str, int | float]) -> bytes:
    """The bytes of a block behind those of `pack_per_call`; `values` holds every other field."""
    return _REST.pack(*(values[name] for name in (*INTEGERS[len(PER_CALL) :], *NUMBERS)))


BACKWARD_PER_CALL = (
    *("q", "k", "v", "o", "do", "lse"),  # addresses
    "dlse",  # address, or 0 where LSE has no gradient
    *("dq", "dk", "dv"),
    *("dq_sum", "lse_log2", "delta", "turns", "tile_counter"),  # in the workspace: BackwardRows
    "num_ctas",  # of a persistent grid
)
STRIDED = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
BACKWARD_INTEGERS = (
    *BACKWARD_PER_CALL,
    *SIZES,
    *(f"{tensor}_{axis}" for tensor in STRIDED for axis in ("row", "head", "batch")),
    *("left", "right"),
    *("section", "last_section"),
)
BACKWARD_NUMBERS = (*NUMBERS, "gradient_scale")  # see GradientScales

_BACKWARD_REST = struct.Struct(
    f"={len(BACKWARD_INTEGERS) - len(BACKWARD_PER_CALL)}q{len(BACKWARD_NUMBERS)}d"
)

pack_backward_per_call = struct.Struct(f"={len(BACKWARD_PER_CALL)}q").pack
"""The values of BACKWARD_PER_CALL -> the first bytes of a block."""


def pack_backward_rest(values: Mapping[str, int | float]) -> bytes:
    """The bytes behind those of `pack_backward_per_call`; `values` holds every other field."""
    names = (*BACKWARD_INTEGERS[len(BACKWARD_PER_CALL) :], *BACKWARD_NUMBERS)
    return _BACKWARD_REST.pack(*(values[name] for name in names))
