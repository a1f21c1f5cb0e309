"""Compute role of Hopper's backward: warpgroups recompute P and accumulate dV, dK and dQ."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import warpgroup
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.numerics.scales import GradientScales
from fa4.pipeline.pipes import HopperBackwardPipes
from fa4.plan_hopper import ROWS
from fa4.plan_hopper_backward import DS_STAGES, HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardTma
from fa4.tiles.dq_sum import dq_target, dq_vectors
from fa4.tiles.hopper_backward_bundles import HopperBackwardSmem
from fa4.tiles.hopper_backward_layouts import dq_mma, keys_mma, scores_mma
from fa4.tiles.layouts import DTYPES
from fa4.tiles.row_major import parts, transposed
from fa4.tiles.tile_queue import END, SLOTS, Assignment, TileSlots
from fa4.warps.backward.work import BackwardWork
from fa4.warps.hopper.backward.fragments import Fragments, Place, Rings, fragments, place_of
from fa4.warps.hopper.backward.pointwise import Pointwise
from fa4.warps.hopper.backward.store import GradientStore


@dataclass(frozen=True)
class HopperBackwardCompute:
    """S^T = K Q^T, dP^T = V dO^T, P^T, dS^T, then dV += P^T dO, dK += dS^T Q, dQ = dS K.

    Keys are the rows of all but dQ, so that P^T and dS^T can be operands straight from registers.
    Waits: tile_assigned, k_loaded, v_loaded, q_loaded, do_loaded, ds_written, the release of
    dq_written. Signals: the release of tile_assigned, k_loaded and q_loaded, ds_written,
    dq_written. Owns: sdS, sP, sdQ. The end of a tile is in store.py. Registers:
    plan.roles["compute"].
    """

    plan: HopperBackwardPlan

    @cute.jit
    def run(
        self,
        tma: BackwardTma,
        smem: HopperBackwardSmem,
        slots: TileSlots,
        pipes: HopperBackwardPipes,
        work: BackwardWork,
        scales: GradientScales,
    ) -> None:
        """Process every tile that the load warp assigns."""
        place, f = place_of(self.plan), fragments(self.plan)
        slot = make_pipeline_state(PipelineUserType.Consumer, SLOTS)
        rings = Rings(
            make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.stages),
            make_pipeline_state(PipelineUserType.Consumer, DS_STAGES),
        )
        pipes.tile_assigned.wait(slot.index, slot.phase)
        tile = slots.read(slot.index)
        while tile.mode != END:
            key0 = tile.m * self.plan.n_block + place.key_tile * ROWS
            pointwise = Pointwise(self.plan, scales, work.visibility, place, key0)
            rings = self._tile(f, smem, pipes, pointwise, work, tile, slot, rings)
            tile = slots.read(slot.index)  # not kept in registers
            store = GradientStore(self.plan)
            store.run(tma, smem, pipes, f, place, tile, rings.ds.count, scales)
            pipes.tile_assigned.release(slot.index)
            slot.advance()
            pipes.tile_assigned.wait(slot.index, slot.phase)
            tile = slots.read(slot.index)

    @cute.jit
    def _tile(
        self,
        f: Fragments,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        pointwise: Pointwise,
        work: BackwardWork,
        tile: Assignment,
        slot: PipelineState,
        rings: Rings,
    ) -> Rings:
        """One block of keys with all its query blocks. slot: the tile's."""
        blocks, count = work.blocks(tile.m), work.count(tile.m)
        f.dk.fill(0.0)
        f.dv.fill(0.0)
        phase = slot.count & 1
        pipes.k_loaded.wait(0, phase)
        block, ahead = blocks.first, self.plan.tuning.scores_ahead
        if cutlass.const_expr(ahead):
            self._first_scores(f, smem, pipes, pointwise.place, count, rings.q)
        pipes.v_loaded.wait(0, phase)
        for _ in cutlass.range(count - 1 if ahead else count, unroll=1):
            masked = blocks.masked(block)
            rings = self._block(f, smem, pipes, pointwise, block, masked, ahead, rings)
            block = block + 1 if block + 1 < blocks.last else blocks.first
        if cutlass.const_expr(ahead):
            masked = blocks.masked(block)
            if count > 0:
                rings = self._block(f, smem, pipes, pointwise, block, masked, False, rings)
        pipes.k_loaded.release(0)
        return rings

    @cute.jit
    def _first_scores(
        self,
        f: Fragments,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        place: Place,
        count: Int32,
        q: PipelineState,
    ) -> None:
        """S^T of the first block, if there is one."""
        if count > 0:
            pipes.q_loaded.wait(q.index, q.phase)
            self._scores(f.s, smem.k, smem.q, place, q.index)
            warpgroup.wait_group(0)

    @cute.jit
    def _block(
        self,
        f: Fragments,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        pointwise: Pointwise,
        block: Int32,
        masked: Boolean,
        ahead: cutlass.Constexpr[bool],
        rings: Rings,
    ) -> Rings:
        """One block of queries. ahead: another one follows, whose scores are computed here."""
        tuning, q, ds = self.plan.tuning, rings.q, rings.ds
        place, shared = pointwise.place, tuning.columns_split
        if cutlass.const_expr(not tuning.scores_ahead):
            pipes.q_loaded.wait(q.index, q.phase)
            self._scores(f.s, smem.k, smem.q, place, q.index)
        pipes.do_loaded.wait(q.index, q.phase)
        self._scores(f.dp, smem.v, smem.do, place, q.index)
        if cutlass.const_expr(not tuning.scores_ahead):
            warpgroup.wait_group(1)  # S is done
        pointwise.probabilities(f, smem.lse[None, q.index], block, masked)
        if cutlass.const_expr(shared):
            self._share(f.p, smem.p, place, ds.index)
        warpgroup.wait_group(0)  # dP is done
        pointwise.grad_scores(f, smem.delta[None, q.index])
        self._share(f.ds, smem.ds, place, ds.index)
        if cutlass.const_expr(not shared):  # behind the stores of dS, which others wait for
            self._add(f.dv, f.p, smem.p, smem.do, place, q.index, ds.index)
        cute.arch.fence_view_async_shared()
        pipes.ds_written.commit(ds.index)
        pipes.ds_written.wait(ds.index, ds.phase)
        if cutlass.const_expr(shared):
            self._add(f.dv, f.p, smem.p, smem.do, place, q.index, ds.index)
            return self._dk_then_dq(f, smem, pipes, place, ahead, rings)
        return self._dq_then_dk(f, smem, pipes, place, rings)

    @cute.jit
    def _dq_then_dk(
        self,
        f: Fragments,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        place: Place,
        rings: Rings,
    ) -> Rings:
        """The tensor cores compute dK while dQ is handed over."""
        q, ds = rings.q, rings.ds
        self._grad_q(f.dq, smem, place, ds.index)
        self._add(f.dk, f.ds, smem.ds, smem.q, place, q.index, ds.index)
        warpgroup.wait_group(1)  # dV and dQ are done
        self._hand_over(f.dq, smem, pipes, place, ds.count)
        warpgroup.wait_group(0)
        pipes.q_loaded.release(q.index)
        q.advance()
        ds.advance()
        return Rings(q, ds)

    @cute.jit
    def _dk_then_dq(
        self,
        f: Fragments,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        place: Place,
        ahead: cutlass.Constexpr[bool],
        rings: Rings,
    ) -> Rings:
        """Q and dO are free before dQ is done: with one stage the next ones are waited for."""
        q, ds = rings.q, rings.ds
        self._add(f.dk, f.ds, smem.ds, smem.q, place, q.index, ds.index)
        self._grad_q(f.dq, smem, place, ds.index)
        warpgroup.wait_group(1)  # dV and dK are done
        pipes.q_loaded.release(q.index)
        q.advance()
        if cutlass.const_expr(ahead):
            pipes.q_loaded.wait(q.index, q.phase)
            self._scores(f.s, smem.k, smem.q, place, q.index)
        warpgroup.wait_group(1 if ahead else 0)  # dQ is done
        self._hand_over(f.dq, smem, pipes, place, ds.count)
        warpgroup.wait_group(0)
        ds.advance()
        return Rings(q, ds)

    @cute.jit
    def _scores(
        self,
        target: cute.Tensor,
        rows: cute.Tensor,
        columns: cute.Tensor,
        place: Place,
        stage: Int32,
    ) -> None:
        """Issue S^T = K Q^T, or dP^T = V dO^T."""
        mma = scores_mma(self.plan)
        thread = mma.get_slice(0)
        columns = parts(columns, (self.plan.scores_tile[1], cute.size(columns, mode=[1])))
        a = mma.make_fragment_A(thread.partition_A(rows))
        b = mma.make_fragment_B(thread.partition_B(columns))
        warpgroup.fence()
        for step in cutlass.range_constexpr(cute.size(b, mode=[2])):
            mma.set(warpgroup.Field.ACCUMULATE, step != 0)
            a_step = a[None, None, step, place.key_tile]
            cute.gemm(mma, target, a_step, b[None, None, step, place.part, 0, stage], target)
        warpgroup.commit_group()

    @cute.jit
    def _add(
        self,
        target: cute.Tensor,
        registers: cute.Tensor,
        shared: cute.Tensor,
        rows: cute.Tensor,
        place: Place,
        stage: Int32,
        ds_stage: Int32,
    ) -> None:
        """Issue dV += P^T dO, or dK += dS^T Q. stage: of `rows`, ds_stage: of `shared`."""
        tile = (ROWS, 2 * cute.size(target))
        mma = keys_mma(self.plan, tile)
        thread = mma.get_slice(0)
        columns = parts(transposed(rows), (tile[1], self.plan.m_tile))
        b = mma.make_fragment_B(thread.partition_B(columns))
        if cutlass.const_expr(self.plan.tuning.columns_split):
            a = mma.make_fragment_A(thread.partition_A(transposed(shared)))
            a = a[None, None, None, ds_stage]
        else:
            a = mma.make_fragment_A(mma.partition_shape_A((ROWS, self.plan.m_tile)))
            a = cute.make_tensor(registers.iterator, a.layout)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.fence()
        for step in cutlass.range_constexpr(cute.size(b, mode=[2])):
            b_step = b[None, None, step, place.part, 0, stage]
            cute.gemm(mma, target, a[None, None, step], b_step, target)
        warpgroup.commit_group()

    @cute.jit
    def _grad_q(
        self, target: cute.Tensor, smem: HopperBackwardSmem, place: Place, stage: Int32
    ) -> None:
        """Issue this warpgroup's tile of dQ = dS K, summed over the tile's keys."""
        plan, mma = self.plan, dq_mma(self.plan)
        thread = mma.get_slice(0)
        a = mma.make_fragment_A(thread.partition_A(parts(smem.ds, (ROWS, ROWS))))
        columns = parts(transposed(smem.k), (plan.dq_tile[1], ROWS))
        b = mma.make_fragment_B(thread.partition_B(columns))
        row, column = place.group // plan.dq_grid[1], place.group % plan.dq_grid[1]
        warpgroup.fence()
        for t in cutlass.range_constexpr(plan.key_tiles):
            for step in cutlass.range_constexpr(cute.size(b, mode=[2])):
                mma.set(warpgroup.Field.ACCUMULATE, t + step != 0)
                a_step = a[None, None, step, row, 0, stage * plan.key_tiles + t]
                cute.gemm(mma, target, a_step, b[None, None, step, column, 0, t], target)
        warpgroup.commit_group()

    @cute.jit
    def _share(
        self, registers: cute.Tensor, shared: cute.Tensor, place: Place, stage: Int32
    ) -> None:
        """Put P or dS into shared memory, as (queries, keys): stmatrix transposes."""
        plan = self.plan
        atom = sm90.get_smem_store_op(LayoutEnum.COL_MAJOR, DTYPES[plan.dtype], Float32)
        copy = cute.make_tiled_copy_C(atom, scores_mma(plan)).get_slice(place.thread)
        tiles = parts(transposed(shared), plan.scores_tile)
        target = tiles[None, None, 0, place.part, stage * plan.key_tiles + place.key_tile]
        cute.copy(atom, copy.retile(registers), copy.partition_D(target))

    @cute.jit
    def _hand_over(
        self,
        dq: cute.Tensor,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        place: Place,
        count: Int32,
    ) -> None:
        """dQ to shared memory, for reduce."""
        pipes.dq_written.acquire(0, count & 1)
        threads = self.plan.dq_tile_threads
        target = dq_target(smem.dq, dq, place.group, place.thread, threads)
        cute.autovec_copy(dq_vectors(dq), target)
        cute.arch.fence_view_async_shared()
        pipes.dq_written.commit(0)
