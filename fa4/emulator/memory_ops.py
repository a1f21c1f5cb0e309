"""Loads, stores and atomics of the lanes of a team, in every state space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import AddressError, UnsupportedInstruction
from .formats import bf16_bits, f16_bits, from_bf16, from_f16
from .memory import FIRST_ADDRESS, HOST
from .shared import SYSTEM_BYTES
from .special import LOCAL_WINDOW, SHARED_WINDOW

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team

U4, U8, I8 = np.uint32, np.uint64, np.int64
_OFFSET, _RANK = U4(0xFFFFFF), U4(24)
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3}


def _quiet(address: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
    """Addresses with inactive lanes pointing where the first active lane points."""
    first = int(mask.argmax())
    return np.where(mask, address, address[first]) if mask[first] else None


def _nothing(w: Team, size: int, count: int) -> list[np.ndarray]:
    return [np.zeros(w.n, f"u{size}")] * count


# ---- shared memory


def _shared_index(cta: Cta, offset: np.ndarray, size: int, count: int, what: str) -> np.ndarray:
    """Element indices of in-range, aligned shared offsets."""
    nbytes = size * count
    limit = cta.shared.end - nbytes - SYSTEM_BYTES
    if limit < 0 or np.count_nonzero(offset - U4(SYSTEM_BYTES) > U4(limit)):
        for value in offset.tolist():
            cta.shared.check(value, nbytes, what)
    if nbytes > 1 and np.count_nonzero(offset & U4(nbytes - 1)):
        bad = int(offset[(offset & U4(nbytes - 1)) != 0][0])
        raise AddressError(f"{what} of {nbytes} bytes at shared offset {bad:#x} is misaligned")
    return offset >> U4(_SHIFT[size]) if size > 1 else offset


def _owners(w: Team, address: np.ndarray) -> list[tuple[Cta, np.ndarray | None]]:
    """The CTAs the addresses lie in, each with its lanes (None: all of them)."""
    rank = address >> _RANK
    if np.count_nonzero(rank == rank[0]) == len(rank):
        return [(w.cta.peer(int(address[0])), None)]
    return [(w.cta.peer(value << 24), rank == value) for value in np.unique(rank).tolist()]


def load_shared(w: Team, address, size: int, count: int, mask) -> list[np.ndarray]:
    """`count` consecutive elements of `size` bytes per lane, as unsigned arrays."""
    every = address
    if mask is not None:
        address = _quiet(address, mask)
        if address is None:
            return _nothing(w, size, count)
    values = _load_owned(w, address, size, count)  # refuses what is not there
    if w.checker is not None:
        w.checker.memory.shared(w, every, size * count, mask, write=False)
    return values


def _load_owned(w: Team, address, size: int, count: int) -> list[np.ndarray]:
    owners = _owners(w, address)
    if len(owners) > 1:
        results = [np.zeros(w.n, f"u{size}") for _ in range(count)]
        for cta, lanes in owners:
            for result, part in zip(
                results, _load_from(cta, address[lanes], size, count), strict=True
            ):
                result[lanes] = part
        return results
    return _load_from(owners[0][0], address, size, count)


def _load_from(cta: Cta, address, size: int, count: int) -> list[np.ndarray]:
    index = _shared_index(cta, address & _OFFSET, size, count, "load")
    memory = cta.shared.views[size]
    if size * count == 16 and size == 4:
        return list(np.ascontiguousarray(cta.shared.rows[index >> U4(2)].T))
    return [memory[index + U4(k)] if k else memory[index] for k in range(count)]


def store_shared(w: Team, address, size: int, values: tuple, mask) -> None:
    """Stores one vector per active lane."""
    every, nbytes = address, size * len(values)
    if mask is not None:
        if not np.count_nonzero(mask):
            return
        address = address[mask]
        values = tuple(value[mask] for value in values)
    w.cta.cluster.events += 1
    for cta, lanes in _owners(w, address):
        chosen = address if lanes is None else address[lanes]
        index = _shared_index(cta, chosen & _OFFSET, size, len(values), "store")
        memory = cta.shared.views[size]
        for position, value in enumerate(values):
            memory[index + U4(position)] = value if lanes is None else value[lanes]
    if w.checker is not None:
        w.checker.memory.shared(w, every, nbytes, mask, write=True)


# ---- global memory


def load_global(w: Team, address, size: int, count: int, mask) -> list[np.ndarray]:
    every = address
    if mask is not None:
        address = _quiet(address, mask)
        if address is None:
            return _nothing(w, size, count)
    values = _load_host(w, address, size, count)  # refuses what is not there
    if w.checker is not None:
        w.checker.globals.access(w, every, size * count, mask, write=False)
    return values


def _load_host(w: Team, address, size: int, count: int) -> list[np.ndarray]:
    _check_global(w, address, size * count, "load")
    index = ((address - U8(FIRST_ADDRESS)) >> U8(_SHIFT[size])).view(I8)
    memory = HOST[size]
    return [memory[index + k] for k in range(count)]


def _check_global(w: Team, address, nbytes: int, what: str) -> None:
    if nbytes & (nbytes - 1):
        raise UnsupportedInstruction(f"{what} of {nbytes} bytes")
    w.cta.cluster.memory.check_lanes(address, nbytes, what)


def store_global(w: Team, address, size: int, values: tuple, mask) -> None:
    every = address
    if mask is not None:
        if not np.count_nonzero(mask):
            return
        address = address[mask]
        values = tuple(value[mask] for value in values)
    _check_global(w, address, size * len(values), "store")
    if w.checker is not None:
        w.checker.globals.access(w, every, size * len(values), mask, write=True)
    index = ((address - U8(FIRST_ADDRESS)) >> U8(_SHIFT[size])).view(I8)
    for position, value in enumerate(values):
        HOST[size][index + position] = value
    w.cta.cluster.events += 1


load_const, load_param = load_global, load_global


# ---- local memory: a few hundred bytes of each thread


def _local(w: Team, address, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    memory = w.cta.local
    offset = address.view(I8)
    if np.count_nonzero((offset < 0) | (offset + size * count > memory.shape[1])):
        raise AddressError(
            f"local address {int(offset.max()):#x} is outside the thread's {memory.shape[1]} bytes"
        )
    if np.count_nonzero(offset % (size * count)):
        raise AddressError(f"local access of {size * count} bytes is misaligned")
    return memory.view(f"u{size}"), offset // size


def load_local(w: Team, address, size: int, count: int, mask) -> list[np.ndarray]:
    if mask is not None:
        address = _quiet(address, mask)
        if address is None:
            return _nothing(w, size, count)
    memory, index = _local(w, address, size, count)
    return [memory[w.threads, index + k] for k in range(count)]


def store_local(w: Team, address, size: int, values: tuple, mask) -> None:
    lanes = w.every if mask is None else mask
    if not np.count_nonzero(lanes):
        return
    memory, index = _local(w, address[lanes], size, len(values))
    for position, value in enumerate(values):
        memory[w.threads[lanes], index + position] = value[lanes]


# ---- generic addresses


def _windows(address: np.ndarray, lanes: np.ndarray) -> list[tuple[str, np.ndarray]]:
    local = address >= LOCAL_WINDOW
    shared = (address >= SHARED_WINDOW) & ~local
    spaces = [("local", local), ("shared", shared), ("global", ~(local | shared))]
    return [(name, where & lanes) for name, where in spaces if np.count_nonzero(where & lanes)]


def load_generic(w: Team, address, size: int, count: int, mask) -> list[np.ndarray]:
    lanes = w.every if mask is None else mask
    results = [np.zeros(w.n, f"u{size}") for _ in range(count)]
    for space, chosen in _windows(address, lanes):
        parts = _LOAD[space](w, _window_offset(space, address), size, count, chosen)
        results = [np.where(chosen, p, r) for p, r in zip(parts, results, strict=True)]
    return results


def store_generic(w: Team, address, size: int, values: tuple, mask) -> None:
    lanes = w.every if mask is None else mask
    for space, chosen in _windows(address, lanes):
        _STORE[space](w, _window_offset(space, address), size, values, chosen)


def _window_offset(space: str, address: np.ndarray) -> np.ndarray:
    if space == "shared":
        return (address - SHARED_WINDOW).astype(U4)
    return address - LOCAL_WINDOW if space == "local" else address


_LOAD = {"global": load_global, "shared": load_shared, "local": load_local}
_STORE = {"global": store_global, "shared": store_shared, "local": store_local}


# ---- atomics

_DTYPE = {"u32": "u4", "b32": "u4", "s32": "i4", "f32": "f4", "u64": "u8", "b64": "u8", "s64": "i8"}
_DTYPE |= {"f64": "f8", "f16x2": "u4", "bf16x2": "u4", "f16": "u2", "bf16": "u2", "b16": "u2"}


def _combine(operation: str, kind: str, old, new):
    """The value an atomic leaves behind."""
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        return _combine_narrow(operation, kind, old, new)
    if operation == "add":
        return old + new
    if operation in ("min", "max"):
        return (np.fmin if operation == "min" else np.fmax)(old, new)
    if operation == "exch":
        return new
    if operation in ("and", "or", "xor"):
        return getattr(np, f"bitwise_{operation}")(old, new)
    if operation == "inc":
        return np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1))
    return np.where((old == 0) | (old > new), new, old - old.dtype.type(1))


def _combine_narrow(operation: str, kind: str, old, new):
    decode, encode = (from_bf16, bf16_bits) if kind.startswith("b") else (from_f16, f16_bits)
    a, b = (np.atleast_1d(v).view(np.uint16) for v in (old, new))
    function = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]
    bits = encode(function(decode(a), decode(b))).astype(np.uint16)
    return bits.view(np.asarray(old).dtype).reshape(np.shape(old))


def combine_arrays(operation: str, kind: str, memory: np.ndarray, values: np.ndarray) -> None:
    """memory = memory op values, elementwise, on arrays of the operation's type."""
    memory[...] = _combine(operation, kind, memory, values)


