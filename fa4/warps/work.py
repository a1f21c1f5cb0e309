"""What every role needs to know about the problem: tiles to do and keys to see."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from fa4.plan_blackwell import M_TILE, Q_TILES
from fa4.tiles.block_range import Visibility
from fa4.tiles.scheduler import TileSchedule, WorkTile

CTA_ROWS = Q_TILES * M_TILE  # of a Blackwell CTA


@dataclass(frozen=True)
class Work:
    """Every role walks the same tiles and the same blocks of each, in the same order."""

    schedule: TileSchedule
    visibility: Visibility

    def tiles(self) -> tuple[Int32, Int32, Int32]:
        """(first, end, step) of the tile numbers of this CTA."""
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        return first, self.schedule.num_tiles, step

    def blocks(self, tile: WorkTile) -> tuple[Int32, Int32]:
        """[first, last) of the tile's key blocks, which are taken from the last to the first."""
        return self.visibility.blocks(tile.m * CTA_ROWS, CTA_ROWS)
