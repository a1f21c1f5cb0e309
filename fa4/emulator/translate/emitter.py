"""Writes the Python of one basic block.

Names in the generated code: `w` the team of warps, `R` its register slots, `K` the constants at
its width, `m` the mask of active lanes (masked variant only), `r7` the local copy of slot 7.
Arrays are never written in place, so slots, locals and constants may share them.
"""

from __future__ import annotations

import struct

from ..errors import UnsupportedInstruction
from ..ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from .constants import DTYPES, ConstantPool
from .flow import Block
from .registers import RegisterFile

# Instructions that a checker hears of.
_TOLD = frozenset(
    (
        *("ld", "ldu", "st", "atom", "red", "cp", "bar", "barrier", "mbarrier", "tcgen05"),
        *("wgmma", "fence", "membar", "ldmatrix", "stmatrix", "clusterlaunchcontrol"),
    )
)
WIDTH = {"p": 0, "b": 1, "sb": 1, "h": 2, "sh": 2, "e": 2, "u": 4, "s": 4, "f": 4}
WIDTH |= {"l": 8, "sl": 8, "d": 8, "x": 8, "q": 16}
KIND = {
    "pred": "p",
    "b8": "b",
    "u8": "b",
    "s8": "sb",
    "b16": "h",
    "u16": "h",
    "s16": "sh",
    "f16": "e",
    "b32": "u",
    "u32": "u",
    "s32": "s",
    "f32": "f",
    "b64": "l",
    "u64": "l",
    "s64": "sl",
    "f64": "d",
    "f32x2": "x",
    "b128": "q",
    "f16x2": "u",
    "bf16x2": "u",
    "bf16": "h",
}


