"""MMA role: one warp issues every tcgen05.mma of the CTA."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.cute.nvgpu import tcgen05
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.pipeline import barriers
from fa4.pipeline.pipes import Pipes
from fa4.plan import N_BLOCK, Plan
from fa4.tiles.bundles import SmemTensors
from fa4.tiles.layouts import SmemLayouts, mma_atoms
from fa4.warps.work import Work


@dataclass(frozen=True)
class Operands:
    """Descriptors (smem) and addresses (TMEM) of all operands; tuples are per query tile."""

    q: cute.Tensor  # (MMA, 1, D / 16, query tile)
    k: cute.Tensor  # (MMA, 1, D / 16, stage)
    v: cute.Tensor  # (MMA, 1, N_BLOCK / 16, stage)
    s: tuple[cute.Tensor, cute.Tensor]
    p: tuple[cute.Tensor, cute.Tensor]  # (MMA, 1, N_BLOCK / 16)
    o: tuple[cute.Tensor, cute.Tensor]


@dataclass(frozen=True)
class Mma:
    """S = Q K^T and O += P V for two query tiles in ping-pong.

    S of the next block is issued right after P V of the same query tile: P lies on S, and the
    tensor core executes in order, so no barrier is needed between the two.
    Waits: q_loaded, kv_loaded, o_rescaled, p_written, p_tail_written.
    Signals: s_computed, o_accumulated, and the release of q_loaded and kv_loaded.
    Owns: no TMEM columns; issues into S0 S1 O0 O1. Registers: plan.roles["mma"].
    """

    plan: Plan

    @cute.jit
    def run(
        self,
        layouts: SmemLayouts,
        smem: SmemTensors,
        tmem: cute.Pointer,
        pipes: Pipes,
        work: Work,
    ) -> None:
        """Compute every tile of this CTA."""
        x = self._operands(layouts, smem, tmem)
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.kv_stages)
        q_phase, phase = Int32(0), Int32(0)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            first, last = work.blocks(work.schedule.decode(number))
            pipes.kv_loaded.wait(ring.index, ring.phase)
            for t in cutlass.range_constexpr(2):
                pipes.q_loaded.wait(t, q_phase)
                self._qk(x, t, ring.index, pipes)
            pipes.kv_loaded.release(ring.index)
            ring.advance()
            for i in cutlass.range(last - 1 - first, unroll=1):
                pipes.kv_loaded.wait(ring.index, ring.phase)
                v_stage = ring.index
                ring.advance()
                for t in cutlass.range_constexpr(2):
                    self._pv(x, t, v_stage, i > 0, phase, pipes)
                    if cutlass.const_expr(t == 0):
                        pipes.kv_loaded.wait(ring.index, ring.phase)
                    else:
                        pipes.kv_loaded.release(v_stage)
                    self._qk(x, t, ring.index, pipes)
                pipes.kv_loaded.release(ring.index)
                ring.advance()
                phase ^= 1
            for t in cutlass.range_constexpr(2):
                pipes.q_loaded.release(t)
            pipes.kv_loaded.wait(ring.index, ring.phase)
            for t in cutlass.range_constexpr(2):
                self._pv(x, t, ring.index, last - 1 > first, phase, pipes)
                pipes.o_accumulated.commit(t)
            pipes.kv_loaded.release(ring.index)
            ring.advance()
            phase ^= 1
            q_phase ^= 1

    def drain(self) -> None:
        """Before tensor memory is freed: the correction warps have read the last O."""
        warps = self.plan.roles["correction"].warps + self.plan.roles["mma"].warps
        cute.arch.barrier(barrier_id=barriers.TMEM_DRAINED, number_of_threads=32 * warps)

    def _operands(self, layouts: SmemLayouts, smem: SmemTensors, tmem: cute.Pointer) -> Operands:
        mma, columns = mma_atoms(self.plan), self.plan.tmem()
        qk, pv = mma.qk.get_slice(0), mma.pv.get_slice(0)
        s = qk.make_fragment_C(qk.partition_shape_C(self.plan.qk_tile[:2]))
        o = pv.make_fragment_C(pv.partition_shape_C(self.plan.pv_tile[:2]))
        p = pv.make_fragment_A(cute.make_tensor(tmem, layouts.p.outer))[None, None, None, 0]
        p_base = cute.recast_ptr(tmem, dtype=p.element_type)
        return Operands(
            q=qk.make_fragment_A(smem.q),
            k=qk.make_fragment_B(smem.k),
            v=pv.make_fragment_B(smem.v),
            s=tuple(cute.make_tensor(tmem + c, s.layout) for c in columns.s),
            p=tuple(cute.make_tensor(p_base + 2 * c, p.layout) for c in columns.p),
            o=tuple(cute.make_tensor(tmem + c, o.layout) for c in columns.o),
        )

    @cute.jit
    def _qk(self, x: Operands, t: cutlass.Constexpr[int], stage: Int32, pipes: Pipes) -> None:
        """S[t] = Q[t] K[stage]^T."""
        mma = mma_atoms(self.plan).qk  # a fresh one: `set` changes it
        for k in cutlass.range_constexpr(cute.size(x.k, mode=[2])):
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            cute.gemm(mma, x.s[t], x.q[None, None, k, t], x.k[None, None, k, stage], x.s[t])
        pipes.s_computed.commit(t)

    @cute.jit
    def _pv(
        self,
        x: Operands,
        t: cutlass.Constexpr[int],
        stage: Int32,
        accumulate: Boolean,
        phase: Int32,
        pipes: Pipes,
    ) -> None:
        """O[t] (+)= P[t] V[stage], starting when the head of P is written."""
        mma = mma_atoms(self.plan).pv
        pipes.o_rescaled.wait(t, phase)
        pipes.p_written.wait(t, phase)
        steps = cute.size(x.v, mode=[2])
        tail = steps * self.plan.tuning.p_head // N_BLOCK
        for k in cutlass.range_constexpr(steps):
            if cutlass.const_expr(k == tail):
                pipes.p_tail_written.wait(t, phase)
            mma.set(tcgen05.Field.ACCUMULATE, accumulate if k == 0 else True)
            cute.gemm(mma, x.o[t], x.p[t][None, None, k], x.v[None, None, k, stage], x.o[t])
