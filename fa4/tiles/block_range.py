"""Which key blocks a tile of query rows sees, and which of them need a mask."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from fa4.numerics.mask import BlockMask, first_cut


@dataclass(frozen=True)
class BlockRange:
    """Blocks [first, last): masked, full, masked again.

    Of keys that a tile of query rows sees, which the forward walks from the last to the first; or
    of queries that see a block of keys (`QueryVisibility`), from the first to the last.
    """

    first: Int32
    full_first: Int32
    full_last: Int32
    last: Int32

    def masked(self, block: Int32) -> Boolean:
        """Whether some scores of a block are hidden."""
        return (block < self.full_first) | (block >= self.full_last)


@dataclass(frozen=True)
class Visibility:
    """Row i sees keys [i + offset - left, i + offset + right], clipped to the sequence.

    `offset` = seqlen_k - seqlen_q aligns the last row with the last key (bottom-right).
    """

    seqlen_q: Int32
    seqlen_k: Int32
    left: Int32
    right: Int32
    left_bound: cutlass.Constexpr[bool]
    right_bound: cutlass.Constexpr[bool]
    n_block: cutlass.Constexpr[int]

    @cute.jit
    def row_end(self, row: Int32) -> Int32:
        """First key right of what `row` sees (may be <= 0: nothing is seen)."""
        end = self.seqlen_k
        if cutlass.const_expr(self.right_bound):
            end = cutlass.min(end, row + self.seqlen_k - self.seqlen_q + self.right + 1)
        return end

    @cute.jit
    def row_begin(self, row: Int32) -> Int32:
        """First key that `row` sees (may be >= seqlen_k: nothing is seen)."""
        begin = Int32(0)
        if cutlass.const_expr(self.left_bound):
            begin = cutlass.max(begin, row + self.seqlen_k - self.seqlen_q - self.left)
        return begin

    @cute.jit
    def blocks(self, row: Int32, rows: cutlass.Constexpr[int]) -> tuple[Int32, Int32]:
        """[first, last) of the blocks that rows [row, row + rows) see; never empty.

        A tile that sees nothing still gets one block, masked as a whole: every role then runs its
        ordinary course and the row sums of zero give O = 0, LSE = -inf.
        """
        bottom = cutlass.min(row + rows, self.seqlen_q) - 1
        end = cutlass.max(self.row_end(bottom), 1)
        last = (end + self.n_block - 1) // self.n_block
        first = cutlass.min(self.row_begin(row) // self.n_block, last - 1)
        return first, last

    @cute.jit
    def split(self, first: Int32, last: Int32, row: Int32, rows: int) -> BlockRange:
        """Where rows [row, row + rows) need masks within blocks [first, last)."""
        full_last = cutlass.max(self.row_end(row), 0) // self.n_block
        full_last = cutlass.max(cutlass.min(full_last, last), first)
        full_first = first
        if cutlass.const_expr(self.left_bound):
            bottom = row + rows - 1
            full_first = (self.row_begin(bottom) + self.n_block - 1) // self.n_block
            full_first = cutlass.min(cutlass.max(full_first, first), full_last)
        return BlockRange(first, full_first, full_last, last)

    @cute.jit
    def mask(self, row: Int32, warp_row: Int32, key0: Int32) -> BlockMask:
        """Mask of `row` in the block that starts at `key0`; its warp starts at `warp_row`."""
        return BlockMask(
            begin=self.row_begin(row) - key0,
            end=self.row_end(row) - key0,
            first_cut=first_cut(self.row_end(warp_row) - key0),
            left_bound=self.left_bound,
        )
