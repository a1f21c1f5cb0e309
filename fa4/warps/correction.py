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
from fa4.plan import M_TILE, Plan
from fa4.tiles.bundles import SmemTensors, tmem_tile
from fa4.tiles.layouts import DTYPES
from fa4.warps.work import Work

CHUNK = 32  # columns of O in registers at a time


@dataclass(frozen=True)
class CorrectionTensors:
    """What one thread works on; tuples are per query tile."""

    load: cute.TiledCopy
    store: cute.TiledCopy
    tOtO_load: tuple[cute.Tensor, cute.Tensor]  # O in TMEM, (copy, 1, chunk)
    tOtO_store: tuple[cute.Tensor, cute.Tensor]
    thread: Int32


@dataclass(frozen=True)
class Correction:
    """O *= scale when the row maximum has grown; at the end O / l goes to shared memory.

    Waits: scale_written, total_written, o_accumulated, and o_written released by the epilogue.
    Signals: o_rescaled, o_written, and the release of total_written.
    Owns: O0 O1 in TMEM between two products. Registers: plan.roles["correction"].
    """

    plan: Plan

    @cute.jit
    def run(
        self,
        smem: SmemTensors,
        tmem: cute.Pointer,
        pipes: Pipes,
        work: Work,
    ) -> None:
        """Process every tile of this CTA."""
        x = self._tensors(tmem)
        staging = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.o_stages)
        phase, tile_phase = Int32(0), Int32(0)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            tile = work.schedule.decode(number)
            first, last = work.blocks(tile)
            for t in cutlass.range_constexpr(2):
                # O is overwritten by the first block: nothing to rescale
                pipes.scale_written.wait(t, phase)
                pipes.o_rescaled.commit(t)
            phase ^= 1
            for _ in cutlass.range(last - 1 - first, unroll=1):
                for t in cutlass.range_constexpr(2):
                    pipes.scale_written.wait(t, phase)
                    factor = smem.scale[x.thread, t]
                    if cute.arch.vote_any_sync(factor < 1.0):
                        self._rescale(x, t, factor)
                    pipes.o_rescaled.commit(t)
                phase ^= 1
            for t in cutlass.range_constexpr(2):
                pipes.total_written.wait(t, tile_phase)
                total = smem.total[x.thread, t]
                pipes.total_written.release(t)
                pipes.o_accumulated.wait(t, tile_phase)
                pipes.o_written.acquire(staging.index, staging.phase)
                self._normalise(x, t, total, smem.o[None, None, staging.index])
                # generic stores become visible to the TMA engine
                cute.arch.fence_view_async_shared()
                pipes.o_written.commit(staging.index)
                staging.advance()
            tile_phase ^= 1

    def drain(self) -> None:
        """Tell the MMA warp that tensor memory may be freed."""
        warps = self.plan.roles["correction"].warps + self.plan.roles["mma"].warps
        cute.arch.barrier_arrive(barrier_id=barriers.TMEM_DRAINED, number_of_threads=32 * warps)

    @cute.jit
    def _tensors(self, tmem: cute.Pointer) -> CorrectionTensors:
        thread, _, _ = cute.arch.thread_idx()
        thread = thread % M_TILE
        o = tuple(tmem_tile(tmem, c, self.plan.head_dim_v) for c in self.plan.tmem().o)
        repeat = tcgen05.copy.Repetition(CHUNK)
        load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.copy.Ld32x32bOp(repeat), Float32), o[0]
        )
        store = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.copy.St32x32bOp(repeat), Float32), o[0]
        )
        return CorrectionTensors(
            load=load,
            store=store,
            tOtO_load=tuple(load.get_slice(thread).partition_S(tile) for tile in o),
            tOtO_store=tuple(store.get_slice(thread).partition_D(tile) for tile in o),
            thread=thread,
        )

    @cute.jit
    def _rescale(self, x: CorrectionTensors, t: cutlass.Constexpr[int], factor: Float32) -> None:
        for chunk in cutlass.range_constexpr(self.plan.head_dim_v // CHUNK):
            tOrO = _load_scaled(x, t, chunk, factor)
            cute.copy(x.store, tOrO, x.tOtO_store[t][None, None, chunk])
        cute.arch.fence_view_async_tmem_store()

    @cute.jit
    def _normalise(
        self, x: CorrectionTensors, t: cutlass.Constexpr[int], total: Float32, sO: cute.Tensor
    ) -> None:
        """O / l -> sO (row, column); a row without keys is written as zeros, whatever V holds."""
        inverse = inverse_total(total)
        empty = total == 0.0
        for chunk in cutlass.range_constexpr(self.plan.head_dim_v // CHUNK):
            tOrO = _load_scaled(x, t, chunk, inverse)
            for i in cutlass.range_constexpr(CHUNK):
                tOrO[i] = Float32(0.0) if empty else tOrO[i]
            rounded = cute.make_rmem_tensor(CHUNK, DTYPES[self.plan.dtype])
            rounded.store(cute.make_tensor(tOrO.iterator, cute.make_layout(CHUNK)).load().to(
                DTYPES[self.plan.dtype]))  # fmt: skip
            target = cute.local_tile(sO, (1, CHUNK), (x.thread, chunk))
            cute.autovec_copy(rounded, target[0, None])


@cute.jit
def _load_scaled(
    x: CorrectionTensors, t: cutlass.Constexpr[int], chunk: cutlass.Constexpr[int], factor: Float32
) -> cute.Tensor:
    """One chunk of a row of O, times factor, in registers."""
    tOtO = x.tOtO_load[t][None, None, chunk]
    tOrO = cute.make_rmem_tensor(((CHUNK, 1), 1), Float32)
    cute.copy(x.load, tOtO, tOrO)
    cute.arch.fence_view_async_tmem_load()
    for i in cutlass.range_constexpr(0, CHUNK, 2):
        tOrO[i], tOrO[i + 1] = cute.arch.mul_packed_f32x2((tOrO[i], tOrO[i + 1]), (factor, factor))
    return tOrO