class Emitter:
    """Reads and writes operands as Python expressions and collects the lines of a block."""

    def __init__(
        self,
        registers: RegisterFile,
        pool: ConstantPool,
        block: Block,
        masked: bool,
        places: dict[int, int] | None = None,
    ) -> None:
        self.registers, self.pool, self.block = registers, pool, block
        self.places = places  # with a checker: the index of each instruction
        self.numbers = {name: i for i, name in enumerate(registers.storage)}
        self.block_mask = "m" if masked else None
        self.mask = self.block_mask
        self.lines: list[str] = []
        self.owners: list[Instruction | None] = []
        self.current: Instruction | None = None
        self.loaded: set[int] = set()
        self.written: dict[int, str] = {}
        self.versions: dict[int, str] = {}  # slot -> name of the value it holds
        self.doubles: dict[str, str] = {}  # value -> local with its float64 twin
        self.counter = 0

    # ---- lines

    def emit(self, line: str) -> None:
        self.lines.append(line)
        self.owners.append(self.current)

    def temporary(self, expression: str) -> str:
        """Binds an expression to a fresh local and returns its name."""
        self.counter += 1
        name = f"t{self.counter}"
        self.emit(f"{name}={expression}")
        return name

    def unsupported(self, why: str = "") -> UnsupportedInstruction:
        detail = f": {why}" if why else ""
        return UnsupportedInstruction(f"the emulator does not run this instruction{detail}")

    def active(self) -> str:
        """The active lanes as an array expression, also where the fast path has no mask."""
        return self.mask or "w.every"

    def begin(self, instruction: Instruction) -> None:
        """Starts an instruction: its guard narrows the mask."""
        self.current = instruction
        self.mask = self.block_mask
        if self.places is not None and instruction.root in _TOLD:
            self.emit(f"w.at={self.places[id(instruction)]}")
        if instruction.guard and instruction.root not in ("bra", "brx"):
            guard = self.read(instruction.guard, "p")
            both = f"{guard}&m" if self.block_mask else guard
            self.mask = self.temporary(both)

    # ---- reading

    def local(self, slot: int) -> str:
        """The local copy of a register slot, loaded at its first use in the block."""
        if slot not in self.loaded:
            self.loaded.add(slot)
            self.versions[slot] = self._fresh()
            self.emit(f"r{slot}=R[{slot}]")
        return f"r{slot}"

    def _fresh(self) -> str:
        self.counter += 1
        return f"v{self.counter}"

    def constant(self, value: int, kind: str) -> str:
        """A constant of every lane. `value` is a bit pattern or integer."""
        return f"K[{self.pool.index(value, kind)}]"

    def read(self, operand: Operand, kind: str) -> str:
        """The operand as an array of `kind`."""
        if isinstance(operand, Register):
            return self._read_register(operand, kind)
        if isinstance(operand, Immediate):
            return self.constant(_bits(operand, kind), kind)
        if isinstance(operand, Special):
            return self._read_special(operand, kind)
        if isinstance(operand, Symbol):
            return convert(f"w.symbol({operand.name!r})", "l", kind)
        raise self.unsupported(f"operand {operand}")

    def _read_special(self, operand: Special, kind: str) -> str:
        name = operand.name
        wide = name in ("%globaltimer", "%clock64")
        value = f"w.special({name!r})"
        if name.startswith("%p") or name == "%is_explicit_cluster":
            return value
        return convert(value, "l" if wide else "u", kind)

    def _read_register(self, operand: Register, kind: str) -> str:
        code = self.registers.storage[operand.name]
        slot = self.registers.slot[operand.name]
        if code == "x":
            low, high = self.local(slot), self.local(slot + 1)
            return convert(f"join({low},{high})", "l", kind)
        if code == "q":
            raise self.unsupported(f"operand {operand.name}")
        value = self.local(slot)
        if operand.negated:
            return f"(~{value})"
        return convert(value, code, kind)

    def read_pair(self, operand: Operand) -> tuple[str, str]:
        """A 64-bit operand as its two float32 halves."""
        if isinstance(operand, Immediate):
            bits = operand.value & (1 << 64) - 1
            return self.constant(bits & 0xFFFFFFFF, "f"), self.constant(bits >> 32, "f")
        if isinstance(operand, Register) and self.registers.storage[operand.name] == "x":
            slot = self.registers.slot[operand.name]
            return self.local(slot), self.local(slot + 1)
        self.counter += 1
        low, high = f"t{self.counter}a", f"t{self.counter}b"
        self.emit(f"{low},{high}=split({self.read(operand, 'l')})")
        return low, high

    def double(self, value: str) -> str:
        """The float64 twin of a float32 expression; each value is converted once per block."""
        version = self._version(value)
        if version is None:
            return f"({value}).astype(F8)"
        if version.startswith("K["):
            return self.pool.widened(version)
        if version not in self.doubles:
            self.doubles[version] = self.temporary(f"{value}.astype(F8)")
        return self.doubles[version]

    def _version(self, value: str) -> str | None:
        """Which value an expression holds, or None when it is computed on the spot."""
        if value.startswith("K[") and value.endswith("]"):
            return value
        if value.startswith("r") and value[1:].isdigit():
            return self.versions[int(value[1:])]
        return None

    def address(self, operand: Operand, kind: str) -> str:
        """An address operand: `u` for shared and tensor memory, `l` for global."""
        if not isinstance(operand, Address):
            raise self.unsupported(f"{operand} is no address")
        base = self.read(operand.base, kind)
        if not operand.offset:
            return base
        return f"({base}+{self.constant(operand.offset, kind)})"

    def vector(self, operand: Operand) -> tuple[Operand, ...]:
        return operand.items if isinstance(operand, Vector) else (operand,)

    # ---- writing

    def write(self, operand: Operand | None, value: str, kind: str) -> None:
        """Assigns an array of `kind` to a destination under the mask."""
        if isinstance(operand, Pair):
            operand = operand.first
        if operand is None or isinstance(operand, Sink):
            if "(" in value:  # keep the side effects of a call
                self.emit(value)
            return
        code = self.registers.storage[operand.name]
        slot = self.registers.slot[operand.name]
        if code == "x":
            self.counter += 1
            low, high = f"t{self.counter}a", f"t{self.counter}b"
            self.emit(f"{low},{high}=split({convert(value, kind, 'l')})")
            self._store(operand.name, slot, low)
            self._store(operand.name, slot + 1, high)
        else:
            self._store(operand.name, slot, convert(value, kind, code))

    def write_pair(self, operand: Register, low: str, high: str, kind: str = "f") -> None:
        """Assigns two halves: float32 for 64-bit registers, uint64 for 128-bit ones."""
        code = self.registers.storage[operand.name]
        slot = self.registers.slot[operand.name]
        if code in "xq":
            high = self.temporary(high) if f"r{slot}" in high else high
            self._store(operand.name, slot, low)
            self._store(operand.name, slot + 1, high)
        else:
            self.write(operand, f"join({low},{high})", "l")

    def _store(self, name: str, slot: int, value: str) -> None:
        number = self.numbers[name]
        guarded = self.mask is not None and self.mask != self.block_mask
        temporary = self.block.temporaries >> number & 1
        if guarded or (self.mask and not temporary):
            value = f"where({self.mask},{value},{self.local(slot)})"
        self.versions[slot] = self._version(value) or self._fresh()
        self.loaded.add(slot)
        if value != f"r{slot}":
            self.emit(f"r{slot}={value}")
        self.written[slot] = name

    def flush(self) -> None:
        """Stores the locals that are live behind the block."""
        for slot, name in self.written.items():
            if self.block.live_out >> self.numbers[name] & 1:
                self.emit(f"R[{slot}]=r{slot}")


def _bits(operand: Immediate, kind: str) -> int:
    """The constant as a bit pattern (float kinds) or as an integer."""
    if operand.floating == "f64" and kind == "f":
        value = struct.unpack("<d", struct.pack("<Q", operand.value))[0]
        return struct.unpack("<I", struct.pack("<f", value))[0]
    if operand.floating == "f32" and kind == "d":
        value = struct.unpack("<f", struct.pack("<I", operand.value))[0]
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    return operand.value


def convert(value: str, have: str, want: str) -> str:
    """Reinterprets bits of the same width; narrower reads take the low bits."""
    if have == want:
        return value
    old, new = WIDTH[have], WIDTH[want]
    if old == new and old:
        return f"{_wrap(value)}.view({DTYPES[want]})"
    if new == 0 or old == 0:
        raise UnsupportedInstruction(f"a register of storage {have!r} is used as {want!r}")
    if have in ("f", "d", "e"):
        value, have = convert(value, have, {"f": "u", "d": "l", "e": "h"}[have]), "u"
    if want in ("f", "d", "e"):
        unsigned = {"f": "U4", "d": "U8", "e": "U2"}[want]
        return f"{_wrap(value)}.astype({unsigned}).view({DTYPES[want]})"
    return f"{_wrap(value)}.astype({DTYPES[want]})"


def _wrap(value: str) -> str:
    simple = value.isidentifier() or value.endswith((")", "]"))
    return value if simple and not value.startswith("~") else f"({value})"
