"""The kernels that are compared."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.plan import Plan, plan_forward
from fa4.problem import Problem


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

    def plan(self) -> Plan:
        """Our plan; it depends on no length."""
        problem = Problem(
            batch=1,
            seqlen_q=1,
            seqlen_k=1,
            heads_q=1,
            heads_kv=1,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype="bfloat16",
            causal=self.causal,
            window_left=None,
            window_right=None,
            softcap=0.0,
            scale=1.0,
        )
        return plan_forward(problem)


DIMS = ((64, 64), (128, 128), (192, 128))
CASES = tuple(Case(d, dv, causal) for d, dv in DIMS for causal in (False, True))
