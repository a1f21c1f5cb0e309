"""Attend role on Hopper: a warpgroup computes 64 query rows, from S = Q K^T to the stored O."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import warpgroup
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state

from fa4.numerics.online_softmax import (
    FixedReference,
    RowState,
    RunningMax,
    new_row,
    row_maximum,
    row_total,
)
from fa4.numerics.pairs import PairMath, packed
from fa4.numerics.scales import Scales
from fa4.numerics.softcap import cap_scores
from fa4.pipeline.pipes import HopperPipes
from fa4.plan_hopper import HopperPlan
from fa4.tiles.accumulator import ROW_STEP, ROWS_PER_THREAD, hide_row
from fa4.tiles.block_range import Visibility
from fa4.tiles.bundles import TmaTensors
from fa4.tiles.hopper_bundles import HopperSmem
from fa4.tiles.hopper_layouts import pv_mma, qk_mma
from fa4.tiles.registers import pinned
from fa4.tiles.tile_queue import END, FRESH, SLOTS, TileQueue
from fa4.warps.hopper.fragments import (
    Block,
    Fragments,
    Place,
    Row,
    Setting,
    fragments,
    place_of,
)
from fa4.warps.hopper.output import Output
from fa4.warps.hopper.turns import Turns
from fa4.warps.work import Work


@dataclass(frozen=True)
class Attend:
    """One query tile per warpgroup: S, online softmax, O += P V, O / l, LSE.

    P V of a block runs while the exponentials of the next are taken; no wgmma is in flight across
    the end of an iteration, since ptxas would serialise all of them.
    Waits: tile_assigned, q_loaded, k_loaded, v_loaded. Signals: the release of each. The end of a
    tile is in output.py. Registers: plan.roles["attend"].
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
        plan, output = self.plan, Output(self.plan)
        f = fragments(plan)
        row = Row(*(cute.make_rmem_tensor(ROWS_PER_THREAD, Float32) for _ in range(3)))
        slot = make_pipeline_state(PipelineUserType.Consumer, SLOTS)
        ring = make_pipeline_state(PipelineUserType.Consumer, plan.tuning.kv_stages)
        q_ring = make_pipeline_state(PipelineUserType.Consumer, plan.tuning.q_stages)
        turns = Turns(plan)
        turns.open()
        pipes.tile_assigned.wait(slot.index, slot.phase)
        tile = queue.slots.read(slot.index)
        while tile.mode != END:
            place = place_of(plan, tile, q_ring.index)
            pipes.q_loaded.wait(place.buffer, q_ring.phase)
            setting = Setting(place, scales, work)
            ring = self._blocks(f, row, smem, pipes, setting, q_ring.count, ring)
            tile = queue.slots.read(slot.index)  # not kept in registers
            place = place_of(plan, tile, q_ring.index)
            output.write(f, row, tma, smem, place)
            if cutlass.const_expr(plan.fixed_reference):
                output.request_redo(f, row, work.visibility, place, queue, slot.index)
            output.write_lse(row, mLSE, place, scales)
            output.release_q(pipes, place)
            pipes.tile_assigned.release(slot.index)
            slot.advance()
            q_ring.advance()
            pipes.tile_assigned.wait(slot.index, slot.phase)
            tile = queue.slots.read(slot.index)
        turns.close()
        output.drain()

    @cute.jit
    def _blocks(
        self,
        f: Fragments,
        row: Row,
        smem: HopperSmem,
        pipes: HopperPipes,
        setting: Setting,
        tiles_done: Int32,
        ring: PipelineState,
    ) -> PipelineState:
        """All key blocks of a tile, from the last to the first; leaves O unnormalised."""
        place, see = setting.place, setting.work.visibility
        row0, rows = place.row0, self.plan.m_tile
        cta_first, cta_last = setting.work.blocks(place.tile.m)
        first, last = self._own_blocks(see, row0, cta_first, cta_last)
        full = see.split(first, last, row0, rows)
        # The frozen reference must be that of a key: the block of the first row's last key is the
        # last one whose maximum counts. An exact tile never freezes it.
        frozen = cutlass.max((see.row_end(row0) - 1) // self.plan.n_block, first)
        if cutlass.const_expr(self.plan.fixed_reference):
            frozen = frozen if place.tile.mode == FRESH else first
        else:
            frozen = first
        ring = self._skip(pipes, ring, cta_last - last)
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            fresh = new_row()
            row.maximum[r], row.total[r] = fresh.maximum, fresh.total
        self._scores(f, smem, place, pipes, ring)
        Turns(self.plan).hand_on()
        warpgroup.wait_group(0)
        pipes.k_loaded.release(ring.index)
        newest = Block(last - 1, masked=Boolean(True), running=Boolean(True))
        self._softmax(f, row, setting, newest, follow=False)
        self._round_p(f)
        if cutlass.const_expr(self.plan.tuning.q_stages > 1):
            Output(self.plan).hand_back(pipes, place, tiles_done)
        for i in cutlass.range(last - 1 - first, unroll=1):
            index = last - 2 - i
            masked = (index >= full.full_last) | (index < full.full_first)
            block = Block(index, masked, running=index >= frozen)
            ring = self._step(f, row, smem, pipes, setting, block, i > 0, ring)
        if cutlass.const_expr(self.plan.tuning.o_parts > 0):
            pipes.q_loaded.release(place.buffer)  # its last Q K^T is done
        pipes.v_loaded.wait(ring.index, ring.phase)
        warpgroup.fence()
        self._add_pv(f, smem, ring, last - 1 > first)
        warpgroup.wait_group(0)
        pipes.v_loaded.release(ring.index)
        ring.advance()
        return self._skip(pipes, ring, first - cta_first)

    @cute.jit
    def _own_blocks(
        self, see: Visibility, row0: Int32, cta_first: Int32, cta_last: Int32
    ) -> tuple[Int32, Int32]:
        """[first, last) that this warpgroup attends to, of the blocks that the CTA loads."""
        first, last = cta_first, cta_last
        if cutlass.const_expr(self.plan.tuning.skip):
            first, last = see.blocks(row0, self.plan.m_tile)
            # rows that the sequence does not have: any block will do
            first = first if row0 < see.seqlen_q else last - 1
        return first, last

    @cute.jit
    def _skip(self, pipes: HopperPipes, ring: PipelineState, count: Int32) -> PipelineState:
        """Blocks that other warpgroups of the CTA see: take part in their release only."""
        turns = Turns(self.plan)
        for _ in cutlass.range(count, unroll=1):
            turns.take()
            turns.hand_on()
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
        setting: Setting,
        block: Block,
        accumulate: Boolean,
        ring: PipelineState,
    ) -> PipelineState:
        """O (+)= P V of the block before, and P of this one."""
        ahead = ring.clone()
        ahead.advance()
        self._scores(f, smem, setting.place, pipes, ahead)
        pipes.v_loaded.wait(ring.index, ring.phase)
        self._add_pv(f, smem, ring, accumulate)
        Turns(self.plan).hand_on()
        warpgroup.wait_group(1)
        pipes.k_loaded.release(ahead.index)
        rescale = self._softmax(f, row, setting, block, follow=self.plan.fixed_reference)
        warpgroup.wait_group(0)
        pipes.v_loaded.release(ring.index)
        if rescale:
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
        Turns(self.plan).take()
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
        setting: Setting,
        block: Block,
        follow: cutlass.Constexpr[bool],
    ) -> Boolean:
        """S -> P in float32, in place, with the rows' sums; whether O must take the rows' factors.

        The whole warpgroup branches alike on the flags of the block. follow: whether a frozen
        reference may have to move.
        """
        place, scales, see = setting.place, setting.scales, setting.work.visibility
        running = block.running
        span = (0, self.plan.n_block // 4)
        if cutlass.const_expr(self.plan.softcap):
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                cap_scores(f.row(f.s, r), span, scales)
        if block.masked:
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                query, key0 = place.query + ROW_STEP * r, block.index * self.plan.n_block
                hide_row(f.row(f.s, r), see.mask(query, query, key0), place.thread)
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
        jumps = [Boolean(False)] * ROWS_PER_THREAD
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            scores = f.row(f.s, r)
            bias = -RowState(row.maximum[r], row.total[r]).reference() * scales.log2
            self.strategy.exponentiate(scores, span, scales.log2, bias)
            total = row_total(Float32(0.0), self.strategy.math)
            total.take(scores, span)
            added = total.value()
            jumps[r] = FixedReference().outgrown(row.total[r], added)
            row.total[r] = row.total[r] + added
        if cutlass.const_expr(follow):
            running = self._follow_jumps(f, row, jumps, scales) | running
        return running

    @cute.jit
    def _follow_jumps(
        self, f: Fragments, row: Row, jumps: list[Boolean], scales: Scales
    ) -> Boolean:
        """Move the reference of rows that outgrew it to the top of this block; whether any did."""
        any_jump = cute.arch.vote_any_sync(jumps[0] | jumps[1])
        if any_jump:
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                p = f.row(f.s, r)
                top = row_maximum(Float32(0.0))
                top.take(p, (0, cute.size(p)))
                highest = cute.arch.warp_reduction_max(top.value(), threads_in_group=4)
                jump = Float32(1.0) if jumps[r] else Float32(0.0)
                jump = cute.arch.warp_reduction_max(jump, threads_in_group=4)
                state = RowState(row.maximum[r], row.total[r])
                state, factor = FixedReference().moved(state, highest, jump, scales.log2)
                row.maximum[r], row.total[r], row.factor[r] = state.maximum, state.total, factor
                for i in cutlass.range_constexpr(cute.size(p)):
                    p[i] = p[i] * factor
        return any_jump

    @cute.jit
    def _round_p(self, f: Fragments) -> None:
        """P to the dtype of the MMA; accumulator and A operand hold their elements alike."""
        words = cute.make_tensor(
            cute.recast_ptr(f.p.iterator, dtype=Int32), cute.make_layout(cute.size(f.p) // 2)
        )
        for i in cutlass.range_constexpr(cute.size(words)):
            words[i] = packed(f.s[2 * i], f.s[2 * i + 1], self.plan.dtype)
