"""Load role of the backward: one warp brings K and V, then Q and dO block by block."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import BackwardPipes
from fa4.plan_backward_blackwell import ROW_STAGES, BlackwellBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma, block_of, tiles_of
from fa4.tiles.backward_layouts import BackwardSmem
from fa4.tiles.bulk import load_floats
from fa4.tiles.scheduler import WorkTile
from fa4.warps.backward.work import BackwardWork


@dataclass(frozen=True)
class Rings:
    """Stages and phases of Q, of dO, and of LSE with delta."""

    q: PipelineState
    do: PipelineState
    rows: PipelineState


@dataclass(frozen=True)
class BackwardLoad:
    """Order: K, V, then per query block Q, its LSE and delta, its dO.

    Waits: the release of q_loaded, do_loaded and rows_loaded, of the first two in the end too.
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
        blocks = work.blocks(tile)
        rings = self._rings()
        self._load_keys(tma, smem, pipes, tile)
        for i in cutlass.range(work.group, unroll=1):
            head = tile.head * work.group + i
            q = tiles_of(tma.q, smem.q, (head, tile.batch), plan.q_box)
            do = tiles_of(tma.do, smem.do, (head, tile.batch), plan.o_box)
            for block in cutlass.range(blocks.first, blocks.last, unroll=1):
                stage, phase = rings.q.index, rings.q.phase
                pipes.q_loaded.acquire(stage, phase)
                q.load(block, stage, pipes.q_loaded.expect(stage, plan.q_block_bytes))
                self._load_rows(smem, rows, pipes, (block, head, tile.batch), rings.rows)
                stage, phase = rings.do.index, rings.do.phase
                pipes.do_loaded.acquire(stage, phase)
                do.load(block, stage, pipes.do_loaded.expect(stage, plan.do_block_bytes))
                rings = self._advance(rings)
        # No tcgen05.commit may arrive on shared memory that an exited CTA has given back.
        for _ in cutlass.range_constexpr(plan.tuning.q_stages):
            pipes.q_loaded.acquire(rings.q.index, rings.q.phase)
            rings.q.advance()
        for _ in cutlass.range_constexpr(plan.tuning.do_stages):
            pipes.do_loaded.acquire(rings.do.index, rings.do.phase)
            rings.do.advance()

    def _rings(self) -> Rings:
        stages = (self.plan.tuning.q_stages, self.plan.tuning.do_stages, ROW_STAGES)
        return Rings(*(make_pipeline_state(PipelineUserType.Consumer, n) for n in stages))

    @cute.jit
    def _advance(self, rings: Rings) -> Rings:
        rings.q.advance()
        rings.do.advance()
        rings.rows.advance()
        return rings

    @cute.jit
    def _load_keys(
        self, tma: BackwardTma, smem: BackwardSmem, pipes: BackwardPipes, tile: WorkTile
    ) -> None:
        plan, where = self.plan, (tile.head, tile.batch)
        k, v = (
            tiles_of(tma.k, smem.k, where, plan.k_box),
            tiles_of(tma.v, smem.v, where, (plan.n_block, plan.head_dim_v)),
        )
        k.load(tile.m, 0, pipes.k_loaded.expect(0, plan.k_block_bytes))
        v.load(tile.m, 0, pipes.v_loaded.expect(0, plan.v_block_bytes))

    @cute.jit
    def _load_rows(
        self,
        smem: BackwardSmem,
        rows: BackwardRows,
        pipes: BackwardPipes,
        where: tuple[Int32, Int32, Int32],
        ring: PipelineState,
    ) -> None:
        plan, stage = self.plan, ring.index
        pipes.rows_loaded.acquire(stage, ring.phase)
        mbarrier = pipes.rows_loaded.expect(stage, 2 * plan.row_bytes)
        load_floats(block_of(rows.lse, where, plan.m_tile), smem.lse[None, stage], mbarrier)
        load_floats(block_of(rows.delta, where, plan.m_tile), smem.delta[None, stage], mbarrier)
