"""Tiled MMAs of the Hopper backward kernel and the shared-memory layouts that belong to them."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import hopper_helpers as sm90

from fa4.plan_hopper import ROWS
from fa4.plan_hopper_backward import DS_STAGES, HopperBackwardPlan
from fa4.tiles.layouts import DTYPES
from fa4.tiles.row_major import row_major

K_MAJOR, MN_MAJOR = OperandMajorMode.K, OperandMajorMode.MN


def scores_mma(plan: HopperBackwardPlan) -> cute.TiledMma:
    """S^T = K Q^T and dP^T = V dO^T: keys are rows, queries columns, both from shared memory."""
    dtype = DTYPES[plan.dtype]
    return sm90.make_trivial_tiled_mma(
        *(dtype, dtype, K_MAJOR, K_MAJOR, Float32, (1, 1, 1), plan.scores_tile)
    )


def keys_mma(plan: HopperBackwardPlan, tile: tuple[int, int]) -> cute.TiledMma:
    """dV (tile) += P^T dO or dK (tile) += dS^T Q; P^T and dS^T from registers unless shared."""
    dtype = DTYPES[plan.dtype]
    if plan.tuning.columns_split:
        a_mode, source = MN_MAJOR, warpgroup.OperandSource.SMEM
    else:
        a_mode, source = K_MAJOR, warpgroup.OperandSource.RMEM
    return sm90.make_trivial_tiled_mma(
        *(dtype, dtype, a_mode, MN_MAJOR, Float32, (1, 1, 1), tile), source
    )


def dq_mma(plan: HopperBackwardPlan) -> cute.TiledMma:
    """dQ (dq_tile) = dS K, both from shared memory."""
    dtype = DTYPES[plan.dtype]
    return sm90.make_trivial_tiled_mma(
        *(dtype, dtype, K_MAJOR, MN_MAJOR, Float32, (1, 1, 1), plan.dq_tile)
    )


@dataclass(frozen=True)
class HopperBackwardLayouts:
    """(rows, columns, tile or stage) each, columns contiguous, swizzled.

    K and V, and so dK and dV, consist of tiles of 64 keys; P and dS are (queries, 64 keys, key tile
    and stage).
    """

    k: cute.ComposedLayout
    v: cute.ComposedLayout
    q: cute.ComposedLayout
    do: cute.ComposedLayout
    ds: cute.ComposedLayout

    @property
    def dk(self) -> cute.ComposedLayout:
        """dK in shared memory."""
        return self.k

    @property
    def dv(self) -> cute.ComposedLayout:
        """dV in shared memory."""
        return self.v


def hopper_backward_layouts(plan: HopperBackwardPlan) -> HopperBackwardLayouts:
    """Swizzles as wide as the columns of one warpgroup allow."""
    tuning, tiles = plan.tuning, plan.key_tiles
    span_q, span_do = plan.dk_tile[1], plan.dv_tile[1]
    return HopperBackwardLayouts(
        k=row_major(plan, (ROWS, plan.head_dim, tiles), plan.dq_tile[1]),
        v=row_major(plan, (ROWS, plan.head_dim_v, tiles), span_do),
        q=row_major(plan, (plan.m_tile, plan.head_dim, tuning.stages), span_q),
        do=row_major(plan, (plan.m_tile, plan.head_dim_v, tuning.stages), span_do),
        ds=row_major(plan, (plan.m_tile, ROWS, tiles * DS_STAGES), ROWS),
    )
