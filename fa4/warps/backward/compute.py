"""Compute role of the backward: two warpgroups turn S^T into P^T and dP^T into dS^T."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import tcgen05
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.numerics.mask import CHUNK, hide
from fa4.numerics.pairs import Pair, PairMath, packed
from fa4.numerics.scales import GradientScales
from fa4.numerics.score_gradients import probabilities, score_gradients, times_slope
from fa4.numerics.softcap import cap_scores
from fa4.pipeline.pipes import BackwardPipes
from fa4.plan_backward_blackwell import LANES, TILE, BlackwellBackwardPlan
from fa4.tiles.backward_bundles import BackwardTma
from fa4.tiles.backward_layouts import BackwardSmem
from fa4.tiles.bundles import tmem_tile
from fa4.tiles.row_major import store_words
from fa4.warps.backward.epilogue import BackwardEpilogue
from fa4.warps.backward.work import BackwardWork

MATH = PairMath(packed=True)
VECTOR = 4  # floats that a thread reads from shared memory at a time


@dataclass(frozen=True)
class KeyRow:
    """What one thread works on: a key, and its warpgroup's half of the queries of each block."""

    load: cute.TiledCopy
    s: cute.Tensor  # S^T in tensor memory, (copy, 1, chunk)
    dp: cute.Tensor  # dP^T likewise
    store: cute.TiledCopy
    p: cute.Tensor  # P^T, on S^T
    ds: cute.Tensor  # dS^T, on dP^T
    shared_ds: cute.Tensor  # dS^T in shared memory, (query,)
    key: Int32
    query: Int32  # the first one, within a block


