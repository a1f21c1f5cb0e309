"""Softmax role: four warps per query tile, one thread per row."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from fa4.numerics.mask import CHUNK, BlockMask, hide
from fa4.numerics.online_softmax import (
    RowMaximum,
    RowState,
    RowTotal,
    RunningMax,
    log_sum_exp,
    new_row,
    row_maximum,
    row_total,
)
from fa4.numerics.pairs import PairMath
from fa4.numerics.scales import Scales
from fa4.numerics.softcap import cap_scores
from fa4.pipeline.pipes import Pipes
from fa4.plan_blackwell import M_TILE, N_BLOCK, BlackwellPlan
from fa4.tiles.bundles import SmemTensors, tmem_tile
from fa4.tiles.layouts import DTYPES
from fa4.warps.work import Work

CHUNKS = N_BLOCK // CHUNK


@dataclass(frozen=True)
class ScoreTile:
    """S and P in tensor memory as one thread sees them: a row of one query tile."""

    load: cute.TiledCopy
    tStS: cute.Tensor  # S, (copy, 1, chunk)
    store: cute.TiledCopy
    tPtP: cute.Tensor  # P, (copy, 1, chunk)
    tile: Int32  # which of the two query tiles
    thread: Int32  # row within the query tile


@dataclass(frozen=True)
class Softmax:
    """P = 2^(scale (S - m)), row maximum, row sum and LSE; query tile 0 and 1 run the same code.

    Waits: s_computed, and total_written released by the correction warps.
    Signals: scale_written, p_written, p_tail_written, total_written.
    Owns: S0 S1 in TMEM while it holds them, and P0 P1 on top. Registers: plan.roles["softmax"].
    """

    plan: BlackwellPlan

    @property
    def strategy(self) -> RunningMax:
        """How the reference maximum is kept."""
        tuning = self.plan.tuning
        return RunningMax(
            threshold=self.plan.rescale_threshold,
            exp2_degree=tuning.exp2_degree,
            exp2_emulated=tuning.exp2_emulated,
            math=PairMath(packed=True),
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
        x = self._score_tile(tmem)
        phase, total_phase = Int32(0), Int32(0)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            tile = work.schedule.decode(number)
            first, last = work.blocks(tile.m)
            row0 = tile.m * work.cta_rows + x.tile * M_TILE
            query = row0 + x.thread
            warp_row = cute.arch.make_warp_uniform(query // 32 * 32)
            blocks = work.visibility.split(first, last, row0, M_TILE)
            row = new_row()
            for i in cutlass.range(blocks.last - blocks.full_last, unroll=1):
                key0 = (blocks.last - 1 - i) * N_BLOCK
                mask = work.visibility.mask(query, warp_row, key0)
                row = self._block(x, smem, pipes, scales, row, phase, mask)
                phase ^= 1
            for _ in cutlass.range(blocks.full_last - blocks.full_first, unroll=1):
                row = self._block(x, smem, pipes, scales, row, phase, None)
                phase ^= 1
            if cutlass.const_expr(self.plan.left_bound):
                for i in cutlass.range(blocks.full_first - blocks.first, unroll=1):
                    key0 = (blocks.full_first - 1 - i) * N_BLOCK
                    mask = work.visibility.mask(query, warp_row, key0)
                    row = self._block(x, smem, pipes, scales, row, phase, mask)
                    phase ^= 1
            pipes.total_written.acquire(x.tile, total_phase)
            smem.total[x.thread, x.tile] = row.total
            pipes.total_written.commit(x.tile)
            total_phase ^= 1
            if query < mLSE.shape[0]:
                mLSE[query, tile.head, tile.batch] = log_sum_exp(row, scales.softmax)

    @cute.jit
    def _score_tile(self, tmem: cute.Pointer) -> ScoreTile:
        thread, _, _ = cute.arch.thread_idx()
        tile = cute.arch.make_warp_uniform(thread // M_TILE)
        thread = thread % M_TILE
        columns = self.plan.tmem()
        s = tmem_tile(tmem, columns.s[0] + tile * (columns.s[1] - columns.s[0]), N_BLOCK)
        p = tmem_tile(tmem, columns.p[0] + tile * (columns.p[1] - columns.p[0]), N_BLOCK // 2)
        read = tcgen05.copy.Ld32x32bOp(tcgen05.copy.Repetition(CHUNK))
        write = tcgen05.copy.St32x32bOp(tcgen05.copy.Repetition(CHUNK // 2))
        load = tcgen05.make_tmem_copy(cute.make_copy_atom(read, Float32), s)
        store = tcgen05.make_tmem_copy(cute.make_copy_atom(write, Float32), p)
        # TMEM addresses name the first lane of the warp, so they can stay in uniform registers
        first_lane = cute.arch.make_warp_uniform(thread // 32 * 32)
        return ScoreTile(
            load=load,
            tStS=load.get_slice(first_lane).partition_S(s),
            store=store,
            tPtP=store.get_slice(first_lane).partition_D(p),
            tile=tile,
            thread=thread,
        )

    @cute.jit
    def _block(
        self,
        x: ScoreTile,
        smem: SmemTensors,
        pipes: Pipes,
        scales: Scales,
        row: RowState,
        phase: Int32,
        mask: BlockMask | None,
    ) -> RowState:
        """One key block: S -> P."""
        scores = self._load_scores(x, pipes, phase, mask)
        maximum = row_maximum(row.maximum)
        for slot in cutlass.range_constexpr(CHUNKS):
            if cutlass.const_expr(mask is None or mask.may_cut(slot)):
                self._take_scores(scores, slot, maximum, scales, mask)
            elif mask.sees(slot):
                self._take_scores(scores, slot, maximum, scales, None)
        row, factor = self.strategy.update_maximum(row, maximum.value(), scales.log2)
        smem.scale[x.thread, x.tile] = factor
        pipes.scale_written.commit(x.tile)
        line = (scales.log2, -row.reference() * scales.log2)
        total = row_total(row.total, self.strategy.math)
        for slot in cutlass.range_constexpr(CHUNKS):
            chunk = slot if cutlass.const_expr(mask is None) else mask.chunk(slot)
            tPtP = x.tPtP[None, None, chunk]
            if cutlass.const_expr(mask is None or mask.may_cut(slot)) or mask.sees(slot):
                self._write_p(x.store, scores, slot, total, line, tPtP)
            else:
                zeros = cute.make_rmem_tensor(((CHUNK // 2, 1), 1), Float32)
                zeros.fill(0.0)
                cute.copy(x.store, zeros, tPtP)
            if cutlass.const_expr(self._head_written(slot, mask)):
                cute.arch.fence_view_async_tmem_store()
                pipes.p_written.commit(x.tile)
        cute.arch.fence_view_async_tmem_store()
        pipes.p_tail_written.commit(x.tile)
        return RowState(row.maximum, total.value())

    def _head_written(self, slot: int, mask: BlockMask | None) -> bool:
        """Whether the head of P is complete after this slot; masked slots are not in order."""
        keys = self.plan.tuning.p_head if mask is None else N_BLOCK
        return (slot + 1) * CHUNK == keys

    @cute.jit
    def _load_scores(
        self, x: ScoreTile, pipes: Pipes, phase: Int32, mask: BlockMask | None
    ) -> cute.Tensor:
        """A row of S (N_BLOCK,), slot by slot."""
        scores = cute.make_rmem_tensor(N_BLOCK, Float32)
        pipes.s_computed.wait(x.tile, phase)
        for slot in cutlass.range_constexpr(CHUNKS):
            chunk = slot if cutlass.const_expr(mask is None) else mask.chunk(slot)
            target = scores.iterator + slot * CHUNK
            tSrS = cute.make_tensor(target, cute.make_layout(((CHUNK, 1), 1)))
            cute.copy(x.load, x.tStS[None, None, chunk], tSrS)
        cute.arch.fence_view_async_tmem_load()
        return scores

    @cute.jit
    def _take_scores(
        self,
        scores: cute.Tensor,
        slot: cutlass.Constexpr[int],
        maximum: RowMaximum,
        scales: Scales,
        mask: BlockMask | None,
    ) -> None:
        """Softcap, mask and maximum of one chunk of scores."""
        span = (slot * CHUNK, (slot + 1) * CHUNK)
        if cutlass.const_expr(self.plan.softcap):
            cap_scores(scores, span, scales)
        if cutlass.const_expr(mask is not None):
            hide(scores, span, mask.visible(mask.chunk(slot)), tuple(range(CHUNK)))
        maximum.take(scores, span)

    @cute.jit
    def _write_p(
        self,
        store: cute.TiledCopy,
        scores: cute.Tensor,
        slot: cutlass.Constexpr[int],
        total: RowTotal,
        line: tuple[Float32, Float32],
        tPtP: cute.Tensor,
    ) -> None:
        """One chunk of P = 2^(line[0] * scores + line[1]): summed, rounded, stored to TMEM."""
        span = (slot * CHUNK, (slot + 1) * CHUNK)
        self.strategy.exponentiate(scores, span, *line)
        total.take(scores, span)
        p = cute.make_rmem_tensor(CHUNK, DTYPES[self.plan.dtype])
        values = cute.make_tensor(scores.iterator + span[0], cute.make_layout(CHUNK))
        p.store(values.load().to(DTYPES[self.plan.dtype]))
        words = cute.recast_ptr(p.iterator, dtype=Float32)
        tPrP = cute.make_tensor(words, cute.make_layout(((CHUNK // 2, 1), 1)))
        cute.copy(store, tPrP, tPtP)
