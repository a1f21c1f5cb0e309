"""tcgen05 instructions."""

from __future__ import annotations

from ..ptx.syntax import Address, Instruction, Register, Vector
from .emitter import Emitter
from .handlers import handles

_KINDS = ("kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8")


@handles("tcgen05")
def _tcgen05(emitter: Emitter, instruction: Instruction) -> None:
    action = instruction.parts[1]
    if action.startswith("fence"):
        if emitter.places is not None:
            emitter.emit(f"w.checker.fences.fence(w,{instruction.opcode!r},{emitter.mask})")
        return None
    function = {
        "wait::ld": _wait,
        "wait::st": _wait,
        "relinquish_alloc_permit": _relinquish,
        "dealloc": _dealloc,
        "commit": _commit,
        "ld": _ld,
        "st": _st,
        "mma": _mma,
        "cp": _cp,
    }.get(action)
    if function is None:
        raise emitter.unsupported()
    return function(emitter, instruction)


def _wait(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.parts[1] == "wait::st":
        emitter.emit(f"tensor_wait_store(w,{emitter.mask})")
    elif emitter.places is not None:
        emitter.emit(f"tensor_wait_load(w,{emitter.mask})")


def _relinquish(emitter: Emitter, instruction: Instruction) -> None:
    emitter.emit("tensor_relinquish(w)")


def _dealloc(emitter: Emitter, instruction: Instruction) -> None:
    place, columns = (emitter.read(o, "u") for o in instruction.operands)
    emitter.emit(f"tensor_dealloc(w,{place},{columns},{emitter.mask})")


def _commit(emitter: Emitter, instruction: Instruction) -> None:
    operands, parts = instruction.operands, instruction.parts
    multicast = "None"
    if "multicast::cluster" in parts:
        multicast = emitter.read(operands[1], "h")
    place = emitter.address(operands[0], "u")
    pair = "cta_group::2" in parts
    emitter.emit(f"tensor_commit(w,{place},{multicast},{pair},{emitter.mask})")


def _shape(emitter: Emitter, instruction: Instruction) -> tuple[str, int, bool]:
    parts = instruction.parts
    if "red" in parts or "spcompress" in parts:
        raise emitter.unsupported("form of tcgen05.ld")
    shape = next(p for p in parts if p[0].isdigit())
    repeat = next(int(p[1:]) for p in parts if p[0] == "x" and p[1:].isdigit())
    packed = "pack::16b" in parts or "unpack::16b" in parts
    return shape, repeat, packed


def _split(emitter: Emitter, instruction: Instruction, shape: str, position: int) -> int:
    """The immediate half-split offset of 16x32bx2, else 0."""
    return instruction.operands[position].value if shape == "16x32bx2" else 0


def _ld(emitter: Emitter, instruction: Instruction) -> None:
    shape, repeat, packed = _shape(emitter, instruction)
    target, place = instruction.operands[:2]
    split = _split(emitter, instruction, shape, 2)
    loaded = emitter.temporary(
        f"tensor_load(w,{emitter.address(place, 'u')},{shape!r},{repeat},{packed},{split},"
        f"{emitter.mask})"
    )
    for position, item in enumerate(emitter.vector(target)):
        emitter.write(item, f"{loaded}[{position}]", "f")


def _st(emitter: Emitter, instruction: Instruction) -> None:
    shape, repeat, packed = _shape(emitter, instruction)
    place = instruction.operands[0]
    split = _split(emitter, instruction, shape, 1)
    values = []
    for item in emitter.vector(instruction.operands[-1]):
        stored = isinstance(item, Register) and emitter.registers.storage[item.name] == "f"
        values.append(emitter.read(item, "f" if stored else "u"))
    emitter.emit(
        f"tensor_store(w,{emitter.address(place, 'u')},{shape!r},{repeat},{packed},{split},"
        f"({','.join(values)},),{emitter.mask})"
    )


def _mma(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    kind = next((p for p in parts if p in _KINDS), None)
    if kind is None or "ws" in parts or "sp" in parts or "block_scale" in parts:
        raise emitter.unsupported("form of tcgen05.mma")
    accumulator, a, b, descriptor, *rest = operands
    from_tensor_memory = isinstance(a, Address)
    left = emitter.address(a, "u") if from_tensor_memory else emitter.read(a, "l")
    disabled = "None"
    if rest and isinstance(rest[0], Vector):
        disabled = "(" + ",".join(emitter.read(i, "u") for i in rest[0].items) + ",)"
        rest = rest[1:]
    if len(rest) != 1:
        raise emitter.unsupported("scale-input-d")
    pair = "cta_group::2" in parts
    form = (kind[6:], pair, from_tensor_memory)
    emitter.emit(
        f"tensor_mma(w,{form!r},{emitter.address(accumulator, 'u')},{left},"
        f"{emitter.read(b, 'l')},{emitter.read(descriptor, 'u')},"
        f"({emitter.read(rest[0], 'p')},{disabled}),{emitter.mask})"
    )


def _cp(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    shape = next(p for p in parts if p[0].isdigit() and "x" in p)
    if any(p.startswith(("b6", "b4", "b8")) for p in parts):
        raise emitter.unsupported("decompressing tcgen05.cp")
    multicast = next((p for p in parts if p.startswith(("warpx", "multicast"))), None)
    multicast = next((p for p in parts if "warpx" in p), multicast)
    pair = "cta_group::2" in parts
    emitter.emit(
        f"tensor_copy(w,{shape!r},{multicast!r},{pair},{emitter.address(operands[0], 'u')},"
        f"{emitter.read(operands[1], 'l')},{emitter.mask})"
    )
