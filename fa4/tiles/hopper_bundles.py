"""The tensors of the Hopper kernel in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute

from fa4.plan_hopper import HopperPlan
from fa4.tiles.carving import Carver
from fa4.tiles.hopper_layouts import HopperLayouts


@dataclass(frozen=True)
class HopperSmem:
    """sQ, sO (row, column, buffer), sK (key, column, stage), sV (column, key, stage)."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    o: cute.Tensor


def hopper_carve(plan: HopperPlan, layouts: HopperLayouts, smem: cute.Pointer) -> HopperSmem:
    """Tensors at the places of the plan's map, in the shared memory that starts at `smem`."""
    carver = Carver(plan, smem)
    return HopperSmem(
        q=carver.tile("sQ", layouts.q),
        k=carver.tile("sK", layouts.k),
        v=carver.tile("sV", layouts.v),
        o=carver.tile("sO" if plan.tuning.o_parts else "sQ", layouts.o),
    )
