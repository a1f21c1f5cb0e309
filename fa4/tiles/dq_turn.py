"""Whose turn it is to add to a block of dQ, where gradients must have the same bits every time.

A float32 sum depends on its order. So the key blocks that a block of queries sees add their parts
from the last one to the first, and a counter in global memory says how many have.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32


@dataclass(frozen=True)
class DqTurn:
    """The turn of one key block at one block of queries. Lane 0 of a warp takes it, adds, and
    hands it on.

    `earlier` key blocks come before, and are tiles of smaller numbers, see BackwardHost. On Hopper
    a CTA takes numbers from a counter and works on its tiles in that order, so each tile waits for
    some that are under way, and the first one for none. On Blackwell a tile's number is its CTA's,
    and CTAs start in that order: CUDA does not promise it; every GPU so far keeps it.
    """

    counter: cute.Pointer
    earlier: Int32

    @cute.jit
    def take(self) -> None:
        """For lane 0: wait until all earlier key blocks have added theirs."""
        added = cute.arch.load(self.counter, Int32, sem="acquire", scope="gpu")
        while added != self.earlier:
            added = cute.arch.load(self.counter, Int32, sem="acquire", scope="gpu")
        # what was acquired orders this thread; bulk reductions are of another proxy
        cute.arch.fence_proxy("async.global")

    @cute.jit
    def hand_on(self) -> None:
        """For the warp: let the next key block add, once this one's part is in global memory.

        The end of a bulk operation is its own proxy fence (PTX ISA, async proxy), but only a wait
        for its writes, not for its reads, observes that end.
        """
        if cute.arch.lane_idx() == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=False)
            cute.arch.store(self.counter, self.earlier + 1, sem="release", scope="gpu")
