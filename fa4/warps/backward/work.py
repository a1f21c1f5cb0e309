"""What every role of a backward kernel needs to know about the problem."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from fa4.tiles.backward_bundles import RowBlock
from fa4.tiles.block_range import BlockRange
from fa4.tiles.dq_turn import DqTurn
from fa4.tiles.query_range import QueryVisibility
from fa4.tiles.scheduler import TileSchedule, WorkTile


@dataclass(frozen=True)
class BackwardWork:
    """A work tile is a block of keys; a CTA walks the query blocks that see them, head by head.

    `schedule` counts key blocks and key/value heads; `group` query heads share one of those.
    """

    schedule: TileSchedule
    visibility: QueryVisibility
    group: Int32

    def tile(self) -> WorkTile:
        """The block of keys of a CTA that has only one."""
        number, _, _ = cute.arch.block_idx()
        return self.schedule.decode(number)

    def blocks(self, m: Int32) -> BlockRange:
        """The query blocks that see key block `m`, the same for every head of the group."""
        return self.visibility.blocks(m * self.visibility.see.n_block)

    def count(self, m: Int32) -> Int32:
        """How many query blocks see key block `m`, those of all heads of the group."""
        blocks = self.blocks(m)
        return self.group * (blocks.last - blocks.first)

    def turn(self, turns: cute.Tensor, part: Int32, at: RowBlock, m: Int32) -> DqTurn:
        """The turn of key block `m` at a part of a block of dQ. turns: of BackwardRows."""
        counter = turns.iterator + turns.layout((part, at.index, at.head, at.batch))
        return DqTurn(counter, self._later_keys(m, at.index))

    def _later_keys(self, m: Int32, block: Int32) -> Int32:
        """How many of the key blocks behind `m` see a block of queries that it sees, too.

        Those of a block of queries are consecutive, and the last one is its bottom row's.
        """
        m_block = self.visibility.m_block
        _, last = self.visibility.see.blocks(block * m_block, m_block)
        return last - 1 - m
