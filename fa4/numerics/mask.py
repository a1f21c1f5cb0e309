"""Hides keys that a row must not see: one bit per key, 32 keys a word."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

WORD = 32


@cute.jit
def mask_scores(
    scores: cute.Tensor, begin: Int32, end: Int32, left_bound: cutlass.Constexpr[bool]
) -> None:
    """scores (N_BLOCK,) of one row: -inf outside [begin, end), both relative to the block."""
    for word in cutlass.range_constexpr(cute.size(scores) // WORD):
        visible = _ones_below(end - word * WORD)
        if cutlass.const_expr(left_bound):
            visible = visible & ~_ones_below(begin - word * WORD)
        for bit in cutlass.range_constexpr(WORD):
            i = word * WORD + bit
            scores[i] = scores[i] if visible & (1 << bit) else -Float32.inf


def _ones_below(n: Int32) -> Int32:
    """A word with its n lowest bits set, for any n: shl by 32 or more gives 0 in PTX."""
    n = cutlass.min(cutlass.max(n, 0), WORD)
    return ~cute.arch.inline_ptx(
        "shl.b32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[Int32(-1), n]
    )
