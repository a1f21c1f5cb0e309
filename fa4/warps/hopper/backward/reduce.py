"""Reduce role of Hopper's backward: one warp adds each dQ block to the sum in global memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import HopperBackwardPipes
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows
from fa4.tiles.bulk import add_floats
from fa4.tiles.hopper_backward_bundles import BackwardSmem
from fa4.tiles.tile_queue import END, SLOTS, Assignment, TileSlots
from fa4.warps.backward.work import BackwardWork


@dataclass(frozen=True)
class BackwardReduce:
    """dQ += over all key blocks, in float32, by bulk reductions.

    Waits: dq_assigned, dq_written and, if deterministic, for its turn among the CTAs. Signals: the
    release of both, the next turn. Registers: plan.roles["reduce"].
    """

    plan: HopperBackwardPlan

    @cute.jit
    def run(
        self,
        smem: BackwardSmem,
        rows: BackwardRows,
        slots: TileSlots,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
    ) -> None:
        """Follow the tiles of this CTA."""
        slot, phase = make_pipeline_state(PipelineUserType.Consumer, SLOTS), Int32(0)
        pipes.dq_assigned.wait(slot.index, slot.phase)
        tile = slots.read(slot.index)
        while tile.mode != END:
            phase = self._tile(smem, rows, pipes, work, tile, phase)
            pipes.dq_assigned.release(slot.index)
            slot.advance()
            pipes.dq_assigned.wait(slot.index, slot.phase)
            tile = slots.read(slot.index)

    @cute.jit
    def _tile(
        self,
        smem: BackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
        tile: Assignment,
        phase: Int32,
    ) -> Int32:
        """Follow the query blocks of a tile. phase: of dq_written."""
        blocks = work.blocks(tile)
        for i in cutlass.range(work.group, unroll=1):
            head = tile.head * work.group + i
            for block in cutlass.range(blocks.first, blocks.last, unroll=1):
                pipes.dq_written.wait(0, phase)
                turn = None
                if cutlass.const_expr(self.plan.deterministic):
                    turn = work.turn(rows.turns, Int32(0), (block, head, tile))
                if cute.arch.lane_idx() == 0:
                    if cutlass.const_expr(self.plan.deterministic):
                        turn.take()
                    add_floats(smem.dq, rows.dq[None, block, head, tile.batch])
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                pipes.dq_written.release(0)
                if cutlass.const_expr(self.plan.deterministic):
                    turn.hand_on()
                phase ^= 1
        return phase
