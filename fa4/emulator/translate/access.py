"""ld, st, atom, red, cp.async: ordinary memory instructions."""

from __future__ import annotations

from ..ptx.syntax import Address, Immediate, Instruction, Register, Symbol, Vector
from .emitter import KIND, Emitter
from .handlers import handles

_SIZE = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_RAW = {1: "b", 2: "h", 4: "u", 8: "l"}
_SIGNED = {1: "sb", 2: "sh", 4: "s", 8: "sl"}
_ATOMS = ("add", "min", "max", "exch", "cas", "or", "and", "xor", "inc", "dec")


def space_of(instruction: Instruction) -> str:
    """global, shared, local, param, const or generic."""
    for part in instruction.parts:
        name = part.split("::")[0]
        if name in ("global", "shared", "local", "param", "const"):
            return name
    return "generic"


def _element(instruction: Instruction) -> tuple[int, bool]:
    kind = instruction.parts[-1]
    digits = kind.lstrip("bsuf")
    if kind in ("bf16", "bf16x2", "f16x2"):
        return (2 if kind == "bf16" else 4), False
    return _SIZE[digits], kind[0] == "s"


@handles("ld", "ldu")
def _ld(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands[:2]
    size, signed = _element(instruction)
    space = space_of(instruction)
    targets = emitter.vector(target)
    if space == "param" and isinstance(source.base, Symbol):
        return _ld_param(emitter, source, targets, size, signed)
    pieces, unit = (2, 8) if size == 16 else (1, size)
    place = _place(emitter, source, space)
    loaded = emitter.temporary(
        f"load_{space}(w,{place},{unit},{len(targets) * pieces},{emitter.mask})"
    )
    for position, item in enumerate(targets):
        if size == 16:
            low, high = f"{loaded}[{2 * position}]", f"{loaded}[{2 * position + 1}]"
            emitter.write_pair(item, low, high)
        else:
            _write_loaded(emitter, item, f"{loaded}[{position}]", size, signed)
    return None


def _place(emitter: Emitter, source: Address, space: str) -> str:
    return emitter.address(source, "u" if space == "shared" else "l")


def _ld_param(emitter: Emitter, source: Address, targets: tuple, size: int, signed: bool) -> None:
    for position, item in enumerate(targets):
        offset = source.offset + position * size
        if size == 16:
            low = f"w.param({source.base.name!r},{offset},8)"
            emitter.write_pair(item, low, f"w.param({source.base.name!r},{offset + 8},8)")
        else:
            value = f"w.param({source.base.name!r},{offset},{size})"
            _write_loaded(emitter, item, value, size, signed)


def _write_loaded(emitter: Emitter, item, value: str, size: int, signed: bool) -> None:
    """Writes loaded bits; a wider register gets them sign- or zero-extended."""
    raw = _RAW[size]
    if signed and isinstance(item, Register):
        dtype = {1: "I1", 2: "I2", 4: "I4", 8: "I8"}[size]
        return emitter.write(item, f"{value}.view({dtype})", _SIGNED[size])
    return emitter.write(item, value, raw)


@handles("st")
def _st(emitter: Emitter, instruction: Instruction) -> None:
    if "async" in instruction.parts:
        return _st_async(emitter, instruction)
    target, source = instruction.operands[:2]
    size, _ = _element(instruction)
    space = space_of(instruction)
    values = _stored(emitter, source, size)
    unit = min(size, 8)
    place = _place(emitter, target, space)
    return emitter.emit(f"store_{space}(w,{place},{unit},({','.join(values)},),{emitter.mask})")


def _stored(emitter: Emitter, source, size: int) -> list[str]:
    values = []
    for item in emitter.vector(source):
        if size == 16:
            slot = emitter.registers.slot[item.name]
            values += [emitter.local(slot), emitter.local(slot + 1)]
        else:
            values.append(emitter.read(item, _RAW[size]))
    return values


def _st_async(emitter: Emitter, instruction: Instruction) -> None:
    target, source, barrier = instruction.operands
    size, _ = _element(instruction)
    values = _stored(emitter, source, size)
    emitter.emit(
        f"store_async(w,{emitter.address(target, 'u')},{size},({','.join(values)},),"
        f"{emitter.address(barrier, 'u')},{emitter.mask})"
    )


@handles("atom", "red")
def _atom(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, list(instruction.operands)
    if "async" in parts:
        raise emitter.unsupported("red.async")
    target = operands.pop(0) if instruction.root == "atom" else None
    space = space_of(instruction)
    operation = next((p for p in parts[1:] if p in _ATOMS), None)
    if operation is None:
        raise emitter.unsupported("atomic operation")
    kind = parts[-1]
    place = _place(emitter, operands[0], space)
    read = KIND[kind] if kind not in ("f16", "bf16") else "h"
    if isinstance(operands[1], Vector):
        values = ",".join(emitter.read(item, read) for item in operands[1].items)
        step = {"f32": 4, "f16x2": 4, "bf16x2": 4, "f16": 2, "bf16": 2}[kind]
        emitter.emit(
            f"atomic_vector(w,{space!r},{operation!r},{kind!r},{place},({values},),{step},"
            f"{emitter.mask})"
        )
        if target is not None:
            raise emitter.unsupported("vector atom with a result")
        return None
    value = emitter.read(operands[1], read)
    other = emitter.read(operands[2], read) if operation == "cas" else None
    call = f"atomic(w,{space!r},{operation!r},{kind!r},{place},{value},{other},{emitter.mask})"
    return emitter.write(target, call, read)


@handles("cp")
def _cp(emitter: Emitter, instruction: Instruction) -> None:
    from .bulk import emit_bulk

    parts, operands = instruction.parts, instruction.operands
    if "bulk" in parts:
        return emit_bulk(emitter, instruction)
    if "mbarrier" in parts:
        place = emitter.address(operands[0], "u")
        quiet = "noinc" in parts
        return emitter.emit(f"copy_arrive(w,{place},{quiet},{emitter.mask})")
    if "commit_group" in parts:
        return emitter.emit(f"copy_commit(w,{emitter.mask})")
    to, origin = emitter.address(operands[0], "u"), emitter.address(operands[1], "l")
    size = operands[2].value
    hinted = any(p.startswith("L2::cache_hint") for p in parts)
    extra = operands[3 : len(operands) - hinted]
    count = "None"
    if extra and isinstance(extra[0], Register) and emitter.registers.storage[extra[0].name] == "p":
        zero, full = emitter.constant(0, "u"), emitter.constant(size, "u")
        count = f"where({emitter.read(extra[0], 'p')},{zero},{full})"
    elif extra and isinstance(extra[0], (Register, Immediate)):
        count = emitter.read(extra[0], "u")
    return emitter.emit(f"copy_async(w,{to},{origin},{size},{count},{emitter.mask})")
