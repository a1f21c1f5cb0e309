"""Loads, stores and atomics of warps in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..special import SHARED_WINDOW
from .clocks import GENERIC
from .shadow import View

if TYPE_CHECKING:
    from ..team import Team
    from .checker import ClusterChecker

_OFFSET = 0xFFFFFF


@dataclass(frozen=True)
class Strength:
    """What the PTX memory model calls an instruction."""

    strong: bool
    acquire: bool
    release: bool


def strength_of(parts: tuple[str, ...]) -> Strength:
    """Of a memory instruction, from the pieces of its opcode. Atomics are relaxed by default."""
    atomic = parts[0] in ("atom", "red")
    both = "acq_rel" in parts or "sc" in parts
    acquire, release = both or "acquire" in parts, both or "release" in parts
    other = any(part in ("relaxed", "volatile", "mmio") for part in parts)
    return Strength(atomic or other or acquire or release, acquire, release)


class MemoryChecks:
    """Called by ordinary memory instructions."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.checker, self.clocks, self.records = checker, checker.clocks, checker.records

    def shared(self, w: Team, address: np.ndarray, nbytes: int, mask, write: bool) -> None:
        """A load or store of `nbytes` per active lane."""
        lanes = self.checker.lanes(w) if mask is None else self.checker.lanes(w)[mask]
        places = address if mask is None else address[mask]
        if not len(lanes):
            return
        strength = self.checker.rules.strength(w.at)
        numbers = self._numbers(w, lanes, ("write" if write else "read", nbytes, strength.strong))
        if strength.strong:
            self._order(lanes, places, strength, write)
        ranks = places >> 24
        first = int(ranks[0])
        if np.count_nonzero(ranks == first) == len(ranks):
            self._touch(first, places, nbytes, (lanes, numbers, write))
            return
        for rank in set(ranks.tolist()):
            chosen = ranks == rank
            some = numbers if isinstance(numbers, int) else numbers[chosen]
            self._touch(rank, places[chosen], nbytes, (lanes[chosen], some, write))

    def _numbers(self, w: Team, lanes: np.ndarray, kind: tuple[str, int, bool]) -> np.ndarray | int:
        """The record of each lane's warp; one number for a team of one warp."""
        what, nbytes, strong = kind
        key = (what, strong, nbytes < 4)
        slots = self.checker.warp_slots(w)
        if len(slots) == 1:
            return self.checker.of_warp(slots[0], w.at, key)
        if len(lanes) == 32 * len(slots):
            return np.repeat([self.checker.of_warp(slot, w.at, key) for slot in slots], 32)
        table = {slot: self.checker.of_warp(slot, w.at, key) for slot in set(lanes.tolist())}
        return np.array([table[slot] for slot in lanes.tolist()])

    def _touch(self, rank: int, places: np.ndarray, nbytes: int, who: tuple) -> None:
        lanes, numbers, write = who
        words = (places & np.uint32(_OFFSET)).astype(np.int64) >> 2
        if nbytes > 4:
            words = words[:, None] + np.arange(nbytes >> 2)
        shadow = self.checker.shared[rank]
        if isinstance(numbers, int):
            view = View(self.records, self.clocks.warps[lanes[0]], GENERIC)
        else:
            if nbytes > 4:
                lanes, numbers = lanes[:, None], numbers[:, None]
            view = View(self.records, self.clocks.warps, GENERIC, lanes=lanes)
        (shadow.write if write else shadow.read)(words, True, numbers, view)

    def _order(self, lanes: np.ndarray, places: np.ndarray, strength: Strength, write) -> None:
        """Strong accesses pass on and take knowledge."""
        locations = self.checker.locations
        for slot, place in set(zip(lanes.tolist(), places.tolist(), strict=True)):
            key = (place >> 24, (place & _OFFSET) >> 2)
            if write:
                locations.write(slot, key, strength.release)
            else:
                locations.read(slot, key, strength.acquire)

    def atomic(self, w: Team, place: tuple[str, int], nbytes: int, lane: int) -> None:
        """An atomic of one lane; `place`: state space and address."""
        space, address = place
        if space == "generic" and address >= int(SHARED_WINDOW):
            space, address = "shared", address - int(SHARED_WINDOW)
        slot, strength = self.checker.slot(w, lane), self.checker.rules.strength(w.at)
        key = (address >> 24, (address & _OFFSET) >> 2) if space == "shared" else (-1, address >> 2)
        self.checker.locations.read(slot, key, strength.acquire)
        if space == "shared":
            self._atomic_in_shared(w, slot, key, nbytes)
        else:
            self.checker.globals.atomic(slot, w.at, address, nbytes)
        self.checker.locations.write(slot, key, strength.release)

    def _atomic_in_shared(self, w: Team, slot: int, key: tuple[int, int], nbytes: int) -> None:
        number = self.checker.of_warp(slot, w.at, ("write", True, nbytes < 4))
        shadow = self.checker.shared[key[0]]
        words = slice(key[1], key[1] + max(nbytes >> 2, 1))
        view = View(self.records, self.clocks.warps[slot], GENERIC)
        if not self.checker.rules.overwrites(w.at):
            shadow.read(words, True, number, view)
        shadow.write(words, True, number, view)

    def matrices(self, w: Team, start: int, rows: tuple[int, np.ndarray], write: bool) -> None:
        """ldmatrix and stmatrix of the warp at `start`: `rows` is (CTA rank, 16-byte rows)."""
        slot = self.checker.slot(w, start)
        kind = ("write" if write else "read", False, False)
        number = self.checker.of_warp(slot, w.at, kind)
        view = View(self.records, self.clocks.warps[slot], GENERIC)
        shadow = self.checker.shared[rows[0]]
        (shadow.write if write else shadow.read)(rows[1].astype(np.int64), False, number, view)
