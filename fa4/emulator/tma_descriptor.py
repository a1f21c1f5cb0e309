"""The 128-byte tensor map that TMA instructions name, decoded.

Bytes 0-7 hold the address and 8-11 flags: bits 0-3 mode, 4-6 rank - 1, 7-10 element type, 11-12
interleave, 13-14 swizzle. Words at 12, 16, 20, 24: strides of dimensions 1-4 in units of 16 bytes;
at 32 + 4 i: dimension i less 1. Bytes 52-54: element strides; 55 + i: box of dimension i less 1.
Found by encoding descriptors with the CuTe DSL and comparing; tests/emulator/test_tma.py repeats
that sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from .errors import DescriptorError

# element type: (bytes, name of the type in a reduction)
_TYPES = {
    0: (1, "u8"),
    1: (2, "u16"),
    2: (4, "u32"),
    3: (4, "s32"),
    4: (8, "u64"),
    5: (8, "s64"),
    6: (2, "f16"),
    7: (4, "f32"),
    8: (4, "f32"),
    9: (8, "f64"),
    10: (2, "bf16"),
    11: (4, "f32"),
    12: (4, "f32"),
}
_TILED = 2  # low four bits of the flags of every tiled map
_KNOWN_TYPES = "u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, tf32"


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map. Dimension 0 is contiguous; strides are in bytes.

    `swizzle`: 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes.
    """

    address: int
    element: str
    element_bytes: int
    swizzle: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def box_bytes(self) -> int:
        """Bytes of one box: what a load counts on its mbarrier, out-of-bounds parts included."""
        return self.element_bytes * prod(self.box)

    def clip(self, coordinates: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """The part [low, high) of the box at `coordinates` that lies in the tensor."""
        low = [max(0, c) for c in coordinates]
        high = [min(d, c + b) for c, d, b in zip(coordinates, self.dims, self.box, strict=True)]
        return low, high


@lru_cache(maxsize=4096)
def decode(raw: bytes) -> TensorMap:
    """Decodes the first 64 bytes of a tensor map. Raises DescriptorError."""
    words = np.frombuffer(raw, np.uint32)
    flags = int(words[2])
    rank, kind = (flags >> 4 & 7) + 1, flags >> 7 & 15
    if kind not in _TYPES:
        raise DescriptorError(f"TMA descriptor: element type {kind} is unknown ({_KNOWN_TYPES})")
    if not 1 <= rank <= 5:
        raise DescriptorError(f"TMA descriptor: rank {rank}; allowed: 1 to 5")
    if flags & 15 != _TILED or flags >> 11 & 3:
        raise DescriptorError(
            f"TMA descriptor flags {flags:#x}: im2col and interleaved modes are not emulated"
        )
    if int(words[7]) or int(words[13]) & 0xFFFFFF:
        raise DescriptorError("TMA descriptor: strides of 2^36 bytes or element strides above 1")
    size, element = _TYPES[kind]
    address = int(words[0]) | int(words[1]) << 32
    if address % 16 or address == 0:
        raise DescriptorError(f"TMA descriptor: global address {address:#x} is no multiple of 16")
    dims = tuple(int(words[8 + i]) + 1 for i in range(rank))
    strides = (size, *(int(words[3 + i]) << 4 for i in range(rank - 1)))
    box = tuple(raw[55 + i] + 1 for i in range(rank))
    swizzle = flags >> 13 & 3
    inner = box[0] * size
    if inner % 16:
        raise DescriptorError(f"TMA descriptor: inner box of {inner} bytes is no multiple of 16")
    if swizzle and inner > 16 << swizzle:
        raise DescriptorError(
            f"TMA descriptor: inner box of {inner} bytes exceeds the {16 << swizzle}-byte swizzle"
        )
    return TensorMap(address, element, size, swizzle, dims, strides, box)


def swizzled(units: np.ndarray, swizzle: int) -> np.ndarray:
    """Swizzles shared-memory addresses in units of 16 bytes."""
    if swizzle == 0:
        return units
    return units ^ ((units >> 3) & ((1 << swizzle) - 1))


@lru_cache(maxsize=4096)
def box_units(start: int, nbytes: int, swizzle: int) -> np.ndarray:
    """Places of a box's consecutive 16-byte units, its first at unit `start`."""
    return swizzled(start + np.arange(nbytes >> 4), swizzle)
