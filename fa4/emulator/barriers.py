"""mbarriers, named barriers and the cluster barrier: their state and their instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import BarrierError, RegisterError
from .waits import BarrierWait, GenerationEntry, MbarrierWait, PhaseEntry, RegisterWait

if TYPE_CHECKING:
    from .checker.barrier_checks import MbarrierCarrier
    from .checker.clocks import Carrier
    from .cta import Cta
    from .team import Team

OFFSET = 0xFFFFFF  # a shared address: CTA rank in bits 24 and up, byte offset below
_MAX_COUNT = (1 << 20) - 1


class Mbarrier:
    """An mbarrier: a phase ends when no arrival is pending and no byte is outstanding."""

    __slots__ = ("carrier", "count", "cta", "offset", "pending", "phase")
    __slots__ += ("signallers", "transactions")

    def __init__(self, cta: Cta, offset: int, count: int) -> None:
        self.cta, self.offset = cta, offset
        self.count = self.pending = count
        self.phase = self.transactions = 0
        self.signallers: dict[str, None] = {}
        self.carrier: MbarrierCarrier | None = None  # of the checker

    def __str__(self) -> str:
        return self.cta.barrier_name(self.offset)

    def arrive(self, count: int, who: str) -> None:
        """Counts arrivals. Raises BarrierError when more arrive than the phase expects."""
        if count > self.pending:
            raise BarrierError(
                f"over-arrival at {self}: {count} arrivals by {who}, but only {self.pending} of "
                f"{self.count} are pending in phase {self.phase} "
                f"({self.transactions} bytes outstanding)"
            )
        self.pending -= count
        self.signallers[who] = None
        self._advance()

    def expect(self, nbytes: int) -> None:
        self.transactions += nbytes
        if not -_MAX_COUNT <= self.transactions <= _MAX_COUNT:
            raise BarrierError(
                f"{self} expects {self.transactions} bytes; at most {_MAX_COUNT} fit its count"
            )

    def complete(self, nbytes: int, who: str) -> None:
        """Counts bytes that an asynchronous copy wrote."""
        self.transactions -= nbytes
        self.signallers[who] = None
        self._advance()

    def drop(self) -> None:
        """One participant fewer from the next phase on."""
        self.count -= 1

    def _advance(self) -> None:
        if self.pending == 0 and self.transactions == 0:
            self.phase += 1
            self.pending = self.count
            if self.carrier is not None:
                self.carrier.complete()
        self.cta.signal(self)


class NamedBarrier:
    """bar 0-15 of a CTA, or the cluster barrier. Counts threads."""

    __slots__ = ("arrived", "carrier", "cta", "expected", "generation")
    __slots__ += ("name", "number", "signallers")

    def __init__(self, cta: Cta, number: int, name: str) -> None:
        self.cta, self.number, self.name = cta, number, name
        self.arrived = self.generation = 0
        self.expected: int | None = None
        self.signallers: dict[str, None] = {}
        self.carrier: Carrier | None = None  # of the checker

    def __str__(self) -> str:
        return self.name

    def arrive(self, threads: int, expected: int, who: str) -> None:
        """Counts threads. Raises BarrierError when counts disagree or too many arrive."""
        if self.arrived and expected != self.expected:
            raise BarrierError(
                f"{self}: {who} gives {expected} threads, earlier arrivals gave {self.expected}"
            )
        self.expected = expected
        self.arrived += threads
        self.signallers[who] = None
        if self.arrived > expected:
            raise BarrierError(f"over-arrival at {self}: {self.arrived} of {expected} threads")
        if self.arrived == expected:
            self.arrived = 0
            self.generation += 1
            if self.carrier is not None:
                self.carrier.complete()
        self.cta.signal(self)


# ---- addresses


def places(address: np.ndarray, mask: np.ndarray | None) -> list[tuple[int, np.ndarray]]:
    """The distinct addresses among the active lanes, each with its lanes."""
    first = address.item(0)
    if mask is None:
        if np.count_nonzero(address == address[0]) == len(address):
            return [(first, np.ones(len(address), bool))]
        return [(v, address == v) for v in dict.fromkeys(address.tolist())]
    return [(v, mask & (address == v)) for v in dict.fromkeys(address[mask].tolist())]


def _barrier(team: Team, address: int) -> Mbarrier:
    cta = team.cta.peer(address)
    barrier = cta.mbarriers.get(address & OFFSET)
    if barrier is None:
        raise BarrierError(cta.explain_missing(address & OFFSET))
    return barrier


def barrier_at(cta: Cta, address: int) -> Mbarrier:
    """The mbarrier at a shared address. Raises BarrierError when there is none."""
    owner = cta.peer(address)
    barrier = owner.mbarriers.get(address & OFFSET)
    if barrier is None:
        raise BarrierError(owner.explain_missing(address & OFFSET))
    return barrier


# ---- mbarrier instructions


def mbarrier_init(w: Team, address, count, mask) -> None:
    for place, lanes in places(address, mask):
        offset, cta = place & OFFSET, w.cta.peer(place)
        arrivals = int(count[lanes][0])
        if not 1 <= arrivals <= _MAX_COUNT:
            raise BarrierError(f"mbarrier.init with count {arrivals}; allowed: 1 to {_MAX_COUNT}")
        cta.shared.check(offset, 8, "mbarrier.init")
        if offset % 8:
            raise BarrierError(f"mbarrier at shared offset {offset:#x} is not 8-byte aligned")
        old, barrier = cta.mbarriers.get(offset), Mbarrier(cta, offset, arrivals)
        cta.mbarriers[offset] = barrier
        if w.checker is not None:
            w.checker.barriers.init(w, lanes, barrier, old)
        cta.retired.discard(offset)
        w.cta.cluster.events += 1


def mbarrier_inval(w: Team, address, mask) -> None:
    for place, _ in places(address, mask):
        barrier = _barrier(w, place)
        del barrier.cta.mbarriers[barrier.offset]
        barrier.cta.retired.add(barrier.offset)


def mbarrier_expect_tx(w: Team, address, nbytes, mask) -> None:
    for place, lanes in places(address, mask):
        _barrier(w, place).expect(int(nbytes[lanes].sum()))
        w.cta.cluster.events += 1


def mbarrier_complete_tx(w: Team, address, nbytes, mask) -> None:
    for place, lanes in places(address, mask):
        w.acting = lanes
        _barrier(w, place).complete(int(nbytes[lanes].sum()), w.cta.who(w))
    w.acting = None


def mbarrier_arrive(w: Team, address, count, expect, drop: bool, mask) -> np.ndarray:
    """Arrivals of all active lanes; expect-tx applies before. Returns the phase per lane."""
    state = np.zeros(w.n, np.uint64)
    for place, lanes in places(address, mask):
        barrier = _barrier(w, place)
        state[lanes] = barrier.phase
        who = w.cta.who(w, lanes)
        if expect is not None:
            for nbytes in expect[lanes].tolist():
                barrier.expect(nbytes)
        if drop:
            for _ in range(np.count_nonzero(lanes)):
                barrier.drop()
        arrivals = np.count_nonzero(lanes) if count is None else int(count[lanes].sum())
        w.acting = lanes
        if w.checker is not None:
            w.checker.barriers.arrive(w, lanes, barrier)
        barrier.arrive(arrivals, who)
    w.acting = None
    return state


def wait_mbarrier(
    w: Team, address, phase, parity: bool, blocking: bool, slot: int | None, following: int, mask
) -> int:
    """try_wait (may block) and test_wait (answers at once)."""
    entries = []
    relaxed = w.checker is not None and w.checker.is_relaxed(w.at)
    for place, lanes in places(address, mask):
        barrier = _barrier(w, place)
        for value in dict.fromkeys(phase[lanes].tolist()):
            wanted = value & 1 if parity else value
            chosen = lanes & (phase == value)
            entries.append(PhaseEntry(barrier, wanted, not parity, chosen, relaxed))
    wait = MbarrierWait(entries, slot, mask)
    if not blocking and not wait.ready():
        wait.give_up(w)
        return following
    return w.block_on(wait, following)


# ---- named barriers


def _named(w: Team, barrier, count, mask) -> list[tuple[NamedBarrier, int, int, np.ndarray]]:
    """(barrier, threads arriving, threads expected, lanes) per distinct barrier id.

    Arrivals count whole warps, whatever lanes execute them.
    """
    result = []
    for number, lanes in places(barrier, mask):
        if number > 15:
            raise BarrierError(f"named barrier {number}; allowed: 0 to 15")
        expected = w.cta.launch.threads if count is None else int(count[lanes][0])
        expected = -(-expected // 32) * 32 if count is None else expected
        if expected % 32 or expected == 0:
            raise BarrierError(f"named barrier {number}: {expected} threads is no multiple of 32")
        threads = 32 * np.count_nonzero(lanes.reshape(-1, 32).any(1))
        result.append((w.cta.named(number), threads, expected, lanes))
    return result


def named_arrive(w: Team, barrier, count, mask) -> None:
    for each, threads, expected, lanes in _named(w, barrier, count, mask):
        w.acting = lanes
        if w.checker is not None:
            w.checker.barriers.named(w, lanes, each)
        each.arrive(threads, expected, w.cta.who(w, lanes))
    w.acting = None


def wait_named(w: Team, barrier, count, following: int, mask) -> int:
    """bar.sync: arrives and waits."""
    entries = []
    for each, threads, expected, lanes in _named(w, barrier, count, mask):
        entries.append(GenerationEntry(each, each.generation, lanes))
        w.acting = lanes
        if w.checker is not None:
            w.checker.barriers.named(w, lanes, each)
        each.arrive(threads, expected, w.cta.who(w, lanes))
    w.acting = None
    return w.block_on(BarrierWait(entries), following)


def cluster_arrive(w: Team, mask) -> None:
    cluster = w.cta.cluster
    barrier = cluster.barrier
    for position in np.flatnonzero(mask.reshape(-1, 32).any(1)).tolist():
        w.cta.cluster_phase[w.warps[position].index] = barrier.generation
    threads = np.count_nonzero(mask)
    if w.checker is not None:
        w.checker.barriers.named(w, mask, barrier)
    barrier.arrive(threads, w.cta.launch.threads * len(cluster.ctas), w.cta.who(w))


def wait_cluster(w: Team, following: int, mask) -> int:
    """barrier.cluster.wait: for the phase in which the warp arrived."""
    barrier, entries = w.cta.cluster.barrier, []
    lanes = w.every if mask is None else mask
    phases: dict[int, np.ndarray] = {}
    for position in np.flatnonzero(lanes.reshape(-1, 32).any(1)).tolist():
        phase = w.cta.cluster_phase.get(w.warps[position].index)
        if phase is None:
            raise BarrierError("barrier.cluster.wait without barrier.cluster.arrive")
        chosen = phases.setdefault(phase, np.zeros(w.n, bool))
        chosen[32 * position : 32 * position + 32] = lanes[32 * position : 32 * position + 32]
    for phase, chosen in phases.items():
        entries.append(GenerationEntry(barrier, phase, chosen))
    return w.block_on(BarrierWait(entries), following)


# ---- registers


def set_registers(w: Team, increase: bool, count: int, following: int, mask) -> int:
    """setmaxnreg: dec gives registers to the CTA's pool, inc waits until the pool has them."""
    if count % 8 or not 24 <= count <= 256:
        raise RegisterError(f"setmaxnreg {count}: must be a multiple of 8 from 24 to 256")
    lanes = w.every if mask is None else mask
    present = np.flatnonzero(lanes.reshape(-1, 32).any(1)).tolist()
    warps = [w.warps[position] for position in present]
    for warp in warps:
        warp.requests += 1
        if (increase and count < warp.registers) or (not increase and count > warp.registers):
            action = "inc" if increase else "dec"
            raise RegisterError(
                f"setmaxnreg.{action} {count} in a warp that holds {warp.registers} registers"
            )
    if increase:
        return w.block_on(RegisterWait(w.cta, warps, count), following)
    for warp in warps:
        w.cta.free_registers += 32 * (warp.registers - count)
        warp.registers = count
    w.cta.cluster.events += 1
    return following


def check_warpgroups(cta: Cta) -> None:
    """All warps of a warpgroup must have executed setmaxnreg equally often. Raises RegisterError.

    Not checked: that the register count is the same; kernels exist that rely on it being per warp.
    """
    for first in range(0, len(cta.warps), 4):
        requests = {warp.index: warp.requests for warp in cta.warps[first : first + 4]}
        if len(set(requests.values())) > 1:
            raise RegisterError(
                "setmaxnreg must be executed by all warps of a warpgroup; each warp's number of "
                f"executions: {requests}"
            )
