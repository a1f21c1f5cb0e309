"""Problem -> plan of the forward pass. Pure Python.

A plan is every choice of tiles, stages, warps, registers and memory.
"""

from __future__ import annotations

from functools import cache

from fa4.plan_base import CHIPS, BasePlan, PlanFields, plan_fields
from fa4.plan_blackwell import blackwell_plan
from fa4.plan_hopper import hopper_plan, length_class
from fa4.problem import Problem


def plan_forward(problem: Problem, arch: str = "sm_100a") -> BasePlan:
    """The plan for a problem; depends on head dims, dtype and the kind of mask only.

    On Hopper also on a class of lengths, see `plan_hopper.TUNED`.

    Raises ValueError for an architecture without a kernel.
    """
    if arch not in CHIPS:
        raise ValueError(f"{arch=} has no forward kernel; available: {', '.join(CHIPS)}")
    keys = length_class(problem.seqlen_k) if arch == "sm_90a" else 0
    dims = (problem.head_dim, problem.head_dim_v)
    return _plan_forward(dims, plan_fields(problem, arch), keys)


@cache
def _plan_forward(dims: tuple[int, int], fields: PlanFields, keys: int) -> BasePlan:
    asked = dict(fields)
    hopper = asked["arch"] == "sm_90a"
    plan = hopper_plan(dims, asked, keys) if hopper else blackwell_plan(dims, asked)
    plan.check()
    return plan
