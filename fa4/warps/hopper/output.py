"""The end of a tile on Hopper: the verdict on its reference, O / l and the LSE to memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.numerics.online_softmax import FixedReference, RowState, inverse_total, log_sum_exp
from fa4.numerics.scales import Scales
from fa4.pipeline import barriers
from fa4.pipeline.pipes import HopperPipes
from fa4.plan_hopper import HopperPlan
from fa4.tiles.accumulator import ROW_STEP, ROWS_PER_THREAD
from fa4.tiles.block_range import Visibility
from fa4.tiles.bundles import TmaTensors
from fa4.tiles.hopper_bundles import HopperSmem
from fa4.tiles.hopper_layouts import o_mma
from fa4.tiles.layouts import DTYPES
from fa4.tiles.tile_queue import EXACT, FRESH, TileQueue
from fa4.warps.hopper.fragments import Fragments, Place, Row


@dataclass(frozen=True)
class Output:
    """Part of the Attend role: what it does once O = P V is complete.

    O goes to global memory by way of shared memory: where Q was, or in `plan.o_parts` parts through
    a buffer of its own, so that the next Q can be loaded meanwhile.
    Signals: the release of q_loaded if O goes where Q was. Owns: its rows of sO.
    """

    plan: HopperPlan

    @cute.jit
    def request_redo(
        self, f: Fragments, row: Row, see: Visibility, place: Place, queue: TileQueue, slot: Int32
    ) -> None:
        """Have the tile done again, exactly, if the frozen reference was wrong for some row."""
        bad = Int32(0)
        zero = Float32(0.0)  # stays 0 unless O holds an infinity or a NaN
        for i in cutlass.range_constexpr(cute.size(f.o)):
            zero = cute.math.fma(f.o[i], Float32(0.0), zero)
        if zero != 0.0:
            bad = Int32(1)
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            q = place.query + ROW_STEP * r
            sees_a_key = see.row_end(q) > see.row_begin(q)
            state = RowState(row.maximum[r], row.total[r])
            if not FixedReference().holds(state, sees_a_key):
                bad = Int32(1)
        if (bad != 0) & (place.tile.mode == FRESH):
            queue.ask_again(slot)

    @cute.jit
    def write_lse(self, row: Row, mLSE: cute.Tensor, place: Place, scales: Scales) -> None:
        """Store the LSE; the rows' sums must be complete."""
        lse = mLSE[None, place.tile.head, place.tile.batch]
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            query = place.query + ROW_STEP * r
            if (query < cute.size(lse)) & (place.thread % 4 == 0):
                lse[query] = log_sum_exp(RowState(row.maximum[r], row.total[r]), scales.softmax)

    @cute.jit
    def write(
        self,
        f: Fragments,
        row: Row,
        tma: TmaTensors,
        smem: HopperSmem,
        place: Place,
    ) -> None:
        """Complete the rows' sums, over the four lanes that hold a row, and store O / l."""
        rounded = cute.make_rmem_tensor(f.o.layout, DTYPES[self.plan.dtype])
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            row.total[r] = cute.arch.warp_reduction_sum(row.total[r], threads_in_group=4)
            self._normalise(f.row(f.o, r), f.row(rounded, r), row.total[r])
        storing = cute.arch.make_warp_uniform(place.thread // 32) == 0
        for part in cutlass.range_constexpr(max(1, self.plan.tuning.o_parts)):
            if cutlass.const_expr(self.plan.tuning.o_parts > 0):
                self._await_reads(storing)
            # nobody reads the buffer any more: O may go where Q was, since its Q K^T are done
            self._sync(place.t)
            self._to_smem(rounded, smem, place, part)
            cute.arch.fence_view_async_shared()
            self._sync(place.t)
            if storing:
                self._store(tma, smem, place, part)

    @cute.jit
    def release_q(self, pipes: HopperPipes, place: Place) -> None:
        """Where O went into Q's buffer: its release, at once or, by the storing warp, later."""
        if cutlass.const_expr(self.plan.tuning.o_parts == 0):
            if cute.arch.make_warp_uniform(place.thread // 32) == 0:
                if cutlass.const_expr(self.plan.tuning.q_stages == 1):
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                    pipes.q_loaded.release(place.buffer)
            else:
                pipes.q_loaded.release(place.buffer)

    @cute.jit
    def hand_back(self, pipes: HopperPipes, place: Place, tiles_done: Int32) -> None:
        """The storing warp's part in the release of the buffer of the tile before.

        Not right after the store, since the whole warpgroup would wait with the storing warp.
        """
        if (cute.arch.make_warp_uniform(place.thread // 32) == 0) & (tiles_done != 0):
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            before = place.buffer - self.plan.q_tiles
            before = before if before >= 0 else before + self.plan.q_buffers
            pipes.q_loaded.release(before)

    @cute.jit
    def drain(self) -> None:
        """At the end of the kernel: shared memory must outlive the stores that read it."""
        thread, _, _ = cute.arch.thread_idx()
        if thread % 128 < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def _await_reads(self, storing: Boolean) -> None:
        """Until the stores have read what the buffer held."""
        if storing:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def _normalise(self, o: cute.Tensor, target: cute.Tensor, total: Float32) -> None:
        inverse = inverse_total(total)
        for i in cutlass.range_constexpr(cute.size(o)):
            target[i] = (o[i] * inverse).to(target.element_type)
        if total == 0.0:  # no key is seen, but O is NaN if V holds an infinity
            for i in cutlass.range_constexpr(cute.size(o)):
                target[i] = target.element_type(0.0)

    @cute.jit
    def _to_smem(
        self, rounded: cute.Tensor, smem: HopperSmem, place: Place, part: cutlass.Constexpr[int]
    ) -> None:
        """One part of the columns; it is contiguous in registers."""
        mma = o_mma(self.plan)
        layout = cute.make_layout(mma.partition_shape_C(self.plan.o_box))
        columns = cute.make_tensor(rounded.iterator + part * cute.size(layout), layout)
        atom = sm90.get_smem_store_op(LayoutEnum.ROW_MAJOR, DTYPES[self.plan.dtype], Float32)
        copy = cute.make_tiled_copy_C(atom, mma).get_slice(place.thread)
        sO = smem.o[None, None, self._buffer(place)]
        cute.copy(atom, copy.retile(columns), copy.partition_D(sO))

    @cute.jit
    def _store(
        self, tma: TmaTensors, smem: HopperSmem, place: Place, part: cutlass.Constexpr[int]
    ) -> None:
        """O from shared to global memory, by one warp."""
        if place.tile.mode == EXACT:
            # the first, wrong O of this tile must not land after this one
            cute.arch.cp_async_bulk_wait_group(0, read=False)
        gO = cute.local_tile(
            tma.o.tensor[None, None, place.tile.head, place.tile.batch],
            self.plan.o_box,
            (None, None),
        )
        tOsO, tOgO = tma.o.partition(smem.o, cute.group_modes(gO, 0, 2))
        number = place.tile.m * self.plan.q_tiles + place.t
        cute.copy(tma.o.atom, tOsO[None, self._buffer(place)], tOgO[None, number, part])
        cute.arch.cp_async_bulk_commit_group()

    def _buffer(self, place: Place) -> Int32:
        return place.t if self.plan.tuning.o_parts else place.buffer

    def _sync(self, t: Int32) -> None:
        """All threads of the warpgroup."""
        cute.arch.barrier(barrier_id=barriers.WARPGROUP_ARRIVED.id + t, number_of_threads=128)
