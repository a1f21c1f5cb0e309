"""Tiled MMAs and the shared-memory layouts that belong to them."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import blackwell_helpers as sm100

from fa4.plan_blackwell import M_TILE, Q_TILES, BlackwellPlan

DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}


@dataclass(frozen=True)
class MmaAtoms:
    """qk: S (128, 128) = Q K^T from shared memory; pv: O (128, Dv) += P V with P from TMEM."""

    qk: cute.TiledMma
    pv: cute.TiledMma


def mma_atoms(plan: BlackwellPlan) -> MmaAtoms:
    """The two products of attention. V is (keys, Dv) row-major, so as B operand it is MN-major."""
    dtype, one_cta = DTYPES[plan.dtype], tcgen05.CtaGroup.ONE
    k_major, mn_major = OperandMajorMode.K, OperandMajorMode.MN
    qk = sm100.make_trivial_tiled_mma(
        *(dtype, dtype, k_major, k_major, Float32, one_cta, plan.qk_tile[:2])
    )
    pv = sm100.make_trivial_tiled_mma(
        *(dtype, dtype, k_major, mn_major, Float32, one_cta, plan.pv_tile[:2]),
        tcgen05.OperandSource.TMEM,
    )
    return MmaAtoms(qk, pv)


@dataclass(frozen=True)
class SmemLayouts:
    """(MMA, rest, rest, stage) for the operands, (M_TILE, Dv, stage) for O."""

    q: cute.ComposedLayout
    k: cute.ComposedLayout
    v: cute.ComposedLayout
    o: cute.ComposedLayout


def smem_layouts(plan: BlackwellPlan) -> SmemLayouts:
    """K and V share one ring, so their stages are equally far apart."""
    dtype, mma = DTYPES[plan.dtype], mma_atoms(plan)
    qk_tile, pv_tile = plan.qk_tile, plan.pv_tile
    k = sm100.make_smem_layout_b(mma.qk, qk_tile, dtype, plan.tuning.kv_stages)
    v = sm100.make_smem_layout_b(mma.pv, pv_tile, dtype, plan.tuning.kv_stages)
    return SmemLayouts(
        q=sm100.make_smem_layout_a(mma.qk, qk_tile, dtype, Q_TILES),
        k=with_stage_stride(k, plan.kv_stage_bytes * 8 // dtype.width),
        v=with_stage_stride(v, plan.kv_stage_bytes * 8 // dtype.width),
        o=sm100.make_smem_layout_epi(
            dtype, LayoutEnum.ROW_MAJOR, (M_TILE, plan.head_dim_v), plan.tuning.o_stages
        ),
    )


def with_stage_stride(layout: cute.ComposedLayout, elements: int) -> cute.ComposedLayout:
    """The same layout with the stages, its last mode, `elements` apart."""
    outer, last = layout.outer, cute.rank(layout.outer) - 1
    stages = cute.make_layout(cute.size(outer, mode=[last]), stride=elements)
    outer = cute.append(cute.select(outer, mode=list(range(last))), stages)
    return cute.make_composed_layout(layout.inner, 0, outer)
