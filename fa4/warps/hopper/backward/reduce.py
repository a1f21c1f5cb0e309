"""Reduce role of Hopper's backward: each dQ block is added to the sum in global memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import HopperBackwardPipes
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, RowBlock
from fa4.tiles.bulk import add_floats
from fa4.tiles.dq_turn import DqTurn
from fa4.tiles.hopper_backward_bundles import HopperBackwardSmem
from fa4.tiles.tile_queue import END, SLOTS, Assignment, TileSlots
from fa4.warps.backward.work import BackwardWork


@dataclass(frozen=True)
class HopperBackwardReduce:
    """dQ += over all key blocks, in float32, by bulk reductions.

    Waits: dq_assigned, dq_written and, if deterministic, for its turn among the CTAs. Signals: the
    release of both, the next turn. Registers: plan.roles["reduce"].
    One warp; two take blocks in turn where the next CTA must not start before a block is in global
    memory, which takes about as long as a block is computed.
    """

    plan: HopperBackwardPlan

    @cute.jit
    def run(
        self,
        smem: HopperBackwardSmem,
        rows: BackwardRows,
        slots: TileSlots,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
    ) -> None:
        """Follow the tiles of this CTA."""
        slot, count = make_pipeline_state(PipelineUserType.Consumer, SLOTS), Int32(0)
        pipes.dq_assigned.wait(slot.index, slot.phase)
        tile = slots.read(slot.index)
        while tile.mode != END:
            count = self._tile(smem, rows, pipes, work, tile, count)
            pipes.dq_assigned.release(slot.index)
            slot.advance()
            pipes.dq_assigned.wait(slot.index, slot.phase)
            tile = slots.read(slot.index)

    @cute.jit
    def _tile(
        self,
        smem: HopperBackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
        tile: Assignment,
        count: Int32,
    ) -> Int32:
        """Follow the query blocks of a tile. count: of blocks so far."""
        blocks = work.blocks(tile.m)
        for i in cutlass.range(work.group, unroll=1):
            head = tile.head * work.group + i
            for block in cutlass.range(blocks.first, blocks.last, unroll=1):
                pipes.dq_written.wait(0, count & 1)
                target = rows.dq[None, block, head, tile.batch]
                if cutlass.const_expr(self.plan.deterministic):
                    at = RowBlock(block, head, tile.batch)
                    turn = work.turn(rows.turns, Int32(0), at, tile.m)
                    self._add_in_turn(smem.dq, target, turn, pipes, self._takes(count))
                else:
                    self._add(smem.dq, target)
                    pipes.dq_written.release(0)
                count += 1
        return count

    def _takes(self, count: Int32) -> Boolean:
        """Whether a block is this warp's."""
        role = self.plan.roles["reduce"]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - role.first
        return count % role.warps == warp

    @cute.jit
    def _add(self, dq: cute.Tensor, target: cute.Tensor) -> None:
        """Until shared memory has been read."""
        if cute.arch.lane_idx() == 0:
            add_floats(dq, target)
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def _add_in_turn(
        self,
        dq: cute.Tensor,
        target: cute.Tensor,
        turn: DqTurn,
        pipes: HopperBackwardPipes,
        takes: Boolean,
    ) -> None:
        if takes:
            if cute.arch.lane_idx() == 0:
                turn.take()
            self._add(dq, target)
        pipes.dq_written.release(0)
        if takes:
            turn.hand_on()
