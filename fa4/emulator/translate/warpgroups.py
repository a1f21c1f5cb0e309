"""wgmma instructions; wgmma.wait_group is a terminator."""

from __future__ import annotations

import re

from ..ptx.syntax import Instruction, Operand, Vector
from .emitter import Emitter
from .handlers import handles
from .registers import registers_of

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_DEPTH = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
_SIGNS = {1: False, -1: True}


@handles("wgmma")
def _wgmma(emitter: Emitter, instruction: Instruction) -> None:
    action = instruction.parts[1]
    if action == "fence":
        emitter.emit(f"wgmma_fence(w,{emitter.mask})")
    elif action == "commit_group":
        emitter.emit(f"wgmma_commit(w,{emitter.mask})")
    elif action == "mma_async" and "sp" not in instruction.parts:
        _mma(emitter, instruction)
    else:
        raise emitter.unsupported()


def _mma(emitter: Emitter, instruction: Instruction) -> None:
    """D, A, B, scale-d, signs of A and B, then which of the operands in memory are MN-major."""
    accumulator, a, b, scale, *flags = instruction.operands
    n, formats = _shape(emitter, instruction, accumulator)
    values = [flag.value for flag in flags]
    signs, majors = values[:2], values[2:]
    from_registers = isinstance(a, Vector)
    if len(signs) != 2 or not set(signs) <= {1, -1} or not set(majors) <= {0, 1}:
        raise emitter.unsupported(f"scale and transpose operands {values}")
    expected = (1 if from_registers else 2) if formats[0] in ("bf16", "f16") else 0
    if len(majors) != expected:
        raise emitter.unsupported(f"{len(majors)} transpose operands instead of {expected}")
    majors = [False] * (2 - len(majors)) + [bool(major) for major in majors]
    form = (
        instruction.line,
        n,
        *formats,
        _SIGNS[signs[0]] ^ _SIGNS[signs[1]],
        *majors,
        tuple(emitter.registers.slot[item.name] for item in accumulator.items),
        _bits(emitter, accumulator),
        _bits(emitter, a) if from_registers else 0,
    )
    values = ",".join(emitter.read(item, "f") for item in accumulator.items)
    left = emitter.read(a, "l") if not from_registers else None
    if from_registers:
        left = "(" + ",".join(emitter.read(item, "u") for item in a.items) + ",)"
    emitter.emit(
        f"wgmma(w,{form!r},({values},),{left},{emitter.read(b, 'l')},{emitter.read(scale, 'p')},"
        f"{emitter.mask})"
    )


def _shape(
    emitter: Emitter, instruction: Instruction, accumulator: Vector
) -> tuple[int, tuple[str, str]]:
    """N and the formats of A and B. Raises UnsupportedInstruction for what is not emulated."""
    parts = instruction.parts
    shape = next(filter(None, map(_SHAPE.match, parts)), None)
    result, *formats = parts[-3:]
    known = result == "f32" and all(fmt in _DEPTH for fmt in formats)
    if shape is None or not known:
        raise emitter.unsupported("form of wgmma.mma_async")
    n, k = int(shape[1]), int(shape[2])
    if n % 8 or not 8 <= n <= 256 or {k} != {_DEPTH[fmt] for fmt in formats}:
        raise emitter.unsupported(f"shape {shape[0]} with {formats[0]} and {formats[1]}")
    if len(accumulator.items) != n // 2:
        raise emitter.unsupported(f"{len(accumulator.items)} accumulator registers for N {n}")
    return n, (formats[0], formats[1])


def _bits(emitter: Emitter, operand: Operand) -> int:
    """The operand's registers as a bit mask."""
    return sum(1 << emitter.numbers[name] for name in registers_of(operand))
