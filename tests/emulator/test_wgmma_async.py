"""When a wgmma reads shared memory and delivers, and what a kernel must not do meanwhile."""

import re

import numpy as np
import pytest

from fa4.emulator.errors import (
    DeadlockError,
    DescriptorError,
    UnsupportedInstruction,
    WarpgroupError,
)
from fa4.emulator.program import Schedule
from tests.emulator.operands import layout, random_bf16
from tests.emulator.ptx_kernels import KINDS
from tests.emulator.wgmma_kernels import (
    A_PLACE,
    B_PLACE,
    COMMIT,
    FENCE,
    accumulators,
    descriptor,
    execute,
    left_registers,
    load_left,
    mma,
    registers,
    wait,
    zero_operand,
)

N, COUNT = 16, 8  # a small product and its accumulator registers
SEEDS = range(8)


class Case:
    """A and B in memory, their descriptors, and A B^T."""

    def __init__(self):
        (a_bits, a), (b_bits, b) = random_bf16(64, 16, 1), random_bf16(N, 16, 2)
        a_memory, *a_strides = layout(a_bits, 3)
        b_memory, *b_strides = layout(b_bits, 3)
        self.memory = (a_memory, b_memory)
        self.a = descriptor(A_PLACE, *a_strides, 3)
        self.b = descriptor(B_PLACE, *b_strides, 3)
        self.product, self.left = a @ b.T, left_registers(a_bits)

    def mma(self, **options):
        return mma(N, self.a, self.b, **options)

    def run(self, body, kind="early", seed=0, **options):
        schedule = Schedule(kind, seed)
        return execute(body, *self.memory, COUNT, schedule=schedule, left=self.left, **options)

    def agrees(self, found):
        expected = accumulators(self.product)
        return np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def case():
    return Case()


OVERWRITE = "bar.sync 0;\n" + zero_operand(B_PLACE) + "bar.sync 0;\n"


def outcomes(case, body, kind, seeds=SEEDS):
    """Whether each seed's result is the product."""
    return {case.agrees(case.run(body, kind, seed)) for seed in seeds}


# ---- when shared memory is read


def test_shared_memory_is_read_between_the_issue_and_the_wait(case):
    body = FENCE + case.mma() + COMMIT + OVERWRITE + wait()
    assert outcomes(case, body, "early") == {True}
    assert outcomes(case, body, "late") == {False}
    assert outcomes(case, body, "random") == {True, False}
    assert outcomes(case, body, "priority") == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_shared_memory_is_free_behind_the_wait(case, kind):
    body = FENCE + case.mma() + COMMIT + wait() + OVERWRITE
    assert outcomes(case, body, kind) == {True}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_covers_all_but_the_latest_groups(case, kind):
    body = FENCE + case.mma() + COMMIT + case.mma(first=COUNT) + COMMIT
    body += wait(1) + OVERWRITE + wait(0)
    assert outcomes(case, body, kind) == {True}


def test_a_group_that_the_wait_leaves_out_may_still_read(case):
    body = FENCE + case.mma(first=COUNT) + COMMIT + case.mma() + COMMIT
    body += wait(1) + OVERWRITE + wait(0)
    assert outcomes(case, body, "late") == {False}
    assert outcomes(case, body, "random") == {True, False}


def test_an_operation_outside_of_any_group_is_not_waited_for(case):
    body = FENCE + case.mma() + wait(0) + OVERWRITE + COMMIT + wait(0)
    assert outcomes(case, body, "late") == {False}


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_is_delivered_by_its_last_group(case, kind):
    body = FENCE + case.mma() + COMMIT + case.mma(keep=1) + COMMIT + wait(1) + wait(0)
    halved = 0.5 * case.run(body, kind, 1)
    assert case.agrees(halved)


# ---- registers in flight

