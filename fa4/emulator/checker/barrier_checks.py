"""Orderings through mbarriers, named barriers and the cluster barrier, and their wrong use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .clocks import GENERIC, PENDING, Carrier

if TYPE_CHECKING:
    from ..barriers import Mbarrier, NamedBarrier
    from ..team import Team
    from .checker import ClusterChecker


class MbarrierCarrier(Carrier):
    """An mbarrier: also who has initialised it, and which phases each warp has seen."""

    def __init__(self, checker: ClusterChecker, barrier: Mbarrier, slot: int) -> None:
        super().__init__(checker.clocks, ("mbarrier", barrier.cta.rank, barrier.offset))
        self.checker, self.barrier, self.initialiser = checker, barrier, slot
        self.init_site = 0
        self.init_step = int(self.clocks.warps[slot, GENERIC, self.clocks.own[slot]])
        self.inits, self.number = self.clocks.actor(("mbarrier.init", slot)), 0
        self.fenced = False  # by the initialiser, so that other proxies see the barrier
        self.users: set[int] = set()  # warps known to come after the initialisation
        warps = len(self.clocks.own)
        self.seen_phase = np.full(warps, -2)
        self.seen_step = np.zeros(warps, np.int32)
        self.phase = 0

    def complete(self) -> None:
        """A phase ends. Whoever waited for the one before must have seen it by now."""
        super().complete()
        late = np.flatnonzero(
            (self.seen_phase == self.phase - 2)
            & (self.done[GENERIC, self.clocks.own] < self.seen_step)
        )
        for slot in late.tolist():
            self.checker.barriers.lapped(self, slot)

    def see(self, slot: int, by_number: bool) -> None:
        """A warp's wait is over: it has seen the latest phase."""
        phase, before = self.phase - 1, int(self.seen_phase[slot])
        if before >= -1 and phase > before + 1 and not by_number:
            self.checker.barriers.skipped(self, slot, phase - before)
        self.seen_phase[slot] = phase
        self.seen_step[slot] = self.clocks.warps[slot, GENERIC, self.clocks.own[slot]]


class BarrierChecks:
    """Called by the barriers of the engine."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.checker, self.clocks = checker, checker.clocks

    # ---- mbarriers

    def init(self, w: Team, lanes: np.ndarray, barrier: Mbarrier, old: Mbarrier | None) -> None:
        """mbarrier.init; `old` is a live barrier at the same place."""
        slot = self.checker.slots(w, lanes)[0]
        if old is not None:
            self.checker.misuse(w, slot, f"{barrier} is initialised again while it is in use")
        carrier = barrier.carrier = MbarrierCarrier(self.checker, barrier, slot)
        carrier.init_site = w.at
        self.checker.fences.initialised(slot, carrier)

    def use(self, w: Team, slots: list[int], barrier: Mbarrier) -> None:
        """Warps touch a barrier: its initialisation must come before."""
        carrier = barrier.carrier
        for slot in slots:
            if slot in carrier.users:
                continue
            if not self._initialised_for(slot, carrier):
                self.checker.misuse(
                    w, slot, f"{barrier} is used, and nothing orders its mbarrier.init before"
                )
            carrier.users.add(slot)

    def _initialised_for(self, slot: int, carrier: MbarrierCarrier) -> bool:
        """By any order, or by fence.mbarrier_init and a barrier whose arrivals may be relaxed."""
        known = self.clocks.warps[slot]
        if known[GENERIC, self.clocks.own[carrier.initialiser]] >= carrier.init_step:
            return True
        return carrier.fenced and bool(known[PENDING, carrier.inits] >= carrier.number)

    def signalled_by_engine(self, w: Team, slot: int, barrier: Mbarrier) -> None:
        """An asynchronous operation will signal a barrier: a fence must follow its init."""
        self.use(w, [slot], barrier)
        carrier = barrier.carrier
        if not carrier.fenced:
            carrier.fenced = True  # said once
            self.checker.misuse(
                w,
                slot,
                f"{barrier} is given to an asynchronous engine, and no fence.mbarrier_init or "
                "fence.proxy.async follows its mbarrier.init",
            )

    def arrive(self, w: Team, lanes: np.ndarray, barrier: Mbarrier) -> None:
        """mbarrier.arrive by the lanes of a team."""
        slots = self.checker.slots(w, lanes)
        self.use(w, slots, barrier)
        self._pass_on(w, slots, barrier.carrier)

    def waited(self, w: Team, barrier: Mbarrier, lanes: np.ndarray, how: tuple[bool, bool]) -> None:
        """A wait is over. `how`: whether it was relaxed, and whether it named its phase."""
        slots = self.checker.slots(w, lanes)
        relaxed, by_number = how
        self.use(w, slots, barrier)
        for slot in slots:
            barrier.carrier.see(slot, by_number)
        self._take(slots, barrier.carrier, relaxed)

    def lapped(self, carrier: MbarrierCarrier, slot: int) -> None:
        self.checker.misuse_at(
            slot,
            carrier.init_site,
            f"{carrier.barrier} may be lapped: its phase {carrier.phase - 1} can complete before "
            f"{self.checker.who(slot)} has seen phase {carrier.phase - 2}, whose parity is then "
            "gone",
        )

    def skipped(self, carrier: MbarrierCarrier, slot: int, phases: int) -> None:
        self.checker.misuse_at(
            slot,
            carrier.init_site,
            f"{carrier.barrier} has completed {phases} phases between two waits of "
            f"{self.checker.who(slot)}: parity cannot tell them apart",
        )

    # ---- named barriers and the cluster barrier

    def named(self, w: Team, lanes: np.ndarray, barrier: NamedBarrier) -> None:
        """bar.sync or bar.arrive: arrival of warps."""
        if barrier.carrier is None:
            rank = w.cta.rank if barrier.number >= 0 else -1
            barrier.carrier = Carrier(self.clocks, ("named barrier", rank, barrier.number))
        self._pass_on(w, self.checker.slots(w, lanes), barrier.carrier)

    def synced(self, w: Team, barrier: NamedBarrier, lanes: np.ndarray) -> None:
        """bar.sync is over."""
        self._take(self.checker.slots(w, lanes), barrier.carrier, False)

    # ---- both

    def _pass_on(self, w: Team, slots: list[int], carrier: Carrier) -> None:
        if not self.checker.rules.tensor_fences:
            self.checker.fences.before_thread_sync(slots)
        carrier.arrive(slots, self.checker.is_relaxed(w.at))

    def _take(self, slots: list[int], carrier: Carrier, relaxed: bool) -> None:
        carrier.acquire(slots, relaxed)
        if not self.checker.rules.tensor_fences:
            self.checker.fences.after_thread_sync(slots)

    def check_exit(self) -> None:
        """At the end: somebody has seen every arrival of an engine.

        One that only signals, for work that is known to be over, is a remark: kernels in use leave
        such behind, and the arrival itself finds a CTA that has ended.
        """
        known = self.checker.known_to_all()
        for carrier, (phase, site, slot, copies) in self.checker.signals.items():
            if known[carrier.actor] > phase:
                continue
            if copies:
                what = "the CTA may end before this copy is complete"
                self.checker.misuse_at(slot, site, f"{what}: no warp waits for {carrier.barrier}")
            else:
                self.checker.remark(
                    slot, site, f"the CTA may end before the arrival at {carrier.barrier}"
                )
