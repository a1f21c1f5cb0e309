"""What ptxas makes of Blackwell's backward: no stack, no spills, a short loop over scores."""

import pytest

from fa4.compile import artifacts
from fa4.plan_backward import plan_backward
from fa4.plan_backward_blackwell import TUNED, BlackwellBackwardPlan
from fa4.problem import example_problem
from fa4.profile.disassembler import find_nvdisasm
from fa4.profile.elf import read_resources
from fa4.profile.limits import BACKWARD_COMPUTE
from fa4.profile.report import report, unmet_registers

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 64, "window_right": 16},
    "softcap": {"softcap": 20.0, "causal": True},
    "deterministic": {"deterministic": True},
}
SHORT = [((64, 64), "causal"), ((128, 128), "full"), ((192, 128), "softcap")]
KINDS = [
    pytest.param("sm_100a", dims, mask, marks=() if (dims, mask) in SHORT else pytest.mark.slow)
    for dims in sorted(TUNED)
    for mask in MASKS
] + [("sm_103a", (128, 128), "causal")]
needs_nvdisasm = pytest.mark.skipif(
    find_nvdisasm() is None, reason="nvdisasm is not installed (extra `sass`)"
)


@pytest.fixture(autouse=True)
def arch() -> None:
    """Nothing is emulated here."""


def plan(
    dims: tuple[int, int], mask: str, dtype: str = "bfloat16", target: str = "sm_100a"
) -> BlackwellBackwardPlan:
    return plan_backward(example_problem(*dims, dtype=dtype, **MASKS[mask]), target)


@pytest.mark.parametrize(("target", "dims", "mask"), KINDS, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_no_spills_no_stack_and_register_budgets_honoured(
    target: str, dims: tuple[int, int], mask: str, dtype: str
) -> None:
    shipped = plan(dims, mask, dtype, target)
    made = artifacts(shipped)
    assert f".target {target}" in made.ptx
    kernels = read_resources(made.cubin)
    assert len(kernels) == 3
    for resources in kernels:
        assert (resources.stack, resources.local_loads, resources.local_stores) == (0, 0, 0)
    assert unmet_registers(shipped, made) == {}
    main = next(resources for resources in kernels if resources.setmaxnreg)
    # what setmaxnreg redistributes: 16 warps at the launch count must fit the register file
    assert main.registers * shipped.threads <= 65536


@needs_nvdisasm
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_the_loop_over_scores_is_short(mask: str) -> None:
    """At head dim 128, as flash-attn-4's 565 instructions were counted."""
    shipped = plan((128, 128), mask)
    loop = report(shipped, artifacts(shipped)).compute
    assert loop.ex2 == 64
    assert loop.f2fp == 64
    assert loop.instructions <= BACKWARD_COMPUTE
    assert loop.executed[0] < 0.8 * BACKWARD_COMPUTE, "without the mask"


@needs_nvdisasm
def test_nearly_every_instruction_belongs_to_a_role() -> None:
    shipped = plan((128, 128), "full")
    analysis = report(shipped, artifacts(shipped)).analysis
    sizes = {role.role: role.instructions for role in analysis.roles}
    kernel = sizes.pop("kernel")
    assert set(sizes) == set(shipped.roles) - {"idle"}
    assert kernel < 0.1 * analysis.instructions
