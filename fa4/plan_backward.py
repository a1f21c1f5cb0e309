"""Problem -> plan of the backward pass. Pure Python."""

from __future__ import annotations

from functools import cache

from fa4.plan_backward_base import BackwardPlan
from fa4.plan_backward_blackwell import blackwell_backward_plan
from fa4.plan_base import PlanFields, plan_fields
from fa4.plan_hopper_backward import hopper_backward_plan
from fa4.problem import Problem

PLANS = {
    "sm_90a": hopper_backward_plan,
    "sm_100a": blackwell_backward_plan,
    "sm_103a": blackwell_backward_plan,
}


def plan_backward(problem: Problem, arch: str) -> BackwardPlan:
    """The plan for a problem; depends on head dims, dtype and options only.

    Raises ValueError for an architecture or head dims without a kernel.
    """
    if arch not in PLANS:
        raise ValueError(f"{arch=} has no backward kernel; available: {', '.join(PLANS)}")
    fields = (*plan_fields(problem, arch), ("deterministic", problem.deterministic))
    return _plan_backward((problem.head_dim, problem.head_dim_v), fields)


@cache
def _plan_backward(dims: tuple[int, int], fields: PlanFields) -> BackwardPlan:
    asked = dict(fields)
    plan = PLANS[asked["arch"]](dims, asked)
    plan.check()
    return plan
