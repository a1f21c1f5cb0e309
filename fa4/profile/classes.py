"""Instruction classes of SASS and PTX, and the pipe that executes each class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from fa4.profile.sass import Instruction

# Ordered: the first pattern that matches names the class. Grouped by execution pipe.
_SASS = (
    ("MUFU.EX2", r"MUFU\.EX2"),
    ("MUFU.other", r"MUFU"),
    ("FFMA2", r"FFMA2"),
    ("FADD2", r"FADD2"),
    ("FMUL2", r"FMUL2"),
    ("FFMA", r"FFMA"),
    ("FADD", r"FADD"),
    ("FMUL", r"FMUL"),
    ("FMNMX3", r"FMNMX3"),
    ("FMNMX", r"FMNMX"),
    ("FSEL", r"FSEL"),
    ("FSETP", r"FSETP"),
    ("HALF", r"(HFMA2|HADD2|HMUL2|HMNMX2|HSET|VHMNMX)"),
    ("F2FP", r"F2FP"),
    ("CONVERT", r"(F2I|I2F|FRND|F2F|I2FP)"),
    ("LDTM", r"LDTM"),
    ("STTM", r"STTM"),
    ("TMEM.other", r"(UTCATOMSWS|LDT|STT)"),
    ("MMA", r"(UTC\w*MMA|HGMMA|QGMMA|HMMA)"),
    ("COMMIT", r"UTCBAR"),
    ("TMA", r"(UTMA\w*|UBLK\w*)"),
    ("LDS/STS", r"(LDS|STS|LDSM|STSM)"),
    ("GLOBAL", r"(LDG|STG|RED|ATOM)"),
    ("LOCAL", r"(LDL|STL)"),
    ("MBARRIER", r"(SYNCS|NANOSLEEP\.SYNCS)"),
    ("BARRIER", r"(BAR|UCGABAR|DEPBAR|WARPSYNC|VOTE|BSSY|BSYNC)"),
    ("FENCE", r"(FENCE|MEMBAR|CCTL|ERRBAR)"),
    ("SHFL", r"SHFL"),
    ("ELECT", r"ELECT"),
    ("R2UR", r"R2UR"),
    ("R2P", r"(R2P|P2R)"),
    ("MOVE", r"(MOV|CS2R|S2R|S2UR|LDC|LDCU|IMAD\.MOV|IMAD\.U32)"),
    ("IMAD", r"IMAD"),
    ("IADD", r"(IADD|VIADD|VIMNMX|VIMAD|VIADDMNMX)"),
    ("LOGIC", r"(SHF|LOP|PLOP|LEA|PRMT|SEL|BMSK|SGXT|POPC|FLO)"),
    ("ISETP", r"ISETP"),
    ("SETMAXREG", r"USETMAXREG"),
    ("UNIFORM", r"U"),
    ("BRANCH", r"(BRA|BRX|CALL|RET|EXIT|JMP|YIELD|NANOSLEEP)"),
    ("NOP", r"NOP"),
)
_SASS_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _SASS)

# One packed instruction with round-down starts the range reduction of two exponentials; the scalar
# form of one. Only an emulated exp2 rounds towards minus infinity in an attention kernel.
_ROUND_DOWN = re.compile(r"F(ADD|FMA)(2?)\S*\.RM\b")

_PTX = (
    ("tcgen05.mma", r"tcgen05\.mma"),
    ("tcgen05.ld", r"tcgen05\.ld"),
    ("tcgen05.st", r"tcgen05\.st"),
    ("tcgen05.other", r"tcgen05"),
    ("ex2", r"ex2"),
    ("other special", r"(rcp|lg2|rsqrt|tanh)"),
    ("packed f32x2", r"\w+(\.\w+)*\.f32x2"),
    ("cvt", r"cvt"),
    ("max/min", r"(max|min)\."),
    ("fma/add/mul f32", r"(fma|add|sub|mul|neg)(\.\w+)*\.f32"),
    ("cp.async.bulk", r"cp\.async\.bulk"),
    ("mbarrier", r"mbarrier"),
    ("barrier", r"(bar|barrier)\."),
    ("fence", r"(fence|membar)"),
    ("elect, vote", r"(elect|vote|shfl)"),
    ("shared", r"(ld|st)\.shared"),
    ("global", r"(ld|st)\.global"),
    ("local", r"(ld|st)\.local"),
    ("branch", r"(bra|brx|ret|exit|call)"),
    ("predicate", r"(setp|selp|slct|set\b|\w+\.pred)"),
    ("move", r"(mov|ld\.param|prefetch|cvta)"),
    ("integer", r"\w+(\.\w+)*\.(b|s|u)(8|16|32|64|128)"),
)
_PTX_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _PTX)


# A multiply-add of zeros is how ptxas moves data over the FMA pipe.
_ZERO_PRODUCT = re.compile(r"[^,]+, -?RZ, -?RZ,")


def sass_class(instruction: Instruction) -> str:
    """Class of a SASS instruction; an opcode of no class is its own."""
    if _ZERO_PRODUCT.match(instruction.operands) and instruction.opcode[:4] in ("IMAD", "HFMA"):
        return "MOVE"
    for name, pattern in _SASS_PATTERNS:
        if pattern.match(instruction.opcode):
            return name
    return instruction.opcode


def ptx_class(opcode: str) -> str:
    """Class of a PTX opcode; `other` when none fits."""
    for name, pattern in _PTX_PATTERNS:
        if pattern.match(opcode):
            return name
    return "other"


def sass_histogram(code: Iterable[Instruction]) -> Counter[str]:
    """Instructions of each class."""
    return Counter(sass_class(instruction) for instruction in code)


def emulated_exponentials(code: Iterable[Instruction]) -> int:
    """Exponentials computed on FMA units: elements of the round-down additions."""
    matches = (_ROUND_DOWN.match(instruction.opcode) for instruction in code)
    return sum(2 if match.group(2) else 1 for match in matches if match)
