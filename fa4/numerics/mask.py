"""Hides keys that a row must not see: one bit per key, in words of one chunk of keys.

A warp owns 32 consecutive rows. With a bound on the right only, the ends of its rows lie within 32
keys, so two neighbouring chunks of a block hold all of them: the chunks before are seen as a whole
and those behind not at all. The block is therefore processed in slots: the two cut chunks first,
with a choice per key; then the other two, each taken or skipped by a branch of the whole warp.
With a bound on the left as well every chunk may be cut, and slots are chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

CHUNK = 32
CUT_SLOTS = 2


@dataclass(frozen=True)
class BlockMask:
    """What a row sees of a block: keys [begin, end), relative to the block's first key.

    first_cut: the first chunk that may be cut, the same for all rows of the warp.
    """

    begin: Int32
    end: Int32
    first_cut: Int32
    left_bound: cutlass.Constexpr[bool]

    def may_cut(self, slot: int) -> bool:
        """Whether the chunk in this slot needs a choice per key (known when compiling)."""
        return self.left_bound or slot < CUT_SLOTS

    @cute.jit
    def chunk(self, slot: cutlass.Constexpr[int]) -> Int32:
        """The chunk of keys that is processed in a slot; the same for the whole warp."""
        chunk = Int32(slot)
        if cutlass.const_expr(not self.left_bound):
            if cutlass.const_expr(slot < CUT_SLOTS):
                chunk = self.first_cut + slot
            elif self.sees(slot):  # the cut chunks took the place behind: chunk 0 or 1
                chunk = Int32(slot - CUT_SLOTS)
        return chunk

    @cute.jit
    def sees(self, slot: cutlass.Constexpr[int]) -> Boolean:
        """Whether the warp sees the uncut chunk in this slot."""
        return self.first_cut >= slot - 1

    @cute.jit
    def visible(self, chunk: Int32 | int) -> Int32:
        """One bit per key of the chunk: whether the row sees it."""
        bits = _ones_below(self.end - chunk * CHUNK)
        if cutlass.const_expr(self.left_bound):
            bits = bits & ~_ones_below(self.begin - chunk * CHUNK)
        return bits


@cute.jit
def hide(
    scores: cute.Tensor,
    span: cutlass.Constexpr[tuple[int, int]],
    visible: Int32,
    bits: cutlass.Constexpr[tuple[int, ...]],
) -> None:
    """scores[span] -> -inf where the key's bit in `visible` is 0; `bits` has the bit of each."""
    for i, bit in enumerate(cutlass.const_expr(bits)):
        at = span[0] + i
        scores[at] = scores[at] if visible & (1 << bit) else -Float32.inf


def first_cut(warp_end: Int32) -> Int32:
    """The chunk that holds the end of a warp's first row, which is the smallest of its rows."""
    chunk = cutlass.min(cutlass.max(warp_end, 0) // CHUNK, CUT_SLOTS)
    return cute.arch.make_warp_uniform(chunk)


def _ones_below(n: Int32) -> Int32:
    """A word with its n lowest bits set: none for n < 0, all for n > 31 (PTX shl clamps at 32)."""
    return ~cute.arch.inline_ptx(
        "shl.b32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[Int32(-1), cutlass.max(n, 0)],
    )
