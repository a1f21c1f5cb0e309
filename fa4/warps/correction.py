"""Correction role: four warps rescale O between blocks and normalise it at the end."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import tcgen05
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.numerics.online_softmax import inverse_total
from fa4.pipeline import barriers
from fa4.pipeline.pipes import Pipes
from fa4.plan_blackwell import M_TILE, Q_TILES, BlackwellPlan
from fa4.tiles.bundles import SmemTensors, tmem_tile
from fa4.tiles.layouts import DTYPES
from fa4.warps.work import Work

CHUNK = 16  # columns of O in registers at a time, out of 72 registers


@dataclass(frozen=True)
class OutputTile:
    """The row of O that one thread works on, for one query tile."""

    load: cute.TiledCopy
    store: cute.TiledCopy
    tOtO_load: cute.Tensor  # O in TMEM, (copy, 1, chunk)
    tOtO_store: cute.Tensor


@dataclass(frozen=True)
class Correction:
    """O *= scale when the row maximum has grown; at the end O / l goes to shared memory.

    Waits: scale_written, total_written, o_accumulated, and o_written released by the epilogue.
    Signals: o_rescaled, o_written, the release of total_written, and at its end named barrier
    TMEM_DRAINED: nothing reads tensor memory any more.
    Owns: O0 O1 in TMEM between two products. Registers: plan.roles["correction"].
    """

    plan: BlackwellPlan

    @cute.jit
    def run(self, smem: SmemTensors, tmem: cute.Pointer, pipes: Pipes, work: Work) -> None:
        """Process every tile of this CTA."""
        thread, _, _ = cute.arch.thread_idx()
        thread = thread % M_TILE
        staging = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.o_stages)
        phase, tile_phase = Int32(0), Int32(0)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            first, last = work.blocks(work.schedule.decode(number).m)
            for t in cutlass.range_constexpr(Q_TILES):
                # the first block overwrites O: nothing to rescale
                pipes.scale_written.wait(t, phase, fenced=False)
                pipes.o_rescaled.commit(t)
            phase ^= 1
            for _ in cutlass.range(last - 1 - first, unroll=1):
                for t in cutlass.range(Q_TILES, unroll=1):
                    pipes.scale_written.wait(t, phase)
                    factor = smem.scale[thread, t]
                    if cute.arch.vote_any_sync(factor < 1.0):
                        self._rescale(self._output(tmem, thread, t), factor)
                    pipes.o_rescaled.commit(t)
                phase ^= 1
            for t in cutlass.range(Q_TILES, unroll=1):
                pipes.total_written.wait(t, tile_phase)
                total = smem.total[thread, t]
                pipes.total_written.release(t)
                pipes.o_accumulated.wait(t, tile_phase)
                pipes.o_written.acquire(staging.index, staging.phase)
                row = smem.o[thread, None, staging.index]
                self._normalise(self._output(tmem, thread, t), total, row)
                # generic stores become visible to the TMA engine
                cute.arch.fence_view_async_shared()
                pipes.o_written.commit(staging.index)
                staging.advance()
            tile_phase ^= 1

    def drain(self) -> None:
        """Tell the MMA warp that tensor memory may be freed."""
        warps = self.plan.roles["correction"].warps + self.plan.roles["mma"].warps
        cute.arch.barrier_arrive(barrier_id=barriers.TMEM_DRAINED.id, number_of_threads=32 * warps)

    @cute.jit
    def _output(self, tmem: cute.Pointer, thread: Int32, t: Int32) -> OutputTile:
        columns = self.plan.tmem().o
        o = tmem_tile(tmem, columns[0] + t * (columns[1] - columns[0]), self.plan.head_dim_v)
        repeat = tcgen05.copy.Repetition(CHUNK)
        load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.copy.Ld32x32bOp(repeat), Float32), o
        )
        store = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.copy.St32x32bOp(repeat), Float32), o
        )
        return OutputTile(
            load=load,
            store=store,
            tOtO_load=load.get_slice(thread).partition_S(o),
            tOtO_store=store.get_slice(thread).partition_D(o),
        )

    @cute.jit
    def _rescale(self, x: OutputTile, factor: Float32) -> None:
        for chunk in cutlass.range_constexpr(self.plan.head_dim_v // CHUNK):
            tOrO = _load_scaled(x, chunk, factor)
            cute.copy(x.store, tOrO, x.tOtO_store[None, None, chunk])
        cute.arch.fence_view_async_tmem_store()

    @cute.jit
    def _normalise(self, x: OutputTile, total: Float32, sO: cute.Tensor) -> None:
        """O / l -> sO (column,); a row without keys is written as zeros, whatever V holds."""
        inverse = inverse_total(total)
        keep = Int32(0) if total == 0.0 else Int32(-1)
        for chunk in cutlass.range_constexpr(self.plan.head_dim_v // CHUNK):
            values = cute.make_tensor(
                _load_scaled(x, chunk, inverse).iterator, cute.make_layout(CHUNK)
            )
            rounded = cute.make_rmem_tensor(CHUNK, DTYPES[self.plan.dtype])
            rounded.store(values.load().to(DTYPES[self.plan.dtype]))
            words = cute.recast_tensor(rounded, Int32)
            for i in cutlass.range_constexpr(CHUNK // 2):
                words[i] = words[i] & keep  # 0 * NaN is NaN, so a factor of 0 would not do
            cute.autovec_copy(rounded, cute.local_tile(sO, (CHUNK,), (chunk,)))


@cute.jit
def _load_scaled(x: OutputTile, chunk: cutlass.Constexpr[int], factor: Float32) -> cute.Tensor:
    """One chunk of a row of O, times factor, in registers."""
    tOrO = cute.make_rmem_tensor(((CHUNK, 1), 1), Float32)
    cute.copy(x.load, x.tOtO_load[None, None, chunk], tOrO)
    cute.arch.fence_view_async_tmem_load()
    for i in cutlass.range_constexpr(0, CHUNK, 2):
        tOrO[i], tOrO[i + 1] = cute.arch.mul_packed_f32x2((tOrO[i], tOrO[i + 1]), (factor, factor))
    return tOrO
