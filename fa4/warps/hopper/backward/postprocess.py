"""Last kernel of Hopper's backward: dQ from its float32 sum, scaled and rounded."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.numerics.scales import GradientScales
from fa4.plan_base import DTYPE_BYTES
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.accumulator import accumulator
from fa4.tiles.bundles import TmaTensor
from fa4.tiles.dq_sum import WARPGROUP_THREADS, dq_target, dq_vectors
from fa4.tiles.hopper_backward_bundles import BackwardRows
from fa4.tiles.hopper_backward_layouts import dq_layout, dq_mma, parts
from fa4.tiles.layouts import DTYPES


@dataclass(frozen=True)
class Postprocess:
    """One CTA per block of query rows; a warpgroup takes a tile of dQ as one summed it."""

    plan: HopperBackwardPlan

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return WARPGROUP_THREADS * self.plan.dq_tiles

    @cute.kernel
    def kernel(self, dq: TmaTensor, rows: BackwardRows, scales: GradientScales) -> None:
        """Grid: blocks of rows, then heads, then batch, in one dimension."""
        plan, dtype = self.plan, DTYPES[self.plan.dtype]
        number, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        group = cute.arch.make_warp_uniform(thread // WARPGROUP_THREADS)
        thread = thread % WARPGROUP_THREADS
        blocks, heads = cute.size(rows.dq, mode=[1]), cute.size(rows.dq, mode=[2])
        block, head, batch = (
            number % blocks,
            number // blocks % heads,
            number // blocks // heads,
        )
        mma, layout = dq_mma(plan), dq_layout(plan)
        base = SmemAllocator().allocate(plan.dq_block_floats * DTYPE_BYTES, byte_alignment=1024)
        block_dq = cute.make_tensor(cute.recast_ptr(base, layout.inner, dtype=dtype), layout.outer)

        total = accumulator(mma, plan.dq_tile)
        source = dq_target(rows.dq[None, block, head, batch], total, group, thread)
        cute.autovec_copy(source, dq_vectors(total))
        rounded = cute.make_rmem_tensor(total.layout, dtype)
        rounded.store((total.load() * scales.gradient).to(dtype))
        atom = sm90.get_smem_store_op(LayoutEnum.ROW_MAJOR, dtype, Float32)
        copy = cute.make_tiled_copy_C(atom, mma).get_slice(thread)
        row, column = group // plan.dq_grid[1], group % plan.dq_grid[1]
        target = parts(block_dq, plan.dq_tile)[None, None, row, column, 0]
        cute.copy(atom, copy.retile(rounded), copy.partition_D(target))
        cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()

        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
            box = (plan.m_tile, plan.head_dim)
            rows_dq = cute.local_tile(dq.tensor[None, None, head, batch], box, (None, 0))
            sent, received = dq.partition(block_dq, cute.group_modes(rows_dq, 0, 2))
            cute.copy(dq.atom, sent[None, 0], received[None, block])
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=False)
