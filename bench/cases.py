"""The kernels that are compared."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.plan import plan_forward
from fa4.plan_blackwell import BlackwellPlan
from fa4.problem import example_problem


@dataclass(frozen=True)
class Case:
    """Head dims and mask of one forward kernel in bfloat16."""

    head_dim: int
    head_dim_v: int
    causal: bool

    def __str__(self) -> str:
        same = self.head_dim == self.head_dim_v
        dims = f"d{self.head_dim}" if same else f"d({self.head_dim},{self.head_dim_v})"
        return f"{dims} {'causal' if self.causal else 'full'}"

    def plan(self) -> BlackwellPlan:
        """Our plan; it depends on no length."""
        return plan_forward(example_problem(self.head_dim, self.head_dim_v, causal=self.causal))


DIMS = ((64, 64), (96, 96), (128, 128), (192, 128))
CASES = tuple(Case(d, dv, causal) for d, dv in DIMS for causal in (False, True))
