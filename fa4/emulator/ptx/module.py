"""Module level of PTX: the entry's header, variables, the table of source files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import PtxSyntaxError
from ..program import Param
from .operands import parse_immediate, split_operands
from .syntax import Kernel, Variable

TYPE_BYTES = {
    "pred": 1,
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
}
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?)?([\w$]+)\s*(?:\[(\d+)\])?$"
)
_VARIABLE = re.compile(
    r"\.(shared|global|const|local)\s+(?:\.attribute\([^)]*\)\s+)?(?:\.align\s+(\d+)\s+)?"
    r"\.(?:v\d\s+\.)?(\w+)\s+([\w$]+)\s*((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)


@dataclass(frozen=True)
class EntryHeader:
    """Parameters and directives of an entry; `start` and `body` are text positions."""

    params: tuple[Param, ...]
    param_bytes: int
    target: str
    max_registers: int | None
    required_threads: int | None
    min_ctas: int
    start: int
    body: int


def find_entry(text: str, entry: str) -> EntryHeader:
    """Finds kernel `entry`. Raises PtxSyntaxError naming the kernels that exist."""
    match = re.search(
        rf"(?:\.visible\s+|\.weak\s+)?\.entry\s+{re.escape(entry)}\s*(?:\((.*?)\))?([^{{]*)\{{",
        text,
        re.S,
    )
    if not match:
        known = re.findall(r"\.entry\s+([\w$]+)", text)
        raise PtxSyntaxError(f"no kernel {entry!r} in this PTX; it holds {known}")
    params, size = _params(match.group(1) or "")
    directives = match.group(2)
    threads = _directive(directives, "reqntid") or _directive(directives, "maxntid")
    registers = _directive(directives, "maxnreg")
    ctas = _directive(directives, "minnctapersm")
    return EntryHeader(
        params,
        size,
        _target(text),
        registers,
        threads,
        ctas or 1,
        match.start(),
        match.end(),
    )


def _target(text: str) -> str:
    """The module's architecture, such as sm_90a; empty without a .target directive."""
    match = re.search(r"\.target\s+(\w+)", text)
    return match[1] if match else ""


def _directive(text: str, name: str) -> int | None:
    match = re.search(rf"\.{name}\s+([\d,\s]+)", text)
    if not match:
        return None
    product = 1
    for number in match.group(1).split(","):
        product *= int(number) if number.strip() else 1
    return product


def _params(text: str) -> tuple[tuple[Param, ...], int]:
    params, offset = [], 0
    for item in split_operands(text.strip()):
        match = _PARAM.match(item)
        if not match:
            raise PtxSyntaxError(f"parameter {item!r} is not understood")
        element = TYPE_BYTES[match.group(2)]
        align = int(match.group(1) or element)
        size = element * int(match.group(4) or 1)
        offset = -(-offset // align) * align
        params.append(Param(match.group(3), size, align, offset))
        offset += size
    return tuple(params), offset


def source_files(text: str) -> dict[int, str]:
    """The `.file` table: number to path."""
    return {int(n): path for n, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)}


def module_variables(text: str) -> tuple[dict[str, Variable], int, int]:
    """Module variables, the bytes of static shared memory, and the alignment of dynamic memory."""
    kernel = Kernel("", (), 0, {}, [])
    pattern = r"(?:\.extern\s+|\.visible\s+|\.weak\s+)?(\.(?:shared|global|const)\s[^;]*);"
    for declaration in re.findall(pattern, text):
        parse_declaration(declaration, kernel)
    return kernel.variables, kernel.static_shared, kernel.shared_align


def parse_declaration(text: str, kernel: Kernel) -> None:
    """Adds one `.shared`, `.local`, `.global` or `.const` variable to the kernel."""
    match = _VARIABLE.match(" ".join(text.split()))
    if not match:
        if text.startswith(".param"):
            raise PtxSyntaxError(f"{text!r}: device function calls are not supported")
        raise PtxSyntaxError(f"variable {text!r} is not understood")
    space, align, kind, name, extents, initial = match.groups()
    align, size = int(align or TYPE_BYTES[kind]), TYPE_BYTES[kind]
    for extent in re.findall(r"\[(\d*)\]", extents):
        size *= int(extent or 0)
    offset = 0
    if space == "shared" and size == 0:
        kernel.shared_align = max(kernel.shared_align, align)
        space = "dynamic"
    elif space == "shared":
        offset = -(-kernel.static_shared // align) * align
        kernel.static_shared = offset + size
    elif space == "local":
        offset = -(-kernel.local_bytes // align) * align
        kernel.local_bytes = offset + size
    kernel.variables[name] = Variable(name, space, size, offset, _data(initial, kind, size))


def _data(initial: str | None, kind: str, size: int) -> bytes:
    if not initial:
        return b""
    width = TYPE_BYTES[kind]
    values = [parse_immediate(t.strip()) for t in initial.strip("{} ").split(",")]
    if any(value is None for value in values):
        raise PtxSyntaxError(f"initial value {initial[:40]!r} is not understood")
    mask = (1 << 8 * width) - 1
    data = b"".join((v.value & mask).to_bytes(width, "little") for v in values)
    return data.ljust(size, b"\0")
