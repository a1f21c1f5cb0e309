"""Global memory of one launch: accesses of all its clusters to the ranges that it writes.

Within a cluster the clocks decide. Between clusters nothing but releases and acquires at places in
global memory orders anything; a release passes on all that its cluster has done so far, but of bulk
stores only those that were waited for. To pass on everything is more than the PTX ISA says, and so
may hide a race but never makes one up. Reads of a range count from its first write on and before;
of equally numbered actors of several clusters that read a word, the last one counts.

A grid that is launched as dependent may begin before the one before it has ended: what that wrote
or read is in order behind griddepcontrol.wait, of a warp or of one that signals it since. A grid
that never waits hands on what the one before it touched. Not known: a grid that waits, but only
after its griddepcontrol.launch_dependents, so that the next may begin before the one before it has
ended; and whether the wait for a grid that never waits covers the one before that: it is taken to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..program import Touched
from .clocks import ASYNC, GENERIC, GRID_BEFORE
from .records import Records
from .shadow import Shadow, View

if TYPE_CHECKING:
    from ..memory import GlobalMemory
    from ..team import Team
    from .checker import ClusterChecker
    from .copy_checks import Flight


NO_CLUSTER = -1  # of the grid before


@dataclass(frozen=True)
class GlobalView(View):
    """A view that also knows what other clusters have passed on: `learned`, by cluster."""

    cluster: int = 0
    learned: dict[int, int] = field(default_factory=dict)

    def _known(self, cells: np.ndarray, writers: bool) -> np.ndarray:
        known, records = super()._known(cells, writers), self.records
        cluster = records.cluster[cells]
        other = (cluster != self.cluster) & (cluster != NO_CLUSTER) & (cells != 0)
        if np.count_nonzero(other):
            learned = [self.learned.get(each, 0) for each in cluster.reshape(-1).tolist()]
            passed_on = np.array(learned).reshape(cells.shape) > records.moment[cells]
            known = np.where(other, passed_on, known)
        return known


class GlobalShadow:
    """Shadows of the ranges of global memory that a launch has written."""

    def __init__(self, memory: GlobalMemory, report: Callable) -> None:
        self.starts, self.ends = memory.bounds()
        self.records = Records()
        self.report = report
        self._shadows: dict[int, Shadow] = {}
        self._early_reads: dict[int, list[tuple]] = {}
        self._before, self._unordered = 0, None
        self.waited = False  # any warp, for the grid before

    def begin_unordered(self, touched: Touched) -> None:
        """The grid before touched this, and may not have ended."""
        self._unordered = touched
        self._before = self.records.add(0, 0, GRID_BEFORE, 1)
        self.records.cluster[self._before] = NO_CLUSTER
        for number, words in self._by_range(touched.written):
            self._shadow(number).writers.reshape(-1)[words] = self._before
        clocks = np.zeros((GENERIC + 1, GRID_BEFORE + 1), np.int32)
        itself = View(self.records, clocks, GENERIC, own=GRID_BEFORE)
        for number, words in self._by_range(touched.read):
            self.read(number, words, self._before, itself)

    def _by_range(self, places: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The words at those addresses that lie in a range of this launch."""
        numbers = np.searchsorted(self.starts, places, "right") - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            mine = places[numbers == number]
            yield number, (mine[mine < self.ends[number]] - self.starts[number]) >> 2

    def touched(self) -> Touched:
        """What this grid has written and read; if it never waited, also what the one before did."""
        written, read = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number, shadow in self._shadows.items():
            for cells, found in ((shadow.writers[None], written), (shadow.readers, read)):
                mine = ((cells != 0) & (cells != self._before)).any(0).reshape(-1)
                found.append(self.starts[number] + 4 * np.flatnonzero(mine))
        for number, reads in self._early_reads.items():
            mine = np.zeros((self.ends[number] - self.starts[number] + 7) >> 2, np.bool_)
            for words, record, _ in reads:
                mine[words] |= record != self._before
            read.append(self.starts[number] + 4 * np.flatnonzero(mine))
        if self._unordered is not None and not self.waited:
            written.append(self._unordered.written)
            read.append(self._unordered.read)
        return Touched(np.concatenate(written), np.concatenate(read))

    def locate(self, address: int) -> int:
        """The number of the range that an address lies in."""
        return bisect_right(self.starts, address) - 1

    def read(self, number: int, words: np.ndarray, records: np.ndarray | int, view: View) -> None:
        """Words (counted from the range's start) are read."""
        shadow = self._shadows.get(number)
        if shadow is None:
            self._early_reads.setdefault(number, []).append((words, records, view))
        else:
            shadow.read(words, True, records, view)

    def write(self, number: int, words: np.ndarray, records: np.ndarray | int, view: View) -> None:
        """Words are written."""
        self._shadow(number).write(words, True, records, view)

    def _shadow(self, number: int) -> Shadow:
        shadow = self._shadows.get(number)
        if shadow is None:
            cells = (self.ends[number] - self.starts[number] + 7) >> 2
            shadow = self._shadows[number] = Shadow(cells, 1, self.report, written=True)
            for early in self._early_reads.pop(number, ()):
                shadow.read(early[0], True, early[1], early[2])
        return shadow


UNDER_WAY = np.iinfo(np.int32).max  # the moment of a store before it is waited for


