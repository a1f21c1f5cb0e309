"""How each register is stored, and which operands an instruction writes.

Storage codes (numpy dtype per lane): p bool, h uint16, u uint32, f float32, l uint64, d float64,
x a pair of float32 (a 64-bit register that only ever holds two floats), q a pair of uint64.
A register may be read as any other code of its width; the vote below only avoids conversions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..ptx.syntax import Address, Instruction, Kernel, Operand, Pair, Register, Vector

PAIRS = "xq"
_NO_DESTINATION = frozenset(
    [
        "st",
        "red",
        "bra",
        "brx",
        "ret",
        "exit",
        "bar",
        "barrier",
        "fence",
        "membar",
        "prefetch",
        "prefetchu",
        "setmaxnreg",
        "griddepcontrol",
        "nanosleep",
        "trap",
        "brkpt",
        "discard",
        "applypriority",
        "pmevent",
        "cp",
        "call",
        "stmatrix",
        "clusterlaunchcontrol",
        "multimem",
        "st_async",
    ]
)
_BY_WIDTH = {
    "pred": "p",
    "b16": "h",
    "u16": "h",
    "s16": "h",
    "f16": "h",
    "bf16": "h",
    "b8": "h",
    "u8": "h",
    "s8": "h",
    "b32": "u",
    "u32": "u",
    "s32": "u",
    "f32": "f",
    "b64": "l",
    "u64": "l",
    "s64": "l",
    "f64": "d",
    "b128": "q",
}
_NEUTRAL = frozenset(["mov", "ld", "st", "selp", "shfl", "cvta", "tcgen05"])


def destination(instruction: Instruction) -> Operand | None:
    """The operand that the instruction writes, or None."""
    root, operands = instruction.root, instruction.operands
    if not operands:
        return None
    if root == "tcgen05":
        return operands[0] if instruction.parts[1] == "ld" else None
    if root == "wgmma":
        return operands[0] if instruction.parts[1] == "mma_async" else None
    if root == "clusterlaunchcontrol":
        return operands[0] if "query_cancel" in instruction.parts else None
    if root == "barrier" and "red" in instruction.parts:
        return operands[0]
    if root in _NO_DESTINATION:
        return None
    if isinstance(operands[0], Address):
        return None
    return operands[0]


def registers_of(operand: Operand | None) -> Iterator[str]:
    """Names of the registers inside an operand."""
    if isinstance(operand, Register):
        yield operand.name
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
        yield from registers_of(operand.coordinates)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)


def registers_read(instruction: Instruction) -> set[str]:
    """Names of the registers that an instruction reads."""
    written = None if instruction.root == "wgmma" else destination(instruction)
    names = {n for o in instruction.operands if o is not written for n in registers_of(o)}
    if instruction.guard:
        names.add(instruction.guard.name)
    return names


def registers_touched(instruction: Instruction) -> tuple[set[str], set[str]]:
    """Names of the registers that an instruction reads, and of those that it writes."""
    return registers_read(instruction), set(registers_of(destination(instruction)))


class RegisterFile:
    """Storage code and slot of every register; pairs take two slots."""

    def __init__(self, kernel: Kernel) -> None:
        votes = _votes(kernel)
        self.storage: dict[str, str] = {}
        self.slot: dict[str, int] = {}
        self.slot_codes: list[str] = []
        for name, declared in kernel.registers.items():
            code = _choose(_BY_WIDTH[declared], votes[name])
            self.storage[name] = code
            self.slot[name] = len(self.slot_codes)
            self.slot_codes.extend({"x": "ff", "q": "ll"}.get(code, code))


def _choose(default: str, votes: dict[str, float]) -> str:
    if default in "uf":
        return "f" if votes["f"] > votes["i"] else "u"
    if default in "ld":
        if votes["d"] > votes["i"]:
            return "d"
        return "x" if (votes["x"] > 0 and not votes["i"]) or votes["x"] >= 100 else "l"
    return default


def _votes(kernel: Kernel) -> dict[str, dict[str, float]]:
    votes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for instruction in kernel.instructions:
        parts, root = instruction.parts, instruction.root
        written = destination(instruction)
        for position, operand in enumerate(instruction.operands):
            kind = parts[-1]
            if root == "cvt" and operand is written:
                kind = parts[-2]
            ballot, weight = _ballot(root, kind, instruction, operand, position)
            if ballot:
                for name in registers_of(operand):
                    votes[name][ballot] += weight
    return votes


def _ballot(
    root: str, kind: str, instruction: Instruction, operand: Operand, position: int
) -> tuple[str, float]:
    """What one use of an operand says about its storage: (code, weight)."""
    if isinstance(operand, Address):
        return "i", 1
    if root == "tcgen05" and instruction.parts[1] == "ld":
        return "f", 0.5
    if root == "wgmma":
        return ("f" if position == 0 else "i"), 1
    if root == "mov" and any(isinstance(o, Vector) for o in instruction.operands):
        return ("x", 1) if kind == "b64" and not isinstance(operand, Vector) else ("", 0)
    if root in _NEUTRAL and kind != "f32" and not (root == "tcgen05" and position):
        return "", 0
    if root == "tcgen05" and instruction.parts[1] == "st":
        return "", 0
    if kind == "f32x2":
        return "x", 100
    if kind == "f32" and not (root == "selp" and position == 3):
        return "f", 1
    if kind == "f64":
        return "d", 1
    return "i", 1
