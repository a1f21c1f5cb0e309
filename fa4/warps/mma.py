"""MMA role: one warp issues every tcgen05.mma of the CTA."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.pipeline import barriers
from fa4.pipeline.pipes import Pipes
from fa4.plan_blackwell import M_TILE, N_BLOCK, Q_TILES, BlackwellPlan
from fa4.tiles.bundles import SmemTensors
from fa4.tiles.layouts import DTYPES, mma_atoms
from fa4.tiles.umma import (
    SmemOperand,
    instruction_descriptor,
    mma_ss,
    mma_ts,
    smem_operand,
)
from fa4.warps.work import Work

MMA_K = 16  # of kind::f16


@dataclass(frozen=True)
class Operands:
    """Descriptors (shared memory) and addresses (TMEM) of all operands; tuples per query tile."""

    q: SmemOperand  # stage: query tile
    k: SmemOperand  # stage: ring slot
    v: SmemOperand
    s: tuple[Int32, Int32]
    p: tuple[Int32, Int32]
    o: tuple[Int32, Int32]
    qk: Int32  # instruction descriptors
    pv: Int32


@dataclass(frozen=True)
class Mma:
    """S = Q K^T and O += P V for two query tiles in ping-pong.

    S of the next block is issued right after P V of the same query tile although P lies on S: one
    thread's MMAs execute in order, so P is read before S overwrites it. The PTX ISA promises that
    order for equal shapes and accumulators only; flash-attn-4 relies on it in the same way.
    Waits: q_loaded, kv_loaded, o_rescaled, p_written, p_tail_written, and named barrier
    TMEM_DRAINED before it frees tensor memory.
    Signals: s_computed, o_accumulated, and the release of q_loaded and kv_loaded.
    Owns: no TMEM columns; issues into S0 S1 O0 O1. Registers: plan.roles["mma"].
    """

    plan: BlackwellPlan

    @cute.jit
    def run(self, smem: SmemTensors, tmem: cute.Pointer, pipes: Pipes, work: Work) -> None:
        """Compute every tile of this CTA."""
        x = self._operands(smem, tmem)
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.kv_stages)
        q_phase, phase = Int32(0), Int32(0)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            first, last = work.blocks(work.schedule.decode(number).m)
            pipes.kv_loaded.wait(ring.index, ring.phase)
            for t in cutlass.range_constexpr(Q_TILES):
                pipes.q_loaded.wait(t, q_phase)
                self._qk(x, t, ring.index, pipes)
            pipes.kv_loaded.release(ring.index)
            ring.advance()
            for i in cutlass.range(last - 1 - first, unroll=1):
                pipes.kv_loaded.wait(ring.index, ring.phase)
                v_stage = ring.index
                ring.advance()
                for t in cutlass.range_constexpr(Q_TILES):
                    self._pv(x, t, v_stage, i > 0, phase, pipes)
                    if cutlass.const_expr(t == 0):
                        pipes.kv_loaded.wait(ring.index, ring.phase)
                    else:
                        pipes.kv_loaded.release(v_stage)
                    self._qk(x, t, ring.index, pipes)
                pipes.kv_loaded.release(ring.index)
                ring.advance()
                phase ^= 1
            for t in cutlass.range_constexpr(Q_TILES):
                pipes.q_loaded.release(t)
            pipes.kv_loaded.wait(ring.index, ring.phase)
            for t in cutlass.range_constexpr(Q_TILES):
                self._pv(x, t, ring.index, last - 1 > first, phase, pipes)
                pipes.o_accumulated.commit(t)
            pipes.kv_loaded.release(ring.index)
            ring.advance()
            phase ^= 1
            q_phase ^= 1

    def drain(self) -> None:
        """Before tensor memory is freed: the correction warps have read the last O."""
        warps = self.plan.roles["correction"].warps + self.plan.roles["mma"].warps
        cute.arch.barrier(barrier_id=barriers.TMEM_DRAINED.id, number_of_threads=32 * warps)

    def _operands(self, smem: SmemTensors, tmem: cute.Pointer) -> Operands:
        mma, columns, base = mma_atoms(self.plan), self.plan.tmem(), tmem.toint()
        qk, pv = mma.qk.get_slice(0), mma.pv.get_slice(0)
        dtype = DTYPES[self.plan.dtype]
        return Operands(
            q=smem_operand(qk.make_fragment_A(smem.q)),
            k=smem_operand(qk.make_fragment_B(smem.k)),
            v=smem_operand(pv.make_fragment_B(smem.v)),
            s=tuple(base + c for c in columns.s),
            p=tuple(base + c for c in columns.p),
            o=tuple(base + c for c in columns.o),
            qk=Int32(instruction_descriptor(dtype, M_TILE, N_BLOCK, b_mn_major=False)),
            pv=Int32(instruction_descriptor(dtype, M_TILE, self.plan.head_dim_v, b_mn_major=True)),
        )

    @cute.jit
    def _qk(self, x: Operands, t: cutlass.Constexpr[int], stage: Int32, pipes: Pipes) -> None:
        """S[t] = Q[t] K[stage]^T."""
        for k in cutlass.range_constexpr(self.plan.head_dim // MMA_K):
            mma_ss(x.s[t], x.q.at(k, t), x.k.at(k, stage), x.qk, k != 0)
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
        head, steps = self.plan.tuning.p_head // MMA_K, N_BLOCK // MMA_K
        pipes.o_rescaled.wait(t, phase, fenced=False)
        pipes.p_written.wait(t, phase)
        self._pv_steps(x, t, stage, accumulate, (0, head))
        pipes.p_tail_written.wait(t, phase)
        self._pv_steps(x, t, stage, True, (head, steps))

    @cute.jit
    def _pv_steps(
        self,
        x: Operands,
        t: cutlass.Constexpr[int],
        stage: Int32,
        accumulate: Boolean | bool,
        steps: cutlass.Constexpr[tuple[int, int]],
    ) -> None:
        for k in cutlass.range_constexpr(*steps):
            p = x.p[t] + k * MMA_K // 2  # two 16-bit keys a column
            first = cutlass.const_expr(k == 0)
            mma_ts(x.o[t], p, x.v.at(k, stage), x.pv, accumulate if first else True)
