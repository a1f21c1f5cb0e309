"""The table from an instruction's root to the function that emits its Python."""

from __future__ import annotations

from collections.abc import Callable

from ..ptx.syntax import Instruction
from .emitter import Emitter

Handler = Callable[[Emitter, Instruction], None]
HANDLERS: dict[str, Handler] = {}


def handles(*roots: str) -> Callable[[Handler], Handler]:
    """Registers an emitting function for the instructions of these roots."""

    def register(function: Handler) -> Handler:
        for root in roots:
            HANDLERS[root] = function
        return function

    return register


def emit_instruction(emitter: Emitter, instruction: Instruction) -> None:
    """Emits one instruction that is not a terminator. Raises UnsupportedInstruction."""
    emitter.begin(instruction)
    handler = HANDLERS.get(instruction.root)
    if handler is None:
        raise emitter.unsupported()
    handler(emitter, instruction)


@handles("fence", "membar", "griddepcontrol")
def _fence(emitter: Emitter, instruction: Instruction) -> None:
    """Memory is sequentially consistent here, grids never overlap: only a checker must know."""
    if emitter.places is not None:
        emitter.emit(f"w.checker.fences.fence(w,{instruction.opcode!r},{emitter.mask})")


@handles(
    "prefetch",
    "prefetchu",
    "nanosleep",
    "discard",
    "applypriority",
    "pmevent",
)
def _no_effect(emitter: Emitter, instruction: Instruction) -> None:
    """Time does not pass."""
