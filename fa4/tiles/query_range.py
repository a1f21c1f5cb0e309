"""Which query blocks see a block of keys, and which of them need a mask: for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from fa4.numerics.mask import BlockMask
from fa4.tiles.block_range import BlockRange, Visibility


@dataclass(frozen=True)
class QueryVisibility:
    """`Visibility` read along a column: key j is seen by rows [key_begin, key_end).

    Row i sees keys [i + offset - left, i + offset + right], so key j is seen by rows
    [j - offset - right, j - offset + left], clipped to the sequence.
    """

    see: Visibility
    m_block: cutlass.Constexpr[int]

    @cute.jit
    def key_begin(self, key: Int32) -> Int32:
        """First row that sees `key` (may be >= seqlen_q: none does)."""
        begin = Int32(0)
        if cutlass.const_expr(self.see.right_bound):
            shifted = key - (self.see.seqlen_k - self.see.seqlen_q)
            begin = cutlass.max(begin, shifted - self.see.right)
        return begin

    @cute.jit
    def key_end(self, key: Int32) -> Int32:
        """First row below those that see `key` (may be <= 0: none does)."""
        end = self.see.seqlen_q
        if cutlass.const_expr(self.see.left_bound):
            shifted = key - (self.see.seqlen_k - self.see.seqlen_q)
            end = cutlass.min(end, shifted + self.see.left + 1)
        return end if key < self.see.seqlen_k else Int32(0)

    @cute.jit
    def blocks(self, key0: Int32) -> BlockRange:
        """The query blocks that see keys [key0, key0 + n_block), and those that see all of them.

        Rows beyond the sequence need no mask: their LSE is +inf.
        """
        bottom = key0 + self.see.n_block - 1
        first = self.key_begin(key0) // self.m_block
        end = self.key_end(cutlass.min(bottom, self.see.seqlen_k - 1))
        last = (cutlass.max(end, 0) + self.m_block - 1) // self.m_block
        last = cutlass.max(last, first)
        full_first = (self.key_begin(bottom) + self.m_block - 1) // self.m_block
        full_first = cutlass.min(cutlass.max(full_first, first), last)
        full_last = last
        if cutlass.const_expr(self.see.left_bound):
            full_last = cutlass.max(self.key_end(key0), 0) // self.m_block
        if bottom >= self.see.seqlen_k:
            full_last = first
        full_last = cutlass.max(cutlass.min(full_last, last), full_first)
        return BlockRange(first, full_first, full_last, last)

    @cute.jit
    def mask(self, key: Int32, row0: Int32) -> BlockMask:
        """Which rows of the block that starts at `row0` see `key`."""
        return BlockMask(
            begin=self.key_begin(key) - row0,
            end=self.key_end(key) - row0,
            first_cut=Int32(0),
            left_bound=self.see.right_bound,
        )
