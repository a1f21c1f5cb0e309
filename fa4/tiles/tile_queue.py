"""Hands out work tiles through shared memory: new ones from a global counter, some a second time.

A CTA's first tile is its own number; the next ones come from a counter that all CTAs share, so a
CTA that got short tiles takes more of them. The counter resets itself: every CTA fails exactly once
to get a tile, hence the fetch number `num_tiles` is the last, and sets it back to 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

END = -1
SLOTS = 2  # tiles under way: one that is attended to, one whose loads run ahead


@dataclass(frozen=True)
class TileQueue:
    """Slots in shared memory: tile number (END: none follow), exact flag, redo request."""

    tile: cute.Tensor
    exact: cute.Tensor
    redo: cute.Tensor
    counter: cute.Pointer
    num_tiles: Int32

    @cute.jit
    def fetch(self) -> Int32:
        """The next new tile of this CTA, num_tiles or more when there is none. For one warp."""
        ctas, _, _ = cute.arch.grid_dim()
        count = Int32(0)
        if cute.arch.lane_idx() == 0:
            count = cute.arch.atomic_add(self.counter, Int32(1), sem="relaxed", scope="gpu")
            if count == self.num_tiles - 1:
                cute.arch.store(self.counter, Int32(0))
        return ctas + cute.arch.shuffle_sync(count, 0)

    @cute.jit
    def put(self, slot: Int32, tile: Int32, exact: Int32) -> None:
        """Assign a tile to a slot that is free. For one warp."""
        if cute.arch.lane_idx() == 0:
            self.tile[slot] = tile
            self.exact[slot] = exact

    @cute.jit
    def ask_again(self, slot: Int32) -> None:
        """Have the slot's tile done a second time, exactly. For any number of threads."""
        cute.arch.atomic_exch(self.redo.iterator + slot, Int32(1), sem="relaxed", scope="cta")

    @cute.jit
    def take_request(self, slot: Int32) -> Int32:
        """Whether the slot's tile must be done again; forgets it. For one warp."""
        asked = Int32(0)
        if cute.arch.lane_idx() == 0:
            asked = cute.arch.atomic_exch(
                self.redo.iterator + slot, Int32(0), sem="relaxed", scope="cta"
            )
        return cute.arch.shuffle_sync(asked, 0)


def tile_queue(base: cute.Pointer, counter: cute.Pointer, num_tiles: Int32) -> TileQueue:
    """The queue whose slots lie at `base` in shared memory."""
    words = cute.recast_ptr(base, dtype=Int32)

    def slots(first: int) -> cute.Tensor:
        return cute.make_tensor(words + first, cute.make_layout(SLOTS))

    return TileQueue(slots(0), slots(SLOTS), slots(2 * SLOTS), counter, num_tiles)
