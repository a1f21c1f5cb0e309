"""What ptxas makes of the backward kernels: no stack, and products that run side by side."""

import re

import pytest

from fa4.compile import artifacts
from fa4.plan_backward import plan_backward
from fa4.plan_hopper_backward import TUNED, HopperBackwardPlan
from fa4.problem import example_problem
from fa4.profile.disassembler import disassemble, find_nvdisasm
from fa4.profile.elf import read_resources

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 64, "window_right": 16},
    "softcap": {"softcap": 20.0},
}
# One register around the exponentials of each block, where the accumulators take 192 of 240.
STACK = {((128, 128), "softcap"): 8}
SHORT = [((64, 64), "causal"), ((128, 128), "full")]
KINDS = [
    pytest.param(dims, mask, marks=() if (dims, mask) in SHORT else pytest.mark.slow)
    for dims in sorted(TUNED)
    for mask in MASKS
]


def plan(dims: tuple[int, int], mask: str) -> HopperBackwardPlan:
    return plan_backward(example_problem(*dims, **MASKS[mask]), "sm_90a")


@pytest.mark.parametrize(("dims", "mask"), KINDS, ids=str)
def test_no_stack_and_no_spills(dims: tuple[int, int], mask: str) -> None:
    made = artifacts(plan(dims, mask))
    kernels = read_resources(made.cubin)
    assert len(kernels) == 3
    for resources in kernels:
        assert resources.stack <= STACK.get((dims, mask), 0)
        assert max(resources.local_loads, resources.local_stores) <= resources.stack // 4


@pytest.mark.skipif(find_nvdisasm() is None, reason="nvdisasm is not installed (extra `sass`)")
@pytest.mark.parametrize(("dims", "mask"), KINDS, ids=str)
def test_products_are_not_serialised(dims: tuple[int, int], mask: str) -> None:
    """Short of registers ptxas waits after every single wgmma."""
    listing = disassemble(artifacts(plan(dims, mask)).cubin)
    products = len(re.findall(r"\bHGMMA\b", listing))
    fences = len(re.findall(r"\bWARPGROUP\.ARRIVE\b", listing))
    assert products >= 24
    assert fences <= products // 2
