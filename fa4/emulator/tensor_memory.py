"""Tensor memory of a CTA: 512 columns x 128 lanes of 32 bits, allocation, tcgen05.ld and st."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .errors import TensorMemoryError
from .waits import AllocationWait

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team

COLUMNS, LANES = 512, 128
U2, U4 = np.uint16, np.uint32


class TensorMemory:
    """Words as (column, lane), so that a column of 128 lanes is one row. Starts poisoned."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self._words: np.ndarray | None = None
        self.allocated: dict[int, int] = {}  # first column -> columns
        self.owner = np.zeros(COLUMNS, bool)
        self.relinquished = False
        self.pair_requests = 0  # tcgen05.alloc with cta_group::2 so far

    @property
    def words(self) -> np.ndarray:
        """The memory as uint32 (column, lane)."""
        if self._words is None:
            self._words = np.full((COLUMNS, LANES), 0xFFFFFFFF, U4)
        return self._words

    @property
    def floats(self) -> np.ndarray:
        """The same words as float32."""
        return self.words.view(np.float32)

    def find(self, columns: int) -> int | None:
        """The first aligned run of free columns, or None."""
        for start in range(0, COLUMNS, columns):
            if not self.owner[start : start + columns].any():
                return start
        return None

    def allocate(self, columns: int) -> int:
        """Takes columns that `find` has found; returns their address."""
        start = self.find(columns)
        self.owner[start : start + columns] = True
        self.allocated[start] = columns
        return start

    def free(self, address: int, columns: int) -> None:
        """Frees one allocation. Raises TensorMemoryError unless it exists with this size."""
        if self.allocated.get(address) != columns:
            known = ", ".join(f"[{a}, {a + n})" for a, n in sorted(self.allocated.items()))
            raise TensorMemoryError(
                f"tcgen05.dealloc of {columns} columns at {address:#x}, which are not allocated "
                f"as such (freed twice?); allocated: {known or 'none'}"
            )
        del self.allocated[address]
        self.owner[address : address + columns] = False

    def check(self, column: int, columns: int, what: str) -> None:
        """Raises TensorMemoryError unless the columns are allocated."""
        inside = column + columns <= COLUMNS
        if inside and np.count_nonzero(self.owner[column : column + columns]) == columns:
            return
        known = ", ".join(f"[{a}, {a + n})" for a, n in sorted(self.allocated.items()))
        raise TensorMemoryError(
            f"{what} of tensor-memory columns [{column}, {column + columns}), which are not "
            f"allocated; allocated: {known or 'none'}"
        )

    def check_empty(self) -> None:
        """At the end of the CTA everything must have been freed."""
        if self.allocated:
            known = ", ".join(f"[{a}, {a + n})" for a, n in sorted(self.allocated.items()))
            raise TensorMemoryError(
                f"CTA {self.cta.position} ended with tensor memory allocated: columns {known}"
            )


# ---- allocation


