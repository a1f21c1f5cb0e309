"""Kernel arguments that belong together: TMA copies, and the tensors carved from shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from fa4.plan_blackwell import M_TILE, Q_TILES, BlackwellPlan
from fa4.tiles.carving import Carver
from fa4.tiles.layouts import SmemLayouts


@dataclass(frozen=True)
class TmaTensor:
    """A TMA descriptor (in the atom) and the tensor of coordinates it takes."""

    atom: cute.CopyAtom
    tensor: cute.Tensor

    def partition(self, smem: cute.Tensor, gmem: cute.Tensor) -> tuple[cute.Tensor, cute.Tensor]:
        """(smem, gmem) with everything of one copy in mode 0; gmem is tiled in mode 0 already."""
        return cpasync.tma_partition(
            self.atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, cute.rank(smem) - 1), gmem
        )


@dataclass(frozen=True)
class Source:
    """One operand of a work tile: its copy, and the partitions (copy, stage) and (copy, tile)."""

    copy: TmaTensor
    smem: cute.Tensor
    gmem: cute.Tensor

    def load(self, tile: Int32, stage: Int32 | int, mbarrier: cute.Pointer) -> None:
        """Bring one tile into one stage; its bytes complete the mbarrier."""
        cute.copy(
            self.copy.atom, self.gmem[None, tile], self.smem[None, stage], tma_bar_ptr=mbarrier
        )


@dataclass(frozen=True)
class TmaTensors:
    """Q (Sq, D, H, B), K (Sk, D, Hk, B), V (Dv, Sk, Hk, B) and O (Sq, Dv, H, B)."""

    q: TmaTensor
    k: TmaTensor
    v: TmaTensor
    o: TmaTensor


@dataclass(frozen=True)
class SmemTensors:
    """sQ, sK, sV (MMA, MMA_MN, MMA_K, stage), sO (row, column, stage), and one float per row:
    scale (of O) and total (of P), both (row, query tile)."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    o: cute.Tensor
    scale: cute.Tensor
    total: cute.Tensor


def carve(plan: BlackwellPlan, layouts: SmemLayouts, smem: cute.Pointer) -> SmemTensors:
    """Tensors at the places of the plan's map, in the shared memory that starts at `smem`."""
    carver, per_row = Carver(plan, smem), (M_TILE, Q_TILES)
    return SmemTensors(
        q=carver.tile("sQ", layouts.q),
        k=carver.tile("sKV", layouts.k),
        v=carver.tile("sKV", layouts.v),
        o=carver.tile("sO", layouts.o),
        scale=carver.floats("sScale", per_row),
        total=carver.floats("sRowSum", per_row),
    )


def tmem_tile(
    base: cute.Pointer, column: Int32 | int, columns: cutlass.Constexpr[int]
) -> cute.Tensor:
    """(128 lanes, columns) of 32-bit tensor memory; an address is lane * 2^16 + column."""
    layout = cute.make_layout((M_TILE, columns), stride=(1 << 16, 1))
    return cute.make_tensor(base + column, layout)
