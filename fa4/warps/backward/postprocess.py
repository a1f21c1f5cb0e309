"""Last kernel of a backward pass: dQ from its float32 sum, scaled and rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from fa4.numerics.scales import GradientScales
from fa4.plan_backward_base import BackwardPlan
from fa4.plan_base import DTYPE_BYTES
from fa4.tiles.backward_bundles import BackwardRows, tiles_of
from fa4.tiles.bundles import TmaTensor
from fa4.tiles.dq_sum import dq_target, dq_vectors
from fa4.tiles.layouts import DTYPES


@dataclass(frozen=True)
class Postprocess:
    """One CTA per block of query rows; the threads take tiles of dQ as others summed them.

    tiles: how threads hold a tile of dQ on this architecture, see `HopperDq`.
    """

    plan: BackwardPlan
    tiles: Any

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.plan.dq_tile_threads * self.plan.dq_tiles

    @cute.kernel
    def kernel(self, dq: TmaTensor, rows: BackwardRows, scales: GradientScales) -> None:
        """Grid: blocks of rows, then heads, then batch, in one dimension."""
        plan, dtype = self.plan, DTYPES[self.plan.dtype]
        number, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        tile = cute.arch.make_warp_uniform(thread // plan.dq_tile_threads)
        thread = thread % plan.dq_tile_threads
        at = rows.block(number)
        layout = self.tiles.layout
        base = SmemAllocator().allocate(plan.dq_block_floats * DTYPE_BYTES, byte_alignment=1024)
        block_dq = cute.make_tensor(cute.recast_ptr(base, layout.inner, dtype=dtype), layout.outer)

        total = self.tiles.registers()
        summed = rows.dq[None, at.index, at.head, at.batch]
        cute.arch.griddepcontrol_wait()
        source = dq_target(summed, total, tile, thread, plan.dq_tile_threads)
        cute.autovec_copy(source, dq_vectors(total))
        rounded = cute.make_rmem_tensor(total.layout, dtype)
        rounded.store((total.load() * scales.gradient).to(dtype))
        self.tiles.store(rounded, block_dq, tile, thread)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()

        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
            box = (plan.m_tile, plan.head_dim)
            queries = tiles_of(dq, block_dq, at.head, at.batch, box)
            cute.copy(dq.atom, queries.smem[None, 0], queries.gmem[None, at.index])
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)
