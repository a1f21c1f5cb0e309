"""Tensor memory, tcgen05.mma and wgmma: waits, fences, commits, each with and without."""

import pytest

from tests.checker.faults import check, faults
from tests.emulator.operands import layout, random_bf16
from tests.emulator.ptx_kernels import aligned, wait
from tests.emulator.test_mma import descriptor, instruction
from tests.emulator.wgmma_kernels import COMMIT, FENCE
from tests.emulator.wgmma_kernels import descriptor as wgmma_descriptor
from tests.emulator.wgmma_kernels import mma as wgmma
from tests.emulator.wgmma_kernels import wait as wait_group

# Warps 0-3 write a column that warps 4-7 read: the same lanes, through one named barrier.
COLUMNS = """mov.u32 %r1, smem; shr.u32 %r90, %r99, 5; setp.eq.u32 %p20, %r90, 0;
@!%p20 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
ALLOCATED: bar.sync 0; ld.shared.u32 %r2, [%r1]; and.b32 %r91, %r90, 3; shl.b32 %r91, %r91, 21;
add.u32 %r3, %r2, %r91; setp.lt.u32 %p21, %r90, 4; @!%p21 bra READER;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {{%r99}};
{waited} {before} bar.arrive 1, 256; bra DONE;
READER: bar.sync 1, 256; {after}
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r3]; {loaded}
DONE: {free} @!%p20 bra FREED;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32; FREED:
"""
STEPS = {
    "waited": "tcgen05.wait::st.sync.aligned;",
    "before": "tcgen05.fence::before_thread_sync;",
    "after": "tcgen05.fence::after_thread_sync;",
    "loaded": "tcgen05.wait::ld.sync.aligned;",
    "free": "bar.sync 0;",
}
MISSING = {
    "waited": "tcgen05.wait::st of the first warp",
    "before": "tcgen05.fence::before_thread_sync",
    "after": "tcgen05.fence::after_thread_sync",
    "free": "a barrier behind it",
}


def test_a_store_handed_over_to_a_load():
    assert check(COLUMNS.format(**STEPS), threads=256, smem=64).remarks == []


@pytest.mark.parametrize("step", MISSING)
def test_every_step_of_the_hand_over_is_needed(step):
    found = faults(COLUMNS.format(**{**STEPS, step: ""}), threads=256, smem=64)
    assert found
    assert all(f.kind == "race" for f in found)
    assert any(MISSING[step] in f.missing for f in found)


def test_a_load_must_be_over_before_its_columns_are_freed():
    use = "mov.u32 %r5, %r4; tcgen05.wait::ld.sync.aligned;"  # keeps a wait::ld in the kernel
    late = {**STEPS, "loaded": "", "free": "bar.sync 0;" + use}
    found = faults(COLUMNS.format(**late), threads=256, smem=64)
    assert any("tcgen05.wait::ld" in f.missing for f in found)


def test_a_kernel_without_tcgen05_fences_is_judged_by_its_barriers():
    remarks = check(
        COLUMNS.format(**{**STEPS, "before": "", "after": ""}), threads=256, smem=64
    ).remarks
    assert len(remarks) == 1
    assert "no tcgen05.fence" in remarks[0]


def test_registers_in_use_before_the_wait_are_a_remark():
    early = {**STEPS, "loaded": "add.u32 %r5, %r4, 1; tcgen05.wait::ld.sync.aligned;"}
    (remark,) = check(COLUMNS.format(**early), threads=256, smem=64).remarks
    assert "register in use before its load is waited for" in remark


def test_columns_that_nobody_has_written():
    body = COLUMNS.replace("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {{%r99}};", "")
    found = faults(body.format(**STEPS), threads=256, smem=64)
    assert [(f.kind, f.first, f.second.warp) for f in found] == [
        ("unwritten", None, warp) for warp in range(4, 8)
    ]


# ---- tcgen05.mma: 128 x 32 x 16 by warp 0, read by all

MMA = """mov.u32 %r1, smem; shr.u32 %r90, %r99, 5; setp.eq.u32 %p20, %r90, 0;
setp.eq.u32 %p1, %r99, 0; @!%p20 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;
ALLOCATED: mad.wide.u32 %d0, %r99, 16, %d50; mad.lo.u32 %r4, %r99, 16, %r1; mov.u32 %r5, 0;
COPY: ld.global.v4.b32 {{%r6, %r7, %r8, %r9}}, [%d0];
st.shared.v4.b32 [%r4+1024], {{%r6, %r7, %r8, %r9}};
add.u64 %d0, %d0, 2048; add.u32 %r4, %r4, 2048; add.u32 %r5, %r5, 2048;
setp.lt.u32 %p2, %r5, 65536; @%p2 bra COPY;
@%p1 mbarrier.init.shared.b64 [%r1+8], 1; @%p1 fence.mbarrier_init.release.cluster;
{proxy} bar.sync 0;
ld.shared.u32 %r2, [%r1]; shl.b32 %r91, %r90, 21; add.u32 %r3, %r2, %r91; add.u32 %r10, %r1, 8;
@!%p1 bra ISSUED; mov.b64 %d5, {a}; mov.b64 %d6, {b}; setp.ne.u32 %p5, {keep}, 0;
tcgen05.mma.cta_group::1.kind::f16 [%r2], %d5, %d6, {instruction}, %p5;
{commit}
ISSUED: {wait} {after}
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r6}}, [%r3]; tcgen05.wait::ld.sync.aligned;
{overwrite}
tcgen05.fence::before_thread_sync;
bar.sync 0; @!%p20 bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64; FREED:
"""


