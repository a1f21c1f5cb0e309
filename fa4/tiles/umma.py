"""Issue of tcgen05.mma with descriptors kept in registers.

`cute.gemm` computes the descriptors of every instruction anew, some ten scalar instructions each.
Here a descriptor is its operand's base, computed once, plus a constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64
from cutlass.cute.nvgpu import tcgen05


@dataclass(frozen=True)
class SmemOperand:
    """Matrix descriptors of one operand in shared memory.

    base: descriptor of its first tile. layout: (MMA, rest, K step, stage) -> offset in units of
    16 bytes, which is what the low word of a descriptor counts in.
    """

    low: Int32
    high: Int32
    layout: cute.Layout

    def at(self, k: int, stage: Int32 | int) -> Int64:
        """The descriptor of K step `k` of a stage."""
        offset = cute.crd2idx((0, 0, k, stage), self.layout)
        return _pack(self.low + offset, self.high)


def smem_operand(fragment: cute.Tensor) -> SmemOperand:
    """From what `make_fragment_A` or `make_fragment_B` returns."""
    low, high = _unpack(tcgen05.smem_descriptor_to_int(fragment.iterator))
    return SmemOperand(low, high, fragment.layout)


def mma_ss(d: Int32, a: Int64, b: Int64, instruction: Int32, accumulate: Boolean | bool) -> None:
    """D (+)= A B; d is a TMEM address, a and b are shared-memory descriptors. For one thread."""
    _mma("{$r1}", d, a, b, instruction, accumulate)


def mma_ts(d: Int32, a: Int32, b: Int64, instruction: Int32, accumulate: Boolean | bool) -> None:
    """D (+)= A B with A in tensor memory. For one thread."""
    _mma("[{$r1}]", d, a, b, instruction, accumulate)


def instruction_descriptor(
    dtype: type, m: int, n: int, b_mn_major: bool, a_mn_major: bool = False
) -> int:
    """32-bit descriptor of kind::f16 with float32 accumulator (PTX ISA, tcgen05.mma)."""
    f32, operand = 1 << 4, 1 if dtype is cutlass.BFloat16 else 0
    formats = f32 | operand << 7 | operand << 10
    major = int(a_mn_major) << 15 | int(b_mn_major) << 16
    return formats | major | (n >> 3) << 17 | (m >> 4) << 24


def _mma(
    a_form: str,
    d: Int32,
    a: Int64 | Int32,
    b: Int64,
    instruction: Int32,
    accumulate: Boolean | bool,
) -> None:
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r4}, 0;"
        f" tcgen05.mma.cta_group::1.kind::f16 [{{$r0}}], {a_form}, {{$r2}}, {{$r3}}, p; }}",
        read_only_args=[d, a, b, instruction, Int32(accumulate)],
    )


def _pack(low: Int32, high: Int32) -> Int64:
    return cute.arch.inline_ptx(
        "mov.b64 {$w0}, {{$r0}, {$r1}};", write_only_types=[Int64], read_only_args=[low, high]
    )


def _unpack(value: Int64) -> tuple[Int32, Int32]:
    return cute.arch.inline_ptx(
        "mov.b64 {{$w0}, {$w1}}, {$r0};", write_only_types=[Int32, Int32], read_only_args=[value]
    )
