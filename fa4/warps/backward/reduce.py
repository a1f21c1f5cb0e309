"""Reduce role of the backward: four warps add each dQ block to the sum in global memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from fa4.pipeline.pipes import BackwardPipes
from fa4.plan_backward_blackwell import DQ_CHUNK, LANES, BlackwellBackwardPlan
from fa4.plan_base import WARPGROUP
from fa4.tiles.backward_bundles import BackwardRows, RowBlock
from fa4.tiles.backward_layouts import BackwardSmem
from fa4.tiles.bulk import add_floats
from fa4.tiles.bundles import tmem_tile
from fa4.tiles.dq_sum import dq_target, dq_vectors
from fa4.tiles.dq_turn import DqTurn
from fa4.warps.backward.work import BackwardWork

REGISTERS = 128  # floats of a row of dQ that a thread can hold


@dataclass(frozen=True)
class DqRows:
    """dQ in tensor memory as one thread sees it."""

    load: cute.TiledCopy
    tQtQ: cute.Tensor  # (copy, 1, chunk)
    warp: Int32  # within the role
    lane: Int32


@dataclass(frozen=True)
class BackwardReduce:
    """dQ += over all key blocks, in float32, by bulk reductions: each warp its own 32 rows.

    Waits: dq_computed and, if deterministic, for the warp's turn among the CTAs. Signals: dq_read,
    the next turn.
    Owns: dQ in TMEM while it reads it; sdQ. Registers: plan.roles["reduce"].
    """

    plan: BlackwellBackwardPlan

    @cute.jit
    def run(
        self,
        smem: BackwardSmem,
        tmem: cute.Pointer,
        rows: BackwardRows,
        pipes: BackwardPipes,
        work: BackwardWork,
    ) -> None:
        """Follow the query blocks of this CTA."""
        tile = work.tile()
        blocks = work.blocks(tile.m)
        x, phase = self._rows(tmem), Int32(0)
        cute.arch.griddepcontrol_wait()  # for the zeros that dQ is added to, and turns count from
        for i in cutlass.range(work.group, unroll=1):
            head = tile.head * work.group + i
            for block in cutlass.range(blocks.first, blocks.last, unroll=1):
                turn = None
                if cutlass.const_expr(self.plan.deterministic):
                    at = RowBlock(block, head, tile.batch)
                    turn = work.turn(rows.turns, x.warp, at, tile.m)
                pipes.dq_computed.wait(0, phase)
                self._add(x, smem, rows.dq[None, block, head, tile.batch], pipes, turn)
                phase ^= 1
        cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def _rows(self, tmem: cute.Pointer) -> DqRows:
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // LANES) % WARPGROUP
        dq = tmem_tile(tmem, self.plan.tmem().dq, self.plan.head_dim)
        read = tcgen05.copy.Ld32x32bOp(tcgen05.copy.Repetition(DQ_CHUNK))
        load = tcgen05.make_tmem_copy(cute.make_copy_atom(read, Float32), dq)
        tQtQ = load.get_slice(warp * LANES).partition_S(dq)
        return DqRows(load, tQtQ, warp, thread % LANES)

    @cute.jit
    def _add(
        self,
        x: DqRows,
        smem: BackwardSmem,
        total: cute.Tensor,
        pipes: BackwardPipes,
        turn: DqTurn | None,
    ) -> None:
        """A block of dQ; tensor memory is handed back before it is on its way."""
        chunks = self.plan.head_dim // DQ_CHUNK
        at_once = chunks // -(-self.plan.head_dim // REGISTERS)
        for first in cutlass.range_constexpr(0, chunks, at_once):
            values = [cute.make_rmem_tensor(((DQ_CHUNK, 1), 1), Float32) for _ in range(at_once)]
            for c in cutlass.range_constexpr(at_once):
                cute.copy(x.load, x.tQtQ[None, None, first + c], values[c])
            cute.arch.fence_view_async_tmem_load()
            if cutlass.const_expr(first + at_once == chunks):
                pipes.dq_read.commit(0)
            for c in cutlass.range_constexpr(at_once):
                self._send(x, smem, values[c], total, first + c, turn)
        if cutlass.const_expr(turn is not None):
            turn.hand_on()

    @cute.jit
    def _send(
        self,
        x: DqRows,
        smem: BackwardSmem,
        registers: cute.Tensor,
        total: cute.Tensor,
        chunk: cutlass.Constexpr[int],
        turn: DqTurn | None,
    ) -> None:
        """One chunk of the warp's rows, through shared memory; before the first one its turn."""
        plan, stages = self.plan, self.plan.dq_stages
        staging = smem.dq[None, chunk % stages, x.warp]
        # the reduction that went through this stage has read it
        cute.arch.cp_async_bulk_wait_group(stages - 1, read=True)
        cute.arch.sync_warp()
        target = dq_target(staging, registers, Int32(0), x.lane, LANES)
        cute.autovec_copy(dq_vectors(registers), target)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        if x.lane == 0:
            if cutlass.const_expr(turn is not None and chunk == 0):
                turn.take()
            floats = plan.dq_chunk_floats
            chunks = plan.head_dim // DQ_CHUNK
            add_floats(staging, cute.local_tile(total, (floats,), (x.warp * chunks + chunk,)))
