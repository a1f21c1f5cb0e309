"""cp.async.bulk and cp.async.bulk.tensor (TMA), their reductions and groups."""

from __future__ import annotations

from ..ptx.syntax import Immediate, Instruction
from .emitter import Emitter

_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def emit_bulk(emitter: Emitter, instruction: Instruction) -> None:
    """Any cp.async.bulk or cp.reduce.async.bulk that is not a wait."""
    parts = instruction.parts
    if "commit_group" in parts:
        emitter.emit(f"bulk_commit(w,{emitter.mask})")
    elif "prefetch" in parts:
        return
    elif "tensor" in parts:
        _tensor(emitter, instruction)
    else:
        _linear(emitter, instruction)


def _spaces(instruction: Instruction) -> list[str]:
    """Destination and source space, in the order of the opcode."""
    spaces = [p for p in instruction.parts if p.split("::")[0] in ("shared", "global")]
    return spaces[:2]


def _multicast(emitter: Emitter, instruction: Instruction, position: int) -> str:
    if "multicast::cluster" not in instruction.parts:
        return "None"
    return emitter.read(instruction.operands[position], "h")


def _tensor(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    mode = next((p for p in parts if p.startswith(("im2col", "tile::gather", "tile::scatter"))), 0)
    if mode:
        raise emitter.unsupported(f"TMA mode {mode}")
    to, origin = _spaces(instruction)
    if to.startswith("shared") and origin == "global":
        tensor, barrier = operands[1], operands[2]
        pair = "cta_group::2" in parts
        emitter.emit(
            f"tma_load(w,{emitter.address(operands[0], 'u')},{emitter.read(tensor.base, 'l')},"
            f"{_coordinates(emitter, tensor)},{emitter.address(barrier, 'u')},"
            f"{_multicast(emitter, instruction, 3)},{pair},{emitter.mask})"
        )
        return
    tensor = operands[0]
    operation = None
    if parts[1] == "reduce":
        operation = next(p for p in parts if p in _REDUCTIONS)
    emitter.emit(
        f"tma_store(w,{emitter.address(operands[1], 'u')},{emitter.read(tensor.base, 'l')},"
        f"{_coordinates(emitter, tensor)},{operation!r},{emitter.mask})"
    )


def _coordinates(emitter: Emitter, tensor) -> str:
    items = emitter.vector(tensor.coordinates)
    return "(" + ",".join(emitter.read(item, "s") for item in items) + ",)"


def _linear(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    to, origin = _spaces(instruction)
    if "cp_mask" in parts:
        raise emitter.unsupported("byte mask of a bulk copy")
    if parts[1] == "reduce":
        operation = next(p for p in parts if p in _REDUCTIONS)
        if to != "global":
            raise emitter.unsupported("bulk reduction into shared memory")
        emitter.emit(
            f"bulk_store(w,{emitter.address(operands[0], 'l')},{emitter.address(operands[1], 'u')},"
            f"{emitter.read(operands[2], 'u')},({operation!r},{parts[-1]!r}),{emitter.mask})"
        )
    elif origin == "global":
        emitter.emit(
            f"bulk_load(w,{emitter.address(operands[0], 'u')},{emitter.address(operands[1], 'l')},"
            f"{emitter.read(operands[2], 'u')},{emitter.address(operands[3], 'u')},"
            f"{_multicast(emitter, instruction, 4)},{emitter.mask})"
        )
    elif to == "global":
        emitter.emit(
            f"bulk_store(w,{emitter.address(operands[0], 'l')},{emitter.address(operands[1], 'u')},"
            f"{emitter.read(operands[2], 'u')},None,{emitter.mask})"
        )
    else:
        emitter.emit(
            f"bulk_exchange(w,{emitter.address(operands[0], 'u')},"
            f"{emitter.address(operands[1], 'u')},{emitter.read(operands[2], 'u')},"
            f"{emitter.address(operands[3], 'u')},{emitter.mask})"
        )


def group_limit(instruction: Instruction) -> int:
    """N of a wait_group: at most N of the latest groups may be pending; wait_all is 0."""
    if not instruction.operands:
        return 0
    limit = instruction.operands[0]
    return limit.value if isinstance(limit, Immediate) else 0
