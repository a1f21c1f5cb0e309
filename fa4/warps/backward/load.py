"""Load role of the backward: one warp brings K and V, then Q and dO block by block."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import BackwardPipes
from fa4.plan_backward_blackwell import BlackwellBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma, RowBlock, block_of, tiles_of
from fa4.tiles.backward_layouts import BackwardSmem
from fa4.tiles.bulk import load_floats
from fa4.tiles.scheduler import WorkTile
from fa4.warps.backward.work import BackwardWork


@dataclass(frozen=True)
class BackwardLoad:
    """Order: K, V, then per query block Q, its LSE and delta, its dO.

    Waits: the release of q_loaded and, if it has one, do_loaded; in the end nobody waits for them,
    since the last commit of the CTA, gradients_computed, comes after theirs.
    Signals: k_loaded, v_loaded, q_loaded, do_loaded, rows_loaded.
    Owns: no TMEM columns. Registers: plan.roles["load"].
    """

    plan: BlackwellBackwardPlan

    @cute.jit
    def run(
        self,
        tma: BackwardTma,
        smem: BackwardSmem,
        rows: BackwardRows,
        pipes: BackwardPipes,
        work: BackwardWork,
    ) -> None:
        """Feed the other roles of this CTA."""
        plan, tile = self.plan, work.tile()
        blocks = work.blocks(tile.m)
        ring = make_pipeline_state(PipelineUserType.Consumer, plan.tuning.q_stages)
        do_ring = make_pipeline_state(PipelineUserType.Consumer, plan.tuning.do_stages)
        self._load_keys(tma, smem, pipes, tile)
        cute.arch.griddepcontrol_wait()  # for LSE and delta
        for i in cutlass.range(work.group, unroll=1):
            head = tile.head * work.group + i
            q = tiles_of(tma.q, smem.q, head, tile.batch, plan.q_box)
            do = tiles_of(tma.do, smem.do, head, tile.batch, plan.o_box)
            for block in cutlass.range(blocks.first, blocks.last, unroll=1):
                stage = ring.index
                pipes.q_loaded.acquire(stage, ring.phase)
                q.load(block, stage, pipes.q_loaded.expect(stage, plan.q_block_bytes))
                self._load_rows(smem, rows, pipes, RowBlock(block, head, tile.batch), stage)
                ring.advance()
                stage = do_ring.index
                if cutlass.const_expr(pipes.do_loaded.edge.has_release):
                    pipes.do_loaded.acquire(stage, do_ring.phase)
                do.load(block, stage, pipes.do_loaded.expect(stage, plan.do_block_bytes))
                do_ring.advance()
        cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def _load_keys(
        self, tma: BackwardTma, smem: BackwardSmem, pipes: BackwardPipes, tile: WorkTile
    ) -> None:
        plan, head, batch = self.plan, tile.head, tile.batch
        k, v = (
            tiles_of(tma.k, smem.k, head, batch, plan.k_box),
            tiles_of(tma.v, smem.v, head, batch, (plan.n_block, plan.head_dim_v)),
        )
        k.load(tile.m, 0, pipes.k_loaded.expect(0, plan.k_block_bytes))
        v.load(tile.m, 0, pipes.v_loaded.expect(0, plan.v_block_bytes))

    @cute.jit
    def _load_rows(
        self,
        smem: BackwardSmem,
        rows: BackwardRows,
        pipes: BackwardPipes,
        at: RowBlock,
        stage: Int32,
    ) -> None:
        """Into the stage of their Q."""
        plan = self.plan
        mbarrier = pipes.rows_loaded.expect(stage, 2 * plan.row_bytes)
        load_floats(block_of(rows.lse, at, plan.m_tile), smem.lse[None, stage], mbarrier)
        load_floats(block_of(rows.delta, at, plan.m_tile), smem.delta[None, stage], mbarrier)
