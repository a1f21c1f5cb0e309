"""The end of the backward kernel: dV and dK leave through the memory of V and K."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from fa4.numerics.pairs import packed
from fa4.numerics.scales import GradientScales
from fa4.pipeline.pipes import BackwardPipes
from fa4.plan_backward_blackwell import LANES, TILE, BlackwellBackwardPlan
from fa4.plan_base import WARPGROUP
from fa4.tiles.backward_bundles import BackwardTma, tiles_of
from fa4.tiles.backward_layouts import BackwardSmem
from fa4.tiles.bundles import TmaTensor, tmem_tile
from fa4.tiles.row_major import store_words
from fa4.tiles.scheduler import WorkTile
from fa4.warps.backward.work import BackwardWork

CHUNK = 32  # columns in registers at a time


@dataclass(frozen=True)
class BackwardEpilogue:
    """Called by the compute warps: the first warpgroup stores dV, the second dK.

    When all products are done nobody reads sV and sK any more. A warp writes its 32 keys and stores
    them with a copy of its own, which clips keys and columns beyond the tensor.
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
        """dV and dK of the CTA's keys; zeros where no query sees them."""
        tile, columns = work.tile(), self.plan.tmem()
        seen = work.count(tile.m) > 0
        pipes.gradients_computed.wait(0, Int32(0))
        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) < WARPGROUP:
            dv = tmem_tile(tmem, columns.dv, self.plan.head_dim_v)
            self._write(dv, smem.dv, Float32(1.0), seen)
            pipes.gradients_read.commit(0)
            self._store(tma.dv, smem.dv, tile)
        else:
            dk = tmem_tile(tmem, columns.dk, self.plan.head_dim)
            self._write(dk, smem.dk, scales.gradient, seen)
            pipes.gradients_read.commit(0)
            self._store(tma.dk, smem.dk, tile)
        cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def _write(
        self, gradient: cute.Tensor, shared: cute.Tensor, scale: Float32, seen: Boolean
    ) -> None:
        """A thread's row from tensor to shared memory, scaled and rounded."""
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = cute.arch.make_warp_uniform(thread // LANES) % WARPGROUP, thread % LANES
        read = tcgen05.copy.Ld32x32bOp(tcgen05.copy.Repetition(CHUNK))
        load = tcgen05.make_tmem_copy(cute.make_copy_atom(read, Float32), gradient)
        source = load.get_slice(warp * LANES).partition_S(gradient)
        row = shared[lane, None, warp]
        keep = Int32(-1) if seen else Int32(0)
        for chunk in cutlass.range_constexpr(cute.size(gradient, mode=[1]) // CHUNK):
            values = cute.make_rmem_tensor(((CHUNK, 1), 1), Float32)
            cute.copy(load, source[None, None, chunk], values)
            cute.arch.fence_view_async_tmem_load()
            words = cute.make_rmem_tensor(CHUNK // 2, Int32)
            for i in cutlass.range_constexpr(0, CHUNK, 2):
                pair = cute.arch.mul_packed_f32x2((values[i], values[i + 1]), (scale, scale))
                # nobody wrote what no query sees, and 0 * NaN is NaN
                words[i // 2] = packed(*pair, self.plan.dtype) & keep
            store_words(words, row, chunk)

    @cute.jit
    def _store(self, copy: TmaTensor, shared: cute.Tensor, tile: WorkTile) -> None:
        """The warp's keys from shared to global memory."""
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % WARPGROUP
        box = (LANES, cute.size(shared, mode=[1]))
        rows = tiles_of(copy, shared, tile.head, tile.batch, box)
        with cute.arch.elect_one():
            number = tile.m * (TILE // LANES) + warp
            cute.copy(copy.atom, rows.smem[None, warp], rows.gmem[None, number])
            cute.arch.cp_async_bulk_commit_group()
