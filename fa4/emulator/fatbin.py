"""The container that host code hands to `cudaLibraryLoadData`: a fat binary with one cubin.

The emulator needs the kernel's PTX, and PTX beside the cubin is what this format exists for, so the
text travels inside it: through the DSL's caches, into exported objects, and to other processes.
The driver prefers the cubin of its own architecture, so such an object still runs natively (seen on
an H200, where the PTX entry alone also loads).

Layout, little endian. Header: u32 magic, u16 version, u16 header bytes, u64 bytes that follow.
Entry: u16 kind (1 PTX, 2 ELF), u16 version, u32 header bytes, u64 payload bytes, u32 compressed
bytes (0: not compressed), u32 option offset, u16 minor, u16 major, u32 architecture, ...
"""

import ctypes
import struct
from collections.abc import Iterator

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_NO_OPTIONS = bytes(8)  # must be there: the driver follows the offset when it compiles the PTX
_KIND_PTX = 1
_ENTRY_VERSION = 0x101
_FLAGS_64_BIT_LINUX = 0x11
_ELF_MAGIC = b"\x7fELF"


def with_ptx(container: bytes, ptx: str, arch: int) -> bytes:
    """`container` plus a PTX entry; `arch` is 100 for sm_100a. Refuses what is no fat binary."""
    magic, version, header, size = _HEADER.unpack_from(container)
    if magic != _MAGIC:
        raise ValueError(
            f"expected a fat binary (magic {_MAGIC:#x}) around the cubin, got {magic:#x}: "
            "this version of nvidia-cutlass-dsl packs kernels differently"
        )
    text = ptx.encode() + b"\0"
    text += bytes(-len(text) % 8)
    major, minor = _ptx_version(ptx)
    entry_bytes = _ENTRY.size + len(_NO_OPTIONS)
    entry = _ENTRY.pack(
        *(_KIND_PTX, _ENTRY_VERSION, entry_bytes, len(text), 0, _ENTRY.size, minor, major, arch),
        *(0, 0, _FLAGS_64_BIT_LINUX, 0, 0),
    )
    entry += _NO_OPTIONS
    body = container[header : header + size] + entry + text
    return _HEADER.pack(magic, version, header, len(body)) + body


def is_fat_binary(data: bytes) -> bool:
    """Whether `data` starts like a fat binary."""
    return data[:4] == _MAGIC.to_bytes(4, "little")


def ptx_at(address: int) -> str | None:
    """PTX text inside the fat binary in memory at `address`; None when it holds none."""
    for kind, payload in _entries(address):
        if kind == _KIND_PTX:
            return payload.rstrip(b"\0").decode()
    return None


def _ptx_version(ptx: str) -> tuple[int, int]:
    words = ptx[ptx.index(".version") :].split(maxsplit=2)
    major, minor = words[1].split(".")
    return int(major), int(minor)


def _entries(address: int) -> Iterator[tuple[int, bytes]]:
    magic, _, header, size = _HEADER.unpack(ctypes.string_at(address, _HEADER.size))
    if magic != _MAGIC:
        return
    at, end = address + header, address + header + size
    while at < end:
        kind, _, entry_header, payload, *_ = _ENTRY.unpack(ctypes.string_at(at, _ENTRY.size))
        yield kind, ctypes.string_at(at + entry_header, payload)
        at += entry_header + payload
