"""Float32 arithmetic as PTX defines it, on numpy arrays with one element per lane.

ex2, lg2, rcp and the like are numpy's float32 functions, not the hardware's approximations:
results agree to the last bits, not bit for bit with silicon.
"""

import numpy as np

F4, F8, U4, U8 = np.float32, np.float64, np.uint32, np.uint64
_TINY = F4(2.0**-126)
_LARGEST = np.finfo(F4).max


def ftz(x: np.ndarray) -> np.ndarray:
    """Flushes subnormals to zero of the same sign."""
    return np.where(np.abs(x) < _TINY, np.copysign(F4(0), x), x)


def round_exact(exact: np.ndarray, error: np.ndarray | None, mode: str) -> np.ndarray:
    """Rounds exact + error (float64, error below an ulp of exact) to float32 by rm, rp or rz."""
    nearest = exact.astype(F4)
    excess = nearest.astype(F8) - exact
    if error is not None:
        excess = np.where(excess == 0, -error, excess)
    if mode == "rz":
        toward = F4(0)
        wrong = np.where(exact > 0, excess > 0, excess < 0)
    else:
        toward = F4(-np.inf if mode == "rm" else np.inf)
        wrong = excess > 0 if mode == "rm" else excess < 0
    return np.where(wrong, np.nextafter(nearest, toward), nearest)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b rounded, and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def add_directed(a: np.ndarray, b: np.ndarray, mode: str) -> np.ndarray:
    """add.rm, add.rp, add.rz in float32."""
    total, error = _two_sum(a, b)
    if mode == "rm":
        wrong, toward = error < 0, F4(-np.inf)
    elif mode == "rp":
        wrong, toward = error > 0, F4(np.inf)
    else:
        wrong, toward = error * total < 0, F4(0)
    result = np.where(wrong, np.nextafter(total, toward), total)
    if np.count_nonzero(np.isinf(total)):
        result = _overflow(result, np.isfinite(a) & np.isfinite(b), mode)
    return result


def _overflow(result: np.ndarray, finite: np.ndarray, mode: str) -> np.ndarray:
    """A finite sum that overflows stays at the largest number when rounded away from infinity."""
    if mode in ("rm", "rz"):
        result = np.where(finite & (result == np.inf), _LARGEST, result)
    if mode in ("rp", "rz"):
        result = np.where(finite & (result == -np.inf), -_LARGEST, result)
    return result


def mul_directed(a: np.ndarray, b: np.ndarray, mode: str) -> np.ndarray:
    """mul.rm, mul.rp, mul.rz in float32."""
    return round_exact(a.astype(F8) * b.astype(F8), None, mode)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """fma.rn in float32: the product is exact in float64; the sum is rounded twice."""
    return (a.astype(F8) * b.astype(F8) + c.astype(F8)).astype(F4)


def fma_directed(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str) -> np.ndarray:
    """fma.rm, fma.rp, fma.rz in float32."""
    total, error = _two_sum(a.astype(F8) * b.astype(F8), c.astype(F8))
    return round_exact(total, error, mode)


def lg2_ftz(x: np.ndarray) -> np.ndarray:
    return np.log2(ftz(x))


def rcp_ftz(x: np.ndarray) -> np.ndarray:
    return ftz(F4(1) / ftz(x))


def rsqrt(x: np.ndarray) -> np.ndarray:
    return (1.0 / np.sqrt(x.astype(F8))).astype(F4)


def nan_max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """max.NaN: NaN when either is NaN."""
    return np.maximum(a, b)


