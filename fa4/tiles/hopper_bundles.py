"""The tensors of the Hopper kernel in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute

from fa4.plan_hopper import HopperPlan
from fa4.tiles.hopper_layouts import HopperLayouts
from fa4.tiles.layouts import DTYPES


@dataclass(frozen=True)
class HopperSmem:
    """sQ, sO (row, column, buffer), sK (key, column, stage), sV (column, key, stage)."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    o: cute.Tensor


def hopper_carve(plan: HopperPlan, layouts: HopperLayouts, smem: cute.Pointer) -> HopperSmem:
    """Tensors at the places of the plan's map, in the shared memory that starts at `smem`."""
    tiles = plan.smem().tiles

    def tile(name: str, layout: cute.ComposedLayout) -> cute.Tensor:
        pointer = cute.recast_ptr(smem + tiles[name], layout.inner, dtype=DTYPES[plan.dtype])
        return cute.make_tensor(pointer, layout.outer)

    return HopperSmem(
        q=tile("sQ", layouts.q),
        k=tile("sK", layouts.k),
        v=tile("sV", layouts.v),
        o=tile("sO" if plan.tuning.o_parts else "sQ", layouts.o),
    )