def product(**changes):
    """The kernel and its operands."""
    a_memory, *a_strides = layout(random_bf16(128, 16, 1)[0], 3)
    b_memory, *b_strides = layout(random_bf16(32, 16, 2)[0], 3)
    image = aligned(65536)
    image[: a_memory.size], image[32768 : 32768 + b_memory.size] = a_memory, b_memory
    parts = {
        "a": descriptor(1024, *a_strides, 3),
        "b": descriptor(1024 + 32768, *b_strides, 3),
        "instruction": instruction(128, 32),
        "keep": 0,
        "proxy": "fence.proxy.async.shared::cta;",
        "commit": "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];",
        "wait": wait("%r10", 0, "W"),
        "after": "tcgen05.fence::after_thread_sync;",
        "overwrite": "",
    }
    return MMA.format(**{**parts, **changes}), image


def judge(function, **changes):
    body, image = product(**changes)
    return function(body, image, threads=128, smem=1024 + 65536)


def test_a_product_that_is_committed_and_waited_for():
    assert judge(check).remarks == []
    judge(check, overwrite="bar.sync 0; @%p1 st.shared.b32 [%r1+1024], %r99;")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"proxy": ""}, "a fence.proxy.async"),
        ({"wait": ""}, "a tcgen05.commit behind the MMA, and a wait"),
        ({"after": ""}, "tcgen05.fence::after_thread_sync"),
        ({"commit": "", "wait": ""}, "a tcgen05.commit behind the MMA, and a wait"),
        ({"wait": "", "overwrite": "@%p1 st.shared.b32 [%r1+1024], %r99;"}, "a tcgen05.commit"),
    ],
    ids=["proxy fence", "wait", "tcgen05 fence", "commit", "operand overwritten"],
)
def test_what_a_product_needs(change, words):
    assert any(words in f.missing for f in judge(faults, **change))


def test_an_accumulator_that_nobody_has_written():
    found = judge(faults, keep=1)
    assert [f.kind for f in found] == ["unwritten"]


def test_an_mma_in_flight_at_the_end():
    found = judge(faults, commit="", wait="")
    assert any("may end before this MMA is complete" in f.message for f in found)


# ---- wgmma

OPERANDS = """.reg .f32 %acc<160>; .reg .b32 %a<8>; mov.u32 %r1, smem; shr.u32 %r2, %r1, 4;
cvt.u64.u32 %d20, %r2; mov.u32 %r3, 0;
mad.lo.u32 %r10, %r99, 16, %r1; st.shared.v4.b32 [%r10], {{%r3, %r3, %r3, %r3}};
st.shared.v4.b32 [%r10+2048], {{%r3, %r3, %r3, %r3}};
{proxy} bar.sync 0;
{body} {end}
"""


def hopper(function, **changes):
    product = wgmma(8, wgmma_descriptor(0, 16, 256, 1), wgmma_descriptor(2048, 16, 256, 1))
    parts = {
        "proxy": "fence.proxy.async.shared::cta;",
        "body": FENCE + product + COMMIT + wait_group(),
        "end": "bar.sync 0; st.shared.b32 [%r10], %r3; st.shared.b32 [%r10+2048], %r3;",
    }
    parts = {**parts, **{k: v.replace("PRODUCT", product) for k, v in changes.items()}}
    return function("{" + OPERANDS.format(**parts) + "}", threads=128, smem=8192)


def test_operands_of_a_wgmma_are_in_use_until_it_is_waited_for():
    hopper(check)
    late = "bar.sync 0; st.shared.b32 [%r10], %r3;" + wait_group()
    found = hopper(faults, body=FENCE + "PRODUCT" + COMMIT, end=late)
    assert found
    assert all("a wgmma.wait_group of the first warp" in f.missing for f in found)


def test_a_wgmma_needs_a_proxy_fence():
    found = hopper(faults, proxy="")
    assert found
    assert all("fence.proxy.async" in f.missing for f in found)


def test_a_wgmma_in_flight_at_the_end():
    (found,) = hopper(faults, body=FENCE + "PRODUCT" + COMMIT, end="")
    assert "no wgmma.wait_group covers it" in found.message
    assert found.count == 4  # warps
