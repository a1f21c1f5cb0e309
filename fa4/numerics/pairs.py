"""Arithmetic on pairs of float32: a packed instruction on Blackwell, two scalar ones on Hopper."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

Pair = tuple[Float32, Float32]


@dataclass(frozen=True)
class PairMath:
    """packed: the target has fma.f32x2 and its kin (sm_100 and newer)."""

    packed: bool

    def fma(self, a: Pair, b: Pair, c: Pair) -> Pair:
        """a * b + c."""
        if self.packed:
            return cute.arch.fma_packed_f32x2(a, b, c)
        return cute.math.fma(a[0], b[0], c[0]), cute.math.fma(a[1], b[1], c[1])

    def mul(self, a: Pair, b: Pair) -> Pair:
        """a * b."""
        if self.packed:
            return cute.arch.mul_packed_f32x2(a, b)
        return a[0] * b[0], a[1] * b[1]

    def add(self, a: Pair, b: Pair) -> Pair:
        """a + b."""
        if self.packed:
            return cute.arch.add_packed_f32x2(a, b)
        return a[0] + b[0], a[1] + b[1]

    def sub(self, a: Pair, b: Pair) -> Pair:
        """a - b."""
        if self.packed:
            return cute.arch.sub_packed_f32x2(a, b)
        return a[0] - b[0], a[1] - b[1]


def packed(low: Float32, high: Float32, dtype: str) -> Int32:
    """Two 16-bit numbers in a register, rounded here and now.

    An ordinary conversion may be put off to where its result is needed: in a loop that hands P to
    the next iteration, P would then be carried in float32, in twice the registers.
    """
    kind = {"bfloat16": "bf16x2", "float16": "f16x2"}[dtype]
    return cute.arch.inline_ptx(
        f"cvt.rn.{kind}.f32 {{$w0}}, {{$r0}}, {{$r1}};",
        write_only_types=[Int32],
        read_only_args=[high, low],
    )


def unpacked(word: Int32, dtype: str) -> Pair:
    """(low, high) of two 16-bit numbers in a register. A bfloat16 is half of a float32."""
    if dtype == "bfloat16":
        return (word << 16).bitcast(Float32), (word & -0x10000).bitcast(Float32)
    return cute.arch.inline_ptx(
        "{.reg .b16 low, high; mov.b32 {low, high}, {$r0};"
        " cvt.f32.f16 {$w0}, low; cvt.f32.f16 {$w1}, high;}",
        write_only_types=[Float32, Float32],
        read_only_args=[word],
    )