def tensor_alloc(w: Team, place, columns, pair: bool, following: int, mask) -> int:
    """tcgen05.alloc: one warp allocates, waiting until the columns are free."""
    lane = 0 if mask is None else int(mask.argmax())
    count, tensor = int(columns[lane]), w.cta.tensor
    if count < 32 or count > COLUMNS or count & (count - 1):
        raise TensorMemoryError(
            f"tcgen05.alloc of {count} columns: must be a power of two from 32 to 512"
        )
    if tensor.relinquished:
        raise TensorMemoryError("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
    partner = None
    if pair:
        partner = next(cta for cta in cta_pair(w.cta) if cta is not w.cta)
        tensor.pair_requests += 1
        w.cta.cluster.events += 1
    where = int(place[lane]) & 0xFFFFFF
    who = (w.cta, w.warps[lane // 32].index, w.at)
    wait = AllocationWait(who, where, count, partner, tensor.pair_requests)
    return w.block_on(wait, following)


def cta_pair(cta: Cta) -> list[Cta]:
    """The two CTAs of a cta_group::2, even rank first."""
    ctas = cta.cluster.ctas
    if (cta.rank | 1) >= len(ctas):
        raise TensorMemoryError(
            f"cta_group::2 in CTA {cta.rank} of a cluster of {len(ctas)}: no other CTA to pair with"
        )
    return [ctas[cta.rank & ~1], ctas[cta.rank | 1]]


def tensor_dealloc(w: Team, address, columns, mask) -> None:
    lane = 0 if mask is None else int(mask.argmax())
    if w.checker is not None:
        w.checker.tensor.freed(w, int(address[lane]), int(columns[lane]))
    w.cta.tensor.free(int(address[lane]), int(columns[lane]))
    w.cta.cluster.events += 1


def tensor_relinquish(w: Team) -> None:
    w.cta.tensor.relinquished = True


# ---- register images of tcgen05.ld and st

_WIDTHS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


@lru_cache(maxsize=256)
def _image(shape: str, repeat: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """(lane, column) offsets of each register and thread, as (register, thread) arrays."""
    thread = np.arange(32)[None]
    r = np.arange(_REGISTERS[shape] * repeat)[:, None]
    if shape == "32x32b":
        lane, column = thread + 0 * r, r + 0 * thread
    elif shape == "16x64b":
        lane = thread // 4 + 8 * (thread % 2) + 0 * r
        column = thread // 2 % 2 + 2 * r
    elif shape == "16x128b":
        lane, column = thread // 4 + 8 * (r % 2), thread % 4 + 4 * (r // 2)
    elif shape == "16x256b":
        lane = thread // 4 + 8 * (r // 2 % 2)
        column = r % 2 + 2 * (thread % 4) + 8 * (r // 4)
    else:
        lane, column = thread % 16 + 0 * r, r + split * (thread // 16)
    return lane, column


def _columns(shape: str, repeat: int, packed: bool, split: int) -> int:
    """Columns that one instruction spans."""
    width = _WIDTHS[shape] * repeat * (2 if packed else 1)
    return max(split + width, width) if shape == "16x32bx2" else width


def _warp_place(w: Team, address: int, position: int, shape: str) -> tuple[int, int]:
    """(lane, column) of a warp's address. Raises TensorMemoryError for another warp's lanes."""
    lane, column = address >> 16, address & 0xFFFF
    warp = w.warps[position].index
    home = 32 * (warp % 4)
    allowed = (home,) if shape == "32x32b" else (home, home + 16)
    if lane not in allowed:
        raise TensorMemoryError(
            f"tensor-memory address {address:#x} is at lane {lane}; {w.cta.role(warp)} (warp "
            f"{warp}) reaches lanes {home} to {home + 31} only"
        )
    return lane, column


def _same_columns(w: Team, address: np.ndarray) -> int | None:
    """The common column when the warps hold consecutive quarters at their own lanes."""
    first = address.item(0)
    start = first >> 16
    if start != 32 * (w.warps[0].index % 4) or start + w.n > LANES:
        return None
    expected = w.cache.get("tensor lanes")
    if expected is None:
        homes = [32 * (warp.index % 4) for warp in w.warps]
        if homes != list(range(homes[0], homes[0] + 32 * len(homes), 32)):
            return None
        expected = w.cache["tensor lanes"] = np.repeat(np.array(homes, U4), 32) << U4(16)
    column = first & 0xFFFF
    if np.count_nonzero(address - expected != U4(column)):
        return None
    return column


def _positions(w: Team, mask: np.ndarray | None) -> list[int]:
    """The warps of the team that take part: those with active lanes."""
    if mask is None:
        return list(range(len(w.warps)))
    return np.flatnonzero(mask.reshape(-1, 32).any(1)).tolist()


def tensor_load(
    w: Team, address, shape: str, repeat: int, packed: bool, split: int, mask
) -> np.ndarray:
    """tcgen05.ld: (register, lane) as float32; lanes of warps that take no part stay poisoned."""
    tensor, span = w.cta.tensor, _columns(shape, repeat, packed, split)
    if w.checker is not None:
        _tell_checker(w, address, (shape, span), mask, write=False)
    if shape == "32x32b" and not packed and mask is None:
        column = _same_columns(w, address)
        if column is not None:
            tensor.check(column, span, "tcgen05.ld")
            start = 32 * (w.warps[0].index % 4)
            return tensor.floats[column : column + repeat, start : start + w.n].copy()
    loaded = np.full((repeat * _REGISTERS[shape], w.n), np.iinfo(U4).max, U4)
    for position in _positions(w, mask):
        lane, column = _warp_place(w, int(address[32 * position]), position, shape)
        tensor.check(column, span, "tcgen05.ld")
        lanes, columns = _image(shape, repeat, split)
        if packed:
            low = tensor.words[column + 2 * columns, lane + lanes]
            high = tensor.words[column + 2 * columns + 1, lane + lanes]
            words = (low & U4(0xFFFF)) | (high << U4(16))
        else:
            words = tensor.words[column + columns, lane + lanes]
        loaded[:, 32 * position : 32 * position + 32] = words
    return loaded.view(np.float32)


def tensor_store(
    w: Team, address, shape: str, repeat: int, packed: bool, split: int, values: tuple, mask
) -> None:
    """tcgen05.st: visible at once under `early`, else at tcgen05.wait::st or before."""
    tensor, span = w.cta.tensor, _columns(shape, repeat, packed, split)
    if w.checker is not None:
        _tell_checker(w, address, (shape, span), mask, write=True)
    words = np.array([value.view(U4) for value in values])
    plain = shape == "32x32b" and not packed and mask is None
    at_once = plain and w.cta.cluster.engines.immediate  # else every warp has its own queue
    column = _same_columns(w, address) if at_once else None
    if column is not None:
        tensor.check(column, span, "tcgen05.st")
        start = 32 * (w.warps[0].index % 4)
        _submit_store(w, 0, slice(column, column + repeat), slice(start, start + w.n), words)
        return
    for position in _positions(w, mask):
        lane, column = _warp_place(w, int(address[32 * position]), position, shape)
        tensor.check(column, span, "tcgen05.st")
        lanes, columns = _image(shape, repeat, split)
        part = words[:, 32 * position : 32 * position + 32]
        if packed:
            _submit_store(w, position, column + 2 * columns, lane + lanes, part & U4(0xFFFF))
            _submit_store(w, position, column + 2 * columns + 1, lane + lanes, part >> U4(16))
        else:
            _submit_store(w, position, column + columns, lane + lanes, part)


def _tell_checker(w: Team, address, form: tuple[str, int], mask, write: bool) -> None:
    shape, span = form
    places = [
        (position, *_warp_place(w, int(address[32 * position]), position, shape))
        for position in _positions(w, mask)
    ]
    for _, _, column in places:
        w.cta.tensor.check(column, span, "tcgen05.st" if write else "tcgen05.ld")
    if places:
        w.checker.tensor.access(w, places, (span, 32 if shape == "32x32b" else 16), write)


def tensor_wait_load(w: Team, mask) -> None:
    """tcgen05.wait::ld, for the checker: loads are done at once."""
    w.checker.tensor.wait(w.checker.slots(w, mask), store=False)


def _store_key(w: Team, position: int) -> tuple:
    return ("tcgen05.st", w.cta.rank, w.warps[position].index)


def _submit_store(w: Team, position: int, columns, lanes, words: np.ndarray) -> None:
    memory = w.cta.tensor.words

    def effect() -> None:
        memory[columns, lanes] = words
        w.cta.cluster.events += 1

    w.cta.cluster.engines.submit(_store_key(w, position), effect, lambda: w.cta.origin(w))


def tensor_wait_store(w: Team, mask) -> None:
    """tcgen05.wait::st: the warp's stores are done."""
    if w.checker is not None:
        w.checker.tensor.wait(w.checker.slots(w, mask), store=True)
    for position in _positions(w, mask):
        w.cta.cluster.engines.drain(_store_key(w, position))
