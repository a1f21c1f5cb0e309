"""Orderings through memory itself: atomics, acquire loads, release stores, and fences beside them.

A release at a place makes what its warp knows available there; an acquire of the place takes it.
A relaxed access does the same together with a fence of its warp: before it when it writes, behind
it when it reads (PTX ISA, release and acquire patterns).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .clocks import ASYNC, GENERIC, GRID_BEFORE, PENDING, PUBLIC, TENSOR

if TYPE_CHECKING:
    from .checker import ClusterChecker

_CARRIED = [GENERIC, ASYNC, PUBLIC]
_TAKEN = [GENERIC, ASYNC, PENDING]


class ClusterOrder:
    """What the clusters of a launch have told each other through global memory.

    A cluster counts its releases. `learned[a][b]`: how many of b's releases a knows of. `waited`:
    words that a warp released for which the grid before had ended.
    """

    def __init__(self) -> None:
        self.releases: dict[int, int] = {}
        self.learned: dict[int, dict[int, int]] = {}
        self.waited: set[int] = set()
        self._places: dict[int, dict[int, int]] = {}

    def release(self, cluster: int, word: int, waited: bool) -> None:
        if waited:
            self.waited.add(word)
        count = self.releases[cluster] = self.releases.get(cluster, 0) + 1
        known = {**self.learned.get(cluster, {}), cluster: count}
        _join(self._places.setdefault(word, {}), known)

    def acquire(self, cluster: int, word: int) -> None:
        if word in self._places:
            _join(self.learned.setdefault(cluster, {}), self._places[word])


def _join(known: dict[int, int], more: dict[int, int]) -> None:
    for cluster, count in more.items():
        known[cluster] = max(count, known.get(cluster, 0))


class LocationChecks:
    """Knowledge kept at places of shared (rank, word) and global (-1, word) memory."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.checker, self.clocks = checker, checker.clocks
        self._places: dict[tuple[int, int], np.ndarray] = {}
        self._fenced: dict[int, np.ndarray] = {}  # what a warp knew at its latest fence
        self._taken: dict[int, np.ndarray] = {}  # what relaxed reads of a warp have seen
        self._met: dict[int, set[int]] = {}  # places in global memory that they have read
        self.order = checker.launch.order  # between clusters

    def fence(self, slots: list[int]) -> None:
        """fence.acq_rel or fence.sc."""
        for slot in slots:
            for word in self._met.pop(slot, ()):
                self._acquire(slot, word)
            taken = self._taken.pop(slot, None)
            if taken is not None:
                self._learn(slot, taken)
            self._fenced[slot] = self.clocks.warps[slot, _CARRIED]
        self.clocks.step(slots)

    def write(self, slot: int, place: tuple[int, int], release: bool) -> None:
        """A strong write."""
        known = self.clocks.warps[slot, _CARRIED] if release else self._fenced.get(slot)
        if known is None:
            return
        self._places[place] = _joined(self._places.get(place), known)
        if place[0] < 0:
            self.order.release(self.checker.number, place[1], known[0, GRID_BEFORE] > 0)
        if release:
            self.clocks.step([slot])

    def read(self, slot: int, place: tuple[int, int], acquire: bool) -> None:
        """A strong read."""
        if place[0] < 0 and acquire:
            self._acquire(slot, place[1])
        elif place[0] < 0:
            self._met.setdefault(slot, set()).add(place[1])
        known = self._places.get(place)
        if known is None:
            return
        if acquire:
            self._learn(slot, known)
        else:
            self._taken[slot] = _joined(self._taken.get(slot), known)

    def _acquire(self, slot: int, word: int) -> None:
        self.order.acquire(self.checker.number, word)
        if word in self.order.waited:
            self.clocks.warps[slot, GENERIC, GRID_BEFORE] = 1

    def _learn(self, slot: int, known: np.ndarray) -> None:
        rows = self.clocks.warps[slot]
        for row, part in zip(_TAKEN, known, strict=True):
            np.maximum(rows[row, : len(part)], part, out=rows[row, : len(part)])
        if not self.checker.rules.tensor_fences:
            np.maximum(rows[TENSOR], rows[PENDING], out=rows[TENSOR])


def _joined(old: np.ndarray | None, new: np.ndarray) -> np.ndarray:
    if old is None:
        return new.copy()
    result = new.copy()
    np.maximum(result[:, : old.shape[1]], old, out=result[:, : old.shape[1]])
    return result
