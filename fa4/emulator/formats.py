"""Narrow number formats: bf16, f16, the fp8 pair, tf32."""

import numpy as np

F2, F4, F8 = np.float16, np.float32, np.float64
U1, U2, U4 = np.uint8, np.uint16, np.uint32
_NAN_BF16 = U4(0x7FFF)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """float32 to bf16, nearest even, as uint32 holding 16 bits."""
    bits = x.view(U4)
    rounded = (bits + (U4(0x7FFF) + ((bits >> U4(16)) & U4(1)))) >> U4(16)
    nan = x != x
    return np.where(nan, _NAN_BF16, rounded) if np.count_nonzero(nan) else rounded


def bf16_pair(high: np.ndarray, low: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """cvt.rn.bf16x2.f32: two float32 to one packed word. `zero` is the constant 0x7FFF.

    The fast path rounds both words and keeps their upper halves; NaNs take the slow one.
    """
    total = high + low
    if np.count_nonzero(total != total):
        return (bf16_bits(high) << U4(16)) | bf16_bits(low)
    top, bottom = high.view(U4), low.view(U4)
    top = top + (((top >> U4(16)) & U4(1)) + zero)
    bottom = bottom + (((bottom >> U4(16)) & U4(1)) + zero)
    return (top & U4(0xFFFF0000)) | (bottom >> U4(16))


def f16_bits(x: np.ndarray) -> np.ndarray:
    """float32 to f16, nearest even, as uint32 holding 16 bits."""
    return x.astype(F2).view(U2).astype(U4)


def f16_pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """cvt.rn.f16x2.f32."""
    return (f16_bits(high) << U4(16)) | f16_bits(low)


def truncate_to_bf16(x: np.ndarray) -> np.ndarray:
    """cvt.rz to bf16, as uint32 holding 16 bits."""
    return np.where(x != x, _NAN_BF16, x.view(U4) >> U4(16))


def truncate_to_f16(x: np.ndarray) -> np.ndarray:
    """cvt.rz to f16, as uint32 holding 16 bits."""
    nearest = x.astype(F2)
    over = np.abs(nearest.astype(F4)) > np.abs(x)
    return np.where(over, np.nextafter(nearest, F2(0)), nearest).view(U2).astype(U4)


def saturate_f16(x: np.ndarray) -> np.ndarray:
    """Clamps float32 to the finite f16 range (satfinite)."""
    return np.clip(x, F4(-65504), F4(65504))


def saturate_bf16(x: np.ndarray) -> np.ndarray:
    """Clamps float32 to the finite bf16 range (satfinite)."""
    return np.clip(x, F4(-3.3895314e38), F4(3.3895314e38))


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) to float32."""
    return (bits.astype(U4) << U4(16)).view(F4)


def from_f16(bits: np.ndarray) -> np.ndarray:
    """f16 bits (uint16) to float32."""
    return bits.view(F2).astype(F4)


def to_tf32(x: np.ndarray) -> np.ndarray:
    """cvt.rna.tf32: nearest, ties away, 10 mantissa bits."""
    bits = (x.view(U4) + U4(0x1000)) & U4(0xFFFFE000)
    return np.where(x != x, U4(0x7FFFFFFF), bits).view(F4)


def _table(exponent_bits: int, mantissa_bits: int, bias: int, kind: str) -> np.ndarray:
    width = 1 + exponent_bits + mantissa_bits
    values = np.zeros(256, F4)
    for code in range(1 << width):
        exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / 2**mantissa_bits
        if exponent:
            value = (1 + fraction) * 2.0 ** (exponent - bias)
        else:
            value = fraction * 2.0 ** (1 - bias)
        if kind == "ieee" and exponent == (1 << exponent_bits) - 1:
            value = np.nan if mantissa else np.inf
        if kind == "fn" and code & 0x7F == 0x7F:
            value = np.nan
        values[code] = -value if code >> (width - 1) else value
    return values


E4M3 = _table(4, 3, 7, "fn")
E5M2 = _table(5, 2, 15, "ieee")


def fp8_bits(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """float32 to fp8 (E4M3 or E5M2), nearest even, saturating to finite, as uint16."""
    count = 0x7F if table is E4M3 else 0x7C
    positive = table[:count].astype(F8)
    size = np.minimum(np.abs(x).astype(F8), positive[-1])
    lower = np.clip(np.searchsorted(positive, size, side="right") - 1, 0, count - 2)
    middle = (positive[lower] + positive[lower + 1]) / 2
    odd = lower & 1
    code = lower + np.where(size > middle, 1, np.where(size == middle, odd, 0))
    code = np.where(x != x, 0x7F, code)
    return (code | np.where(np.signbit(x) & (x == x), 0x80, 0)).astype(U2)


def fp8_pair(high: np.ndarray, low: np.ndarray, table: np.ndarray) -> np.ndarray:
    """cvt.rn.satfinite.e4m3x2.f32 and e5m2x2: one uint16 of two codes."""
    return (fp8_bits(high, table) << U2(8)) | fp8_bits(low, table)


def fp8_to_f16_pair(codes: np.ndarray, table: np.ndarray) -> np.ndarray:
    """cvt.rn.f16x2.e4m3x2: one uint16 of two codes to one uint32 of two f16."""
    low = table[codes & U2(0xFF)].astype(F2).view(U2).astype(U4)
    high = table[codes >> U2(8)].astype(F2).view(U2).astype(U4)
    return (high << U4(16)) | low


def decode_words(words: np.ndarray, fmt: str) -> np.ndarray:
    """uint32 words (..., n) of a matrix operand to float32 elements; integers stay exact."""
    if fmt == "bf16":
        return from_bf16(words.view(U2))
    if fmt == "f16":
        return from_f16(words.view(U2))
    if fmt == "tf32":
        return (words & U4(0xFFFFE000)).view(F4)
    if fmt in ("e4m3", "e5m2"):
        return (E4M3 if fmt == "e4m3" else E5M2)[words.view(U1)]
    return words.view(U1 if fmt == "u8" else np.int8).astype(F4)
