"""A whole kernel's translation: blocks become Python functions when they first run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import EmulatorError, UnsupportedInstruction
from ..ptx.syntax import Instruction, Kernel
from . import (  # noqa: F401  (handlers)
    access,
    compare,
    floating,
    integer,
    matrices,
    moves,
    tensor,
    warpgroups,
    warps,
)
from .constants import ConstantPool
from .emitter import Emitter
from .flow import Block, build_flow
from .handlers import emit_instruction
from .names import NAMESPACE
from .registers import RegisterFile
from .terminators import emit_terminator

BlockFunction = Callable[..., int]


@dataclass
class CompiledBlock:
    """A block with its two variants: every lane active, and under a mask."""

    block: Block
    collective: bool
    instructions: int
    full: BlockFunction
    masked: BlockFunction


class Translation:
    """Blocks, register storage and constants of a kernel."""

    def __init__(self, kernel: Kernel, checked: bool = False) -> None:
        self.kernel = kernel
        self.places: dict[int, int] | None = None  # with a checker: instruction -> its index
        if checked:
            self.places = {id(each): i for i, each in enumerate(kernel.instructions)}
        self.registers = RegisterFile(kernel)
        self.numbers = {name: i for i, name in enumerate(self.registers.storage)}
        self.flow = build_flow(kernel, self.registers)
        self.watches = any(i.root == "wgmma" for i in kernel.instructions)
        self.constants = ConstantPool()
        self.owners: dict[str, list[Instruction | None]] = {}
        self.blocks = [self._pending(block) for block in self.flow.blocks]
        self._live: dict[int, tuple[int, ...]] = {}
        self.param_offsets = {param.name: param.offset for param in kernel.params}
        self.variables = {
            name: np.frombuffer(bytearray(v.data or bytes(v.size)), np.uint8)
            for name, v in kernel.variables.items()
            if v.space in ("global", "const") and v.size
        }

    def variable_address(self, name: str) -> int:
        """Host address of a `.global` or `.const` variable."""
        return self.variables[name].ctypes.data

    def live_slots(self, block: int) -> tuple[int, ...]:
        """Register slots that are live at a block's start."""
        if block not in self._live:
            mask, slots = self.flow.blocks[block].live_in, []
            for number, (name, code) in enumerate(self.registers.storage.items()):
                if mask >> number & 1:
                    slot = self.registers.slot[name]
                    slots.extend((slot, slot + 1) if code in "xq" else (slot,))
            self._live[block] = tuple(slots)
        return self._live[block]

    def instruction_at(self, filename: str, line: int) -> Instruction | None:
        """The instruction behind a line of generated code."""
        owners = self.owners.get(filename, [])
        return owners[line - 2] if 2 <= line < len(owners) + 2 else None

    def _pending(self, block: Block) -> CompiledBlock:
        """A block whose variants compile themselves at their first call."""

        def full(team, slots, constants):
            compiled.full = self._compile(block, False)
            return compiled.full(team, slots, constants)

        def masked(team, slots, constants, mask):
            compiled.masked = self._compile(block, True)
            return compiled.masked(team, slots, constants, mask)

        count = block.end - block.start
        compiled = CompiledBlock(block, block.collective, count, full, masked)
        return compiled

    def _compile(self, block: Block, masked: bool) -> BlockFunction:
        emitter = Emitter(self.registers, self.constants, block, masked, self.places)
        body = self.kernel.instructions[block.start : block.end]
        if self.watches and block.accessed:
            emitter.emit(f"watch_registers(w,{block.index},{emitter.mask})")
        try:
            for instruction in body[:-1] if block.terminator else body:
                emit_instruction(emitter, instruction)
            if block.start == len(self.kernel.instructions):
                emitter.emit("return w.leave()")
            else:
                emit_terminator(emitter, block, self.flow)
        except EmulatorError as error:
            error.instruction = emitter.current
            raise
        except (KeyError, ValueError, IndexError, NotImplementedError, AttributeError) as error:
            unsupported = UnsupportedInstruction(
                f"the emulator does not run this form of the instruction ({error!r})"
            )
            unsupported.instruction = emitter.current
            raise unsupported from error
        filename = f"<ptx block {block.index} {'masked' if masked else 'full'} of {id(self):#x}>"
        header = f"def block(w,R,K{',m' if masked else ''}):\n "
        code = compile(header + "\n ".join(emitter.lines), filename, "exec")
        self.owners[filename] = emitter.owners
        scope: dict[str, object] = {}
        exec(code, NAMESPACE, scope)
        return scope["block"]
