"""The loop of a backward kernel that works on scores: how many instructions it takes."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.plan_backward_base import BackwardPlan
from fa4.profile.static import Analysis

SCORES = 64  # of a thread, that kernels are compared by


@dataclass(frozen=True)
class ComputeLoop:
    """Instructions of a warp per SCORES scores of each of its threads: P, dS and all around them.

    instructions: static, the mask of cut blocks included; executed: shortest and longest path.
    """

    instructions: float
    executed: tuple[float, float]
    ex2: float
    packed: float  # FFMA2, FADD2 and FMUL2
    f2fp: float


def compute_loop(analysis: Analysis, plan: BackwardPlan) -> ComputeLoop | None:
    """That of the compute role with the most exponentials; None if there is none."""
    loops = [loop for loop in analysis.loops if loop.role == "compute"]
    found = max(loops, key=lambda loop: loop.counts.ex2, default=None)
    if found is None:
        return None
    counts, share = found.counts, SCORES / plan.scores_per_thread
    return ComputeLoop(
        instructions=counts.instructions * share,
        executed=(found.shortest * share, found.longest * share),
        ex2=counts.ex2 * share,
        packed=(counts.packed + counts.classes.get("FMUL2", 0)) * share,
        f2fp=counts.f2fp * share,
    )
