"""Softmax role: four warps per query tile, one thread per row."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from fa4.numerics.mask import mask_scores
from fa4.numerics.online_softmax import (
    RowState,
    RunningMax,
    add_to_total,
    log_sum_exp,
    new_row,
)
from fa4.numerics.softcap import cap_scores
from fa4.pipeline.pipes import Pipes
from fa4.plan import M_TILE, N_BLOCK, Plan
from fa4.tiles.bundles import Scales, SmemTensors, tmem_tile
from fa4.tiles.layouts import DTYPES
from fa4.warps.work import CTA_ROWS, Work

CHUNK = 32  # keys per tcgen05.st: exponentials of the next chunk overlap the store of this one


@dataclass(frozen=True)
class SoftmaxTensors:
    """What one thread of one query tile works on."""

    load: cute.TiledCopy
    tStS: cute.Tensor  # S in TMEM, partitioned for the load
    registers: cute.Shape  # of S in registers, for the load
    store: cute.TiledCopy
    tPtP: cute.Tensor  # P in TMEM, (copy, 1, chunk)
    thread: Int32
    tile: Int32  # which of the two query tiles


@dataclass(frozen=True)
class Softmax:
    """P = 2^(scale (S - m)), row maximum, row sum and LSE; query tile 0 and 1 run the same code.

    Waits: s_computed, and total_written released by the correction warps.
    Signals: scale_written, p_written, p_tail_written, total_written.
    Owns: S0 S1 in TMEM while it holds them, and P0 P1 on top. Registers: plan.roles["softmax"].
    """

    plan: Plan

    @property
    def strategy(self) -> RunningMax:
        """How the reference maximum is kept."""
        return RunningMax(
            self.plan.rescale_threshold,
            self.plan.tuning.exp2_degree,
            self.plan.tuning.exp2_emulated,
        )

    @cute.jit
    def run(
        self,
        smem: SmemTensors,
        tmem: cute.Pointer,
        mLSE: cute.Tensor,
        pipes: Pipes,
        work: Work,
        scales: Scales,
    ) -> None:
        """Process every tile of this CTA."""
        x = self._tensors(tmem)
        left_bound = self.plan.left_bound
        phase, total_phase = Int32(0), Int32(0)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            tile = work.schedule.decode(number)
            first, last = work.blocks(tile)
            row0 = tile.m * CTA_ROWS + x.tile * M_TILE
            blocks = work.visibility.split(first, last, row0, M_TILE)
            begin = work.visibility.row_begin(row0 + x.thread)
            end = work.visibility.row_end(row0 + x.thread)
            row = new_row()
            for i in cutlass.range(blocks.last - blocks.full_last, unroll=1):
                key0 = (blocks.last - 1 - i) * N_BLOCK
                bounds = (begin - key0, end - key0)
                row = self._block(x, smem, pipes, scales, row, phase, bounds)
                phase ^= 1
            for _ in cutlass.range(blocks.full_last - blocks.full_first, unroll=1):
                row = self._block(x, smem, pipes, scales, row, phase, None)
                phase ^= 1
            if cutlass.const_expr(left_bound):
                for i in cutlass.range(blocks.full_first - blocks.first, unroll=1):
                    key0 = (blocks.full_first - 1 - i) * N_BLOCK
                    bounds = (begin - key0, end - key0)
                    row = self._block(x, smem, pipes, scales, row, phase, bounds)
                    phase ^= 1
            pipes.total_written.acquire(x.tile, total_phase)
            smem.total[x.thread, x.tile] = row.total
            pipes.total_written.commit(x.tile)
            total_phase ^= 1
            query = row0 + x.thread
            if query < work.visibility.seqlen_q:
                mLSE[query, tile.head, tile.batch] = log_sum_exp(row, scales.softmax)

    @cute.jit
    def _tensors(self, tmem: cute.Pointer) -> SoftmaxTensors:
        thread, _, _ = cute.arch.thread_idx()
        tile = cute.arch.make_warp_uniform(thread // M_TILE)
        thread = thread % M_TILE
        columns = self.plan.tmem()
        s = tmem_tile(tmem, columns.s[0] + tile * (columns.s[1] - columns.s[0]), N_BLOCK)
        p = tmem_tile(tmem, columns.p[0] + tile * (columns.p[1] - columns.p[0]), N_BLOCK // 2)
        load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(
                tcgen05.copy.Ld32x32bOp(tcgen05.copy.Repetition(32)), Float32
            ), s,
        )  # fmt: skip
        store = tcgen05.make_tmem_copy(
            cute.make_copy_atom(
                tcgen05.copy.St32x32bOp(tcgen05.copy.Repetition(CHUNK // 2)), Float32
            ), p,
        )  # fmt: skip
        rows = cute.make_identity_tensor((M_TILE, N_BLOCK))
        return SoftmaxTensors(
            load=load,
            tStS=load.get_slice(thread).partition_S(s),
            registers=load.get_slice(thread).partition_D(rows).shape,
            store=store,
            tPtP=store.get_slice(thread).partition_D(p),
            thread=thread,
            tile=tile,
        )

    @cute.jit
    def _block(
        self,
        x: SoftmaxTensors,
        smem: SmemTensors,
        pipes: Pipes,
        scales: Scales,
        row: RowState,
        phase: Int32,
        bounds: tuple[Int32, Int32] | None,
    ) -> RowState:
        """One key block: S -> P; `bounds` (begin, end) hides keys, relative to the block."""
        scores = cute.make_rmem_tensor(N_BLOCK, Float32)
        pipes.s_computed.wait(x.tile, phase)
        tSrS = cute.make_tensor(scores.iterator, cute.make_layout(x.registers))
        cute.copy(x.load, x.tStS, tSrS)
        cute.arch.fence_view_async_tmem_load()
        if cutlass.const_expr(self.plan.softcap):
            cap_scores(scores, scales)
        if cutlass.const_expr(bounds is not None):
            mask_scores(scores, bounds[0], bounds[1], self.plan.left_bound)
        row, factor = self.strategy.update_maximum(row, scores, scales.log2)
        smem.scale[x.thread, x.tile] = factor
        pipes.scale_written.commit(x.tile)
        bias = -row.reference() * scales.log2
        for chunk in cutlass.range_constexpr(N_BLOCK // CHUNK):
            self._write_p(x, scores, chunk, scales.log2, bias)
            if cutlass.const_expr((chunk + 1) * CHUNK == self.plan.tuning.p_head):
                cute.arch.fence_view_async_tmem_store()
                pipes.p_written.commit(x.tile)
        cute.arch.fence_view_async_tmem_store()
        pipes.p_tail_written.commit(x.tile)
        return add_to_total(row, scores)

    @cute.jit
    def _write_p(
        self,
        x: SoftmaxTensors,
        scores: cute.Tensor,
        chunk: cutlass.Constexpr[int],
        scale_log2: Float32,
        bias: Float32,
    ) -> None:
        """Exponentials of one chunk of keys, rounded to the MMA's dtype and stored to TMEM."""
        first = chunk * CHUNK
        self.strategy.exponentiate(scores, first, first + CHUNK, scale_log2, bias)
        p = cute.make_rmem_tensor(CHUNK, DTYPES[self.plan.dtype])
        values = cute.make_tensor(scores.iterator + first, cute.make_layout(CHUNK))
        p.store(values.load().to(DTYPES[self.plan.dtype]))
        tPrP = cute.make_tensor(
            cute.recast_ptr(p.iterator, dtype=Float32),
            cute.make_layout(((CHUNK // 2, 1), 1)),
        )
        cute.copy(x.store, tPrP, x.tPtP[None, None, chunk])
