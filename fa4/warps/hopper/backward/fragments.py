"""What a thread of a computing warpgroup of Hopper's backward holds, and where it is."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32
from cutlass.pipeline import PipelineState

from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.accumulator import accumulator
from fa4.tiles.hopper_backward_layouts import dq_mma, keys_mma, scores_mma
from fa4.tiles.layouts import DTYPES


@dataclass(frozen=True)
class Fragments:
    """Registers of one thread: accumulators in float32, P^T and dS^T rounded."""

    s: cute.Tensor  # S^T, then P^T: ((2, 2, queries / 8), 1, 1)
    dp: cute.Tensor  # dP^T
    dk: cute.Tensor  # ((2, 2, columns / 8), 1, 1)
    dv: cute.Tensor
    dq: cute.Tensor
    p: cute.Tensor  # like s, in 16 bits
    ds: cute.Tensor


@dataclass(frozen=True)
class Place:
    """Where a thread is: its warpgroup, which key tile and which part of columns that has."""

    group: Int32
    thread: Int32  # within the warpgroup
    key_tile: Int32
    part: Int32


@dataclass(frozen=True)
class Rings:
    """Stages and phases of Q and dO, and of dS."""

    q: PipelineState
    ds: PipelineState


def fragments(plan: HopperBackwardPlan) -> Fragments:
    """Registers for one tile."""
    scores = scores_mma(plan)
    s, dp = (accumulator(scores, plan.scores_tile) for _ in range(2))
    p, ds = (cute.make_rmem_tensor(s.layout, DTYPES[plan.dtype]) for _ in range(2))
    return Fragments(
        s=s,
        dp=dp,
        dk=accumulator(keys_mma(plan, plan.dk_tile), plan.dk_tile),
        dv=accumulator(keys_mma(plan, plan.dv_tile), plan.dv_tile),
        dq=accumulator(dq_mma(plan), plan.dq_tile),
        p=p,
        ds=ds,
    )


def place_of(plan: HopperBackwardPlan) -> Place:
    """Where this thread is, for all tiles."""
    thread, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(thread // 128) - 1
    shared = plan.tuning.columns_split
    return Place(
        group=group,
        thread=thread % 128,
        key_tile=Int32(0) if shared else group,
        part=group if shared else Int32(0),
    )