class GlobalChecks:
    """Called by accesses of one cluster to global memory."""

    def __init__(self, checker: ClusterChecker, shadow: GlobalShadow, cluster: int) -> None:
        self.checker, self.shadow, self.cluster = checker, shadow, cluster
        self.records = shadow.records
        self._latest: dict[tuple, tuple[tuple, int]] = {}
        self._under_way: dict[int, list[tuple[int, int]]] = {}  # (step, record) by actor

    def _view(self, clocks: np.ndarray, row: int, own: int = -1, lanes=None) -> GlobalView:
        learned = self.checker.launch.order.learned.get(self.cluster, {})
        return GlobalView(self.records, clocks, row, own, lanes, self.cluster, learned)

    def _moment(self) -> int:
        return self.checker.launch.order.releases.get(self.cluster, 0)

    def _record(self, slot: int, site: int, tag: tuple[int, int], kind: tuple) -> int:
        """A record of an access; `tag`: actor and step, `kind`: (generic, strong, narrow)."""
        moment = self._moment()
        key = (slot, site, tag[0], kind)
        latest = self._latest.get(key)
        if latest is not None and latest[0] == (tag[1], moment):
            return latest[1]
        number = self.records.add(slot, site, *tag)
        records = self.records
        records.generic[number], records.strong[number], records.narrow[number] = kind
        records.cluster[number], records.moment[number] = self.cluster, moment
        self._latest[key] = ((tag[1], moment), number)
        return number

    # ---- warps

    def access(self, w: Team, address: np.ndarray, nbytes: int, mask, write: bool) -> None:
        """A load or store of `nbytes` per active lane."""
        checker = self.checker
        lanes = checker.lanes(w) if mask is None else checker.lanes(w)[mask]
        places = (address if mask is None else address[mask]).astype(np.int64)
        if not len(lanes):
            return
        strength = checker.rules.strength(w.at)
        for slot in dict.fromkeys(lanes.tolist()):
            chosen = places[lanes == slot]
            if strength.strong:
                self._order(slot, chosen, strength, write)
            self._touch(slot, w.at, chosen, nbytes, (write, strength.strong))

    def _touch(self, slot: int, site: int, places, nbytes: int, how: tuple[bool, bool]) -> None:
        write, strong = how
        clocks = self.checker.clocks
        own = int(clocks.own[slot])
        tag = (own, int(clocks.warps[slot, GENERIC, own]))
        number = self._record(slot, site, tag, (1, strong, nbytes < 4))
        view = self._view(clocks.warps[slot], GENERIC)
        for place, words in self._words(places, nbytes):
            (self.shadow.write if write else self.shadow.read)(place, words, number, view)

    def _words(self, places: np.ndarray, nbytes: int) -> list[tuple[int, np.ndarray]]:
        """The words of accesses, by range."""
        low, high = (self.shadow.locate(int(p)) for p in (places.min(), places.max()))
        parts = [(low, places)]
        if low != high:
            numbers = np.searchsorted(self.shadow.starts, places, "right") - 1
            parts = [(n, places[numbers == n]) for n in np.unique(numbers).tolist()]
        steps = np.arange(max(nbytes >> 2, 1))
        return [
            (n, (((p - self.shadow.starts[n]) >> 2)[:, None] + steps).reshape(-1)) for n, p in parts
        ]

    def _order(self, slot: int, places: np.ndarray, strength, write: bool) -> None:
        for place in set((places >> 2).tolist()):
            if write:
                self.checker.locations.write(slot, (-1, place), strength.release)
            else:
                self.checker.locations.read(slot, (-1, place), strength.acquire)

    def atomic(self, slot: int, site: int, address: int, nbytes: int) -> None:
        """An atomic of one lane."""
        self._touch(slot, site, np.array([address]), nbytes, (True, True))

    # ---- engines

    def loads(self, flight: Flight, boxes: np.ndarray) -> None:
        """An operation that completes on an mbarrier reads words at these addresses."""
        tag = (flight.carrier.actor, flight.checker.records.never)
        number = self.records.add(flight.slot, flight.site, *tag)
        self.records.cluster[number], self.records.moment[number] = self.cluster, self._moment()
        flight.global_accesses.append(number)
        view = self._view(self.checker.clocks.warps[flight.slot], ASYNC)
        for place, words in self._words(boxes, 4):
            self.shadow.read(place, words, number, view)

    def stores(self, slot: int, site: int, tag: tuple[int, int], boxes, reduction: bool) -> None:
        """A bulk store writes words at these addresses, or combines with them."""
        number = self.records.add(slot, site, *tag)
        records = self.records
        records.strong[number], records.cluster[number] = reduction, self.cluster
        records.moment[number] = UNDER_WAY
        self._under_way.setdefault(tag[0], []).append((tag[1], number))
        view = self._view(self.checker.clocks.warps[slot], ASYNC)
        for place, words in self._words(boxes, 4):
            self.shadow.write(place, words, number, view)

    def waited(self, actor: int, step: int) -> None:
        """The bulk stores of an actor up to this one have been written: releases pass them on."""
        stores = self._under_way.get(actor, [])
        for _, number in (store for store in stores if store[0] <= step):
            self.records.moment[number] = self._moment()
        self._under_way[actor] = [store for store in stores if store[0] > step]
