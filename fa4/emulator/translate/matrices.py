"""ldmatrix, stmatrix and mma.sync."""

from __future__ import annotations

from ..ptx.syntax import Instruction
from .emitter import Emitter
from .handlers import handles

_FORMATS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")


def _count(emitter: Emitter, instruction: Instruction) -> int:
    parts = instruction.parts
    if "m8n8" not in parts or "b16" not in parts:
        raise emitter.unsupported("shape of the matrix")
    return next(int(p[1:]) for p in parts if p in ("x1", "x2", "x4"))


@handles("ldmatrix")
def _ldmatrix(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands
    count = _count(emitter, instruction)
    transpose = "trans" in instruction.parts
    loaded = emitter.temporary(
        f"load_matrices(w,{emitter.address(source, 'u')},{count},{transpose},{emitter.mask})"
    )
    for position, item in enumerate(emitter.vector(target)):
        emitter.write(item, f"{loaded}[{position}]", "u")


@handles("stmatrix")
def _stmatrix(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands
    _count(emitter, instruction)
    values = ",".join(emitter.read(item, "u") for item in emitter.vector(source))
    transpose = "trans" in instruction.parts
    emitter.emit(
        f"store_matrices(w,{emitter.address(target, 'u')},({values},),{transpose},{emitter.mask})"
    )


@handles("mma")
def _mma(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    shape = next(p for p in parts if p[0] == "m" and p[1].isdigit())
    result, a_format, b_format, addend = parts[-4:]
    known = a_format in _FORMATS and b_format in _FORMATS and result == addend
    if not shape.startswith("m16n8") or not known or result not in ("f32", "s32") or "sp" in parts:
        raise emitter.unsupported("form of mma.sync")
    kind = "f" if result == "f32" else "s"
    target, a, b, c = instruction.operands
    groups = [
        "(" + ",".join(emitter.read(item, k) for item in emitter.vector(o)) + ",)"
        for o, k in ((a, "u"), (b, "u"), (c, kind))
    ]
    product = emitter.temporary(f"warp_mma(w,({a_format!r},{b_format!r}),{','.join(groups)})")
    for position, item in enumerate(emitter.vector(target)):
        emitter.write(item, f"{product}[{position}]", kind)
