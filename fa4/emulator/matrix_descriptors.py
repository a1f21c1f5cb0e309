"""Shared-memory and instruction descriptors of tcgen05.mma and wgmma, decoded and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .errors import DescriptorError, UnsupportedInstruction
from .formats import decode_words
from .shared import SYSTEM_BYTES
from .tma_descriptor import swizzled

# Swizzle field (bits 61-63) to log2 of the units of 16 bytes in a swizzled row.
_SWIZZLES = {0: 0, 6: 1, 4: 2, 2: 3}
_HOPPER_SWIZZLES = (0, 3, 2, 1)  # the same for bits 62-63 of wgmma
_FORMATS = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "i8": {0: "u8", 1: "s8"},
}
_RESULTS = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "i8": {2: "s32"}}
_RESULTS["f8f6f4"] = _RESULTS["f16"]
ELEMENT_BYTES = {"f16": 2, "tf32": 4, "f8f6f4": 1, "i8": 1}


@dataclass(frozen=True)
class MmaShape:
    """A decoded instruction descriptor: M x N x K with formats, signs and major-ness."""

    kind: str
    m: int
    n: int
    result: str
    a_format: str
    b_format: str
    negate: bool
    a_mn_major: bool
    b_mn_major: bool

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.kind]


@lru_cache(maxsize=1024)
def decode_instruction(kind: str, bits: int, pair: bool) -> MmaShape:
    """Decodes an instruction descriptor. Raises DescriptorError for values PTX forbids."""
    text = f"instruction descriptor {bits:#010x} of kind::{kind}"
    if bits & 0b100:
        raise UnsupportedInstruction(f"{text}: sparse matrices are not emulated")
    result, a, b = bits >> 4 & 3, bits >> 7 & 7, bits >> 10 & 7
    formats, results = _FORMATS[kind], _RESULTS[kind]
    if a not in formats or b not in formats or result not in results:
        raise DescriptorError(
            f"{text}: A format {a}, B format {b}, D format {result}; allowed: A and B of "
            f"{formats}, D of {results}"
        )
    m, n = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
    sizes, step = ((128, 256), 16) if pair else ((64, 128), 16)
    step = 8 if m == 64 else step
    if m not in sizes or n % step or not 8 <= n <= 256:
        raise DescriptorError(
            f"{text}: M {m}, N {n}; allowed with cta_group::{2 if pair else 1}: M in {sizes}, "
            f"N a multiple of {step} up to 256"
        )
    if bits >> 6 & 1 or bits >> 23 & 1 or bits >> 29 & 1 or bits & 0b11:
        raise DescriptorError(f"{text}: a reserved bit is set")
    if formats[a] in ("e2m3", "e3m2", "e2m1") or formats[b] in ("e2m3", "e3m2", "e2m1"):
        raise UnsupportedInstruction(f"{text}: 4- and 6-bit floats are not emulated")
    return MmaShape(
        kind,
        m,
        n,
        results[result],
        formats[a],
        formats[b],
        bool((bits >> 13 ^ bits >> 14) & 1),
        bool(bits >> 15 & 1),
        bool(bits >> 16 & 1),
    )


@lru_cache(maxsize=8192)
def operand_units(
    descriptor: int,
    rows: int,
    units: int,
    mn_major: bool,
    element_bytes: int,
    row_limit: int,
    hopper: bool = False,
) -> np.ndarray:
    """Places of an operand's 16-byte units in shared memory.

    K-major: (rows, units of K). MN-major: (K elements, units of rows), where K covers 32 bytes
    in K-major terms. `row_limit` is the first unit outside the CTA's shared memory. `hopper`: a
    descriptor of wgmma, not of tcgen05.
    Raises DescriptorError.
    """
    start, leading = descriptor & 0x3FFF, descriptor >> 16 & 0x3FFF
    stride, swizzle = descriptor >> 32 & 0x3FFF, _check(descriptor, hopper)
    width = 1 << swizzle
    if mn_major:
        k = np.arange(32 // element_bytes)[:, None]
        unit = np.arange(rows * element_bytes // 16)[None]
        if swizzle == 0:
            places = start + unit * stride + k % 8 + (k // 8) * leading
        else:
            places = start + (unit // width) * leading + unit % width
            places = places + (k % 8) * width + (k // 8) * stride
    else:
        row = np.arange(rows)[:, None]
        unit = np.arange(units)[None]
        places = start + (row // 8) * stride + (row % 8) * width
        places = places + unit * (leading if swizzle == 0 else 1)
    places = swizzled(places, swizzle)
    if int(places.min()) < SYSTEM_BYTES >> 4 or int(places.max()) >= row_limit:
        raise DescriptorError(
            f"shared-memory descriptor {descriptor:#018x} reaches offsets {places.min() * 16:#x} "
            f"to {places.max() * 16 + 16:#x}, outside the CTA's memory "
            f"[{SYSTEM_BYTES:#x}, {row_limit * 16:#x})"
        )
    return places


def operand_values(units: np.ndarray, mn_major: bool, fmt: str) -> np.ndarray:
    """An operand as float32 (rows, K) from its 16-byte units, placed as in `operand_units`."""
    values = decode_words(units.reshape(units.shape[0], -1), fmt)
    return values.T if mn_major else values


def _check(descriptor: int, hopper: bool) -> int:
    """Checks a shared-memory descriptor's fixed fields; returns log2 of its swizzle width."""
    text = f"shared-memory descriptor {descriptor:#018x}"
    swizzle = _hopper_swizzle(descriptor, text) if hopper else _swizzle(descriptor, text)
    if descriptor >> 49 & 7:
        raise UnsupportedInstruction(f"{text}: base offsets are not emulated")
    start = descriptor & 0x3FFF
    if start >> 3 & (1 << swizzle) - 1:
        raise DescriptorError(
            f"{text}: start {start * 16:#x} is not at a row 0 of its {16 << swizzle}-byte swizzle "
            f"atom ({128 << swizzle} bytes) and the base offset is 0"
        )
    return swizzle


def _swizzle(descriptor: int, text: str) -> int:
    """Checks what only tcgen05 descriptors hold."""
    field = descriptor >> 61 & 7
    if field == 1:
        raise UnsupportedInstruction(f"{text}: 128-byte swizzle of 32-byte atoms is not emulated")
    if field not in _SWIZZLES:
        raise DescriptorError(f"{text}: swizzle mode {field}; allowed: 0, 1, 2, 4, 6")
    if descriptor >> 46 & 7 != 1 or descriptor >> 53 & 0xFF:
        raise DescriptorError(f"{text}: bits 46-48 must be 1 and bits 53-60 must be 0")
    if descriptor >> 52 & 1:
        raise UnsupportedInstruction(f"{text}: absolute strides are not emulated")
    return _SWIZZLES[field]


def _hopper_swizzle(descriptor: int, text: str) -> int:
    """Checks the fixed fields of wgmma descriptors."""
    if descriptor >> 46 & 7 or descriptor >> 52 & 0x3FF:
        raise DescriptorError(f"{text}: bits 46-48 and 52-61 must be 0; is it one of tcgen05?")
    return _HOPPER_SWIZZLES[descriptor >> 62]
