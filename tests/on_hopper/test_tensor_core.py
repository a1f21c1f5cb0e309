"""The software tensor core: rewritten kernels in the emulator, against numpy."""

import numpy as np
import pytest

from fa4.on_hopper import workspace as ws
from fa4.on_hopper.modes import Modes
from tests.emulator.operands import layout, random_bf16
from tests.emulator.ptx_kernels import aligned, wait
from tests.emulator.test_mma import A_PLACE, B_PLACE, descriptor, instruction, mma
from tests.on_hopper.kernels import dump, run

COPY = """mad.wide.u32 %d0, %r99, 16, %d50; mad.lo.u32 %r4, %r99, 16, %r1; mov.u32 %r5, 0;
COPY: ld.global.v4.b32 {%r6, %r7, %r8, %r9}, [%d0];
st.shared.v4.b32 [%r4+1024], {%r6, %r7, %r8, %r9};
add.u64 %d0, %d0, 2048; add.u32 %r4, %r4, 2048; add.u32 %r5, %r5, 2048;
setp.lt.u32 %p2, %r5, 65536; @%p2 bra COPY;
fence.proxy.async.shared::cta; bar.sync 0;
"""
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];\n"
EVERYTHING = Modes(skew=10.0, defer=True, lazy=True, poison=True)


