"""Bulk copies without a tensor map, cp.async, st.async, and the groups that wait for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .barriers import OFFSET, barrier_at, places
from .engines import Copy
from .errors import AddressError
from .memory import host_bytes
from .memory_ops import combine_arrays, reduction_dtype
from .tma import active_lanes
from .waits import GroupWait

if TYPE_CHECKING:
    from .checker.copy_checks import Flight
    from .cta import Cta
    from .team import Team


@dataclass
class CopyGroups:
    """Copies of one thread (bulk) or warp (cp.async): the open group and the committed ones."""

    open: list[Copy] = field(default_factory=list)
    committed: list[list[Copy]] = field(default_factory=list)

    def commit(self) -> None:
        self.committed.append(self.open)
        self.open = []

    def older_than(self, latest: int) -> list[Copy]:
        """Copies that are not in the `latest` most recent groups."""
        kept = len(self.committed) - latest
        old = [copy for group in self.committed[: max(kept, 0)] for copy in group]
        while self.committed and all(copy.done for copy in self.committed[0]):
            del self.committed[0]  # only from the front: positions count from the newest
        return old


def _flight(w: Team, lane: int, signal: int) -> Flight | None:
    """What the checker keeps of an operation that signals an mbarrier, which must exist."""
    barrier = barrier_at(w.cta, signal)
    return None if w.checker is None else w.checker.copies.flight(w, lane, barrier)


def _check_bulk(nbytes: int, shared: int, other: int) -> None:
    if nbytes % 16 or shared % 16 or other % 16:
        raise AddressError(
            f"bulk copy of {nbytes} bytes between {shared:#x} and {other:#x}: size and both "
            "addresses must be multiples of 16"
        )


def bulk_load(w: Team, place, source, nbytes, barrier, multicast, mask) -> None:
    """cp.async.bulk from global to shared memory."""
    for lane in active_lanes(w, mask):
        to, size = int(place[lane]), int(nbytes[lane])
        origin, signal = int(source[lane]), int(barrier[lane])
        _check_bulk(size, to & OFFSET, origin)
        w.cta.cluster.memory.check(origin, size, "bulk copy")
        ranks = [to >> 24]
        if multicast is not None:
            ranks = [r for r in range(len(w.cta.cluster.ctas)) if int(multicast[lane]) >> r & 1]
            signals = [signal & OFFSET | rank << 24 for rank in ranks]
        else:
            signals = [signal]
        for rank, where in zip(ranks, signals, strict=True):
            cta = w.cta.peer(rank << 24)
            _submit_bulk_load(w, lane, (cta, to & OFFSET), origin, size, where)


def _submit_bulk_load(
    w: Team, lane: int, place: tuple[Cta, int], origin: int, size: int, signal: int
) -> None:
    cta, offset = place
    cta.shared.check(offset, size, "bulk copy")
    flight = _flight(w, lane, signal)
    if flight is not None:
        w.checker.copies.writes(flight, cta, offset, size)
        w.checker.globals.loads(flight, np.arange(origin, origin + size, 4))
    who = w.cta.who(w)

    def effect() -> None:
        cta.shared.views[1][offset : offset + size] = host_bytes(origin, size)
        if flight is not None:
            flight.land()
        barrier_at(w.cta, signal).complete(size, f"bulk copy of {who}")

    w.cta.cluster.engines.submit(None, effect, lambda: w.cta.origin(w))


def bulk_exchange(w: Team, place, source, nbytes, barrier, mask) -> None:
    """cp.async.bulk from this CTA's shared memory to another CTA's."""
    for lane in active_lanes(w, mask):
        to, size = int(place[lane]), int(nbytes[lane])
        origin, signal = int(source[lane]), int(barrier[lane])
        _check_bulk(size, to & OFFSET, origin & OFFSET)
        target, sender = w.cta.peer(to), w.cta.peer(origin)
        target.shared.check(to & OFFSET, size, "bulk copy")
        sender.shared.check(origin & OFFSET, size, "bulk copy")
        places = (target, to & OFFSET), (sender, origin & OFFSET)
        _submit_exchange(w, lane, places, size, signal)


def _submit_exchange(w: Team, lane: int, places: tuple, size: int, signal: int) -> None:
    (target, offset), (sender, start) = places
    flight = _flight(w, lane, signal)
    if flight is not None:
        w.checker.copies.reads(flight, sender, start, size)
        w.checker.copies.writes(flight, target, offset, size)
    who = w.cta.who(w)

    def effect() -> None:
        data = sender.shared.views[1][start : start + size]
        target.shared.views[1][offset : offset + size] = data
        if flight is not None:
            flight.land()
        barrier_at(w.cta, signal).complete(size, f"bulk copy of {who}")

    w.cta.cluster.engines.submit(None, effect, lambda: w.cta.origin(w))


def bulk_store(w: Team, place, source, nbytes, reduction: tuple[str, str] | None, mask) -> None:
    """cp.async.bulk and cp.reduce.async.bulk from shared to global memory."""
    for lane in active_lanes(w, mask):
        to, size, origin = int(place[lane]), int(nbytes[lane]), int(source[lane])
        cta, offset = w.cta.peer(origin), origin & OFFSET
        _check_bulk(size, offset, to)
        cta.shared.check(offset, size, "bulk copy")
        w.cta.cluster.memory.check(to, size, "bulk copy")
        _submit_bulk_store(w, lane, cta, offset, to, size, reduction)


def _submit_bulk_store(w: Team, lane, cta, offset, to, size, reduction) -> None:
    def read() -> np.ndarray:
        return cta.shared.views[1][offset : offset + size].copy()

    def write(data: np.ndarray) -> None:
        target = host_bytes(to, size)
        if reduction is None:
            target[...] = data
        else:
            operation, kind = reduction
            dtype = reduction_dtype(kind)
            combine_arrays(operation, kind, target.view(dtype), data.view(dtype))

    if w.checker is not None:
        target = (np.arange(to, to + size, 4), reduction is not None)
        w.checker.copies.store(w, lane, (cta, offset, size), target)
    w.cta.submit_copy(w, lane, read, write)


def bulk_commit(w: Team, mask) -> None:
    """Closes the open group of each active thread that has copied."""
    groups = w.cta.bulk_groups
    if groups:
        for lane in active_lanes(w, mask):
            group = groups.get(int(w.threads[lane]))
            if group is not None:
                group.commit()
        if w.checker is not None:
            w.checker.copies.commit(w, mask)


def wait_bulk(w: Team, latest: int, read: bool, following: int, mask) -> int:
    """cp.async.bulk.wait_group[.read]."""
    groups, copies = w.cta.bulk_groups, []
    if groups:
        for lane in active_lanes(w, mask):
            group = groups.get(int(w.threads[lane]))
            if group is not None:
                copies.extend(group.older_than(latest))
    covered = None if w.checker is None else w.checker.copies.covered(w, latest, read, mask)
    return w.block_on(GroupWait(copies, read, "bulk", covered), following)


# ---- cp.async


def copy_async(w: Team, place, source, size: int, count, mask) -> None:
    """cp.async of 4, 8 or 16 bytes per lane; bytes from `count` on are zero."""
    lanes = w.every if mask is None else mask
    for position in np.flatnonzero(lanes.reshape(-1, 32).any(1)).tolist():
        chosen = np.zeros(w.n, bool)
        chosen[32 * position : 32 * position + 32] = lanes[32 * position : 32 * position + 32]
        valid = None if count is None else count[chosen]
        _submit_copy_async(w, position, place[chosen], source[chosen], size, valid)


def _submit_copy_async(w: Team, position: int, place, source, size: int, count) -> None:
    warp = w.warps[position].index
    offsets = place & np.uint32(OFFSET)
    for offset in (int(offsets.min()), int(offsets.max())):
        w.cta.shared.check(offset, size, "cp.async")
    if np.count_nonzero(offsets % size):
        raise AddressError(f"cp.async of {size} bytes to a misaligned shared address")
    for lane, address in enumerate(source.tolist()):
        nbytes = size if count is None else int(count[lane])
        if nbytes:
            if address % size:
                raise AddressError(f"cp.async of {size} bytes from misaligned {address:#x}")
            w.cta.cluster.memory.check(address, nbytes, "cp.async")
    if w.checker is not None:
        w.checker.copies.copy(w, position, offsets, size)
    copy = Copy()

    def effect() -> None:
        memory = w.cta.shared.views[1]
        for lane, (offset, address) in enumerate(
            zip(offsets.tolist(), source.tolist(), strict=True)
        ):
            nbytes = size if count is None else int(count[lane])
            if nbytes:
                memory[offset : offset + nbytes] = host_bytes(address, nbytes)
            memory[offset + nbytes : offset + size] = 0
        copy.read_done = copy.done = True
        w.cta.cluster.events += 1

    w.cta.copy_groups.setdefault(warp, CopyGroups()).open.append(copy)
    key = ("cp.async", w.cta.rank, warp)
    w.cta.cluster.engines.submit(key, effect, lambda: w.cta.origin(w))


def copy_arrive(w: Team, place, quiet: bool, mask) -> None:
    """cp.async.mbarrier.arrive: arrives when the thread's earlier cp.async are done."""
    for address, lanes in places(place, mask):
        for position in np.flatnonzero(lanes.reshape(-1, 32).any(1)).tolist():
            arrivals = np.count_nonzero(lanes[32 * position : 32 * position + 32])
            _submit_copy_arrive(w, address, position, arrivals, quiet)


