"""The shared memory of the Hopper backward kernel."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32

from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.hopper_backward_layouts import HopperBackwardLayouts
from fa4.tiles.layouts import DTYPES


@dataclass(frozen=True)
class BackwardSmem:
    """sK, sV (64, D or Dv, key tile), sQ, sdO (m, D or Dv, stage), sP, sdS (m, 64, key tile and
    stage), sLSE, sDelta (m, stage), sdQ (floats)."""

    k: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    do: cute.Tensor
    p: cute.Tensor
    ds: cute.Tensor
    lse: cute.Tensor
    delta: cute.Tensor
    dq: cute.Tensor


def backward_carve(
    plan: HopperBackwardPlan, layouts: HopperBackwardLayouts, smem: cute.Pointer
) -> BackwardSmem:
    """Tensors at the places of the plan's map, in the shared memory that starts at `smem`."""
    tiles = plan.smem().tiles

    def tile(name: str, layout: cute.ComposedLayout) -> cute.Tensor:
        pointer = cute.recast_ptr(smem + tiles[name], layout.inner, dtype=DTYPES[plan.dtype])
        return cute.make_tensor(pointer, layout.outer)

    def floats(name: str, shape: tuple[int, ...]) -> cute.Tensor:
        pointer = cute.recast_ptr(smem + tiles[name], dtype=Float32)
        return cute.make_tensor(pointer, cute.make_layout(shape))

    return BackwardSmem(
        k=tile("sK", layouts.k),
        v=tile("sV", layouts.v),
        q=tile("sQ", layouts.q),
        do=tile("sdO", layouts.do),
        p=tile("sP", layouts.ds),
        ds=tile("sdS", layouts.ds),
        lse=floats("sLSE", (plan.m_tile, plan.tuning.stages)),
        delta=floats("sDelta", (plan.m_tile, plan.tuning.stages)),
        dq=floats("sdQ", (plan.dq_block_floats,)),
    )
