"""A shared object, written by Python, whose functions jump through a table that ctypes fills.

Host code compiled by the CuTe DSL calls `_cudaLaunchKernelEx` and about ten more functions of
`libcute_dsl_runtime.so`. The DSL's linker for object files (JITLink) resolves names in shared
libraries only, so replacing them takes a library, and asking for a C compiler on the user's machine
would be too much. The one written here holds one jump per name and nothing else:

    name_i:  jmp [slots + 8 * i]        slots: 8 bytes per name, exported as `fa4_slots`

The file lives in memory (`memfd_create`), so nothing is left on disk.
ELF-64 layout: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, chapters 4 and 5.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple

_PAGE = 0x10000  # 64 KiB: the largest page size that Linux uses on aarch64
_SLOTS = "fa4_slots"
_STUB_BYTES = 16

_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_READ_EXECUTE, _READ_WRITE = 5, 6
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14
_GLOBAL_OBJECT, _GLOBAL_FUNCTION = 0x11, 0x12


def _jump_x86_64(address: int, slot: int) -> bytes:
    """endbr64; jmp *[rip + slot]."""
    return b"\xf3\x0f\x1e\xfa" + b"\xff\x25" + struct.pack("<i", slot - (address + 10))


def _jump_aarch64(address: int, slot: int) -> bytes:
    """ldr x16, slot; br x16 (x16 is the register that linkers may clobber between functions)."""
    words = (slot - address) // 4
    return struct.pack("<II", 0x58000010 | (words & 0x7FFFF) << 5, 0xD61F0200)


class _Machine(NamedTuple):
    elf: int
    jump: object
    return_zero: bytes


_MACHINES = {
    "x86_64": _Machine(62, _jump_x86_64, b"\x31\xc0\xc3"),  # xor eax, eax; ret
    "aarch64": _Machine(183, _jump_aarch64, struct.pack("<II", 0x52800000, 0xD65F03C0)),
}


def _align(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def _strings(names: Sequence[str]) -> tuple[bytes, list[int]]:
    """String table and the offset of each name in it."""
    table, offsets = b"\0", []
    for name in names:
        offsets.append(len(table))
        table += name.encode() + b"\0"
    return table, offsets


def build(jumps: Sequence[str], zeros: Sequence[str], machine: str) -> bytes:
    """Bytes of a shared object that exports `jumps` (through the table) and `zeros` (return 0).

    `machine` is `x86_64` or `aarch64`; anything else raises `NotImplementedError`.
    """
    if machine not in _MACHINES:
        raise NotImplementedError(
            f"the emulator's launch hook knows {', '.join(_MACHINES)}, not {machine!r}"
        )
    target = _MACHINES[machine]
    functions = [*jumps, *zeros]
    strings, names = _strings([*functions, _SLOTS, "libfa4_emulator.so"])
    symbol_count = len(functions) + 2  # the null symbol and the table

    headers = 64 + 4 * 56
    hash_at = headers
    symbols_at = _align(hash_at + 4 * (3 + symbol_count), 8)
    strings_at = symbols_at + 24 * symbol_count
    text_at = _align(strings_at + len(strings), 16)
    text_end = text_at + _STUB_BYTES * len(functions)
    slots_at = _align(text_end, _PAGE)
    dynamic_at = slots_at + 8 * len(jumps)
    dynamic = [
        (_DT_HASH, hash_at),
        (_DT_SYMTAB, symbols_at),
        (_DT_SYMENT, 24),
        (_DT_STRTAB, strings_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SONAME, names[-1]),
        (0, 0),
    ]
    end = dynamic_at + 16 * len(dynamic)

    image = bytearray(end)

    def put(offset: int, data: bytes) -> None:
        image[offset : offset + len(data)] = data

    put(0, b"\x7fELF\x02\x01\x01".ljust(16, b"\0"))
    put(16, struct.pack("<HHIQQQIHHHHHH", 3, target.elf, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0))
    segments = [
        (_PT_LOAD, _READ_EXECUTE, 0, text_end, _PAGE),
        (_PT_LOAD, _READ_WRITE, slots_at, end - slots_at, _PAGE),
        (_PT_DYNAMIC, _READ_WRITE, dynamic_at, end - dynamic_at, 8),
        (_PT_GNU_STACK, _READ_WRITE, 0, 0, 16),  # without it the loader wants an executable stack
    ]
    for i, (kind, flags, at, size, align) in enumerate(segments):
        put(64 + 56 * i, struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align))
    # One hash bucket whose chain visits every symbol: valid, and no hash function is needed.
    chain = [0, *range(2, symbol_count), 0]
    put(hash_at, struct.pack(f"<III{symbol_count}I", 1, symbol_count, 1, *chain))
    for i, name in enumerate(names[: len(functions)]):
        stub = text_at + _STUB_BYTES * i
        code = target.jump(stub, slots_at + 8 * i) if i < len(jumps) else target.return_zero
        put(stub, code)
        symbol = struct.pack("<IBBHQQ", name, _GLOBAL_FUNCTION, 0, 1, stub, len(code))
        put(symbols_at + 24 * (i + 1), symbol)
    table = struct.pack("<IBBHQQ", names[-2], _GLOBAL_OBJECT, 0, 2, slots_at, 8 * len(jumps))
    put(symbols_at + 24 * (symbol_count - 1), table)
    put(strings_at, strings)
    for i, entry in enumerate(dynamic):
        put(dynamic_at + 16 * i, struct.pack("<QQ", *entry))
    return bytes(image)


class Shim:
    """The loaded library: `path` for the JIT engines, one ctypes callback behind each jump.

    It must outlive every function linked against it, so make one per process and keep it.
    """

    def __init__(self, callbacks: dict[str, object], zeros: Sequence[str] = ()) -> None:
        image = build(list(callbacks), zeros, platform.machine())
        self._file = os.memfd_create("libfa4_emulator.so")
        os.write(self._file, image)
        self.path = f"/proc/self/fd/{self._file}"
        self._library = ctypes.CDLL(self.path)
        self._callbacks = list(callbacks.values())  # ctypes callbacks die with their last reference
        slots = (ctypes.c_void_p * len(callbacks)).in_dll(self._library, _SLOTS)
        for i, callback in enumerate(self._callbacks):
            slots[i] = ctypes.cast(callback, ctypes.c_void_p).value
