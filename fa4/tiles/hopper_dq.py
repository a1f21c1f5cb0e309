"""dQ in the registers of Hopper's warpgroups, and on its way to global memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.accumulator import accumulator
from fa4.tiles.hopper_backward_layouts import dq_mma
from fa4.tiles.layouts import DTYPES
from fa4.tiles.row_major import parts, row_major


@dataclass(frozen=True)
class HopperDq:
    """A tile of dQ is a warpgroup's accumulator of wgmma."""

    plan: HopperBackwardPlan

    @property
    def layout(self) -> cute.ComposedLayout:
        """(queries, D, 1) of a block in shared memory."""
        plan = self.plan
        return row_major(plan, (plan.m_tile, plan.head_dim, 1), plan.dq_tile[1])

    def registers(self) -> cute.Tensor:
        """A thread's part of a tile, float32."""
        return accumulator(dq_mma(self.plan), self.plan.dq_tile)

    @cute.jit
    def store(self, rounded: cute.Tensor, block: cute.Tensor, tile: Int32, thread: Int32) -> None:
        """A thread's part of a tile, in 16 bits, to its place in the block."""
        plan, dtype = self.plan, DTYPES[self.plan.dtype]
        atom = sm90.get_smem_store_op(LayoutEnum.ROW_MAJOR, dtype, Float32)
        copy = cute.make_tiled_copy_C(atom, dq_mma(plan)).get_slice(thread)
        row, column = tile // plan.dq_grid[1], tile % plan.dq_grid[1]
        target = parts(block, plan.dq_tile)[None, None, row, column, 0]
        cute.copy(atom, copy.retile(rounded), copy.partition_D(target))