def reduction_dtype(kind: str) -> np.dtype:
    """The numpy type in which values of a reduction of `kind` are stored."""
    return np.dtype(_DTYPE[kind])


def _cells(w: Team, space: str, place: int, dtype: np.dtype) -> tuple[np.ndarray, int]:
    size = dtype.itemsize
    if space == "generic" and place >= int(SHARED_WINDOW):
        space, place = "shared", place - int(SHARED_WINDOW)
    if place % size:
        raise AddressError(f"atomic of {size} bytes at {place:#x} is misaligned")
    if space == "shared":
        cta, offset = w.cta.peer(place), place & 0xFFFFFF
        cta.shared.check(offset, size, "atomic")
        return cta.shared.views[size].view(dtype), offset // size
    w.cta.cluster.memory.check(place, size, "atomic")
    return HOST[size].view(dtype), (place - FIRST_ADDRESS) // size


def atomic(w: Team, space: str, operation: str, kind: str, address, value, other, mask):
    """atom and red, one lane after another. Returns the old values in the type of `value`."""
    dtype = np.dtype(_DTYPE[kind])
    result = np.zeros(w.n, dtype)
    value = value.view(dtype)
    lanes = range(w.n) if mask is None else np.flatnonzero(mask).tolist()
    for lane in lanes:
        memory, index = _cells(w, space, int(address[lane]), dtype)
        if w.checker is not None:
            w.checker.memory.atomic(w, (space, int(address[lane])), dtype.itemsize, lane)
        old = memory[index]
        result[lane] = old
        if operation == "cas":
            if old == value[lane]:
                memory[index] = other.view(dtype)[lane]
        else:
            memory[index] = _combine(operation, kind, old, value[lane])
    w.cta.cluster.events += 1
    return result


def atomic_vector(w: Team, space, operation: str, kind: str, address, values, step: int, mask):
    """red with a vector: its elements at consecutive places."""
    for position, value in enumerate(values):
        place = address + address.dtype.type(position * step)
        atomic(w, space, operation, kind, place, value, None, mask)
