"""Tiled MMAs of Hopper's warpgroups and the shared-memory layouts that belong to them."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.plan_hopper import HopperPlan
from fa4.tiles.layouts import DTYPES, with_stage_stride

K_MAJOR, MN_MAJOR = OperandMajorMode.K, OperandMajorMode.MN


def qk_mma(plan: HopperPlan) -> cute.TiledMma:
    """S (64, n_block) = Q K^T, both from shared memory. A fresh object: `set` changes it."""
    dtype = DTYPES[plan.dtype]
    return sm90.make_trivial_tiled_mma(
        *(dtype, dtype, K_MAJOR, K_MAJOR, Float32, (1, 1, 1), plan.qk_tile[:2])
    )


def pv_mma(plan: HopperPlan) -> cute.TiledMma:
    """O (64, Dv) += P V, P from registers. V is row-major, so as B operand it is MN-major."""
    dtype = DTYPES[plan.dtype]
    return sm90.make_trivial_tiled_mma(
        *(dtype, dtype, K_MAJOR, MN_MAJOR, Float32, (1, 1, 1), plan.pv_tile[:2]),
        warpgroup.OperandSource.RMEM,
    )


def o_mma(plan: HopperPlan) -> cute.TiledMma:
    """An MMA whose accumulator is one part of O, as it goes through shared memory."""
    dtype = DTYPES[plan.dtype]
    return sm90.make_trivial_tiled_mma(
        *(dtype, dtype, K_MAJOR, MN_MAJOR, Float32, (1, 1, 1), plan.o_box),
        warpgroup.OperandSource.RMEM,
    )


@dataclass(frozen=True)
class HopperLayouts:
    """(rows, columns, stage) each; Q and O may share their buffers."""

    q: cute.ComposedLayout
    k: cute.ComposedLayout
    v: cute.ComposedLayout  # (Dv, keys, stage)
    o: cute.ComposedLayout


def hopper_layouts(plan: HopperPlan) -> HopperLayouts:
    """Swizzled as wide as the head dims allow."""
    dtype, row, col = DTYPES[plan.dtype], LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
    stages = plan.tuning.kv_stages
    q = sm90.make_smem_layout_a(row, plan.qk_tile, dtype, plan.q_buffers)
    o = sm90.make_smem_layout_epi(dtype, row, plan.o_box, plan.o_buffers)
    return HopperLayouts(
        q=with_stage_stride(q, plan.q_buffer_bytes * 8 // dtype.width),
        k=sm90.make_smem_layout_b(row, plan.qk_tile, dtype, stages),
        v=sm90.make_smem_layout_b(col, plan.pv_tile, dtype, stages),
        o=with_stage_stride(o, plan.o_buffer_bytes * 8 // dtype.width),
    )
