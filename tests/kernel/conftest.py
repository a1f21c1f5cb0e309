"""What the kernel tests share."""

from collections.abc import Iterator
from unittest import mock

import pytest
import torch

from fa4.plan import plan_forward
from fa4.plan_blackwell import TUNED, BlackwellPlan
from fa4.problem import example_problem
from tests.kernel.fake_gpu import Gpu

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 64, "window_right": 16},
    "softcap": {"softcap": 20.0},
}


def make_plan(dims: tuple[int, int], mask: str, dtype: str) -> BlackwellPlan:
    """The shipped plan for padded head dims, a kind of mask and a dtype."""
    return plan_forward(example_problem(*dims, **MASKS[mask], dtype=dtype))


@pytest.fixture(params=[f"{a}-{b}-{mask}" for a, b in sorted(TUNED) for mask in MASKS])
def every_plan(request: pytest.FixtureRequest) -> BlackwellPlan:
    """Every shipped plan in bfloat16."""
    head_dim, head_dim_v, mask = request.param.split("-")
    return make_plan((int(head_dim), int(head_dim_v)), mask, "bfloat16")


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """In torch's place."""
    gpu = Gpu()
    with (
        mock.patch.multiple(
            torch._C,
            create=True,
            _cuda_getDevice=lambda: gpu.current,
            _cuda_getCurrentRawStream=lambda device: gpu.stream,
        ),
        mock.patch.object(torch.cuda, "device", gpu.device),
    ):
        yield gpu
