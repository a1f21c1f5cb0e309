"""wgmma.mma_async against numpy: register maps, layouts in shared memory, formats, flags."""

import numpy as np
import pytest

from fa4.emulator.formats import E4M3, E5M2
from fa4.emulator.program import Schedule
from tests.emulator.operands import layout, product, random_bf16
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
    wait,
)


def agrees(found, matrix):
    np.testing.assert_allclose(found, accumulators(matrix), rtol=1e-5, atol=1e-5)


def places(a_strides, b_strides, swizzle):
    return (
        descriptor(A_PLACE, *a_strides, swizzle),
        descriptor(B_PLACE, *b_strides, swizzle),
    )


@pytest.mark.parametrize("b_mn", [0, 1])
@pytest.mark.parametrize("a_mn", [0, 1])
@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_layouts(swizzle, a_mn, b_mn):
    memory, strides, expected = product(64, 128, swizzle, (a_mn, b_mn))
    issue = mma(128, *places(*strides, swizzle), majors=(a_mn, b_mn))
    agrees(execute(FENCE + issue + COMMIT + wait(), *memory, 64), expected)


@pytest.mark.parametrize("mn_major", [0, 1])
@pytest.mark.parametrize("n", [8, 16, 40, 72, 200, 256])
def test_every_width(n, mn_major):
    swizzle = 0 if mn_major and n % 64 else 3
    (a_bits, a), (b_bits, b) = random_bf16(64, 16, 1), random_bf16(n, 16, 2)
    a_memory, *a_strides = layout(a_bits, 3)
    b_memory, *b_strides = layout(b_bits, swizzle, mn_major)
    left = descriptor(A_PLACE, *a_strides, 3)
    right = descriptor(B_PLACE, *b_strides, swizzle)
    issue = mma(n, left, right, majors=(0, mn_major))
    agrees(execute(FENCE + issue + COMMIT + wait(), a_memory, b_memory, n // 2), a @ b.T)


def operand(fmt, rows, seed):
    """Codes and float32 values of a (rows, 32 bytes) operand."""
    generator = np.random.default_rng(seed)
    if fmt == "bf16":
        return random_bf16(rows, 16, seed)
    if fmt in ("e4m3", "e5m2"):
        codes = generator.integers(0, 120, (rows, 32)).astype(np.uint8)
        return codes, (E4M3 if fmt == "e4m3" else E5M2)[codes] / np.float32(1)
    if fmt == "f16":
        codes = generator.standard_normal((rows, 16)).astype(np.float16)
        return codes, codes.astype(np.float32)
    codes = generator.standard_normal((rows, 8)).astype(np.float32)
    return codes, (codes.view(np.uint32) & 0xFFFFE000).view(np.float32)


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(
    "formats",
    [("bf16", "bf16"), ("f16", "f16"), ("tf32", "tf32"), ("e4m3", "e5m2"), ("e5m2", "e4m3")],
    ids=" x ".join,
)
def test_formats(formats, in_registers):
    (a_codes, a), (b_codes, b) = operand(formats[0], 64, 1), operand(formats[1], 32, 2)
    a_memory, *a_strides = layout(a_codes, 1)
    b_memory, *b_strides = layout(b_codes, 1)
    left, right = places(a_strides, b_strides, 1)
    body = load_left() + FENCE + mma(32, None if in_registers else left, right, formats)
    if in_registers:
        a_memory = np.zeros_like(a_memory)
    found = execute(
        body + COMMIT + wait(), a_memory, b_memory, 16, left=left_registers(a_codes)
    ).astype(np.float64)
    expected = accumulators(a.astype(np.float64) @ b.astype(np.float64).T)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4 * np.abs(expected).max())


def test_a_transposed_operand_b_beside_a_in_registers():
    (a_bits, a), (b_bits, b) = random_bf16(64, 16, 1), random_bf16(64, 16, 2)
    b_memory, *b_strides = layout(b_bits, 3, True)
    right = descriptor(B_PLACE, *b_strides, 3)
    body = load_left() + FENCE + mma(64, None, right, majors=(0, 1)) + COMMIT + wait()
    found = execute(body, np.zeros(0, np.uint8), b_memory, 32, left=left_registers(a_bits))
    agrees(found, a @ b.T)


def simple(n=64):
    """A, B in memory, the descriptors of both, and A B^T."""
    memory, strides, expected = product(64, n)
    return memory, places(*strides, 3), expected


@pytest.mark.parametrize(("signs", "factor"), [((-1, 1), -1), ((1, -1), -1), ((-1, -1), 1)])
def test_negation(signs, factor):
    memory, where, product = simple()
    body = FENCE + mma(64, *where, signs=signs) + COMMIT + wait()
    agrees(execute(body, *memory, 32), factor * product)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0, 1])
def test_scale_d_keeps_or_ignores_the_accumulator(keep, kind):
    memory, where, product = simple()
    start = "".join(f"mov.f32 %acc{i}, 0f40E00000;\n" for i in range(32))  # 7
    body = start + FENCE + mma(64, *where, keep=keep) + COMMIT + wait()
    found = execute(body, *memory, 32, schedule=Schedule(kind, 1))
    agrees(found, product + 7 * keep)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_over_two_groups_and_after_a_wait(kind):
    memory, where, product = simple()
    body = FENCE + mma(64, *where) + mma(64, *where, keep=1) + COMMIT
    body += mma(64, *where, keep=1) + COMMIT + wait()
    body += "".join(f"mul.f32 %acc{i}, %acc{i}, 0f3F000000;\n" for i in range(32))  # 1/2
    body += FENCE + mma(64, *where, keep=1, signs=(-1, 1)) + COMMIT + wait()
    found = execute(body, *memory, 32, schedule=Schedule(kind, 2))
    agrees(found, 0.5 * product)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_two_warpgroups_at_once(kind, seed):
    memory, (left, right), product = simple()
    body = "shr.u32 %r91, %r90, 2; setp.eq.u32 %p7, %r91, 0; @%p7 bra FIRST;\n"
    body += FENCE + mma(64, left, right, signs=(-1, 1)) + COMMIT + wait() + "bra END;\n"
    body += "FIRST: " + FENCE + mma(64, left, right) + COMMIT + wait() + "END:\n"
    found = execute(body, *memory, 32, threads=256, schedule=Schedule(kind, seed))
    agrees(found[:, :128], product)
    agrees(found[:, 128:], -product)


@pytest.mark.parametrize("kind", KINDS)
def test_two_warpgroups_in_step(kind):
    memory, where, product = simple()
    body = FENCE + mma(64, *where) + COMMIT + wait()
    found = execute(body, *memory, 32, threads=256, schedule=Schedule(kind, 1))
    agrees(found[:, :128], product)
    agrees(found[:, 128:], product)
