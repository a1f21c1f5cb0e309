"""Basic blocks of a kernel, and which registers are live where."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ptx.syntax import Instruction, Kernel
from .registers import RegisterFile, registers_touched

# Instructions that act on a whole warp: every live lane of the warp must have arrived.
_COLLECTIVE = (
    "elect",
    "shfl",
    "vote",
    "match",
    "redux",
    "bar.",
    "barrier.",
    "tcgen05.ld",
    "tcgen05.st",
    "tcgen05.alloc",
    "tcgen05.dealloc",
    "tcgen05.relinquish",
    "tcgen05.wait",
    "setmaxnreg",
    "ldmatrix",
    "stmatrix",
    "mma.",
    "wgmma.",
)
# Instructions after which the warp may have to wait: they end a block.
_BLOCKING = (
    "mbarrier.try_wait",
    "mbarrier.test_wait",
    "bar.sync",
    "bar.red",
    "barrier.sync",
    "barrier.red",
    "barrier.cta.sync",
    "barrier.cta.red",
    "barrier.cluster.wait",
    "cp.async.wait",
    "cp.async.bulk.wait",
    "setmaxnreg",
    "tcgen05.alloc",
    "wgmma.wait_group",
)
# Instructions that let others go on: a block ends behind them, so that a scheduler can let the
# others run before whatever this warp does next.
_SIGNALS = ("mbarrier.arrive", "bar.arrive", "barrier.arrive", "barrier.cta.arrive")
_SIGNALS += ("tcgen05.commit", "cp.async.mbarrier.arrive", "barrier.cluster.arrive")
_SIGNALS += ("wgmma.mma_async",)
_SIDE_EFFECTS = ("st", "red", "atom", "mbarrier", "cp", "bar", "barrier", "tcgen05", "wgmma")
_LEAVING = ("ret", "exit", "trap")


@dataclass
class Block:
    """Instructions [start, end). `terminator` ends it (None: falls through to the next block).

    Register sets are bit masks over register numbers. `temporaries` live only inside the block;
    `accessed` are those that instructions other than wgmma read or write.
    """

    index: int
    start: int
    end: int
    terminator: Instruction | None
    collective: bool
    successors: tuple[int, ...] = ()
    uses: int = 0
    defines: int = 0
    touches: int = 0
    accessed: int = 0
    live_in: int = 0
    live_out: int = 0
    temporaries: int = 0


@dataclass
class Flow:
    """The control-flow graph. `block_at` maps an instruction index to its block's number."""

    blocks: list[Block] = field(default_factory=list)
    block_at: dict[int, int] = field(default_factory=dict)


def is_blocking(instruction: Instruction) -> bool:
    return instruction.opcode.startswith(_BLOCKING)


def is_leaving(instruction: Instruction) -> bool:
    return instruction.root in _LEAVING


def _ends_block(instruction: Instruction) -> bool:
    return instruction.root in ("bra", "brx") or is_leaving(instruction) or is_blocking(instruction)


def build_flow(kernel: Kernel, registers: RegisterFile) -> Flow:
    """Splits a kernel into blocks and computes liveness."""
    flow = Flow()
    starts = _leaders(kernel.instructions)
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(kernel.instructions)
        body = kernel.instructions[start:end]
        last = body[-1] if body and _ends_block(body[-1]) else None
        collective = any(i.opcode.startswith(_COLLECTIVE) for i in body)
        flow.blocks.append(Block(number, start, end, last, collective))
        flow.block_at[start] = number
    # Falling off the end is a return: one empty block stands for it.
    flow.block_at.setdefault(len(kernel.instructions), len(flow.blocks))
    count = len(kernel.instructions)
    flow.blocks.append(Block(len(flow.blocks), count, count, None, False))
    numbers = {name: index for index, name in enumerate(registers.storage)}
    for block in flow.blocks[:-1]:
        block.successors = _successors(block, flow)
        _summarise(block, kernel, numbers)
    _solve(flow)
    return flow


def _leaders(instructions: list[Instruction]) -> list[int]:
    leaders = {0}
    for index, instruction in enumerate(instructions):
        leaders.update(instruction.targets)
        if _ends_block(instruction) or instruction.opcode.startswith(_SIGNALS):
            leaders.add(index + 1)
    starts, effect = [], False
    for index, instruction in enumerate(instructions):
        collective = instruction.opcode.startswith(_COLLECTIVE)
        if index in leaders or (collective and effect):
            starts.append(index)
            effect = False
        if instruction.root in _SIDE_EFFECTS and not collective:
            effect = True
    return starts


def _successors(block: Block, flow: Flow) -> tuple[int, ...]:
    last = block.terminator
    following = block.index + 1
    if last is None or is_blocking(last):
        return (following,)
    if is_leaving(last):
        return ()
    targets = tuple(flow.block_at[t] for t in last.targets)
    return (*targets, following) if last.guard else targets


def _summarise(block: Block, kernel: Kernel, numbers: dict[str, int]) -> None:
    for instruction in kernel.instructions[block.start : block.end]:
        read, written = registers_touched(instruction)
        reads = sum(1 << numbers[name] for name in read)
        writes = sum(1 << numbers[name] for name in written)
        if instruction.guard:
            reads |= writes  # a lane that is switched off keeps the old value
        block.touches |= reads | writes
        if instruction.root != "wgmma":
            block.accessed |= reads | writes
        block.uses |= reads & ~block.defines
        block.defines |= writes


def _solve(flow: Flow) -> None:
    """Backward liveness to a fixed point, then the registers private to one block."""
    predecessors: dict[int, list[int]] = {block.index: [] for block in flow.blocks}
    for block in flow.blocks:
        for successor in block.successors:
            predecessors[successor].append(block.index)
    work = [block.index for block in flow.blocks]
    queued = set(work)
    while work:
        index = work.pop()
        queued.discard(index)
        block = flow.blocks[index]
        out = 0
        for successor in block.successors:
            out |= flow.blocks[successor].live_in
        block.live_out = out
        live = block.uses | (out & ~block.defines)
        if live != block.live_in:
            block.live_in = live
            for predecessor in predecessors[index]:
                if predecessor not in queued:
                    queued.add(predecessor)
                    work.append(predecessor)
    once, twice = 0, 0
    for block in flow.blocks:
        twice |= once & block.touches
        once |= block.touches
    for block in flow.blocks:
        block.temporaries = block.touches & ~twice & ~block.live_in & ~block.live_out