def _submit_copy_arrive(w: Team, address: int, position: int, arrivals: int, quiet: bool) -> None:
    barrier, warp = barrier_at(w.cta, address), w.warps[position].index
    if not quiet:
        barrier.pending += arrivals
    who = f"cp.async of {w.cta.role(warp)}"
    passed_on = None if w.checker is None else w.checker.copies.simple_arrival(w, position)

    def effect() -> None:
        if passed_on is not None:
            barrier.carrier.add(passed_on)
        barrier.arrive(arrivals, who)

    w.cta.cluster.engines.submit(("cp.async", w.cta.rank, warp), effect, lambda: w.cta.origin(w))


def _copy_groups(w: Team, mask) -> list[CopyGroups]:
    """The cp.async groups of the active warps."""
    lanes = w.every if mask is None else mask
    present = np.flatnonzero(lanes.reshape(-1, 32).any(1)).tolist()
    groups = [w.cta.copy_groups.get(w.warps[position].index) for position in present]
    return [group for group in groups if group is not None]


def copy_commit(w: Team, mask) -> None:
    for group in _copy_groups(w, mask):
        group.commit()
    if w.checker is not None:
        w.checker.copies.simple_commit(w, mask)


def wait_copy(w: Team, latest: int, following: int, mask) -> int:
    """cp.async.wait_group and wait_all."""
    copies = [copy for group in _copy_groups(w, mask) for copy in group.older_than(latest)]
    covered = None if w.checker is None else w.checker.copies.simple_covered(w, latest, mask)
    return w.block_on(GroupWait(copies, False, "cp.async", covered), following)


