"""What every role needs to know about the problem: tiles to do and keys to see."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from fa4.tiles.block_range import Visibility
from fa4.tiles.scheduler import TileSchedule


@dataclass(frozen=True)
class Work:
    """Every role walks the same tiles and the same blocks of each, in the same order.

    `schedule` counts tiles of `cta_rows` query rows.
    """

    schedule: TileSchedule
    visibility: Visibility
    cta_rows: cutlass.Constexpr[int]

    def tiles(self) -> tuple[Int32, Int32, Int32]:
        """(first, end, step) of the tile numbers of this CTA, if none are taken from a queue."""
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        return first, self.schedule.num_tiles, step

    def blocks(self, m: Int32) -> tuple[Int32, Int32]:
        """[first, last) of the key blocks that tile `m` sees, taken from the last to the first."""
        return self.visibility.blocks(m * self.cta_rows, self.cta_rows)
