"""The shared memory of the Hopper backward kernel."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute

from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.carving import Carver
from fa4.tiles.hopper_backward_layouts import HopperBackwardLayouts


@dataclass(frozen=True)
class HopperBackwardSmem:
    """sK, sV (64, D or Dv, key tile), sQ, sdO (m, D or Dv, stage), sP, sdS (m, 64, key tile and
    stage), sLSE, sDelta (m, stage), sdQ (floats), and in the place of others sdK, sdV like sK, sV.
    """

    k: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    do: cute.Tensor
    p: cute.Tensor
    ds: cute.Tensor
    lse: cute.Tensor
    delta: cute.Tensor
    dq: cute.Tensor
    dk: cute.Tensor
    dv: cute.Tensor


def hopper_backward_carve(
    plan: HopperBackwardPlan, layouts: HopperBackwardLayouts, smem: cute.Pointer
) -> HopperBackwardSmem:
    """Tensors at the places of the plan's map, in the shared memory that starts at `smem`."""
    carver, places = Carver(plan, smem), plan.gradient_places
    (dk, dk_offset), (dv, dv_offset) = places["dK"], places["dV"]
    return HopperBackwardSmem(
        k=carver.tile("sK", layouts.k),
        v=carver.tile("sV", layouts.v),
        q=carver.tile("sQ", layouts.q),
        do=carver.tile("sdO", layouts.do),
        p=carver.tile("sP", layouts.ds),
        ds=carver.tile("sdS", layouts.ds),
        lse=carver.floats("sLSE", (plan.m_tile, plan.tuning.stages)),
        delta=carver.floats("sDelta", (plan.m_tile, plan.tuning.stages)),
        dq=carver.floats("sdQ", (plan.dq_block_floats,)),
        dk=carver.tile(dk, layouts.dk, dk_offset),
        dv=carver.tile(dv, layouts.dv, dv_offset),
    )
