"""Shared memory of the Blackwell backward kernel: its layouts, tensors, and MMA operands."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.utils import blackwell_helpers as sm100

from fa4.plan_backward_blackwell import LANES, TILE, BlackwellBackwardPlan
from fa4.plan_base import WARPGROUP
from fa4.tiles.carving import Carver
from fa4.tiles.layouts import DTYPES
from fa4.tiles.row_major import row_major, transposed
from fa4.tiles.umma import SmemOperand, smem_operand

K_MAJOR, MN_MAJOR = OperandMajorMode.K, OperandMajorMode.MN


@dataclass(frozen=True)
class BackwardLayouts:
    """(rows, columns, stage) each, columns contiguous, swizzled; dS^T is (keys, queries, 1).

    dK and dV leave through the memory of K and V, 32 keys of one warp after another.
    """

    k: cute.ComposedLayout
    v: cute.ComposedLayout
    q: cute.ComposedLayout
    do: cute.ComposedLayout
    ds: cute.ComposedLayout
    dk: cute.ComposedLayout
    dv: cute.ComposedLayout


def backward_layouts(plan: BlackwellBackwardPlan) -> BackwardLayouts:
    """Swizzles as wide as the columns allow."""
    d, dv, tuning = plan.head_dim, plan.head_dim_v, plan.tuning

    def tile(rows: int, columns: int, stages: int) -> cute.ComposedLayout:
        return row_major(plan, (rows, columns, stages), columns)

    return BackwardLayouts(
        k=tile(TILE, d, 1),
        v=tile(TILE, dv, 1),
        q=tile(TILE, d, tuning.q_stages),
        do=tile(TILE, dv, tuning.do_stages),
        ds=tile(TILE, TILE, 1),
        dk=tile(LANES, d, WARPGROUP),
        dv=tile(LANES, dv, WARPGROUP),
    )


@dataclass(frozen=True)
class BackwardSmem:
    """Tensors of the layouts above; lse and delta (query, stage); dq (floats of a chunk, stage,
    warp), on its way to global memory."""

    k: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    do: cute.Tensor
    ds: cute.Tensor
    dk: cute.Tensor
    dv: cute.Tensor
    lse: cute.Tensor
    delta: cute.Tensor
    dq: cute.Tensor


def carve_backward(plan: BlackwellBackwardPlan, smem: cute.Pointer) -> BackwardSmem:
    """Tensors at the places of the plan's map, in the shared memory that starts at `smem`."""
    carver, layouts = Carver(plan, smem), backward_layouts(plan)
    return BackwardSmem(
        k=carver.tile("sK", layouts.k),
        v=carver.tile("sV", layouts.v),
        q=carver.tile("sQ", layouts.q),
        do=carver.tile("sdO", layouts.do),
        ds=carver.tile("sdS", layouts.ds),
        dk=carver.tile("sK", layouts.dk),
        dv=carver.tile("sV", layouts.dv),
        lse=carver.floats("sLSE", (TILE, plan.tuning.q_stages)),
        delta=carver.floats("sDelta", (TILE, plan.tuning.q_stages)),
        dq=carver.floats("sdQ", (plan.dq_chunk_floats, plan.dq_stages, WARPGROUP)),
    )


@dataclass(frozen=True)
class BackwardOperands:
    """Matrix descriptors of all operands in shared memory. x_rows: x is K-major, the product runs
    along its columns; x_columns: MN-major, the product runs along its rows."""

    k_rows: SmemOperand
    k_columns: SmemOperand
    v_rows: SmemOperand
    q_rows: SmemOperand
    q_columns: SmemOperand
    do_rows: SmemOperand
    do_columns: SmemOperand
    ds_columns: SmemOperand


def backward_operands(plan: BlackwellBackwardPlan, smem: BackwardSmem) -> BackwardOperands:
    """Descriptors of (K step, stage) of every operand."""
    wide, tall = plan.head_dim, plan.head_dim_v
    return BackwardOperands(
        k_rows=_left(plan, smem.k, K_MAJOR),
        k_columns=_right(plan, transposed(smem.k), MN_MAJOR, wide),
        v_rows=_left(plan, smem.v, K_MAJOR),
        q_rows=_right(plan, smem.q, K_MAJOR, TILE),
        q_columns=_right(plan, transposed(smem.q), MN_MAJOR, wide),
        do_rows=_right(plan, smem.do, K_MAJOR, TILE),
        do_columns=_right(plan, transposed(smem.do), MN_MAJOR, tall),
        ds_columns=_left(plan, transposed(smem.ds), MN_MAJOR),
    )


def _left(plan: BlackwellBackwardPlan, tile: cute.Tensor, major: OperandMajorMode) -> SmemOperand:
    """Operand A, (M, K, stage)."""
    mma = _mma(plan, (major, K_MAJOR), TILE)
    return smem_operand(mma.make_fragment_A(mma.get_slice(0).partition_A(tile)))


def _right(
    plan: BlackwellBackwardPlan, tile: cute.Tensor, major: OperandMajorMode, n: int
) -> SmemOperand:
    """Operand B, (N, K, stage)."""
    mma = _mma(plan, (K_MAJOR, major), n)
    return smem_operand(mma.make_fragment_B(mma.get_slice(0).partition_B(tile)))


def _mma(
    plan: BlackwellBackwardPlan, majors: tuple[OperandMajorMode, OperandMajorMode], n: int
) -> cute.TiledMma:
    dtype = DTYPES[plan.dtype]
    return sm100.make_trivial_tiled_mma(
        *(dtype, dtype, *majors, Float32, tcgen05.CtaGroup.ONE, (TILE, n))
    )


@dataclass(frozen=True)
class BlackwellDq:
    """A tile of dQ is 32 rows, one per thread of a warp."""

    plan: BlackwellBackwardPlan

    @property
    def layout(self) -> cute.ComposedLayout:
        """(queries, D, 1) of a block in shared memory."""
        return row_major(self.plan, (TILE, self.plan.head_dim, 1), self.plan.head_dim)

    def registers(self) -> cute.Tensor:
        """A thread's row, float32."""
        return cute.make_rmem_tensor(self.plan.head_dim, Float32)

    @cute.jit
    def store(self, rounded: cute.Tensor, block: cute.Tensor, tile: Int32, thread: Int32) -> None:
        """A thread's row, in 16 bits, to its place in the block."""
        cute.autovec_copy(rounded, block[tile * LANES + thread, None, 0])
