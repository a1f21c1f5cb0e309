"""Attend role on Hopper: a warpgroup computes 64 query rows, from S = Q K^T to the stored O."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import warpgroup
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.numerics.mask import CHUNK, BlockMask, hide
from fa4.numerics.online_softmax import (
    FixedReference,
    RowState,
    RunningMax,
    inverse_total,
    log_sum_exp,
    new_row,
    row_maximum,
    row_total,
)
from fa4.numerics.pairs import PairMath, packed
from fa4.numerics.scales import Scales
from fa4.numerics.softcap import cap_scores
from fa4.pipeline import barriers
from fa4.pipeline.pipes import HopperPipes
from fa4.plan_hopper import HopperPlan
from fa4.tiles.block_range import Visibility
from fa4.tiles.bundles import TmaTensors
from fa4.tiles.hopper_bundles import HopperSmem
from fa4.tiles.hopper_layouts import pv_mma, qk_mma
from fa4.tiles.layouts import DTYPES
from fa4.tiles.registers import pinned
from fa4.tiles.scheduler import WorkTile
from fa4.tiles.tile_queue import END, SLOTS, TileQueue
from fa4.warps.work import Work

ROWS_PER_THREAD = 2  # of a wgmma accumulator: lane / 4 and lane / 4 + 8 of the warp's 16 rows


@dataclass(frozen=True)
class Fragments:
    """Registers of one thread: scores and output in float32, P as the A operand of P V."""

    s: cute.Tensor  # ((2, 2, n_block / 8), 1, 1)
    o: cute.Tensor  # ((2, 2, Dv / 8), 1, 1)
    p: cute.Tensor  # ((2, 2, 2), 1, n_block / 16)

    def row(self, accumulator: cute.Tensor, r: int) -> cute.Tensor:
        """The thread's elements of its row r: pairs of columns, 8 apart."""
        pairs = cute.size(accumulator) // 4
        layout = cute.make_layout((2, pairs), stride=(1, 4))
        return cute.make_tensor(accumulator.iterator + 2 * r, layout)


@dataclass(frozen=True)
class Row:
    """State of the thread's rows: (ROWS_PER_THREAD,) each; `total` is this thread's part."""

    maximum: cute.Tensor
    total: cute.Tensor
    factor: cute.Tensor  # that O must be multiplied by


@dataclass(frozen=True)
class Place:
    """Where a thread is: its warpgroup's query tile, its first query row, the tile's blocks."""

    t: Int32
    buffer: Int32  # of its Q, and then of its O
    thread: Int32  # within the warpgroup
    query: Int32
    row0: Int32  # first query row of the warpgroup
    tile: WorkTile