TOUCH = "add.f32 %acc0, %acc0, %acc0;\n"
ACCESSES = {
    "reads": "mov.f32 %acc100, %acc3;\n",
    "writes": "mov.f32 %acc3, 0f00000000;\n",
    "stores": "st.shared.f32 [%r10], %acc3;\n",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("access", ACCESSES)
def test_an_accumulator_belongs_to_the_tensor_core_until_the_wait(case, access, kind):
    body = FENCE + case.mma() + COMMIT + ACCESSES[access] + wait()
    with pytest.raises(WarpgroupError, match=r"accumulator %acc3(.|\n)*PTX line \d+: (mov|st)"):
        case.run(body, kind)
    case.run(FENCE + case.mma() + COMMIT + wait() + ACCESSES[access], kind)


def test_an_accumulator_of_a_group_that_the_wait_leaves_out(case):
    body = FENCE + case.mma() + COMMIT + case.mma(keep=1) + COMMIT + wait(1)
    with pytest.raises(WarpgroupError, match="accumulator %acc0"):
        case.run(body + TOUCH + wait(0))
    case.run(body + wait(0) + TOUCH)


def test_a_register_operand_may_be_read_but_not_overwritten(case):
    body = load_left() + FENCE + mma(N, None, case.b) + COMMIT
    assert case.agrees(case.run(body + "mov.b32 %a5, %a1;\n" + wait(), "late"))
    with pytest.raises(WarpgroupError, match="overwrites A register %a1"):
        case.run(body + "mov.b32 %a1, 0;\n" + wait())
    assert case.agrees(case.run(body + wait() + "mov.b32 %a1, 0;\n"))


def test_accumulators_that_overlap(case):
    body = FENCE + case.mma() + COMMIT
    with pytest.raises(WarpgroupError, match="shares registers"):
        case.run(body + case.mma(first=4) + COMMIT + wait())
    case.run(body + wait() + FENCE + case.mma(first=4) + COMMIT + wait())


def test_an_accumulator_in_flight_as_operand_a(case):
    operand = mma(N, None, case.b, first=COUNT).replace(registers(4, name="a"), registers(4))
    with pytest.raises(WarpgroupError, match="is the accumulator of a wgmma in flight"):
        case.run(FENCE + case.mma() + COMMIT + operand + COMMIT + wait())


# ---- fences


def test_no_fence_at_all(case):
    with pytest.raises(WarpgroupError, match=r"no wgmma\.fence before"):
        case.run(case.mma() + COMMIT + wait())


def test_no_fence_behind_an_access(case):
    body = FENCE + case.mma() + COMMIT + wait()
    again = case.mma(keep=1) + COMMIT + wait()
    with pytest.raises(WarpgroupError, match=r"no wgmma\.fence has followed"):
        case.run(body + TOUCH + again)
    case.run(body + TOUCH + FENCE + again)
    case.run(body + again)  # nothing has touched the accumulator


# ---- the warps of a warpgroup


@pytest.mark.parametrize("kind", KINDS)
def test_a_warp_that_stays_away(case, kind):
    body = "setp.eq.u32 %p7, %r90, 2; @%p7 bra END;\n"
    body += FENCE + case.mma() + COMMIT + wait() + "END:\n"
    with pytest.raises(DeadlockError, match=r"which warps \[2\] have not issued"):
        case.run(body, kind)


def test_half_a_warpgroup(case):
    with pytest.raises(WarpgroupError, match="only 64 threads"):
        case.run(FENCE + case.mma() + COMMIT + wait(), threads=64)


def test_a_warpgroup_starts_at_a_multiple_of_four_warps(case):
    body = "setp.lt.u32 %p7, %r90, 2; @%p7 bra END;\n"
    body += FENCE + case.mma() + COMMIT + wait() + "END:\n"
    with pytest.raises(WarpgroupError, match=r"warps 4-7.*only 192 threads"):
        case.run(body, threads=192)


def test_lanes_that_have_left(case):
    body = "setp.eq.u32 %p7, %r99, 5; @%p7 exit;\n" + FENCE + case.mma() + COMMIT + wait()
    with pytest.raises(WarpgroupError, match="31 of 32 lanes of warp 0"):
        case.run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_warps_with_different_operands(case, kind):
    shift = "cvt.u64.u32 %d21, %r90; add.u64 %d20, %d20, %d21;\n"
    with pytest.raises(WarpgroupError, match="execute different wgmma"):
        case.run(FENCE + shift + case.mma() + COMMIT + wait(), kind)


def test_lanes_with_different_operands(case):
    shift = "cvt.u64.u32 %d21, %r99; add.u64 %d20, %d20, %d21;\n"
    with pytest.raises(WarpgroupError, match="A's descriptor of a wgmma differs between"):
        case.run(FENCE + shift + case.mma() + COMMIT + wait())


def test_warps_at_different_instructions(case):
    body = FENCE + "setp.eq.u32 %p7, %r90, 1; @%p7 bra OTHER;\n"
    body += case.mma() + "bra END; OTHER: " + case.mma() + "END: " + COMMIT + wait()
    with pytest.raises(WarpgroupError, match=r"execute different wgmma: PTX line \d+ with"):
        case.run(body)


@pytest.mark.parametrize("skipped", [COMMIT, wait()], ids=["commit", "wait"])
def test_a_warp_that_skips_a_commit_or_a_wait(case, skipped):
    tail = COMMIT + wait() if skipped == COMMIT else wait()
    head = FENCE + case.mma() + ("" if skipped == COMMIT else COMMIT)
    body = head + "setp.eq.u32 %p7, %r90, 3; @%p7 bra OVER;\n" + tail + "OVER: "
    with pytest.raises(WarpgroupError, match="differ in the wgmma"):
        case.run(body + FENCE + case.mma(keep=1) + COMMIT + wait())


# ---- descriptors and forms


def test_a_descriptor_of_tcgen05(case):
    with pytest.raises(DescriptorError, match="is it one of tcgen05"):
        case.run(FENCE + mma(N, case.a | 1 << 46, case.b) + COMMIT + wait())


def test_a_descriptor_that_leaves_shared_memory(case):
    outside = descriptor(240 * 1024, 16, 1024, 3)
    with pytest.raises(DescriptorError, match="outside the CTA's memory"):
        case.run(FENCE + mma(N, case.a, outside) + COMMIT + wait())


def test_a_descriptor_between_two_swizzle_atoms(case):
    with pytest.raises(DescriptorError, match="is not at a row 0"):
        case.run(FENCE + mma(N, case.a, case.b + (128 >> 4)) + COMMIT + wait())


FORMS = {
    "K 32": ("m64n16k16", "m64n16k32"),
    "f16 accumulator": (".f32.bf16.bf16", ".f16.f16.f16"),
    "sparse": ("wgmma.mma_async.", "wgmma.mma_async.sp."),
    "scale 2": ("%p5, 1, 1, 0, 0", "%p5, 2, 1, 0, 0"),
    "missing transpose": ("%p5, 1, 1, 0, 0", "%p5, 1, 1"),
}


def test_a_width_that_is_no_multiple_of_8(case):
    with pytest.raises(UnsupportedInstruction, match="m64n12k16"):
        case.run(FENCE + mma(12, case.a, case.b) + COMMIT + wait())


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_are_not_emulated(case, form):
    old, new = FORMS[form]
    text = case.mma()
    assert old in text
    body = FENCE + re.sub(re.escape(old), new, text, count=1) + COMMIT + wait()
    with pytest.raises(UnsupportedInstruction):
        case.run(body)
