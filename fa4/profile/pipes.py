"""Modelled pipe occupancy: cycles per sub-partition and 256x128 step, from SASS counts alone.

Nothing here is measured. A pipe's cycles are a lower bound on the time of a step if instructions of
other pipes and all latencies hid behind it perfectly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fa4.plan_base import BasePlan
from fa4.profile.sass import Instruction

# Cycles that one warp instruction occupies its pipe of an SM sub-partition: 32 lanes over the
# pipe's lanes per clock. Source: public pipe catalogue of B200/B300 (dispatch 1 warp instruction
# per clock and sub-partition; FFMA 32 lanes, packed f32x2 16, ALU 16, MUFU 4 per clock) and, for
# MUFU, the FlashAttention-4 paper (16 exponentials per clock and SM), arXiv 2603.05451.
PIPE_CYCLES = (
    ("mufu", 8, r"MUFU"),
    ("fma", 2, r"F(FMA|ADD|MUL)2"),
    ("fma", 1, r"(F(FMA|ADD|MUL)|IMAD|HFMA2)"),
    (
        "alu",
        2,
        r"(FMNMX|F2FP|FSEL|FSETP|ISETP|IADD|VIADD|VIMNMX|SHF|LOP|PLOP|LEA|PRMT|SEL|BMSK|R2P)",
    ),
)
_PATTERNS = tuple((pipe, cycles, re.compile(pattern)) for pipe, cycles, pattern in PIPE_CYCLES)
PIPES = ("mma", "mufu", "issue", "fma", "alu")

# tcgen05.mma with 16-bit operands: 8192 FLOP per clock and SM (dense peak over SMs and clock).
MMA_FLOP_PER_CYCLE = 8192
SUB_PARTITIONS = 4


@dataclass(frozen=True)
class Step:
    """Modelled cycles per sub-partition of one 256x128 step, by pipe; `bound` is the fullest."""

    mma: int
    mufu: int
    issue: int
    fma: int
    alu: int

    @property
    def bound(self) -> str:
        """Name of the pipe with the most cycles."""
        return max(PIPES, key=lambda pipe: getattr(self, pipe))


def pipe_cycles(code: Iterable[Instruction]) -> dict[str, int]:
    """Cycles of one warp's instructions by pipe; `issue` is one per instruction."""
    cycles = dict.fromkeys(PIPES[1:], 0)
    for instruction in code:
        cycles["issue"] += 1
        for pipe, each, pattern in _PATTERNS:
            if pattern.match(instruction.opcode):
                cycles[pipe] += each
                break
    return cycles


def mma_cycles(plan: BasePlan) -> int:
    """Tensor-core cycles of Q K^T and P V of one step: all query tiles, one block of keys."""
    head_dims = plan.head_dim + plan.head_dim_v
    return 2 * plan.cta_rows * plan.n_block * head_dims // MMA_FLOP_PER_CYCLE


def step(plan: BasePlan, softmax: Mapping[str, float], correction: Mapping[str, float]) -> Step:
    """One step from `pipe_cycles` of the softmax loop (one block of keys, one warp) and of the
    correction loop (all query tiles, one warp). MMA and load warps are left out: few issue slots.
    """
    softmax_share, correction_share = (
        plan.roles[role].warps // SUB_PARTITIONS for role in ("softmax", "correction")
    )
    totals = {
        pipe: round(softmax_share * softmax[pipe] + correction_share * correction[pipe])
        for pipe in PIPES[1:]
    }
    return Step(mma=mma_cycles(plan), **totals)