@dataclass(frozen=True)
class BackwardCompute:
    """P^T = 2^(scale S^T - LSE), dS^T = P^T (dP^T - delta); in the end dV and dK.

    Waits: rows_loaded, s_computed, dp_computed, gradients_computed.
    Signals: p_written, ds_written, gradients_read.
    Owns: S and dP in TMEM while it holds them, P and dS on top; sdS.
    Registers: plan.roles["compute"].
    """

    plan: BlackwellBackwardPlan

    @cute.jit
    def run(
        self,
        tma: BackwardTma,
        smem: BackwardSmem,
        tmem: cute.Pointer,
        pipes: BackwardPipes,
        work: BackwardWork,
        scales: GradientScales,
    ) -> None:
        """One block of keys: all its query blocks, then dK and dV to global memory."""
        tile = work.tile()
        blocks, x = work.blocks(tile.m), self._key_row(smem, tmem, tile.m * TILE)
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.q_stages)
        phase, block = Int32(0), blocks.first
        for _ in cutlass.range(work.count(tile.m), unroll=1):
            masked = blocks.masked(block)
            pipes.rows_loaded.wait(ring.index, ring.phase)
            scores = self._probabilities(
                x, smem.lse[None, ring.index], pipes, work, scales, block, masked, phase
            )
            self._grad_scores(x, scores, smem.delta[None, ring.index], pipes, phase)
            ring.advance()
            phase ^= 1
            block = block + 1 if block + 1 < blocks.last else blocks.first
        BackwardEpilogue(self.plan).run(tma, smem, tmem, pipes, work, scales)

    @cute.jit
    def _key_row(self, smem: BackwardSmem, tmem: cute.Pointer, key0: Int32) -> KeyRow:
        thread, _, _ = cute.arch.thread_idx()
        group = cute.arch.make_warp_uniform(thread // TILE)
        key, columns, queries = thread % TILE, self.plan.tmem(), self.plan.group_queries
        read = tcgen05.copy.Ld32x32bOp(tcgen05.copy.Repetition(CHUNK))
        write = tcgen05.copy.St32x32bOp(tcgen05.copy.Repetition(CHUNK // 2))
        s, dp = (tmem_tile(tmem, c + group * queries, queries) for c in (columns.s, columns.dp))
        p, ds = (
            tmem_tile(tmem, c + group * queries, queries // 2) for c in (columns.s, columns.dp)
        )
        load = tcgen05.make_tmem_copy(cute.make_copy_atom(read, Float32), s)
        store = tcgen05.make_tmem_copy(cute.make_copy_atom(write, Float32), p)
        # TMEM addresses name the first lane of the warp, so they can stay in uniform registers
        first_lane = cute.arch.make_warp_uniform(key // LANES * LANES)
        row = cute.local_tile(smem.ds[key, None, 0], (queries,), (group,))
        return KeyRow(
            load=load,
            s=load.get_slice(first_lane).partition_S(s),
            dp=load.get_slice(first_lane).partition_S(dp),
            store=store,
            p=store.get_slice(first_lane).partition_D(p),
            ds=store.get_slice(first_lane).partition_D(ds),
            shared_ds=row,
            key=key0 + key,
            query=group * queries,
        )

    @cute.jit
    def _probabilities(
        self,
        x: KeyRow,
        lse: cute.Tensor,
        pipes: BackwardPipes,
        work: BackwardWork,
        scales: GradientScales,
        block: Int32,
        masked: Boolean,
        phase: Int32,
    ) -> cute.Tensor:
        """P^T to tensor memory; returns it (query,) exact, with softcap times its slope."""
        queries = self.plan.group_queries
        scores = cute.make_rmem_tensor(queries, Float32)
        pipes.s_computed.wait(0, phase)
        for chunk in cutlass.range_constexpr(queries // CHUNK):
            cute.copy(x.load, x.s[None, None, chunk], _chunk(scores, chunk))
        cute.arch.fence_view_async_tmem_load()
        if cutlass.const_expr(self.plan.softcap):
            cap_scores(scores, (0, queries), scales)
        if masked:
            mask = work.visibility.mask(x.key, block * TILE + x.query)
            for chunk in cutlass.range_constexpr(queries // CHUNK):
                span = (chunk * CHUNK, (chunk + 1) * CHUNK)
                hide(scores, span, mask.visible(chunk), tuple(range(CHUNK)))
        for chunk in cutlass.range_constexpr(queries // CHUNK):
            words = self._exponentiate(scores, chunk, lse, x.query, scales)
            cute.copy(x.store, words, x.p[None, None, chunk])
        cute.arch.fence_view_async_tmem_store()
        pipes.p_written.commit(0)
        return scores

    @cute.jit
    def _exponentiate(
        self,
        scores: cute.Tensor,
        chunk: cutlass.Constexpr[int],
        lse: cute.Tensor,
        query: Int32,
        scales: GradientScales,
    ) -> cute.Tensor:
        """One chunk of P in place; returns it rounded, two to a word."""
        words = cute.make_rmem_tensor(((CHUNK // 2, 1), 1), Float32)
        for i in cutlass.range_constexpr(0, CHUNK, 2):
            if cutlass.const_expr(i % VECTOR == 0):
                values = _values(lse, query, chunk * CHUNK + i)
            at = chunk * CHUNK + i
            s = (scores[at], scores[at + 1])
            p = probabilities(MATH, s, scales.log2, _pair(values, i))
            words[i // 2] = packed(*p, self.plan.dtype).bitcast(Float32)
            if cutlass.const_expr(self.plan.softcap):
                p = times_slope(MATH, p, s)
            scores[at], scores[at + 1] = p
        return words

    @cute.jit
    def _grad_scores(
        self,
        x: KeyRow,
        p: cute.Tensor,
        delta: cute.Tensor,
        pipes: BackwardPipes,
        phase: Int32,
    ) -> None:
        """dS^T to tensor memory and to shared memory."""
        pipes.dp_computed.wait(0, phase)
        for chunk in cutlass.range_constexpr(self.plan.group_queries // CHUNK):
            dp = cute.make_rmem_tensor(((CHUNK, 1), 1), Float32)
            cute.copy(x.load, x.dp[None, None, chunk], dp)
            cute.arch.fence_view_async_tmem_load()
            words = cute.make_rmem_tensor(((CHUNK // 2, 1), 1), Float32)
            for i in cutlass.range_constexpr(0, CHUNK, 2):
                if cutlass.const_expr(i % VECTOR == 0):
                    values = _values(delta, x.query, chunk * CHUNK + i)
                at = chunk * CHUNK + i
                pair, grad = (p[at], p[at + 1]), (dp[i], dp[i + 1])
                ds = score_gradients(MATH, pair, grad, _pair(values, i))
                words[i // 2] = packed(*ds, self.plan.dtype).bitcast(Float32)
            cute.copy(x.store, words, x.ds[None, None, chunk])
            store_words(words, x.shared_ds, chunk)
        cute.arch.fence_view_async_tmem_store()
        cute.arch.fence_view_async_shared()
        pipes.ds_written.commit(0)


def _chunk(registers: cute.Tensor, chunk: int) -> cute.Tensor:
    """One chunk of registers in the shape that a copy from tensor memory takes."""
    layout = cute.make_layout(((CHUNK, 1), 1))
    return cute.make_tensor(registers.iterator + chunk * CHUNK, layout)


def _values(rows: cute.Tensor, query: Int32, first: int) -> cute.Tensor:
    """Those of VECTOR queries, where they are needed; all threads of a warp read the same."""
    registers = cute.make_rmem_tensor(VECTOR, Float32)
    source = rows.iterator + cute.assume(query, divby=TILE // 2) + first
    cute.autovec_copy(cute.make_tensor(source, cute.make_layout(VECTOR)), registers)
    return registers


def _pair(values: cute.Tensor, i: int) -> Pair:
    return values[i % VECTOR], values[i % VECTOR + 1]
