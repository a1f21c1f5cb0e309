"""The end of a tile of Hopper's backward: dV and dK leave through shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.numerics.scales import GradientScales
from fa4.pipeline import barriers
from fa4.pipeline.pipes import HopperBackwardPipes
from fa4.plan_hopper import ROWS
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardTma, tiles_of
from fa4.tiles.bundles import TmaTensor
from fa4.tiles.hopper_backward_bundles import HopperBackwardSmem
from fa4.tiles.hopper_backward_layouts import keys_mma
from fa4.tiles.layouts import DTYPES
from fa4.tiles.row_major import parts
from fa4.tiles.tile_queue import Assignment
from fa4.warps.hopper.backward.fragments import Fragments, Place


@dataclass(frozen=True)
class GradientStore:
    """Called by all compute warps once their last product is done.

    dK and dV go where dQ and dS were, see plan.gradient_places. Once dQ of the last block is read,
    all warps have handed it over, and so are done with all that they read of dS.
    Waits: the release of dq_written. Owns: sdK, sdV.
    """

    plan: HopperBackwardPlan

    @cute.jit
    def run(
        self,
        tma: BackwardTma,
        smem: HopperBackwardSmem,
        pipes: HopperBackwardPipes,
        f: Fragments,
        place: Place,
        tile: Assignment,
        count: Int32,
        scales: GradientScales,
    ) -> None:
        """dV and dK, which is still to be scaled. count: blocks of dQ handed over so far."""
        for i in cutlass.range_constexpr(cute.size(f.dk)):
            f.dk[i] = f.dk[i] * scales.gradient
        pipes.dq_written.acquire(0, count & 1)
        self._write(f.dv, smem.dv, place.group)
        self._write(f.dk, smem.dk, place.group)
        cute.arch.fence_view_async_shared()
        self._sync()
        self._store(tma.dv, smem.dv, tile)
        self._store(tma.dk, smem.dk, tile)
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        self._sync()  # sdQ and sdS may be written again, for the next tile

    @cute.jit
    def _write(self, gradient: cute.Tensor, shared: cute.Tensor, group: Int32) -> None:
        """Rounded, to this warpgroup's keys and columns."""
        plan, thread = self.plan, cute.arch.thread_idx()[0] % 128
        dtype, box = DTYPES[plan.dtype], (ROWS, 2 * cute.size(gradient))
        rounded = cute.make_rmem_tensor(gradient.layout, dtype)
        rounded.store(gradient.load().to(dtype))
        atom = sm90.get_smem_store_op(LayoutEnum.ROW_MAJOR, dtype, Float32)
        copy = cute.make_tiled_copy_C(atom, keys_mma(plan, box)).get_slice(thread)
        tiles = parts(shared, box)
        if cutlass.const_expr(plan.tuning.columns_split):
            target = tiles[None, None, 0, group, 0]
        else:
            target = tiles[None, None, 0, 0, group]
        cute.copy(atom, copy.retile(rounded), copy.partition_D(target))

    @cute.jit
    def _store(self, copy: TmaTensor, shared: cute.Tensor, tile: Assignment) -> None:
        """Shared to global memory, by the first compute warp."""
        plan = self.plan
        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == plan.roles["compute"].first:
            box = (ROWS, cute.size(shared, mode=[1]))
            keys = tiles_of(copy, shared, tile.head, tile.batch, box)
            for t in cutlass.range_constexpr(plan.key_tiles):
                number = tile.m * plan.key_tiles + t
                cute.copy(copy.atom, keys.smem[None, t], keys.gmem[None, number])
            cute.arch.cp_async_bulk_commit_group()

    def _sync(self) -> None:
        """All compute warps."""
        threads = 32 * self.plan.roles["compute"].warps
        cute.arch.barrier(barrier_id=barriers.GRADIENTS_WRITTEN.id, number_of_threads=threads)
