"""What the parser makes of PTX: operands, instructions, the kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..program import Param


@dataclass(frozen=True, slots=True)
class Register:
    """A register by its unique name; `negated` for the `!p` form of a predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant: `value` is an integer, or the bit pattern when `floating` is "f32" or "f64"."""

    value: int
    floating: str = ""


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A label, a parameter or a variable of the module."""

    name: str


@dataclass(frozen=True, slots=True)
class Vector:
    """A brace list of operands."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """The `d|p` form: a destination and a predicate. None stands for the sink `_`."""

    first: Register | None
    second: Register | None


@dataclass(frozen=True, slots=True)
class Sink:
    """The destination `_`."""


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, for TMA with its coordinate vector `[base, {c0, c1}]`."""

    base: Operand
    offset: int = 0
    coordinates: Vector | None = None


Operand = Register | Immediate | Special | Symbol | Vector | Pair | Sink | Address


@dataclass(frozen=True, slots=True)
class Location:
    """A source line; `inlined_at` is the call site when the code was inlined."""

    file: str
    line: int
    inlined_at: Location | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Instruction:
    """One instruction. `parts` are the dot-separated pieces of `opcode`; `line` is the PTX line."""

    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    text: str
    guard: Register | None = None
    location: Location | None = None
    targets: tuple[int, ...] = ()

    @property
    def root(self) -> str:
        return self.parts[0]


@dataclass(frozen=True)
class Variable:
    """A module or kernel variable in state space `space`, `offset` bytes into that space."""

    name: str
    space: str
    size: int
    offset: int
    data: bytes = b""


@dataclass
class Kernel:
    """One entry function. `labels` maps a label to the index of the instruction after it."""

    name: str
    params: tuple[Param, ...]
    param_bytes: int
    registers: dict[str, str]
    instructions: list[Instruction]
    variables: dict[str, Variable] = field(default_factory=dict)
    static_shared: int = 0
    shared_align: int = 16
    local_bytes: int = 0
    max_registers: int | None = None
    required_threads: int | None = None
    min_ctas: int = 1
    target: str = ""
