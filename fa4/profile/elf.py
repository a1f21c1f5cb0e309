"""Resources of a kernel, read from its cubin without any external tool.

A cubin is an ELF64 file. Registers and stack stand in `.nv.info` as attribute records; spills and
`setmaxnreg` are found by their opcodes, the low 12 bits of each 16-byte SASS instruction.
Text remarks of ptxas are a second source only: they are lost when a compile comes from a cache.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_INSTRUCTION_BYTES = 16
_OPCODE_MASK = 0xFFF
_LDL, _STL, _USETMAXREG = 0x983, 0x387, 0x9C8  # seen in `nvdisasm -hex`, sm_90a and sm_100a

# Attribute numbers of .nv.info (binary utilities of CUDA 12 print their names).
_ATTR_FRAME_SIZE, _ATTR_MIN_STACK, _ATTR_REGCOUNT = 0x11, 0x12, 0x2F
_FORMAT_SIZED = 4  # a u16 byte count follows and then the payload; other formats hold a u16 value


@dataclass(frozen=True)
class Section:
    """One ELF section: `info` is sh_info, `data` its bytes (empty for SHT_NOBITS)."""

    name: str
    size: int
    info: int
    data: bytes


@dataclass(frozen=True)
class Resources:
    """What ptxas gave one kernel.

    registers: per thread at launch. stack, local_loads and local_stores (LDL, STL instructions):
    0 when nothing spills. shared: static bytes, dynamic shared memory is not known to a cubin.
    setmaxnreg: register counts in code order; empty when ptxas ignored the PTX instruction.
    """

    kernel: str
    registers: int
    stack: int
    local_loads: int
    local_stores: int
    shared: int
    code_bytes: int
    setmaxnreg: tuple[int, ...]

    @property
    def spills(self) -> bool:
        """Whether any register or array of the kernel lives in local memory."""
        return bool(self.stack or self.local_loads or self.local_stores)


def read_resources(cubin: bytes) -> list[Resources]:
    """Resources of every kernel in `cubin`; ValueError when it is no cubin or has no kernel."""
    sections = read_sections(cubin)
    symbols = _symbol_names(sections)
    attributes = list(_attributes(sections.get(".nv.info", Section("", 0, 0, b"")).data))
    found = []
    for section in sections.values():
        if section.name.startswith(".text."):
            kernel = section.name.removeprefix(".text.")
            found.append(_resources(kernel, section, sections, symbols, attributes))
    if not found:
        raise ValueError("the ELF file has no .text section of a kernel: is it a cubin?")
    return found


def read_toolchain(cubin: bytes) -> str:
    """Version of the ptxas that made `cubin` (`12.9.83`), empty when it left no note."""
    note = read_sections(cubin).get(".note.nv.tkinfo")
    found = re.search(rb"\bV(\d+(?:\.\d+)+)", note.data) if note else None
    return found.group(1).decode() if found else ""


def read_sections(cubin: bytes) -> dict[str, Section]:
    """Sections of an ELF64 little-endian file by name."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"not a cubin: expected an ELF64 file, got bytes {cubin[:6]!r}")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    raw = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + 64 * i) for i in range(count)]
    name_start = raw[names][4]
    sections = {}
    for name_at, kind, _, _, offset, size, _, info, _, _ in raw:
        name = _string(cubin, name_start + name_at)
        data = b"" if kind == 8 else cubin[offset : offset + size]
        sections[name] = Section(name, size, info, data)
    return sections


def _resources(
    kernel: str,
    text: Section,
    sections: dict[str, Section],
    symbols: list[str],
    attributes: list[tuple[int, bytes]],
) -> Resources:
    values = {
        attribute: struct.unpack_from("<I", payload, 4)[0]
        for attribute, payload in attributes
        if len(payload) == 8 and symbols[struct.unpack_from("<I", payload)[0]] == kernel
    }
    if _ATTR_REGCOUNT not in values:
        raise ValueError(f"no register count of {kernel} in .nv.info: unknown cubin version")
    words = [struct.unpack_from("<QQ", text.data, at) for at in _steps(text.data)]
    opcodes = [low & _OPCODE_MASK for low, _ in words]
    shared = sections.get(f".nv.shared.{kernel}")
    return Resources(
        kernel=kernel,
        registers=values[_ATTR_REGCOUNT],
        stack=max(values.get(_ATTR_FRAME_SIZE, 0), values.get(_ATTR_MIN_STACK, 0)),
        local_loads=opcodes.count(_LDL),
        local_stores=opcodes.count(_STL),
        shared=shared.size if shared else 0,
        code_bytes=text.size,
        setmaxnreg=tuple(
            low >> 32 for (low, _), op in zip(words, opcodes, strict=True) if op == _USETMAXREG
        ),
    )


def _steps(data: bytes) -> range:
    return range(0, len(data) - _INSTRUCTION_BYTES + 1, _INSTRUCTION_BYTES)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) records of an .nv.info section."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _FORMAT_SIZED:
            yield attribute, data[at : at + value]
            at += value


def _symbol_names(sections: dict[str, Section]) -> list[str]:
    """Name of every entry of .symtab."""
    table, names = sections[".symtab"].data, sections[".strtab"].data
    return [
        _string(names, struct.unpack_from("<I", table, at)[0]) for at in range(0, len(table), 24)
    ]


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
