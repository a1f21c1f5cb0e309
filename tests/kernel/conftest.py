"""Plans that the kernel tests share."""

import pytest

from fa4.plan import TUNED, Plan, plan_forward
from fa4.problem import Problem

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 64, "window_right": 16},
    "softcap": {"softcap": 20.0},
}


def make_plan(dims: tuple[int, int], mask: str, dtype: str) -> Plan:
    """The shipped plan for padded head dims, a kind of mask and a dtype."""
    options = {"causal": False, "window_left": None, "window_right": None, "softcap": 0.0}
    sizes = {"batch": 1, "seqlen_q": 256, "seqlen_k": 256, "heads_q": 1, "heads_kv": 1}
    head_dim, head_dim_v = dims
    return plan_forward(
        Problem(
            **{**options, **MASKS[mask]},
            **sizes,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            dtype=dtype,
            scale=0.1,
        )
    )


@pytest.fixture(params=[f"{a}-{b}-{mask}" for a, b in sorted(TUNED) for mask in MASKS])
def every_plan(request: pytest.FixtureRequest) -> Plan:
    """Every shipped plan in bfloat16."""
    head_dim, head_dim_v, mask = request.param.split("-")
    return make_plan((int(head_dim), int(head_dim_v)), mask, "bfloat16")