@dataclass(frozen=True)
class Attend:
    """One query tile per warpgroup: S, online softmax, O += P V, O / l, LSE.

    P V of a block runs while the exponentials of the next are taken; no wgmma is in flight across
    the end of an iteration, since ptxas would serialise all of them.
    Waits: tile_assigned, q_loaded, k_loaded, v_loaded. Signals: the release of each.
    Owns: its rows of sO. Registers: plan.roles["attend"].
    """

    plan: HopperPlan

    @property
    def strategy(self) -> RunningMax:
        """How the reference maximum is kept where it is not frozen."""
        return RunningMax(
            threshold=self.plan.rescale_threshold,
            exp2_degree=0,
            exp2_emulated=0,
            math=PairMath(packed=False),
        )

    @cute.jit
    def run(
        self,
        tma: TmaTensors,
        smem: HopperSmem,
        queue: TileQueue,
        mLSE: cute.Tensor,
        pipes: HopperPipes,
        work: Work,
        scales: Scales,
    ) -> None:
        """Attend to every tile that the load warp assigns."""
        f = self._fragments()
        row = Row(*(cute.make_rmem_tensor(ROWS_PER_THREAD, Float32) for _ in range(3)))
        slot = make_pipeline_state(PipelineUserType.Consumer, SLOTS)
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.kv_stages)
        q_ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.q_stages)
        pipes.tile_assigned.wait(slot.index, slot.phase)
        number = cute.arch.make_warp_uniform(queue.tile[slot.index])
        while number != END:
            place = self._place(queue, slot.index, q_ring.index, work)
            exact = cute.arch.make_warp_uniform(queue.exact[slot.index])
            pipes.q_loaded.wait(place.buffer, q_ring.phase)
            where = (place, exact, scales, q_ring.count)
            ring = self._blocks(f, row, smem, pipes, work, where, ring)
            place = self._place(queue, slot.index, q_ring.index, work)  # not kept in registers
            exact = cute.arch.make_warp_uniform(queue.exact[slot.index])
            if cutlass.const_expr(self.plan.fixed_reference):
                self._request_redo(f, row, work, place.query, (queue, slot.index, exact))
            self._write(f, row, tma, smem, mLSE, pipes, (place, scales, exact))
            pipes.tile_assigned.release(slot.index)
            slot.advance()
            q_ring.advance()
            pipes.tile_assigned.wait(slot.index, slot.phase)
            number = cute.arch.make_warp_uniform(queue.tile[slot.index])
        if self._thread() < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    def _thread(self) -> Int32:
        """Thread within the warpgroup."""
        thread, _, _ = cute.arch.thread_idx()
        return pinned(thread) % 128

    @cute.jit
    def _place(self, queue: TileQueue, slot: Int32, q_stage: Int32, work: Work) -> Place:
        thread, _, _ = cute.arch.thread_idx()
        thread = pinned(thread)
        t = cute.arch.make_warp_uniform(thread // 128) - 1
        thread = thread % 128
        tile = work.schedule.decode(cute.arch.make_warp_uniform(queue.tile[slot]))
        row0 = tile.m * self.plan.cta_rows + t * self.plan.m_tile
        query = row0 + thread // 32 * 16 + thread % 32 // 4
        return Place(t, q_stage * self.plan.q_tiles + t, thread, query, row0, tile)

    def _fragments(self) -> Fragments:
        qk, pv, plan = qk_mma(self.plan), pv_mma(self.plan), self.plan
        p = pv.make_fragment_A(pv.partition_shape_A((plan.m_tile, plan.n_block)))
        return Fragments(
            s=cute.make_rmem_tensor(qk.partition_shape_C(plan.qk_tile[:2]), Float32),
            o=cute.make_rmem_tensor(pv.partition_shape_C(plan.pv_tile[:2]), Float32),
            p=cute.make_rmem_tensor(p.layout, DTYPES[plan.dtype]),
        )

    @cute.jit
    def _blocks(
        self,
        f: Fragments,
        row: Row,
        smem: HopperSmem,
        pipes: HopperPipes,
        work: Work,
        where: tuple[Place, Int32, Scales, Int32],
        ring: PipelineState,
    ) -> PipelineState:
        """All key blocks of a tile, from the last to the first; leaves O unnormalised."""
        (place, exact, scales, started), row0 = where, where[0].row0
        see, rows, cta_row = work.visibility, self.plan.m_tile, place.tile.m * self.plan.cta_rows
        cta_first, cta_last = see.blocks(cta_row, self.plan.cta_rows)
        first, last = see.blocks(row0, rows)
        full = see.split(first, last, row0, rows)
        # The frozen reference must be that of a key: the block of the first row's last key is the
        # last one whose maximum counts. An exact tile never freezes it.
        frozen = cutlass.max((see.row_end(row0) - 1) // self.plan.n_block, first)
        if cutlass.const_expr(self.plan.fixed_reference):
            frozen = frozen if exact == 0 else first
        else:
            frozen = first
        ring = self._skip(pipes, ring, cta_last - last)
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            fresh = new_row()
            row.maximum[r], row.total[r] = fresh.maximum, fresh.total
        self._scores(f, smem, place, pipes, ring)
        warpgroup.wait_group(0)
        pipes.k_loaded.release(ring.index)
        self._softmax(f, row, (place, scales, see), last - 1, Boolean(True), Boolean(True))
        self._round_p(f)
        if cutlass.const_expr(self.plan.tuning.q_stages > 1):
            self._hand_back(pipes, place, started)
        for i in cutlass.range(last - 1 - first, unroll=1):
            block = last - 2 - i
            masked = (block >= full.full_last) | (block < full.full_first)
            ring = self._step(
                *(f, row, smem, pipes, (place, scales, see)),
                (block, masked, block >= frozen, i > 0),
                ring,
            )
        pipes.v_loaded.wait(ring.index, ring.phase)
        warpgroup.fence()
        self._add_pv(f, smem, ring, last - 1 > first)
        warpgroup.wait_group(0)
        pipes.v_loaded.release(ring.index)
        ring.advance()
        return self._skip(pipes, ring, first - cta_first)

    @cute.jit
    def _skip(self, pipes: HopperPipes, ring: PipelineState, count: Int32) -> PipelineState:
        """Blocks that other warpgroups of the CTA see: take part in their release only."""
        for _ in cutlass.range(count, unroll=1):
            pipes.k_loaded.wait(ring.index, ring.phase)
            pipes.k_loaded.release(ring.index)
            pipes.v_loaded.wait(ring.index, ring.phase)
            pipes.v_loaded.release(ring.index)
            ring.advance()
        return ring

    @cute.jit
    def _step(
        self,
        f: Fragments,
        row: Row,
        smem: HopperSmem,
        pipes: HopperPipes,
        where: tuple[Place, Scales, Visibility],
        what: tuple[Int32, Boolean, Boolean, Boolean],
        ring: PipelineState,
    ) -> PipelineState:
        """O (+)= P V of the block before, and P of this one.

        what: (block, whether it is masked, whether its maximum counts, whether O exists).
        """
        place, (block, masked, running, accumulate) = where[0], what
        ahead = ring.clone()
        ahead.advance()
        self._scores(f, smem, place, pipes, ahead)
        pipes.v_loaded.wait(ring.index, ring.phase)
        self._add_pv(f, smem, ring, accumulate)
        warpgroup.wait_group(1)
        pipes.k_loaded.release(ahead.index)
        self._softmax(f, row, where, block, masked, running)
        warpgroup.wait_group(0)
        pipes.v_loaded.release(ring.index)
        if running:
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                o = f.row(f.o, r)
                for i in cutlass.range_constexpr(cute.size(o)):
                    o[i] = o[i] * row.factor[r]
        self._round_p(f)
        return ahead

    @cute.jit
    def _scores(
        self, f: Fragments, smem: HopperSmem, place: Place, pipes: HopperPipes, ring: PipelineState
    ) -> None:
        """Issue S = Q K^T."""
        mma = qk_mma(self.plan)
        thread = mma.get_slice(0)
        q = mma.make_fragment_A(thread.partition_A(smem.q))
        k = mma.make_fragment_B(thread.partition_B(smem.k))
        buffer = pinned(place.buffer)
        pipes.k_loaded.wait(ring.index, ring.phase)
        warpgroup.fence()
        for step in cutlass.range_constexpr(cute.size(k, mode=[2])):
            mma.set(warpgroup.Field.ACCUMULATE, step != 0)
            cute.gemm(mma, f.s, q[None, None, step, buffer], k[None, None, step, ring.index], f.s)
        warpgroup.commit_group()

    @cute.jit
    def _add_pv(
        self, f: Fragments, smem: HopperSmem, ring: PipelineState, accumulate: Boolean
    ) -> None:
        """Issue O (+)= P V."""
        mma = pv_mma(self.plan)
        v = mma.make_fragment_B(mma.get_slice(0).partition_B(smem.v))
        for step in cutlass.range_constexpr(cute.size(v, mode=[2])):
            mma.set(warpgroup.Field.ACCUMULATE, True if step > 0 else accumulate)
            cute.gemm(mma, f.o, f.p[None, None, step], v[None, None, step, ring.index], f.o)
        warpgroup.commit_group()

    @cute.jit
    def _softmax(
        self,
        f: Fragments,
        row: Row,
        where: tuple[Place, Scales, Visibility],
        block: Int32,
        masked: Boolean,
        running: Boolean,
    ) -> None:
        """S -> P in float32, in place, with the rows' sums; the whole warpgroup branches alike."""
        place, scales, see = where
        span = (0, self.plan.n_block // 4)
        if cutlass.const_expr(self.plan.softcap):
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                cap_scores(f.row(f.s, r), span, scales)
        if masked:
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                query, key0 = place.query + 8 * r, block * self.plan.n_block
                self._hide(f.row(f.s, r), see.mask(query, query, key0), place.thread)
        if running:
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                maximum = row_maximum(row.maximum[r])
                maximum.take(f.row(f.s, r), span)
                # four lanes hold a row
                highest = cute.arch.warp_reduction_max(maximum.value(), threads_in_group=4)
                state = RowState(row.maximum[r], row.total[r])
                state, factor = self.strategy.update_maximum(state, highest, scales.log2)
                row.maximum[r], row.total[r] = state.maximum, state.total
                row.factor[r] = factor
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            scores = f.row(f.s, r)
            bias = -RowState(row.maximum[r], row.total[r]).reference() * scales.log2
            self.strategy.exponentiate(scores, span, scales.log2, bias)
            total = row_total(row.total[r], self.strategy.math)
            total.take(scores, span)
            row.total[r] = total.value()

    @cute.jit
    def _hide(self, scores: cute.Tensor, mask: BlockMask, thread: Int32) -> None:
        """A lane holds the pairs of columns at 2 (lane % 4), 8 apart: eight keys of a word."""
        for chunk in cutlass.range_constexpr(-(-self.plan.n_block // CHUNK)):
            keys = min(CHUNK, self.plan.n_block - chunk * CHUNK)
            bits = tuple(8 * pair + c for pair in range(keys // 8) for c in range(2))
            first = chunk * CHUNK // 4
            word = mask.visible(chunk) >> (thread % 4 * 2)
            hide(scores, (first, first + len(bits)), word, bits)

    @cute.jit
    def _round_p(self, f: Fragments) -> None:
        """P to the dtype of the MMA; accumulator and A operand hold their elements alike."""
        words = cute.make_tensor(
            cute.recast_ptr(f.p.iterator, dtype=Int32), cute.make_layout(cute.size(f.p) // 2)
        )
        for i in cutlass.range_constexpr(cute.size(words)):
            words[i] = packed(f.s[2 * i], f.s[2 * i + 1], self.plan.dtype)

    @cute.jit
    def _request_redo(self, f: Fragments, row: Row, work: Work, query: Int32, entry: tuple) -> None:
        """Have the tile done again, exactly, if the frozen reference was wrong for some row."""
        queue, slot, exact = entry
        bad = Int32(0)
        zero = Float32(0.0)  # stays 0 unless O holds an infinity or a NaN
        for i in cutlass.range_constexpr(cute.size(f.o)):
            zero = cute.math.fma(f.o[i], Float32(0.0), zero)
        if zero != 0.0:
            bad = Int32(1)
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            see, q = work.visibility, query + 8 * r
            sees_a_key = see.row_end(q) > see.row_begin(q)
            state = RowState(row.maximum[r], row.total[r])
            if not FixedReference().holds(state, sees_a_key):
                bad = Int32(1)
        if (bad != 0) & (exact == 0):
            queue.ask_again(slot)

    @cute.jit
    def _write(
        self,
        f: Fragments,
        row: Row,
        tma: TmaTensors,
        smem: HopperSmem,
        mLSE: cute.Tensor,
        pipes: HopperPipes,
        where: tuple,
    ) -> None:
        """O / l through shared memory to global, and the LSE of the rows that mLSE has."""
        place, scales, exact = where
        rounded = cute.make_rmem_tensor(f.o.layout, DTYPES[self.plan.dtype])
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            total = cute.arch.warp_reduction_sum(row.total[r], threads_in_group=4)
            inverse = inverse_total(total)
            o, target = f.row(f.o, r), f.row(rounded, r)
            for i in cutlass.range_constexpr(cute.size(o)):
                value = Float32(0.0) if total == 0.0 else o[i] * inverse
                target[i] = value.to(DTYPES[self.plan.dtype])
            query = place.query + 8 * r
            if (query < mLSE.shape[0]) & (place.thread % 4 == 0):
                lse = log_sum_exp(RowState(row.maximum[r], total), scales.softmax)
                mLSE[query, place.tile.head, place.tile.batch] = lse
        # every warp has left its last Q K^T behind: O goes where Q was
        self._sync(place.t)
        sO = smem.o[None, None, place.buffer]
        atom = sm90.get_smem_store_op(LayoutEnum.ROW_MAJOR, DTYPES[self.plan.dtype], Float32)
        copy = cute.make_tiled_copy_C(atom, pv_mma(self.plan)).get_slice(place.thread)
        cute.copy(atom, copy.retile(rounded), copy.partition_D(sO))
        cute.arch.fence_view_async_shared()
        self._sync(place.t)
        if cute.arch.make_warp_uniform(place.thread // 32) == 0:
            self._store(tma, smem, place, exact)
            if cutlass.const_expr(self.plan.tuning.q_stages == 1):
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                pipes.q_loaded.release(place.buffer)
        else:
            pipes.q_loaded.release(place.buffer)

    @cute.jit
    def _hand_back(self, pipes: HopperPipes, place: Place, tiles_done: Int32) -> None:
        """The storing warp's part in the release of the buffer of the tile before.

        Not right after the store, since the whole warpgroup would wait with the storing warp.
        """
        if (cute.arch.make_warp_uniform(place.thread // 32) == 0) & (tiles_done != 0):
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            before = place.buffer - self.plan.q_tiles
            before = before if before >= 0 else before + self.plan.q_buffers
            pipes.q_loaded.release(before)

    @cute.jit
    def _store(self, tma: TmaTensors, smem: HopperSmem, place: Place, exact: Int32) -> None:
        """O from shared to global memory, by one warp."""
        if exact != 0:
            # the first, wrong O of this tile must not land after this one
            cute.arch.cp_async_bulk_wait_group(0, read=False)
        gO = cute.local_tile(
            tma.o.tensor[None, None, place.tile.head, place.tile.batch], self.plan.o_box, (None, 0)
        )
        tOsO, tOgO = tma.o.partition(smem.o, cute.group_modes(gO, 0, 2))
        number = place.tile.m * self.plan.q_tiles + place.t
        cute.copy(tma.o.atom, tOsO[None, place.buffer], tOgO[None, number])
        cute.arch.cp_async_bulk_commit_group()

    def _sync(self, t: Int32) -> None:
        """All threads of the warpgroup."""
        cute.arch.barrier(barrier_id=barriers.WARPGROUP + t, number_of_threads=128)