def to_integer(x: np.ndarray, rounding: str, low: int, high: int, dtype: type) -> np.ndarray:
    """cvt from float to integer: rounds, saturates, NaN becomes 0."""
    step = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding]
    value = step(x.astype(F8))
    inside = np.where((value >= low) & (value < float(high)), value, 0)
    result = inside.astype(dtype)
    result = np.where(value >= float(high), dtype(high), result)
    return np.where(value < low, dtype(low), result)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer div: truncates. A zero divisor gives all ones, as PTX leaves it open."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        remainder = a - quotient * safe
        quotient = quotient + ((remainder != 0) & ((remainder < 0) != (a < 0))).astype(a.dtype)
    return np.where(zero, ~np.zeros_like(quotient), quotient)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer rem: sign of the dividend; a zero divisor gives the dividend."""
    return np.where(b == 0, a, a - divide(a, b) * b)


def mul_hi64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Upper half of an unsigned 64 x 64 product."""
    half, low = U8(32), U8(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    middle = a_high * b_low + (a_low * b_low >> half)
    other = a_low * b_high + (middle & low)
    return a_high * b_high + (middle >> half) + (other >> half)


def mul_hi64_signed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Upper half of a signed 64 x 64 product, on uint64 bit patterns."""
    high = mul_hi64(a, b)
    zero = U8(0)
    high = high - np.where(a.view(np.int64) < 0, b, zero)
    return high - np.where(b.view(np.int64) < 0, a, zero)


def shift_left(a: np.ndarray, count: np.ndarray) -> np.ndarray:
    """shl: counts at or above the width give 0."""
    width = a.dtype.itemsize * 8
    shifted = a << np.minimum(count, U4(width - 1)).astype(a.dtype)
    return np.where(count >= U4(width), a.dtype.type(0), shifted)


def shift_right(a: np.ndarray, count: np.ndarray) -> np.ndarray:
    """shr: counts are clamped to the width; signed types fill with the sign."""
    width = a.dtype.itemsize * 8
    if a.dtype.kind == "i":
        return a >> np.minimum(count, U4(width - 1)).astype(a.dtype)
    shifted = a >> np.minimum(count, U4(width - 1)).astype(a.dtype)
    return np.where(count >= U4(width), a.dtype.type(0), shifted)


def funnel(low: np.ndarray, high: np.ndarray, count: np.ndarray, left: bool, wrap: bool):
    """shf.l / shf.r on the 64-bit value high:low."""
    amount = (count & U4(31) if wrap else np.minimum(count, U4(32))).astype(U8)
    both = low.astype(U8) | (high.astype(U8) << U8(32))
    if left:
        return ((both << amount) >> U8(32)).astype(U4)
    return (both >> amount).astype(U4)


def permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """prmt in its default mode: byte selection with optional sign replication."""
    pool = a.astype(U8) | (b.astype(U8) << U8(32))
    result = np.zeros_like(a)
    for position in range(4):
        nibble = (selector >> U4(4 * position)) & U4(15)
        byte = ((pool >> ((nibble & U4(7)) * U4(8)).astype(U8)) & U8(0xFF)).astype(U4)
        sign = np.where(byte & U4(0x80), U4(0xFF), U4(0))
        result |= np.where(nibble & U4(8), sign, byte) << U4(8 * position)
    return result


def bit_reverse(a: np.ndarray) -> np.ndarray:
    size = a.dtype.itemsize
    bits = np.unpackbits(a.view(np.uint8).reshape(-1, size), axis=1, bitorder="little")
    flipped = np.packbits(bits[:, ::-1], axis=1, bitorder="little")
    return np.ascontiguousarray(flipped).view(a.dtype).reshape(-1)


def leading_zeros(a: np.ndarray) -> np.ndarray:
    """clz of uint32 or uint64, as uint32."""
    width = a.dtype.itemsize * 8
    filled = a
    step = 1
    while step < width:
        filled = filled | (filled >> a.dtype.type(step))
        step *= 2
    return U4(width) - np.bitwise_count(filled).astype(U4)


def find_leading_bit(a: np.ndarray) -> np.ndarray:
    """bfind: position of the highest set bit (of ~a for negative signed), all ones if none."""
    bits = a.view(f"u{a.dtype.itemsize}")
    if a.dtype.kind == "i":
        bits = np.where(a < 0, ~bits, bits)
    return U4(a.dtype.itemsize * 8 - 1) - leading_zeros(bits)


def extract_bits(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """bfe on uint32/int32/uint64/int64."""
    width = a.dtype.itemsize * 8
    begin, count = (start & U4(0xFF)).astype(np.int64), (length & U4(0xFF)).astype(np.int64)
    end = np.minimum(begin + count, width)
    unsigned = a.view(f"u{a.dtype.itemsize}").astype(U8)
    taken = np.maximum(end - begin, 0)
    mask = np.where(taken >= 64, ~U8(0), (U8(1) << np.minimum(taken, 63).astype(U8)) - U8(1))
    field = np.where(begin < width, unsigned >> np.minimum(begin, 63).astype(U8), U8(0)) & mask
    if a.dtype.kind == "i":
        top = np.clip(np.minimum(begin + count - 1, width - 1), 0, 63).astype(U8)
        negative = ((unsigned >> top) & U8(1) != 0) & (count > 0)
        field = np.where(negative, field | ~mask, field)
    return field.astype(f"u{a.dtype.itemsize}").view(a.dtype)


def insert_bits(field: np.ndarray, base: np.ndarray, start: np.ndarray, length: np.ndarray):
    """bfi on uint32 or uint64."""
    width = field.dtype.itemsize * 8
    begin, count = (start & U4(0xFF)).astype(np.int64), (length & U4(0xFF)).astype(np.int64)
    count = np.clip(np.minimum(count, width - begin), 0, 64)
    ones = np.where(count >= 64, ~U8(0), (U8(1) << np.minimum(count, 63).astype(U8)) - U8(1))
    shift = np.minimum(begin, 63).astype(U8)
    mask = np.where(begin < width, ones << shift, U8(0))
    merged = (base.astype(U8) & ~mask) | ((field.astype(U8) << shift) & mask)
    return merged.astype(field.dtype)
