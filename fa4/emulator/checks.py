"""Static checks of a kernel's PTX, beyond what a run can show."""

from __future__ import annotations

from dataclasses import dataclass

from .program import Program
from .ptx.syntax import Instruction
from .translate.registers import destination, registers_of, registers_read


@dataclass(frozen=True)
class EarlyRead:
    """An instruction that reads a register which a tcgen05.ld may not have delivered yet."""

    register: str
    instruction: Instruction

    def __str__(self) -> str:
        source = f" ({self.instruction.location})" if self.instruction.location else ""
        return (
            f"PTX line {self.instruction.line}{source}: {self.instruction.text} reads "
            f"{self.register} before the tcgen05.wait::ld"
        )


def early_reads(program: Program) -> list[EarlyRead]:
    """Reads of tcgen05.ld results on some path without a tcgen05.wait::ld in between.

    PTX leaves such a read undefined. It is no error in a run: kernels exist that rely on ptxas
    to order the two, and the emulator loads at once.
    """
    flow, instructions = program.translation.flow, program.kernel.instructions
    entry: dict[int, frozenset[str]] = {0: frozenset()}
    work, found = [0], {}
    while work:
        number = work.pop()
        block, loading = flow.blocks[number], set(entry[number])
        for instruction in instructions[block.start : block.end]:
            for register in _step(instruction, loading):
                found[instruction.line, register] = EarlyRead(register, instruction)
        for successor in block.successors:
            known = entry.get(successor)
            if known is None or not loading <= known:
                entry[successor] = frozenset(loading) | (known or frozenset())
                work.append(successor)
    return [found[key] for key in sorted(found)]


def _step(instruction: Instruction, loading: set[str]) -> list[str]:
    """Moves the set of unfinished loads over an instruction; returns what it reads of them."""
    if instruction.opcode.startswith("tcgen05.wait::ld"):
        loading.clear()
        return []
    early = sorted(registers_read(instruction) & loading)
    written = set(registers_of(destination(instruction)))
    if instruction.opcode.startswith("tcgen05.ld"):
        loading |= written
        return early
    if instruction.root == "mov" and early:
        loading |= written  # compilers move it in front of the wait; ptxas makes nothing of it
        return []
    loading -= written
    return early
