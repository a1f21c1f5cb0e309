"""The end of a block: branches, returns and instructions that may have to wait.

A block function returns the number of the next block, or -1 when the team's groups changed:
blocked, split by a branch, or gone.
"""

from __future__ import annotations

from ..ptx.syntax import Address, Instruction
from .bulk import group_limit
from .emitter import Emitter
from .flow import Block, Flow, is_leaving


def emit_terminator(emitter: Emitter, block: Block, flow: Flow) -> None:
    """Emits the last lines of a block function, the stores of live locals included."""
    last, following = block.terminator, block.index + 1
    if last is None:
        emitter.flush()
        leaves = following >= len(flow.blocks)
        emitter.emit("return w.leave()" if leaves else f"return {following}")
        return
    emitter.begin(last)
    if last.root == "bra":
        _branch(emitter, last, flow.block_at[last.targets[0]], following)
    elif last.root == "brx":
        _indexed_branch(emitter, last, flow, following)
    elif last.root == "trap":
        emitter.emit("raise KernelTrap('the kernel executed trap')")
    elif is_leaving(last):
        emitter.emit("return w.leave()")
    else:
        _blocking(emitter, last, following)


def _branch(emitter: Emitter, last: Instruction, target: int, following: int) -> None:
    emitter.flush()
    if last.guard is None or target == following:
        emitter.emit(f"return {target}")
        return
    taken = emitter.temporary(emitter.read(last.guard, "p"))
    if emitter.block_mask is None:
        emitter.emit(f"c=count({taken})")
        emitter.emit(f"if c==w.n: return {target}")
        emitter.emit(f"if c==0: return {following}")
    emitter.emit(f"return w.diverge({taken},{target},{following},{emitter.block_mask})")


def _indexed_branch(emitter: Emitter, last: Instruction, flow: Flow, following: int) -> None:
    targets = tuple(flow.block_at[t] for t in last.targets)
    guard = emitter.read(last.guard, "p") if last.guard else "None"
    index = emitter.read(last.operands[0], "u")
    emitter.flush()
    emitter.emit(
        f"return w.diverge_indexed({index},{targets},{guard},{following},{emitter.block_mask})"
    )


def _blocking(emitter: Emitter, last: Instruction, following: int) -> None:
    opcode, operands, mask = last.opcode, last.operands, emitter.block_mask
    if opcode.startswith("mbarrier."):
        call = _mbarrier_wait(emitter, last, following)
    elif opcode.startswith("barrier.cluster"):
        call = f"wait_cluster(w,{following},{mask})"
    elif opcode.startswith(("bar.", "barrier.")):
        if "red" in last.parts:
            raise emitter.unsupported("barrier with a reduction")
        count = emitter.read(operands[1], "u") if len(operands) > 1 else "None"
        call = f"wait_named(w,{emitter.read(operands[0], 'u')},{count},{following},{mask})"
    elif opcode.startswith("cp.async.bulk."):
        read = "read" in last.parts
        call = f"wait_bulk(w,{group_limit(last)},{read},{following},{mask})"
    elif opcode.startswith("cp.async."):
        if "wait_all" in last.parts:
            emitter.emit(f"copy_commit(w,{mask})")
        call = f"wait_copy(w,{group_limit(last)},{following},{mask})"
    elif opcode.startswith("wgmma."):
        call = f"wait_wgmma(w,{operands[0].value},{following},{mask})"
    elif opcode.startswith("setmaxnreg"):
        call = f"set_registers(w,{'inc' in last.parts},{operands[0].value},{following},{mask})"
    else:
        place, columns = emitter.address(operands[0], "u"), emitter.read(operands[1], "u")
        pair = "cta_group::2" in last.parts
        call = f"tensor_alloc(w,{place},{columns},{pair},{following},{mask})"
    emitter.flush()
    emitter.emit(f"return {call}")


def _mbarrier_wait(emitter: Emitter, last: Instruction, following: int) -> str:
    parts, operands = last.parts, last.operands
    first = next(i for i, o in enumerate(operands) if isinstance(o, Address))
    predicate = operands[0] if first else None
    slot = "None" if predicate is None else emitter.registers.slot[predicate.name]
    place = emitter.address(operands[first], "u")
    parity = "parity" in parts
    phase = emitter.read(operands[first + 1], "u" if parity else "l")
    potentially_blocking = parts[1] == "try_wait"
    return (
        f"wait_mbarrier(w,{place},{phase},{parity},{potentially_blocking},{slot},{following},"
        f"{emitter.block_mask})"
    )