def multiply(a, b, issue, extra="", modes=EVERYTHING, kind="early"):
    """Runs MMAs on the bytes `a` and `b`; returns D as (column, lane) and the fault words."""
    image = aligned(65536)
    image[: len(a)], image[32768 : 32768 + len(b)] = a, b
    out = np.zeros((256, 128), np.uint32)
    body = f"{COPY}{extra} @!%p1 bra ISSUED; {issue}{COMMIT} ISSUED: {wait('%r10', 0, 'W')}"
    workspace = run(body + dump(256), image, out, modes=modes, kind=kind, smem=1024 + 65536 + 1024)
    assert workspace[ws.OWNER // 4] == 0, "the tensor memory is free again"
    return out.view(np.float32), workspace[ws.FAULT // 4 : ws.FAULT // 4 + 4]


@pytest.mark.parametrize("b_mn", [0, 1])
@pytest.mark.parametrize("a_mn", [0, 1])
@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_layouts(swizzle, a_mn, b_mn):
    (a_bits, a), (b_bits, b) = random_bf16(128, 16, 1), random_bf16(64, 16, 2)
    a_memory, *a_strides = layout(a_bits, swizzle, a_mn)
    b_memory, *b_strides = layout(b_bits, swizzle, b_mn)
    issue = mma(
        "f16",
        descriptor(A_PLACE, *a_strides, swizzle),
        descriptor(B_PLACE, *b_strides, swizzle),
        instruction(128, 64, a_mn=a_mn, b_mn=b_mn),
    )
    out, fault = multiply(a_memory, b_memory, issue)
    np.testing.assert_allclose(out[:64], b @ a.T, rtol=1e-5, atol=1e-5)
    assert np.isnan(out[64:]).all(), "nothing else is written"
    assert not fault.any()


@pytest.mark.parametrize("kind", ["early", "late", "random"])
@pytest.mark.parametrize("n", [16, 112, 256])
def test_sizes_accumulation_and_order(n, kind):
    (a_bits, a), (b_bits, b) = random_bf16(128, 16, 3), random_bf16(n, 16, 4)
    a_memory, *a_strides = layout(a_bits, 3)
    b_memory, *b_strides = layout(b_bits, 3)
    places = descriptor(A_PLACE, *a_strides, 3), descriptor(B_PLACE, *b_strides, 3)
    issue = "".join(
        mma("f16", *places, instruction(128, n), accumulate=str(int(i > 0))) for i in range(3)
    )
    out, fault = multiply(a_memory, b_memory, issue, kind=kind)
    np.testing.assert_allclose(out[:n], 3 * (b @ a.T), rtol=1e-5, atol=1e-5)
    assert not fault.any()


def test_float16():
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((rows, 16)).astype(np.float16) for rows in (128, 32))
    (a_memory, *a_strides), (b_memory, *b_strides) = layout(a, 3), layout(b, 3)
    places = descriptor(A_PLACE, *a_strides, 3), descriptor(B_PLACE, *b_strides, 3)
    out, _ = multiply(a_memory, b_memory, mma("f16", *places, instruction(128, 32, a=0, b=0)))
    expected = b.astype(np.float32) @ a.astype(np.float32).T
    np.testing.assert_allclose(out[:32], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("modes", [Modes(), EVERYTHING], ids=["plain", "everything"])
def test_operand_from_tensor_memory(modes):
    (a_bits, a), (b_bits, b) = random_bf16(128, 16, 1), random_bf16(64, 16, 2)
    b_memory, *b_strides = layout(b_bits, 3)
    extra = "mad.wide.u32 %d7, %r99, 32, %d50;\n"
    for column in range(8):
        extra += f"ld.global.b32 %r{20 + column}, [%d7+{4 * column}];\n"
    values = ", ".join(f"%r{20 + column}" for column in range(8))
    extra += f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r3+128], {{{values}}};\n"
    extra += "tcgen05.wait::st.sync.aligned; bar.sync 0;"
    issue = f"""mov.b64 %d6, {descriptor(B_PLACE, *b_strides, 3)};
    mov.b32 %r11, {instruction(128, 64)}; setp.ne.u32 %p5, 0, 0; add.u32 %r12, %r2, 128;
    tcgen05.mma.cta_group::1.kind::f16 [%r2], [%r12], %d6, %r11, %p5;\n"""
    out, _ = multiply(a_bits.view(np.uint8).reshape(-1), b_memory, issue, extra, modes)
    np.testing.assert_allclose(out[:64], b @ a.T, rtol=1e-5, atol=1e-5)


def test_more_mmas_than_the_ring_holds():
    (a_bits, a), (b_bits, b) = random_bf16(128, 16, 1), random_bf16(16, 16, 2)
    (a_memory, *a_strides), (b_memory, *b_strides) = layout(a_bits, 3), layout(b_bits, 3)
    places = descriptor(A_PLACE, *a_strides, 3), descriptor(B_PLACE, *b_strides, 3)
    count = ws.ENTRIES + 10
    issue = f"""mov.u32 %r70, 0; setp.ne.u32 %p9, 0, 0;
MANY: {mma("f16", *places, instruction(128, 16), accumulate="%r70")}
add.u32 %r70, %r70, 1; setp.lt.u32 %p8, %r70, {count}; @%p8 bra MANY;"""
    out, _ = multiply(a_memory, b_memory, issue)
    np.testing.assert_allclose(out[:16], count * (b @ a.T), rtol=1e-4, atol=1e-3)


WRONG = {
    "M 64": (instruction(64, 64), 3, 1),
    "negation": (instruction(128, 64, negate=1), 3, 1),
    "N 24": (instruction(128, 24), 3, 1),
    "D float16": (instruction(128, 64, d=0), 3, 1),
    "two formats": (instruction(128, 64, a=0, b=1), 3, 1),
    "no version in the descriptor": (instruction(128, 64), 3 | 1 << 50, 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_it_cannot_do_is_reported(name):
    idesc, swizzle, code = WRONG[name]
    memory, *strides = layout(random_bf16(128, 16, 1)[0], 3)
    a, b = descriptor(A_PLACE, *strides, 3), descriptor(B_PLACE, *strides, 3)
    a ^= swizzle & ~3
    _, fault = multiply(memory, memory, mma("f16", a, b, idesc))
    assert fault[0] == code
    details = [int(word) for word in fault[1:]]
    assert details[0] == (idesc if code == 1 else a & 0xFFFFFFFF)
    assert "covered" in ws.FAULTS[code].format(*details)


def test_a_second_warp_that_issues_is_reported():
    memory, *strides = layout(random_bf16(128, 16, 1)[0], 3)
    place = descriptor(A_PLACE, *strides, 3)
    both = mma("f16", place, place, instruction(128, 16))
    second = f"bar.sync 0; setp.eq.u32 %p7, %r99, 64; @!%p7 bra ONE; {both} ONE: bar.sync 0;"
    _, fault = multiply(memory, memory, both, second)
    assert fault.tolist() == [3, 0, 2, 0]
    assert "warp 0 issues" in ws.FAULTS[3].format(*fault[1:].tolist())
