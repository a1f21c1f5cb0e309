"""tcgen05.mma, cp and commit against numpy; descriptors that PTX forbids."""

import numpy as np
import pytest

from fa4.emulator.errors import DescriptorError, TensorMemoryError, UnsupportedInstruction
from fa4.emulator.formats import E4M3, E5M2
from fa4.emulator.program import Schedule
from tests.emulator.operands import layout, product, random_bf16
from tests.emulator.ptx_kernels import KINDS, aligned, run, wait

A_PLACE, B_PLACE = 1024, 1024 + 32768  # offsets in dynamic shared memory
WIDTH = {0: 0, 1: 6, 2: 4, 3: 2}  # log2 of swizzled units -> descriptor field


def descriptor(offset, leading, stride, swizzle):
    start = (1024 + offset) >> 4  # dynamic memory starts behind 1 KB of the system
    value = start | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46
    return value | WIDTH[swizzle] << 61


def places(strides, swizzle=3):
    """Descriptors of A and B."""
    return (
        descriptor(A_PLACE, *strides[0], swizzle),
        descriptor(B_PLACE, *strides[1], swizzle),
    )


def instruction(m, n, a=1, b=1, d=1, negate=0, a_mn=0, b_mn=0):
    return (
        d << 4
        | a << 7
        | b << 10
        | negate << 13
        | a_mn << 15
        | b_mn << 16
        | n >> 3 << 17
        | m >> 4 << 24
    )


KERNEL = """mov.u32 %r1, smem; shr.u32 %r90, %r99, 5; setp.eq.u32 %p20, %r90, 0;
setp.eq.u32 %p1, %r99, 0; mov.u32 %r80, %cluster_ctarank; @!%p20 bra ALLOCATED;
tcgen05.alloc.cta_group::{pair}.sync.aligned.shared::cta.b32 [%r1], 256;
ALLOCATED: mul.wide.u32 %d20, %r80, 65536; add.u64 %d20, %d20, %d50;
mad.wide.u32 %d0, %r99, 16, %d20; mad.lo.u32 %r4, %r99, 16, %r1; mov.u32 %r5, 0;
COPY: ld.global.v4.b32 {{%r6, %r7, %r8, %r9}}, [%d0];
st.shared.v4.b32 [%r4+1024], {{%r6, %r7, %r8, %r9}};
add.u64 %d0, %d0, 2048; add.u32 %r4, %r4, 2048; add.u32 %r5, %r5, 2048;
setp.lt.u32 %p2, %r5, 65536; @%p2 bra COPY;
@%p1 mbarrier.init.shared.b64 [%r1+8], 1;
fence.proxy.async.shared::cta; bar.sync 0; barrier.cluster.arrive; barrier.cluster.wait;
ld.shared.u32 %r2, [%r1]; shl.b32 %r91, %r90, 21; add.u32 %r3, %r2, %r91; add.u32 %r10, %r1, 8;
setp.eq.u32 %p3, %r80, 0; and.pred %p4, %p1, %p3;
{extra}
@!%p4 bra ISSUED;
{issue}
{commit}
ISSUED: {waiting}
mad.wide.u32 %d3, %r99, 4, %d51; mul.wide.u32 %d4, %r80, 131072; add.u64 %d3, %d3, %d4;
mov.u32 %r5, 0;
DUMP: tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r6}}, [%r3]; tcgen05.wait::ld.sync.aligned;
st.global.b32 [%d3], %r6; add.u64 %d3, %d3, 512; add.u32 %r3, %r3, 1; add.u32 %r5, %r5, 1;
setp.lt.u32 %p2, %r5, 256; @%p2 bra DUMP;
bar.sync 0; @!%p20 bra FREED; tcgen05.dealloc.cta_group::{pair}.sync.aligned.b32 %r2, 256;
FREED: barrier.cluster.arrive; barrier.cluster.wait;
"""


def execute(operands, issue, *, pair=1, extra="", kind="early"):
    """Runs MMAs on `operands` (A, B in shared memory, per CTA); returns (cta, column, lane)."""
    image = aligned(65536 * pair)
    for number, (a, b) in enumerate(operands):
        image[65536 * number : 65536 * number + 32768] = a
        image[65536 * number + 32768 : 65536 * (number + 1)] = b
    out = np.zeros((pair, 256, 128), np.uint32)
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];"
    if pair == 2:
        commit = """mov.b16 %h1, 3;
        tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
        [%r10], %h1;"""
    body = KERNEL.format(
        pair=pair, extra=extra, issue=issue, commit=commit, waiting=wait("%r10", 0, "W")
    )
    run(
        body,
        image,
        out,
        threads=128,
        ctas=pair,
        cluster=pair,
        smem=1024 + 65536 + 1024,
        schedule=Schedule(kind, 1),
    )
    return out


