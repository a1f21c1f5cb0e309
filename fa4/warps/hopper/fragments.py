"""What a thread of an attending warpgroup holds, and where it is."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from fa4.numerics.scales import Scales
from fa4.plan_hopper import HopperPlan
from fa4.tiles.accumulator import accumulator_row
from fa4.tiles.hopper_layouts import pv_mma, qk_mma
from fa4.tiles.layouts import DTYPES
from fa4.tiles.registers import pinned
from fa4.tiles.tile_queue import Assignment
from fa4.warps.work import Work


@dataclass(frozen=True)
class Fragments:
    """Registers of one thread: scores and output in float32, P as the A operand of P V."""

    s: cute.Tensor  # ((2, 2, n_block / 8), 1, 1)
    o: cute.Tensor  # ((2, 2, Dv / 8), 1, 1)
    p: cute.Tensor  # ((2, 2, 2), 1, n_block / 16)

    def row(self, accumulator: cute.Tensor, r: int) -> cute.Tensor:
        """The thread's elements of its row r: pairs of columns, 8 apart."""
        return accumulator_row(accumulator, r)


@dataclass(frozen=True)
class Row:
    """State of the thread's rows: (ROWS_PER_THREAD,) each; `total` is this thread's part."""

    maximum: cute.Tensor
    total: cute.Tensor
    factor: cute.Tensor  # that O must be multiplied by


@dataclass(frozen=True)
class Place:
    """Where a thread is: its warpgroup, the buffer of its Q, its first query row, the tile."""

    t: Int32
    buffer: Int32
    thread: Int32  # within the warpgroup
    query: Int32
    row0: Int32  # first query row of the warpgroup
    tile: Assignment


@dataclass(frozen=True)
class Setting:
    """What is the same for all blocks of a tile."""

    place: Place
    scales: Scales
    work: Work


@dataclass(frozen=True)
class Block:
    """A block of keys: its number, whether some are hidden, whether its maximum counts."""

    index: Int32
    masked: Boolean
    running: Boolean


def fragments(plan: HopperPlan) -> Fragments:
    """Registers for one tile."""
    qk, pv = qk_mma(plan), pv_mma(plan)
    p = pv.make_fragment_A(pv.partition_shape_A((plan.m_tile, plan.n_block)))
    return Fragments(
        s=cute.make_rmem_tensor(qk.partition_shape_C(plan.qk_tile[:2]), Float32),
        o=cute.make_rmem_tensor(pv.partition_shape_C(plan.pv_tile[:2]), Float32),
        p=cute.make_rmem_tensor(p.layout, DTYPES[plan.dtype]),
    )


def warpgroup_index() -> Int32:
    """Which query tile of the CTA this warpgroup attends to."""
    thread, _, _ = cute.arch.thread_idx()
    return cute.arch.make_warp_uniform(pinned(thread) // 128) - 1


@cute.jit
def place_of(plan: HopperPlan, tile: Assignment, q_stage: Int32) -> Place:
    """Where this thread is while its warpgroup works on `tile`."""
    thread, _, _ = cute.arch.thread_idx()
    thread, t = pinned(thread) % 128, warpgroup_index()
    row0 = tile.m * plan.cta_rows + t * plan.m_tile
    query = row0 + thread // 32 * 16 + thread % 32 // 4
    return Place(t, q_stage * plan.q_tiles + t, thread, query, row0, tile)