def store_async(w: Team, place, size: int, values: tuple, barrier, mask) -> None:
    """st.async: stores into a CTA of the cluster and counts the bytes on its mbarrier."""
    lanes = active_lanes(w, mask)
    unit = min(size, 8)
    for lane in lanes:
        to, signal = int(place[lane]), int(barrier[lane])
        cta, offset = w.cta.peer(to), to & OFFSET
        nbytes = unit * len(values)
        cta.shared.check(offset, nbytes, "st.async")
        data = np.array([value[lane] for value in values])
        _submit_store_async(w, lane, (cta, offset), data, signal)


def _submit_store_async(
    w: Team, lane: int, place: tuple[Cta, int], data: np.ndarray, signal: int
) -> None:
    (cta, offset), raw, who = place, data.view(np.uint8), w.cta.who(w)
    flight = None
    if w.checker is not None:
        flight = _flight(w, lane, signal)
        w.checker.copies.writes(flight, cta, offset, raw.size)

    def effect() -> None:
        cta.shared.views[1][offset : offset + raw.size] = raw
        if flight is not None:
            flight.land()
        barrier_at(w.cta, signal).complete(raw.size, f"st.async of {who}")

    w.cta.cluster.engines.submit(None, effect, lambda: w.cta.origin(w))


# ---- cluster launch control


def try_cancel(w: Team, place, barrier, everywhere: bool, mask) -> None:
    """clusterlaunchcontrol.try_cancel: takes the next cluster that has not started."""
    cluster = w.cta.cluster
    for lane in active_lanes(w, mask):
        taken = cluster.machine.cancel_next()
        answer = np.array([*taken, 1] if taken else [0, 0, 0, 0], np.uint32)
        offset, signal = int(place[lane]) & OFFSET, int(barrier[lane])
        targets = cluster.ctas if everywhere else [w.cta.peer(int(place[lane]))]
        for cta in targets:
            where = signal & OFFSET | cta.rank << 24 if everywhere else signal
            _submit_answer(w, lane, (cta, offset), answer, where)


def _submit_answer(
    w: Team, lane: int, place: tuple[Cta, int], answer: np.ndarray, signal: int
) -> None:
    cta, offset = place
    cta.shared.check(offset, 16, "try_cancel")
    flight = _flight(w, lane, signal)
    if flight is not None:
        w.checker.copies.writes(flight, cta, offset, 16)

    def effect() -> None:
        cta.shared.rows[offset >> 4] = answer
        if flight is not None:
            flight.land()
        barrier_at(w.cta, signal).complete(16, "cluster launch control")

    w.cta.cluster.engines.submit(None, effect, lambda: w.cta.origin(w))
