"""Keeping values out of the registers that a main loop needs for its accumulators."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32


def pinned(value: Int32) -> Int32:
    """The same value, computed here: what depends on it is not moved out of the loops around.

    The compiler hoists every loop-invariant address and reciprocal; in a kernel whose accumulators
    leave 30 registers, each of them costs one for the whole main loop.
    """
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[value]
    )
