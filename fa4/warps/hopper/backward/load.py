"""Load role of Hopper's backward: one warp assigns key blocks and brings what they need in."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import HopperBackwardPipes
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma, RowBlock, block_of, tiles_of
from fa4.tiles.bulk import load_floats
from fa4.tiles.bundles import Source
from fa4.tiles.hopper_backward_bundles import HopperBackwardSmem
from fa4.tiles.scheduler import WorkTile
from fa4.tiles.tile_queue import END, FRESH, SLOTS, TileCounter, TileSlots
from fa4.warps.backward.work import BackwardWork


@dataclass(frozen=True)
class HopperBackwardLoad:
    """Order: per query block Q with its LSE and dO with its delta; K and V behind the first of
    them, since their place is free later: when the products of the tile before are done.

    Waits: the release of tile_assigned, dq_assigned, k_loaded, q_loaded. Signals: all of them,
    v_loaded and do_loaded. Registers: plan.roles["load"].
    """

    plan: HopperBackwardPlan

    @cute.jit
    def run(
        self,
        tma: BackwardTma,
        smem: HopperBackwardSmem,
        rows: BackwardRows,
        slots: TileSlots,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
    ) -> None:
        """Feed the warpgroups until no tile is left."""
        slot = make_pipeline_state(PipelineUserType.Consumer, SLOTS)
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.stages)
        counter = TileCounter(rows.counter.iterator, Int32(-1))
        # for LSE and delta, the zeros that dQ is added to, and that of the counter
        cute.arch.griddepcontrol_wait()
        mode = Int32(FRESH)
        while mode != END:
            # Loads run ahead of their use, so this warp alone waits for the answer
            number = counter.answer(counter.ask())
            if number >= work.schedule.num_tiles:
                mode = Int32(END)
            tile = work.schedule.decode(number)
            pipes.tile_assigned.acquire(slot.index, slot.phase)
            pipes.dq_assigned.acquire(slot.index, slot.phase)
            slots.put(slot.index, tile, mode)
            pipes.tile_assigned.commit(slot.index)
            pipes.dq_assigned.commit(slot.index)
            if mode != END:
                keys_phase = slot.count & 1
                ring = self._load_tile(tma, smem, rows, pipes, work, tile, keys_phase, ring)
            slot.advance()
        cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def _load_tile(
        self,
        tma: BackwardTma,
        smem: HopperBackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
        tile: WorkTile,
        keys_phase: Int32,
        ring: PipelineState,
    ) -> PipelineState:
        """keys_phase: of K and V. ring: of Q and dO."""
        blocks = work.blocks(tile.m)
        if blocks.first == blocks.last:
            self._load_keys(tma, smem, pipes, tile, keys_phase)
        for i in cutlass.range(work.group, unroll=1):
            head = tile.head * work.group + i
            q = tiles_of(tma.q, smem.q, head, tile.batch, self.plan.q_box)
            do = tiles_of(tma.do, smem.do, head, tile.batch, self.plan.o_box)
            for block in cutlass.range(blocks.first, blocks.last, unroll=1):
                at = RowBlock(block, head, tile.batch)
                pipes.q_loaded.acquire(ring.index, ring.phase)
                self._load_q(q, smem, rows, pipes, at, ring.index)
                self._load_do(do, smem, rows, pipes, at, ring.index)
                ring.advance()
                if (i == 0) & (block == blocks.first):
                    self._load_keys(tma, smem, pipes, tile, keys_phase)
        return ring

    @cute.jit
    def _load_keys(
        self,
        tma: BackwardTma,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        tile: WorkTile,
        phase: Int32,
    ) -> None:
        plan, head, batch = self.plan, tile.head, tile.batch
        k = tiles_of(tma.k, smem.k, head, batch, (plan.key_rows, plan.head_dim))
        v = tiles_of(tma.v, smem.v, head, batch, (plan.key_rows, plan.head_dim_v))
        pipes.k_loaded.acquire(0, phase)
        mbarrier = pipes.k_loaded.expect(0, plan.k_block_bytes)
        for t in cutlass.range_constexpr(plan.key_tiles):
            k.load(tile.m * plan.key_tiles + t, t, mbarrier)
        mbarrier = pipes.v_loaded.expect(0, plan.v_block_bytes)
        for t in cutlass.range_constexpr(plan.key_tiles):
            v.load(tile.m * plan.key_tiles + t, t, mbarrier)

    @cute.jit
    def _load_q(
        self,
        q: Source,
        smem: HopperBackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        at: RowBlock,
        stage: Int32,
    ) -> None:
        nbytes = self.plan.q_block_bytes + self.plan.row_bytes
        mbarrier = pipes.q_loaded.expect(stage, nbytes)
        q.load(at.index, stage, mbarrier)
        load_floats(block_of(rows.lse, at, self.plan.m_tile), smem.lse[None, stage], mbarrier)

    @cute.jit
    def _load_do(
        self,
        do: Source,
        smem: HopperBackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        at: RowBlock,
        stage: Int32,
    ) -> None:
        nbytes = self.plan.do_block_bytes + self.plan.row_bytes
        mbarrier = pipes.do_loaded.expect(stage, nbytes)
        do.load(at.index, stage, mbarrier)
        load_floats(block_of(rows.delta, at, self.plan.m_tile), smem.delta[None, stage], mbarrier)
