"""What ptxas makes of the forward kernel: registers, spills, instruction counts."""

from dataclasses import replace

import pytest

from fa4.compile import artifacts
from fa4.profile.disassembler import find_nvdisasm
from fa4.profile.elf import read_resources
from fa4.profile.limits import MMA_PER_32, SOFTMAX_MASKED, SOFTMAX_UNMASKED
from fa4.profile.report import report, unmet_registers
from tests.profile.variants import plan, variants

needs_nvdisasm = pytest.mark.skipif(
    find_nvdisasm() is None, reason="nvdisasm is not installed (extra `sass`)"
)


VARIANTS = [
    pytest.param(variant, id=variant.name, marks=() if short else pytest.mark.slow)
    for variant, short in variants()
] + [pytest.param(plan(mask="causal", arch="sm_103a"), id="sm_103a")]


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_spills_no_stack_and_register_budgets_honoured(variant):
    made = artifacts(variant)
    assert f".target {variant.arch}" in made.ptx
    (resources,) = read_resources(made.cubin)
    assert variant.name in resources.kernel
    assert resources.stack == 0
    assert (resources.local_loads, resources.local_stores) == (0, 0)
    assert unmet_registers(variant, made) == {}
    # what setmaxnreg redistributes: 16 warps at the launch count must fit the register file
    assert resources.registers * variant.threads <= 65536


def test_swapped_register_budgets_are_noticed():
    shipped = plan()
    softmax, correction, others = shipped.tuning.registers
    swapped = replace(shipped.tuning, registers=(correction, softmax, others))
    found = unmet_registers(replace(shipped, tuning=swapped), artifacts(shipped))
    assert found == {"softmax": correction, "correction": softmax}


def summary(**kind):
    variant = plan(**kind)
    return report(variant, artifacts(variant)).summary


@needs_nvdisasm
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_softmax_loop_is_short(mask):
    found = summary(mask=mask)
    assert found.unmasked.ex2 + found.unmasked.emulated == 128 + 1, "and one for the rescale"
    assert found.unmasked.instructions <= SOFTMAX_UNMASKED
    assert found.masked.instructions <= SOFTMAX_MASKED


@needs_nvdisasm
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_mma_warp_issues_few_instructions(mask):
    assert summary(mask=mask).mma_per_32 <= MMA_PER_32


@needs_nvdisasm
def test_the_emulated_share_is_the_plan_s():
    variant = plan()
    assert summary().unmasked.emulated == variant.tuning.exp2_emulated


@needs_nvdisasm
def test_nearly_every_instruction_belongs_to_a_role():
    variant = plan(mask="causal")
    analysis = report(variant, artifacts(variant)).analysis
    sizes = {role.role: role.instructions for role in analysis.roles}
    kernel = sizes.pop("kernel")
    assert set(sizes) == set(variant.roles) - {"idle"}
    assert kernel < 0.1 * analysis.instructions
