"""Problem -> plan of the backward pass. Pure Python."""

from __future__ import annotations

from functools import cache

from fa4.plan_base import BasePlan, Options, options_of
from fa4.plan_hopper_backward import hopper_backward_plan
from fa4.problem import Problem

ARCHS = ("sm_90a",)


def plan_backward(problem: Problem, arch: str) -> BasePlan:
    """The plan for a problem; depends on head dims, dtype and options only.

    Raises NotImplementedError for an architecture without a backward kernel.
    """
    require_backward(arch)
    options = (*options_of(problem, arch), ("deterministic", problem.deterministic))
    return _plan_backward((problem.head_dim, problem.head_dim_v), options)


def require_backward(arch: str) -> None:
    """Raise NotImplementedError for an architecture without a backward kernel."""
    if arch not in ARCHS:
        raise NotImplementedError(
            f"no backward for {arch} in this version, only for {', '.join(ARCHS)}. "
            "Call under torch.no_grad() or pass detached tensors."
        )


@cache
def _plan_backward(dims: tuple[int, int], options: Options) -> BasePlan:
    plan = hopper_backward_plan(dims, dict(options))
    plan.check()
    return plan
