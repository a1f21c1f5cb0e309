"""MMA role of the backward: one thread issues every tcgen05.mma of the CTA."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import BackwardPipes
from fa4.plan_backward_blackwell import COMPUTE_GROUPS, TILE, BlackwellBackwardPlan
from fa4.tiles.backward_layouts import BackwardOperands, BackwardSmem, backward_operands
from fa4.tiles.layouts import DTYPES
from fa4.tiles.umma import SmemOperand, instruction_descriptor, mma_ss, mma_ts
from fa4.warps.backward.work import BackwardWork

MMA_K = 16  # of kind::f16
STEPS = TILE // MMA_K  # of a product over keys or queries


@dataclass(frozen=True)
class Products:
    """Operands in shared memory, addresses in tensor memory, and instruction descriptors."""

    smem: BackwardOperands
    s: Int32  # P lies on it, as dS on dp
    dp: Int32
    dq: Int32
    dv: Int32
    dk: Int32
    scores_shape: Int32
    dv_shape: Int32
    dk_shape: Int32
    dq_shape: Int32


@dataclass(frozen=True)
class BackwardMma:
    """S^T = K Q^T, dV += P^T dO, dP^T = V dO^T, dK += dS^T Q, dQ = dS K.

    Keys are the lanes of all but dQ, so that P^T and dS^T are operands in tensor memory. The order
    hides what others do: while dV, dP and the next S are computed, reduce reads dQ and compute does
    the exponentials; S of the next block is there before dS of this one is.
    As in the forward kernel, MMAs of one thread execute in order: S overwrites P once dV has read
    it, and dQ overwrites dS once dK has.
    Waits: k_loaded, v_loaded, q_loaded, do_loaded, p_written, ds_written, dq_read, gradients_read.
    Signals: s_computed, dp_computed, dq_computed, gradients_computed, and the release of q_loaded
    and, if it has one, do_loaded.
    Owns: no TMEM columns; issues into S, dP, dQ, dV, dK. Registers: plan.roles["mma"].
    """

    plan: BlackwellBackwardPlan

    @cute.jit
    def run(
        self, smem: BackwardSmem, tmem: cute.Pointer, pipes: BackwardPipes, work: BackwardWork
    ) -> None:
        """All products of this CTA; for one thread."""
        x, ahead = self._products(smem, tmem), self.plan.tmem().scores_ahead
        count = work.count(work.tile().m)
        q = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.q_stages)
        do = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.do_stages)
        phase = Int32(0)
        pipes.k_loaded.wait(0, phase)
        self._scores_ahead(x, pipes, q, count > 0)
        pipes.v_loaded.wait(0, phase)
        for i in cutlass.range(count, unroll=1):
            if cutlass.const_expr(not ahead):
                pipes.q_loaded.wait(q.index, q.phase)
                pipes.dq_read.wait(0, phase ^ 1)  # of the block before, if there is one
                self._scores(x, q.index, pipes)
            pipes.do_loaded.wait(do.index, do.phase)
            pipes.p_written.wait(0, phase)
            self._add(x.dv, x.s, x.smem.do_columns, do.index, x.dv_shape, i > 0)
            if cutlass.const_expr(ahead):
                pipes.dq_read.wait(0, phase ^ 1)
            self._grad_probabilities(x, do.index, pipes)
            if cutlass.const_expr(pipes.do_loaded.edge.has_release):
                pipes.do_loaded.release(do.index)
            do.advance()
            stage = q.index
            q.advance()
            self._scores_ahead(x, pipes, q, i + 1 < count)
            pipes.ds_written.wait(0, phase)
            self._add(x.dk, x.dp, x.smem.q_columns, stage, x.dk_shape, i > 0)
            pipes.q_loaded.release(stage)
            self._grad_queries(x, pipes)
            phase ^= 1
        pipes.gradients_computed.commit(0)

    @cute.jit
    def drain(self, pipes: BackwardPipes, work: BackwardWork) -> None:
        """Before tensor memory is freed: the others have read the last dQ, dV and dK."""
        pipes.dq_read.wait(0, (work.count(work.tile().m) & 1) ^ 1, fenced=False)
        pipes.gradients_read.wait(0, Int32(0))

    def _products(self, smem: BackwardSmem, tmem: cute.Pointer) -> Products:
        plan, columns, base = self.plan, self.plan.tmem(), tmem.toint()

        def shape(n: int, b_mn_major: bool, a_mn_major: bool = False) -> Int32:
            dtype = DTYPES[plan.dtype]
            return Int32(instruction_descriptor(dtype, TILE, n, b_mn_major, a_mn_major))

        return Products(
            smem=backward_operands(plan, smem),
            s=base + columns.s,
            dp=base + columns.dp,
            dq=base + columns.dq,
            dv=base + columns.dv,
            dk=base + columns.dk,
            scores_shape=shape(TILE, False),
            dv_shape=shape(plan.head_dim_v, True),
            dk_shape=shape(plan.head_dim, True),
            dq_shape=shape(plan.head_dim, True, True),
        )

    @cute.jit
    def _scores_ahead(
        self, x: Products, pipes: BackwardPipes, q: PipelineState, follows: Boolean
    ) -> None:
        """S of the next block if one follows, where it has room in tensor memory."""
        ahead = self.plan.tmem().scores_ahead
        if cutlass.const_expr(ahead) and follows:
            pipes.q_loaded.wait(q.index, q.phase)
            self._scores(x, q.index, pipes)

    @cute.jit
    def _scores(self, x: Products, stage: Int32, pipes: BackwardPipes) -> None:
        """S^T = K Q^T."""
        depth = self.plan.head_dim
        self._set(x.s, x.smem.k_rows, x.smem.q_rows, stage, x.scores_shape, depth)
        pipes.s_computed.commit(0)

    @cute.jit
    def _grad_probabilities(self, x: Products, stage: Int32, pipes: BackwardPipes) -> None:
        """dP^T = V dO^T."""
        depth = self.plan.head_dim_v
        self._set(x.dp, x.smem.v_rows, x.smem.do_rows, stage, x.scores_shape, depth)
        pipes.dp_computed.commit(0)

    def _set(
        self,
        target: Int32,
        a: SmemOperand,
        b: SmemOperand,
        stage: Int32 | int,
        shape: Int32,
        depth: int,
    ) -> None:
        """A product from shared memory alone. stage: of b, depth: of the sums."""
        for k in range(depth // MMA_K):
            mma_ss(target, a.at(k, 0), b.at(k, stage), shape, k != 0)

    @cute.jit
    def _add(
        self,
        target: Int32,
        a: Int32,
        b: SmemOperand,
        stage: Int32,
        shape: Int32,
        accumulate: Boolean,
    ) -> None:
        """dV (+)= P^T dO or dK (+)= dS^T Q. a: where S or dP was, stage: of b."""
        per_group = STEPS // COMPUTE_GROUPS
        for k in cutlass.range_constexpr(STEPS):
            # each group's half of S has two 16-bit queries a column in its first half
            column = k // per_group * (TILE // COMPUTE_GROUPS) + k % per_group * (MMA_K // 2)
            keep = accumulate if cutlass.const_expr(k == 0) else True
            mma_ts(target, a + column, b.at(k, stage), shape, keep)

    @cute.jit
    def _grad_queries(self, x: Products, pipes: BackwardPipes) -> None:
        """dQ = dS K."""
        self._set(x.dq, x.smem.ds_columns, x.smem.k_columns, 0, x.dq_shape, TILE)
        pipes.dq_computed.commit(0)
