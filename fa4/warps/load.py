"""Load role: one warp brings Q, K and V tiles into shared memory with TMA."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import Pipes
from fa4.plan_blackwell import Q_TILES, BlackwellPlan
from fa4.tiles.bundles import SmemTensors, Source, TmaTensor, TmaTensors
from fa4.tiles.layouts import mma_atoms
from fa4.warps.work import Work


@dataclass(frozen=True)
class Load:
    """Order: Q0 K Q1 V, then K V for every further block, from the last key block to the first.

    Waits: q_loaded and kv_loaded released by the MMA warp, in the end too. Signals: q_loaded,
    kv_loaded.
    Owns: no TMEM columns. Registers: plan.roles["load"].
    """

    plan: BlackwellPlan

    def prefetch(self, tma: TmaTensors) -> None:
        """Fetch the TMA descriptors; for one thread, while the CTA still sets itself up."""
        for tensor in (tma.q, tma.k, tma.v, tma.o):
            cpasync.prefetch_descriptor(tensor.atom)

    @cute.jit
    def run(self, tma: TmaTensors, smem: SmemTensors, pipes: Pipes, work: Work) -> None:
        """Feed every tile of this CTA."""
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.kv_stages)
        phase = Int32(0)
        mma = mma_atoms(self.plan)
        qk_mma, pv_mma = mma.qk.get_slice(0), mma.pv.get_slice(0)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            tile = work.schedule.decode(number)
            first, last = work.blocks(tile.m)
            # (tile rows, tile columns, tile) of one head of one sequence
            gQ = cute.local_tile(
                tma.q.tensor[None, None, tile.head, tile.batch], self.plan.q_box, (None, 0)
            )
            gK = cute.local_tile(
                tma.k.tensor[None, None, tile.head_kv, tile.batch], self.plan.k_box, (None, 0)
            )
            gV = cute.local_tile(
                tma.v.tensor[None, None, tile.head_kv, tile.batch], self.plan.v_box, (0, None)
            )
            q = _source(tma.q, smem.q, qk_mma.partition_A(gQ))
            k = _source(tma.k, smem.k, qk_mma.partition_B(gK))
            v = _source(tma.v, smem.v, pv_mma.partition_B(gV))

            self._load_q(q, pipes, tile.m, 0, phase)
            ring = self._load_kv(k, self.plan.k_block_bytes, pipes, last - 1, ring)
            self._load_q(q, pipes, tile.m, 1, phase)
            ring = self._load_kv(v, self.plan.v_block_bytes, pipes, last - 1, ring)
            for i in cutlass.range(last - 1 - first, unroll=1):
                ring = self._load_kv(k, self.plan.k_block_bytes, pipes, last - 2 - i, ring)
                ring = self._load_kv(v, self.plan.v_block_bytes, pipes, last - 2 - i, ring)
            phase ^= 1
        # No tcgen05.commit may arrive on shared memory that an exited CTA has given back.
        for t in cutlass.range_constexpr(Q_TILES):
            pipes.q_loaded.acquire(t, phase)
        for _ in cutlass.range_constexpr(self.plan.tuning.kv_stages):
            pipes.kv_loaded.acquire(ring.index, ring.phase)
            ring.advance()

    @cute.jit
    def _load_q(
        self, q: Source, pipes: Pipes, m: Int32, stage: cutlass.Constexpr[int], phase: Int32
    ) -> None:
        pipes.q_loaded.acquire(stage, phase)
        mbarrier = pipes.q_loaded.expect(stage, self.plan.q_tile_bytes)
        q.load(m * Q_TILES + stage, stage, mbarrier)

    @cute.jit
    def _load_kv(
        self,
        source: Source,
        nbytes: cutlass.Constexpr[int],
        pipes: Pipes,
        block: Int32,
        ring: PipelineState,
    ) -> PipelineState:
        pipes.kv_loaded.acquire(ring.index, ring.phase)
        mbarrier = pipes.kv_loaded.expect(ring.index, nbytes)
        source.load(block, ring.index, mbarrier)
        ring.advance()
        return ring


def _source(copy: TmaTensor, smem: cute.Tensor, gmem: cute.Tensor) -> Source:
    return Source(copy, *copy.partition(smem, cute.group_modes(gmem, 0, 3)))
