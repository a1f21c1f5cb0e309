"""Integer and float instructions, lane by lane, against Python's own arithmetic."""

import math
import random
import struct

import numpy as np
import pytest

from tests.emulator.ptx_kernels import each, run

M32 = 0xFFFFFFFF
LANES = 128


def words(seed=0, count=LANES):
    generator = random.Random(seed)
    edges = [0, 1, 2, 31, 32, 33, 63, 64, 0x7FFFFFFF, 0x80000000, M32, 0xFFFF, 0x8000, 255]
    values = edges + [generator.getrandbits(32) for _ in range(count - len(edges))]
    generator.shuffle(values)
    return np.array(values, np.uint32)


def signed(value, bits=32):
    return value - (1 << bits) if value >> (bits - 1) else value


def floats(seed=0, count=LANES, scale=8.0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(count) * scale ** generator.integers(-4, 5, count)
    values[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-140]
    return values.astype(np.float32)


def lop3(a, b, c, table=0xCA):
    result = 0
    for bit in range(32):
        row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        result |= (table >> row & 1) << bit
    return result


def prmt(a, b, s):
    pool = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for k in range(4):
        nibble = s >> 4 * k & 15
        byte = pool[nibble & 7]
        byte = (255 if byte & 128 else 0) if nibble & 8 else byte
        result |= byte << 8 * k
    return result


def bfe_unsigned(a, start, length):
    start, length = start & 255, length & 255
    return a >> start & ((1 << length) - 1)


def bfe_signed(a, start, length):
    start, length = start & 255, length & 255
    if length == 0:
        return 0
    top = a >> min(start + length - 1, 31) & 1
    result = 0
    for i in range(32):
        inside = i < length and start + i < 32
        result |= (a >> start + i & 1 if inside else top) << i
    return result


def bfi(a, b, start, length):
    start, length = start & 255, length & 255
    for i in range(length):
        if start + i < 32:
            b = b & ~(1 << start + i) | (a >> i & 1) << start + i
    return b


def div_trunc(a, b):
    return M32 if b == 0 else math.trunc(signed(a) / signed(b)) & M32


def shift(value, count, left):
    count = min(count, 64)
    return value << count & M32 if left else value >> count


INTEGER = {
    "add.u32 %y, %x0, %x1;": lambda a, b, c: a + b,
    "sub.s32 %y, %x0, %x1;": lambda a, b, c: a - b,
    "mul.lo.u32 %y, %x0, %x1;": lambda a, b, c: a * b,
    "mul.hi.u32 %y, %x0, %x1;": lambda a, b, c: a * b >> 32,
    "mul.hi.s32 %y, %x0, %x1;": lambda a, b, c: signed(a) * signed(b) >> 32,
    "mad.lo.s32 %y, %x0, %x1, %x2;": lambda a, b, c: a * b + c,
    "div.u32 %y, %x0, %x1;": lambda a, b, c: a // b if b else M32,
    "rem.u32 %y, %x0, %x1;": lambda a, b, c: a % b if b else a,
    "div.s32 %y, %x0, %x1;": lambda a, b, c: div_trunc(a, b),
    "rem.s32 %y, %x0, %x1;": lambda a, b, c: int(math.fmod(signed(a), signed(b))) if b else a,
    "min.s32 %y, %x0, %x1;": lambda a, b, c: min(signed(a), signed(b)),
    "max.u32 %y, %x0, %x1;": lambda a, b, c: max(a, b),
    "max.s32 %y, %x0, %x1;": lambda a, b, c: max(signed(a), signed(b)),
    "and.b32 %y, %x0, %x1;": lambda a, b, c: a & b,
    "xor.b32 %y, %x0, %x1;": lambda a, b, c: a ^ b,
    "not.b32 %y, %x0;": lambda a, b, c: ~a,
    "neg.s32 %y, %x0;": lambda a, b, c: -a,
    "abs.s32 %y, %x0;": lambda a, b, c: abs(signed(a)),
    "shl.b32 %y, %x0, %x1;": lambda a, b, c: shift(a, b, True),
    "shr.u32 %y, %x0, %x1;": lambda a, b, c: shift(a, b, False),
    "shr.s32 %y, %x0, %x1;": lambda a, b, c: signed(a) >> min(b, 31),
    "shl.b32 %y, %x0, 7;": lambda a, b, c: a << 7,
    "shf.l.wrap.b32 %y, %x0, %x1, %x2;": lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32,
    "shf.r.wrap.b32 %y, %x0, %x1, %x2;": lambda a, b, c: (b << 32 | a) >> (c & 31),
    "shf.r.clamp.b32 %y, %x0, %x1, %x2;": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    "lop3.b32 %y, %x0, %x1, %x2, 0xCA;": lop3,
    "prmt.b32 %y, %x0, %x1, %x2;": prmt,
    "popc.b32 %y, %x0;": lambda a, b, c: a.bit_count(),
    "clz.b32 %y, %x0;": lambda a, b, c: 32 - a.bit_length(),
    "brev.b32 %y, %x0;": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 %y, %x0;": lambda a, b, c: a.bit_length() - 1,
    "bfe.u32 %y, %x0, %x1, %x2;": bfe_unsigned,
    "bfe.s32 %y, %x0, %x1, %x2;": bfe_signed,
    "bfi.b32 %y, %x0, %x1, %x2, 9;": lambda a, b, c: bfi(a, b, c, 9),
    "cvt.s32.s8 %y, %x0;": lambda a, b, c: signed(a & 255, 8),
    "cvt.u32.u16 %y, %x0;": lambda a, b, c: a & 0xFFFF,
    "cvt.s32.s16 %y, %x0;": lambda a, b, c: signed(a & 0xFFFF, 16),
    "cvt.sat.s8.s32 %y, %x0;": lambda a, b, c: max(-128, min(127, signed(a))),
    "selp.b32 %y, %x0, %x1, 1;": lambda a, b, c: a,
    "slct.s32.s32 %y, %x0, %x1, %x2;": lambda a, b, c: a if signed(c) >= 0 else b,
}


@pytest.mark.parametrize("operation", INTEGER)
def test_integer(operation):
    a, b, c = words(1), words(2), words(3)
    got = each(operation, "u4", a, b, c, kinds=("u32", "u32"))
    expected = [
        INTEGER[operation](x, y, z) & M32
        for x, y, z in zip(*(v.tolist() for v in (a, b, c)), strict=True)
    ]
    assert got.tolist() == expected


WIDE = {
    "mul.wide.u32 %y, %x0, %x1;": lambda a, b: a * b,
    "mul.wide.s32 %y, %x0, %x1;": lambda a, b: signed(a) * signed(b),
    "mad.wide.s32 %y, %x0, %x1, 77;": lambda a, b: signed(a) * signed(b) + 77,
    "cvt.s64.s32 %y, %x0;": lambda a, b: signed(a),
    "cvt.u64.u32 %y, %x0;": lambda a, b: a,
    "mov.b64 %y, {%x0, %x1};": lambda a, b: b << 32 | a,
}


@pytest.mark.parametrize("operation", WIDE)
def test_wide(operation):
    a, b = words(1), words(2)
    got = each(operation, "u8", a, b, kinds=("u32", "u64"))
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    assert got.tolist() == [WIDE[operation](x, y) & (1 << 64) - 1 for x, y in pairs]


LONG = {
    "add.s64 %y, %x0, %x1;": lambda a, b: a + b,
    "mul.lo.s64 %y, %x0, %x1;": lambda a, b: a * b,
    "mul.hi.u64 %y, %x0, %x1;": lambda a, b: a * b >> 64,
    "mul.hi.s64 %y, %x0, %x1;": lambda a, b: signed(a, 64) * signed(b, 64) >> 64,
    "div.u64 %y, %x0, %x1;": lambda a, b: a // b if b else (1 << 64) - 1,
    "shr.u64 %y, %x0, 5;": lambda a, b: a >> 5,
    "min.s64 %y, %x0, %x1;": lambda a, b: min(signed(a, 64), signed(b, 64)),
    "or.b64 %y, %x0, %x1;": lambda a, b: a | b,
}


@pytest.mark.parametrize("operation", LONG)
def test_long(operation):
    pairs = [np.stack([words(s), words(s + 10)], 1).copy().view(np.uint64)[:, 0] for s in (1, 2)]
    got = each(operation, "u8", *(p.copy() for p in pairs), kinds=("u64", "u64"))
    values = zip(pairs[0].tolist(), pairs[1].tolist(), strict=True)
    assert got.tolist() == [LONG[operation](x, y) & (1 << 64) - 1 for x, y in values]


def exact(value):
    """A float32 result of exact rational arithmetic, rounded to nearest even."""
    return np.float32(value)


FLOAT = {
    "add.f32 %y, %x0, %x1;": lambda a, b, c: a + b,
    "sub.rn.f32 %y, %x0, %x1;": lambda a, b, c: a - b,
    "mul.f32 %y, %x0, %x1;": lambda a, b, c: a * b,
    "min.f32 %y, %x0, %x1;": np.fmin,
    "max.f32 %y, %x0, %x1;": np.fmax,
    "max.NaN.f32 %y, %x0, %x1;": np.maximum,
    "max.f32 %y, %x0, %x1, %x2;": lambda a, b, c: np.fmax(np.fmax(a, b), c),
    "neg.f32 %y, %x0;": lambda a, b, c: -a,
    "abs.f32 %y, %x0;": lambda a, b, c: np.abs(a),
    "div.rn.f32 %y, %x0, %x1;": lambda a, b, c: a / b,
    "sqrt.rn.f32 %y, %x0;": lambda a, b, c: np.sqrt(a),
    "rcp.rn.f32 %y, %x0;": lambda a, b, c: np.float32(1) / a,
    "cvt.rni.f32.f32 %y, %x0;": lambda a, b, c: np.rint(a),
    "cvt.rmi.f32.f32 %y, %x0;": lambda a, b, c: np.floor(a),
    "add.ftz.f32 %y, %x0, 0f00000000;": lambda a, b, c: np.where(
        np.abs(a) < 2.0**-126, np.float32(0) * a, a
    ),
    "cvt.sat.f32.f32 %y, %x0;": lambda a, b, c: np.where(np.isnan(a), 0, np.clip(a, 0, 1)),
}


def ternary(function, *arrays):
    with np.errstate(all="ignore"):
        try:
            return np.asarray(function(*arrays), np.float32)
        except TypeError:
            return np.asarray(function(*arrays[:2]), np.float32)


@pytest.mark.parametrize("operation", FLOAT)
def test_float(operation):
    arrays = [floats(1), np.roll(floats(2), 3), np.roll(floats(3), 7)]
    got = each(operation, "f4", *arrays, kinds=("f32", "f32"))
    function = FLOAT[operation]
    arrays = arrays if not isinstance(function, np.ufunc) else arrays[:2]
    np.testing.assert_array_equal(got, ternary(function, *arrays))


@pytest.mark.parametrize("mode", ["rn", "rm", "rp", "rz"])
@pytest.mark.parametrize("operation", ["add", "mul", "fma"])
def test_rounding_modes_against_exact_fractions(operation, mode):
    from fractions import Fraction

    a, b, c = (floats(s, scale=4.0)[8:] for s in (1, 2, 3))
    b[:20] = a[:20] * np.float32(1e-12)  # sums that a float64 cannot hold
    if operation == "add":
        c[:] = 1
    text = {"add": "%x0, %x1", "mul": "%x0, %x1", "fma": "%x0, %x1, %x2"}[operation]
    got = each(f"{operation}.{mode}.f32 %y, {text};", "f4", a, b, c, kinds=("f32", "f32"))
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        x, y, z = Fraction(x), Fraction(y), Fraction(z)
        true = {"add": x + y, "mul": x * y, "fma": x * y + z}[operation]
        below = np.nextafter(np.float32(result), np.float32(-np.inf))
        above = np.nextafter(np.float32(result), np.float32(np.inf))
        value, low, high = Fraction(result), Fraction(float(below)), Fraction(float(above))
        if mode == "rn":
            assert abs(true - value) <= min(value - low, high - value) / 2 * Fraction(10001, 10000)
        elif mode == "rm" or (mode == "rz" and true > 0):
            assert value <= true < high
        else:
            assert low < true <= value


def test_packed_pairs_match_single_operations():
    a, b, c = (floats(s, 256)[8:].copy() for s in (1, 2, 3))
    pairs = [v.view(np.uint64) for v in (a, b, c)]
    for operation in ("add.rn", "sub.rn", "mul.rn", "fma.rn", "add.rm"):
        count = 3 if operation.startswith("fma") else 2
        names = ", ".join(f"%x{i}" for i in range(count))
        got = each(f"{operation}.f32x2 %y, {names};", "u8", *pairs, kinds=("u64", "u64"))
        single = each(f"{operation}.f32 %y, {names};", "f4", a, b, c, kinds=("f32", "f32"))
        np.testing.assert_array_equal(got.view(np.float32), single)


def test_approximations_are_close_and_keep_their_special_values():
    x = floats(4)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        references = {
            "ex2.approx.ftz.f32": np.exp2(wide),
            "lg2.approx.f32": np.log2(wide),
            "rcp.approx.ftz.f32": 1 / np.where(np.abs(wide) < 2.0**-126, 0 * wide, wide),
            "rsqrt.approx.f32": 1 / np.sqrt(wide),
            "tanh.approx.f32": np.tanh(wide),
        }
        for operation, reference in references.items():
            got = each(f"{operation} %y, %x0;", "f4", x, kinds=("f32", "f32"))
            reference = np.where(np.abs(reference) < 2.0**-126, 0, reference)
            got = np.where(np.abs(got) < 2.0**-126, 0, got)
            np.testing.assert_allclose(got, reference.astype(np.float32), rtol=3e-7)


COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "gtu": lambda a, b: ~(a <= b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


@pytest.mark.parametrize("relation", COMPARE)
def test_float_comparisons(relation):
    a = floats(1)
    b = np.roll(floats(1), 3)
    b[40:80] = a[40:80]
    operation = f"setp.{relation}.f32 %p0, %x0, %x1; selp.b32 %y, 1, 0, %p0;"
    got = each(operation, "u4", a, b, kinds=("f32", "u32"))
    np.testing.assert_array_equal(got.astype(bool), COMPARE[relation](a, b))


def test_setp_with_two_destinations_and_a_combination():
    a, b = words(1), words(2)
    operation = """setp.hi.u32 %p2, %x0, 100; setp.lt.and.u32 %p0|%p1, %x0, %x1, %p2;
    selp.b32 %r1, 1, 0, %p0; selp.b32 %r2, 2, 0, %p1; or.b32 %y, %r1, %r2;"""
    got = each(operation, "u4", a, b, kinds=("u32", "u32"))
    other = a > 100
    expected = ((a < b) & other) * 1 | (~(a < b) & other) * 2
    np.testing.assert_array_equal(got, expected)


def nearest_bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    low, upper = bits & 0xFFFF, bits >> 16
    return upper + (low > 0x8000 or (low == 0x8000 and upper & 1))


def with_ties(x):
    """Some values halfway between two bf16 numbers, below an even and below an odd one."""
    bits = x.copy().view(np.uint32)
    bits[:40] = bits[:40] & 0xFFFF0000 | 0x8000
    return bits.view(np.float32)


def test_conversions_to_16_bits():
    high, low = with_ties(floats(5)[8:]), with_ties(floats(6)[8:])
    single = each("cvt.rn.bf16.f32 %h1, %x0; mov.b16 %y, %h1;", "u2", high, kinds=("f32", "b16"))
    assert single.tolist() == [nearest_bf16(h) for h in high.tolist()]
    got = each("cvt.rn.bf16x2.f32 %y, %x0, %x1;", "u4", high, low, kinds=("f32", "b32"))
    pairs = zip(high.tolist(), low.tolist(), strict=True)
    assert got.tolist() == [nearest_bf16(h) << 16 | nearest_bf16(n) for h, n in pairs]
    got = each("cvt.rn.f16x2.f32 %y, %x0, %x1;", "u4", high, low, kinds=("f32", "b32"))
    with np.errstate(over="ignore"):
        halves = [v.astype(np.float16).view(np.uint16).astype(np.uint32) for v in (high, low)]
    np.testing.assert_array_equal(got, halves[0] << 16 | halves[1])


def test_nan_survives_bf16():
    x = np.array([np.nan, np.inf, -np.inf, 1.0] * 8, np.float32)
    got = each("cvt.rn.bf16x2.f32 %y, %x0, %x0;", "u4", x, kinds=("f32", "b32"))
    back = (got << np.uint32(16)).view(np.float32)
    np.testing.assert_array_equal(back, x)


def test_fp8_round_trip_and_saturation():
    x = np.array([0, 1, -1.0625, 447, 1e9, -1e9, 2.0**-9, 3.3] * 4, np.float32)
    got = each(
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %x0, %x0; mov.b16 %y, %h1;", "u2", x, kinds=("f32", "b16")
    )
    assert [hex(v & 255) for v in got.tolist()[:8]] == [
        "0x0",
        "0x38",
        "0xb8",
        "0x7e",
        "0x7e",
        "0xfe",
        "0x1",
        "0x45",
    ]
    codes = got.copy()
    halves = each("cvt.rn.f16x2.e4m3x2 %y, %x0;", "u4", codes, kinds=("b16", "b32"))
    back = (halves & 0xFFFF).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(
        back[:8], np.array([0, 1, -1, 448, 448, -448, 2.0**-9, 3.25], np.float16)
    )


def test_float_to_integer_saturates():
    x = np.array([np.nan, 3e9, -3e9, 2.5, -2.5, 2147483520.0, -0.5, 1e20] * 4, np.float32)
    got = each("cvt.rzi.s32.f32 %y, %x0;", "i4", x, kinds=("f32", "s32"))
    assert got[:8].tolist() == [0, 2**31 - 1, -(2**31), 2, -2, 2147483520, 0, 2**31 - 1]
    got = each("cvt.rni.u32.f32 %y, %x0;", "u4", x, kinds=("f32", "u32"))
    assert got[:8].tolist() == [0, 3000000000, 0, 2, 0, 2147483520, 0, 2**32 - 1]


def test_unwritten_registers_are_nan():
    out = np.zeros(32, np.float32)
    run(
        "mad.wide.u32 %d0, %r99, 4, %d50; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%d0], %f2;",
        out,
    )
    assert np.isnan(out).all()


def test_mixed_precision_and_packed_halves():
    a = np.array([1.5, -2.25, 1000.0, 0.1] * 8, np.float16)
    pairs = np.repeat(a, 2).view(np.uint32)
    got = each("fma.rn.f16x2 %y, %x0, %x0, %x0;", "u4", pairs, kinds=("b32", "b32"))
    expected = (a.astype(np.float32) ** 2 + a.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(got.view(np.float16)[::2], expected)