def mma(kind, a, b, idesc, accumulate="0", pair=1):
    return f"""mov.b64 %d5, {a}; mov.b64 %d6, {b}; mov.b32 %r11, {idesc};
    setp.ne.u32 %p5, {accumulate}, 0;
    tcgen05.mma.cta_group::{pair}.kind::{kind} [%r2], %d5, %d6, %r11, %p5;\n"""


@pytest.mark.parametrize("b_mn", [0, 1])
@pytest.mark.parametrize("a_mn", [0, 1])
@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_layouts(swizzle, a_mn, b_mn):
    memory, strides, expected = product(128, 64, swizzle, (a_mn, b_mn))
    issue = mma("f16", *places(strides, swizzle), instruction(128, 64, a_mn=a_mn, b_mn=b_mn))
    out = execute([memory], issue)[0].view(np.float32)
    np.testing.assert_allclose(out[:64], expected.T, rtol=1e-5, atol=1e-5)
    assert np.isnan(out[64:]).all()


FORMATS = {
    "f16 x f16": ("f16", 0, 0, 2),
    "e4m3 x e5m2": ("f8f6f4", 0, 1, 1),
    "tf32": ("tf32", 2, 2, 4),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name):
    kind, a_format, b_format, size = FORMATS[name]
    generator = np.random.default_rng(3)
    if size == 1:
        codes = [generator.integers(0, 120, (r, 32)).astype(np.uint8) for r in (128, 32)]
        values = [E4M3[codes[0]], E5M2[codes[1]]]
    else:
        values = [generator.standard_normal((r, 32 // size)) for r in (128, 32)]
        dtype = np.float16 if size == 2 else np.float32
        codes = [v.astype(dtype) for v in values]
        values = [c.astype(np.float32) for c in codes]
        if size == 4:
            values = [(v.view(np.uint32) & 0xFFFFE000).view(np.float32) for v in values]
    (a_memory, *a_strides), (b_memory, *b_strides) = (layout(c, 1) for c in codes)
    where = places((a_strides, b_strides), 1)
    issue = mma(kind, *where, instruction(128, 32, a_format, b_format))
    out = execute([(a_memory, b_memory)], issue)[0].view(np.float32)
    expected = values[1].astype(np.float64) @ values[0].astype(np.float64).T
    np.testing.assert_allclose(out[:32], expected, rtol=1e-5, atol=1e-4)


def test_integers():
    generator = np.random.default_rng(4)
    a, b = (generator.integers(-128, 128, (r, 32)).astype(np.int8) for r in (128, 16))
    (a_memory, *a_strides), (b_memory, *b_strides) = (layout(c, 1) for c in (a, b))
    what = (*places((a_strides, b_strides), 1), instruction(128, 16, 1, 1, d=2))
    issue = mma("i8", *what) + mma("i8", *what, accumulate="1")
    out = execute([(a_memory, b_memory)], issue)[0].view(np.int32)
    np.testing.assert_array_equal(out[:16], 2 * (b.astype(np.int32) @ a.astype(np.int32).T))


@pytest.mark.parametrize("kind", KINDS)
def test_accumulation_negation_and_order(kind):
    memory, strides, expected = product(128, 64)
    where = places(strides)
    issue = mma("f16", *where, instruction(128, 64))
    issue += mma("f16", *where, instruction(128, 64), accumulate="1")
    issue += mma("f16", *where, instruction(128, 64, negate=1), accumulate="1")
    out = execute([memory], issue, kind=kind)[0].view(np.float32)
    np.testing.assert_allclose(out[:64], expected.T, rtol=1e-5, atol=1e-5)


def test_64_rows_lie_in_every_other_16_lanes():
    memory, strides, expected = product(64, 24)
    issue = mma("f16", *places(strides), instruction(64, 24))
    out = execute([memory], issue)[0].view(np.float32)
    rows = np.arange(64)
    lanes = rows // 16 * 32 + rows % 16
    np.testing.assert_allclose(out[:24, lanes], expected.T, rtol=1e-5, atol=1e-5)
    assert np.isnan(out[:24, 16:32]).all()


def test_operand_from_tensor_memory():
    (a_bits, a), (b_bits, b) = random_bf16(128, 16, 1), random_bf16(64, 16, 2)
    b_memory, *b_strides = layout(b_bits, 3)
    extra = "mad.wide.u32 %d7, %r99, 32, %d50;\n"
    for column in range(8):
        extra += f"ld.global.b32 %r12, [%d7+{4 * column}];\n"
        extra += f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+{128 + column}], {{%r12}};\n"
    extra += "tcgen05.wait::st.sync.aligned; bar.sync 0;"
    issue = f"""mov.b64 %d6, {descriptor(B_PLACE, *b_strides, 3)};
    mov.b32 %r11, {instruction(128, 64)}; setp.ne.u32 %p5, 0, 0;
    tcgen05.mma.cta_group::1.kind::f16 [%r2], [%r2+128], %d6, %r11, %p5;"""
    a_memory = np.zeros(32768, np.uint8)
    a_memory[: 128 * 32] = a_bits.view(np.uint8).reshape(-1)
    out = execute([(a_memory, b_memory)], issue, extra=extra)[0].view(np.float32)
    np.testing.assert_allclose(out[:64], b @ a.T, rtol=1e-5, atol=1e-5)


def test_disabled_lanes_keep_their_words():
    memory, strides, expected = product(128, 64)
    left, right = places(strides)
    issue = f"""mov.b64 %d5, {left}; mov.b64 %d6, {right}; mov.b32 %r11, {instruction(128, 64)};
    mov.b32 %r12, 0; mov.b32 %r13, 6; setp.ne.u32 %p5, 0, 0;
    tcgen05.mma.cta_group::1.kind::f16 [%r2], %d5, %d6, %r11, {{%r12, %r13, %r12, %r12}}, %p5;"""
    out = execute([memory], issue)[0].view(np.float32)
    lanes = np.arange(128)
    kept = (lanes == 33) | (lanes == 34)
    assert np.isnan(out[:64, kept]).all()
    np.testing.assert_allclose(out[:64, ~kept], expected.T[:, ~kept], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [128, 256])
def test_a_pair_of_ctas(m, kind):
    (a_bits, a), (b_bits, b) = random_bf16(m, 16, 1), random_bf16(64, 16, 2)
    half = m // 2
    operands = []
    for rank in range(2):
        a_memory, *a_strides = layout(a_bits[rank * half : (rank + 1) * half].copy(), 3)
        b_memory, *b_strides = layout(b_bits[rank * 32 : (rank + 1) * 32].copy(), 3)
        operands.append((a_memory, b_memory))
    issue = mma("f16", *places((a_strides, b_strides)), instruction(m, 64), pair=2)
    out = execute(operands, issue, pair=2, kind=kind).view(np.float32)
    for rank in range(2):
        expected = b @ a[rank * half : (rank + 1) * half].T
        if m == 128:  # 64 rows per CTA: the upper half of N in lanes 64-127
            expected = np.concatenate((expected[:32], expected[32:]), axis=1)
        got = out[rank, : len(expected)]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_copy_from_shared_memory():
    words = np.arange(128 * 8, dtype=np.uint32).reshape(128, 8)
    memory, *strides = layout(words.view(np.uint16), 0)
    issue = f"""mov.b64 %d5, {descriptor(A_PLACE, *strides, 0)};
    tcgen05.cp.cta_group::1.128x256b [%r2+16], %d5;"""
    out = execute([(memory, np.zeros(32768, np.uint8))], issue)[0]
    np.testing.assert_array_equal(out[16:24], words.T)


def attempt(a=None, idesc=None, kind="f16", place="[%r2]"):
    memory, *strides = layout(np.zeros((128, 16), np.uint16), 3)
    good = descriptor(A_PLACE, *strides, 3)
    issue = mma(
        kind,
        good if a is None else a(good),
        descriptor(B_PLACE, *strides, 3),
        instruction(128, 64) if idesc is None else idesc,
    )
    execute([(memory, memory)], issue.replace("[%r2]", place))


def test_descriptors_that_ptx_forbids():
    attempt()
    with pytest.raises(DescriptorError, match="M 96"):
        attempt(idesc=instruction(96, 64))
    with pytest.raises(DescriptorError, match="N 24"):
        attempt(idesc=instruction(128, 24))
    with pytest.raises(DescriptorError, match="A format 3"):
        attempt(idesc=instruction(128, 64, a=3))
    with pytest.raises(DescriptorError, match="bits 46-48"):
        attempt(lambda d: d & ~(7 << 46))
    with pytest.raises(DescriptorError, match="swizzle mode 3"):
        attempt(lambda d: d | 3 << 61)
    with pytest.raises(DescriptorError, match="not at a row 0 of its 128-byte swizzle"):
        attempt(lambda d: d + 8)
    with pytest.raises(DescriptorError, match="outside the CTA's memory"):
        attempt(lambda d: d | 0x3FC0)
    with pytest.raises(UnsupportedInstruction, match="sparse"):
        attempt(idesc=instruction(128, 64) | 4)
    with pytest.raises(TensorMemoryError, match=r"columns \[224, 288\)"):
        attempt(place="[%r2+224]")


def test_a_missing_wait_for_the_tensor_core_is_seen():
    memory, strides, _ = product(128, 64)
    issue = mma("f16", *places(strides), instruction(128, 64))
    image = aligned(65536)
    image[:32768], image[32768:] = memory
    out = np.zeros((256, 128), np.float32)
    body = KERNEL.format(pair=1, extra="", issue=issue, commit="", waiting="")
    run(body, image, out, threads=128, smem=1024 + 66560, schedule=Schedule("late"))
    assert np.isnan(out[:64]).all()
