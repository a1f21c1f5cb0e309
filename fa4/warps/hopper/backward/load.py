"""Load role of Hopper's backward: one warp brings K and V, then Q and dO block by block."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import HopperBackwardPipes
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma, block_of, tiles_of
from fa4.tiles.bulk import load_floats
from fa4.tiles.bundles import Source
from fa4.tiles.hopper_backward_bundles import BackwardSmem
from fa4.tiles.scheduler import WorkTile
from fa4.warps.backward.work import BackwardWork


@dataclass(frozen=True)
class BackwardLoad:
    """Order: K, V, then per query block Q with its LSE and dO with its delta.

    Waits: the release of q_loaded. Signals: k_loaded, v_loaded, q_loaded, do_loaded.
    Registers: plan.roles["load"].
    """

    plan: HopperBackwardPlan

    @cute.jit
    def run(
        self,
        tma: BackwardTma,
        smem: BackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
    ) -> None:
        """Feed the warpgroups of this CTA."""
        tile = work.tile()
        blocks = work.blocks(tile)
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.stages)
        self._load_keys(tma, smem, pipes, tile)
        cute.arch.griddepcontrol_wait()  # for LSE and delta, and the zeros that dQ is added to
        for i in cutlass.range(work.group, unroll=1):
            head = tile.head * work.group + i
            q = tiles_of(tma.q, smem.q, (head, tile.batch), self.plan.q_box)
            do = tiles_of(tma.do, smem.do, (head, tile.batch), self.plan.o_box)
            for block in cutlass.range(blocks.first, blocks.last, unroll=1):
                where = (block, head, tile.batch)
                pipes.q_loaded.acquire(ring.index, ring.phase)
                self._load_q(q, smem, rows, pipes, where, ring.index)
                self._load_do(do, smem, rows, pipes, where, ring.index)
                ring.advance()
        cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def _load_keys(
        self, tma: BackwardTma, smem: BackwardSmem, pipes: HopperBackwardPipes, tile: WorkTile
    ) -> None:
        plan, where = self.plan, (tile.head, tile.batch)
        k = tiles_of(tma.k, smem.k, where, (plan.key_rows, plan.head_dim))
        v = tiles_of(tma.v, smem.v, where, (plan.key_rows, plan.head_dim_v))
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
        smem: BackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        where: tuple[Int32, Int32, Int32],
        stage: Int32,
    ) -> None:
        nbytes = self.plan.q_block_bytes + self.plan.row_bytes
        mbarrier = pipes.q_loaded.expect(stage, nbytes)
        q.load(where[0], stage, mbarrier)
        load_floats(block_of(rows.lse, where, self.plan.m_tile), smem.lse[None, stage], mbarrier)

    @cute.jit
    def _load_do(
        self,
        do: Source,
        smem: BackwardSmem,
        rows: BackwardRows,
        pipes: HopperBackwardPipes,
        where: tuple[Int32, Int32, Int32],
        stage: Int32,
    ) -> None:
        nbytes = self.plan.do_block_bytes + self.plan.row_bytes
        mbarrier = pipes.do_loaded.expect(stage, nbytes)
        do.load(where[0], stage, mbarrier)
        load_floats(
            block_of(rows.delta, where, self.plan.m_tile), smem.delta[None, stage], mbarrier
        )
