"""ldmatrix, stmatrix and mma.sync against numpy."""

import numpy as np
import pytest

from fa4.emulator.errors import AddressError
from tests.emulator.ptx_kernels import run

SHARED = """mov.u32 %r1, smem; mad.lo.u32 %r2, %r99, 16, %r1; mad.wide.u32 %d0, %r99, 16, %d50;
ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%d0]; st.shared.v4.b32 [%r2], {%r3, %r4, %r5, %r6};
bar.sync 0;
"""
DUMP = "mad.wide.u32 %d1, %r99, 16, %d51; st.global.v4.b32 [%d1], {%r10, %r11, %r12, %r13};"


@pytest.mark.parametrize("transpose", [False, True])
def test_ldmatrix(transpose):
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    out = np.zeros((32, 4), np.uint32)
    trans = ".trans" if transpose else ""
    body = (
        SHARED
        + f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r2];"
    )
    run(body + DUMP, matrices, out, smem=1024)
    pairs = out.view(np.uint16).reshape(32, 4, 2)
    for lane in range(32):
        for matrix in range(4):
            source = matrices[matrix].T if transpose else matrices[matrix]
            expected = source[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            assert pairs[lane, matrix].tolist() == expected.tolist()


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_is_the_inverse(trans):
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    out = np.zeros((32, 4), np.uint32)
    names = "{%r10, %r11, %r12, %r13}"
    body = (
        SHARED
        + f"""ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {names}, [%r2];
    stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r2+512], {names}; bar.sync 0;
    ld.shared.v4.b32 {names}, [%r2+512];"""
    )
    run(body + DUMP, matrices, out, smem=2048)
    np.testing.assert_array_equal(out.view(np.uint16).reshape(4, 8, 8), matrices)


def test_rows_must_be_aligned():
    with pytest.raises(AddressError, match="16-byte aligned"):
        run("mov.u32 %r1, smem; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1+8];", smem=64)


FORMATS = {  # shape, elements of K, bytes, numpy type to round to
    "bf16": ("m16n8k16", 16, 2),
    "f16": ("m16n8k8", 8, 2),
    "tf32": ("m16n8k8", 8, 4),
    "s8": ("m16n8k32", 32, 1),
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_mma(fmt):
    shape, k, size = FORMATS[fmt]
    generator = np.random.default_rng(1)
    a, b = (generator.integers(-8, 8, (rows, k)) for rows in (16, 8))
    c = generator.integers(-8, 8, (16, 8))
    if fmt == "bf16":
        raw = [(m.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for m in (a, b)]
    else:
        dtype = {"f16": np.float16, "tf32": np.float32, "s8": np.int8}[fmt]
        raw = [m.astype(dtype) for m in (a, b)]
    words = [np.ascontiguousarray(m).view(np.uint32).reshape(m.shape[0], -1) for m in raw]
    result = "s32" if fmt == "s8" else "f32"
    counts = (k * size // 8, k * size // 16)
    inputs, out = np.zeros((32, 12), np.uint32), np.zeros((32, 4), np.uint32)
    c_words = c.astype(np.int32 if fmt == "s8" else np.float32).view(np.uint32)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for r in range(counts[0]):
            inputs[lane, r] = words[0][g + 8 * (r % 2), t + 4 * (r // 2)]
        for r in range(counts[1]):
            inputs[lane, 4 + r] = words[1][g, t + 4 * r]
        for r in range(4):
            inputs[lane, 8 + r] = c_words[g + 8 * (r // 2), 2 * t + r % 2]
    names = [
        ", ".join(f"%r{20 + s + i}" for i in range(n))
        for s, n in ((0, counts[0]), (4, counts[1]), (8, 4))
    ]
    body = "mad.wide.u32 %d0, %r99, 48, %d50;"
    body += "".join(f"ld.global.b32 %r{20 + i}, [%d0+{4 * i}];" for i in range(12))
    body += f"""mma.sync.aligned.{shape}.row.col.{result}.{fmt}.{fmt}.{result}
    {{%r10, %r11, %r12, %r13}}, {{{names[0]}}}, {{{names[1]}}}, {{{names[2]}}};"""
    run(body + DUMP, inputs, out)
    expected = (a @ b.T + c).astype(np.int32 if fmt == "s8" else np.float32)
    for lane in range(32):
        g, t = divmod(lane, 4)
        got = out[lane].view(expected.dtype)
        for r in range(4):
            assert got[r] == expected[g + 8 * (r // 2), 2 * t + r % 2]
