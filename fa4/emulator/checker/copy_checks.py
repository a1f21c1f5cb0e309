"""Copies by engines: TMA and bulk copies, cp.async, st.async, and the groups that wait for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .barrier_checks import MbarrierCarrier
from .clocks import ASYNC, GENERIC
from .shadow import View

if TYPE_CHECKING:
    from ..barriers import Mbarrier
    from ..cta import Cta
    from ..team import Team
    from .checker import ClusterChecker


@dataclass
class Flight:
    """An operation that completes on an mbarrier: its accesses are over with the phase."""

    checker: ClusterChecker
    carrier: MbarrierCarrier
    passed_on: np.ndarray
    site: int
    slot: int
    accesses: list[int] = field(default_factory=list)
    global_accesses: list[int] = field(default_factory=list)

    def land(self) -> None:
        """Called right before the mbarrier counts the completion."""
        phase = self.carrier.phase
        self.checker.records.step[self.accesses] = phase + 1
        self.checker.globals.records.step[self.global_accesses] = phase + 1
        self.carrier.add(self.passed_on)
        signal = (phase, self.site, self.slot, bool(self.accesses))
        self.checker.signals[self.carrier] = signal


@dataclass
class Groups:
    """Copies of one thread (bulk) or warp (cp.async), numbered in order of issue."""

    slot: int
    actor: int
    site: int = 0
    issued: int = 0
    committed: list[int] = field(default_factory=list)

    def next(self, site: int) -> int:
        self.issued, self.site = self.issued + 1, site
        return self.issued

    def commit(self) -> None:
        self.committed.append(self.issued)

    def covered(self, latest: int) -> int:
        """The last copy that a wait for all but the `latest` groups is about."""
        return self.committed[-1 - latest] if len(self.committed) > latest else 0


class CopyChecks:
    """Called by the copy engines."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.checker, self.clocks, self.records = checker, checker.clocks, checker.records
        self._bulk: dict[tuple[int, int], Groups] = {}  # by (rank, thread)
        self._simple: dict[int, Groups] = {}  # by warp
        self._instance: tuple | None = None  # the latest bulk store, and its lane

    def flight(self, w: Team, lane: int, barrier: Mbarrier) -> Flight:
        """An operation of the thread at `lane` that will signal `barrier`."""
        slot = self.checker.slot(w, lane)
        self.checker.barriers.signalled_by_engine(w, slot, barrier)
        passed_on = self.clocks.snapshot(slot)
        return Flight(self.checker, barrier.carrier, passed_on, w.at, slot)

    def writes(self, flight: Flight, cta: Cta, offset: int, nbytes: int) -> Flight:
        """The operation writes shared memory."""
        self._access(flight, cta, (offset, nbytes), True)
        return flight

    def reads(self, flight: Flight, cta: Cta, offset: int, nbytes: int) -> Flight:
        """The operation reads shared memory."""
        self._access(flight, cta, (offset, nbytes), False)
        return flight

    def _access(self, flight: Flight, cta: Cta, place: tuple[int, int], write: bool) -> None:
        number = self.records.add(flight.slot, flight.site, flight.carrier.actor)
        flight.accesses.append(number)
        self._touch(cta, place, number, (flight.slot, write))

    def _touch(self, cta: Cta, place: tuple[int, int], number: int, how: tuple[int, bool]) -> None:
        """An engine accesses (offset, bytes) for a warp `how[0]`."""
        (offset, nbytes), (slot, write) = place, how
        view = View(self.records, self.clocks.warps[slot], ASYNC)
        shadow = self.checker.shared[cta.rank]
        words = slice(offset >> 2, (offset + nbytes + 3) >> 2)
        (shadow.write if write else shadow.read)(words, True, number, view)

    # ---- bulk stores

    def store(self, w: Team, lane: int, source: tuple[Cta, int, int], target: tuple) -> None:
        """A bulk store: `source` is (CTA, offset, bytes), `target` (word addresses, reduction)."""
        (cta, offset, nbytes), (words, reduction) = source, target
        slot, thread = self.checker.slot(w, lane), int(w.threads[lane])
        if not reduction and self._said_by_another_lane(w, lane, (slot, source, words)):
            return
        groups = self._bulk.get((w.cta.rank, thread))
        if groups is None:
            actor = self.clocks.actor(("bulk store", w.cta.rank, thread))
            groups = self._bulk[w.cta.rank, thread] = Groups(slot, actor)
        step = groups.next(w.at)
        number = self.records.add(slot, w.at, groups.actor, step)
        self._touch(cta, (offset, nbytes), number, (slot, False))
        if words is not None:
            written = self.clocks.actor(("bulk write", w.cta.rank, thread))
            self.checker.globals.stores(slot, w.at, (written, step), words, reduction)

    def _said_by_another_lane(self, w: Team, lane: int, store: tuple) -> bool:
        """Whether another lane of the warp has just asked for the very same store.

        The copy instructions of a warp are executed once; the PTX ISA counts one per thread.
        """
        slot, (cta, offset, nbytes), words = store
        first = None if words is None else int(words[0])
        instance = (slot, w.at, cta.rank, offset, nbytes, first)
        known = self._instance
        self._instance = (instance, lane)
        if known is None or known[0] != instance or known[1] >= lane:
            return False
        self.checker.remark(slot, w.at, "several lanes of a warp issue one and the same bulk store")
        return True

    def _of_lanes(self, w: Team, mask: np.ndarray | None) -> list[Groups]:
        lanes = w.every if mask is None else mask
        threads = set(w.threads[lanes].tolist())
        rank = w.cta.rank
        return [g for (r, thread), g in self._bulk.items() if r == rank and thread in threads]

    def commit(self, w: Team, mask: np.ndarray | None) -> None:
        """cp.async.bulk.commit_group."""
        for groups in self._of_lanes(w, mask):
            groups.commit()

    def covered(
        self, w: Team, latest: int, read: bool, mask: np.ndarray | None
    ) -> list[tuple[int, int, int]]:
        """What a cp.async.bulk.wait_group is about: (warp, actor, step)."""
        found = [(g.slot, g.actor, g.covered(latest)) for g in self._of_lanes(w, mask)]
        if read:
            return found
        names = self.clocks.names
        written = [
            (slot, self.clocks.actor(("bulk write", *names[actor][1:])), step)
            for slot, actor, step in found
        ]
        return found + written

    def waited(self, covered: list[tuple]) -> None:
        """The wait is over."""
        for slot, actor, step in covered:
            self.clocks.learn(slot, actor, step)
            self.checker.globals.waited(actor, step)

    def check_exit(self) -> None:
        """At the end: no source is still to be read."""
        for groups in self._bulk.values():
            if self.clocks.warps[groups.slot, GENERIC, groups.actor] < groups.issued:
                self.checker.misuse_at(
                    groups.slot,
                    groups.site,
                    "the CTA may end before this bulk store has read its shared memory: no "
                    "cp.async.bulk.wait_group covers it",
                )

    # ---- cp.async

    def _simple_groups(self, slot: int) -> Groups:
        if slot not in self._simple:
            self._simple[slot] = Groups(slot, self.clocks.actor(("cp.async", slot)))
        return self._simple[slot]

    def copy(self, w: Team, position: int, offsets: np.ndarray, size: int) -> None:
        """cp.async of a warp: a write through the generic proxy."""
        slot = self.checker.slot(w, 32 * position)
        groups = self._simple_groups(slot)
        number = self.records.add(slot, w.at, groups.actor, groups.next(w.at))
        self.records.generic[number] = 1
        words = (offsets[:, None].astype(np.int64) >> 2) + np.arange(size >> 2)
        view = View(self.records, self.clocks.warps[slot], GENERIC, own=groups.actor)
        self.checker.shared[w.cta.rank].write(words, True, number, view)

    def simple_commit(self, w: Team, mask: np.ndarray | None) -> None:
        """cp.async.commit_group."""
        for slot in self.checker.slots(w, mask):
            self._simple_groups(slot).commit()

    def simple_covered(self, w: Team, latest: int, mask: np.ndarray | None) -> list[tuple]:
        groups = [self._simple_groups(slot) for slot in self.checker.slots(w, mask)]
        return [(g.slot, g.actor, g.covered(latest)) for g in groups]

    def simple_arrival(self, w: Team, position: int) -> np.ndarray:
        """What cp.async.mbarrier.arrive passes on: the warp's copies so far."""
        slot = self.checker.slot(w, 32 * position)
        groups = self._simple_groups(slot)
        passed_on = np.zeros((3, self.clocks.size), np.int32)
        passed_on[0, groups.actor] = groups.issued
        return passed_on
