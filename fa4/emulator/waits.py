"""What a group of lanes can wait for. A wait is polled; nothing pushes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .barriers import Mbarrier, NamedBarrier
    from .cta import Cta
    from .team import Team


class Wait:
    """Base of all waits. Lane masks are over the team that waits."""

    def ready(self) -> bool:
        raise NotImplementedError

    def finish(self, team: Team) -> None:
        """Called once when the wait is over, before the group goes on."""

    def target(self) -> str:
        """What is waited for, in words."""
        raise NotImplementedError

    def slots(self) -> tuple[int, ...]:
        """Register slots that `finish` reads."""
        return ()

    def select(self, lanes: slice | np.ndarray) -> Wait:
        """The same wait for some of the team's lanes."""
        return self

    def joinable(self, other: Wait) -> bool:
        return False

    def join(self, other: Wait, width: int, other_width: int) -> Wait:
        raise NotImplementedError

    def ready_lanes(self, width: int) -> np.ndarray | None:
        """Lanes whose own part is over, when that is some but not all of them."""
        return None

    def give_up(self, team: Team) -> bool:
        """Ends a wait with a time limit without success; False when it has none."""
        return False


@dataclass
class PhaseEntry:
    """Some lanes that wait until the barrier's phase differs from `phase`.

    `phase` is a parity (0 or 1), or the phase number of an arrival when `by_number`.
    """

    barrier: Mbarrier
    phase: int
    by_number: bool
    lanes: np.ndarray
    relaxed: bool = False

    def over(self) -> bool:
        now = self.barrier.phase
        return (now if self.by_number else now & 1) != self.phase


class MbarrierWait(Wait):
    """mbarrier.try_wait. Its predicate goes to register slot `slot`."""

    def __init__(self, entries: list[PhaseEntry], slot: int | None, mask) -> None:
        self.entries, self.slot, self.mask = entries, slot, mask

    def ready(self) -> bool:
        for entry in self.entries:
            now = entry.barrier.phase
            if (now if entry.by_number else now & 1) == entry.phase:
                return False
        return True

    def finish(self, team: Team) -> None:
        if team.checker is not None:
            for entry in self.entries:
                self._tell(team, entry)
        if self.slot is not None:
            self._answer(team, team.every)

    def give_up(self, team: Team) -> bool:
        success = np.zeros(team.n, bool)
        for entry in self.entries:
            if entry.over():
                success |= entry.lanes
                if team.checker is not None:
                    self._tell(team, entry)
        if self.slot is not None:
            self._answer(team, success)
        return True

    def _tell(self, team: Team, entry: PhaseEntry) -> None:
        how = (entry.relaxed, entry.by_number)
        team.checker.barriers.waited(team, entry.barrier, entry.lanes, how)

    def _answer(self, team: Team, success: np.ndarray) -> None:
        if self.mask is not None:
            success = np.where(self.mask, success, team.slots[self.slot])
        team.slots[self.slot] = success

    def slots(self) -> tuple[int, ...]:
        return () if self.slot is None else (self.slot,)

    def select(self, lanes: slice | np.ndarray) -> MbarrierWait:
        entries = [
            PhaseEntry(e.barrier, e.phase, e.by_number, e.lanes[lanes], e.relaxed)
            for e in self.entries
        ]
        mask = None if self.mask is None else self.mask[lanes]
        return MbarrierWait([e for e in entries if e.lanes.any()], self.slot, mask)

    def joinable(self, other: Wait) -> bool:
        return (
            isinstance(other, MbarrierWait)
            and self.slot == other.slot
            and self.mask is None
            and other.mask is None
        )

    def join(self, other: MbarrierWait, width: int, other_width: int) -> MbarrierWait:
        entries = [padded(e, 0, other_width) for e in self.entries]
        entries += [padded(e, width, 0) for e in other.entries]
        return MbarrierWait(entries, self.slot, None)

    def ready_lanes(self, width: int) -> np.ndarray | None:
        return ready_lanes(self.entries, width)

    def target(self) -> str:
        return ", ".join(str(entry.barrier) for entry in self.entries)


@dataclass
class GenerationEntry:
    """Some lanes that wait until a named barrier leaves generation `generation`."""

    barrier: NamedBarrier
    generation: int
    lanes: np.ndarray

    def over(self) -> bool:
        return self.barrier.generation != self.generation


class BarrierWait(Wait):
    """bar.sync and barrier.cluster.wait."""

    def __init__(self, entries: list[GenerationEntry]) -> None:
        self.entries = entries

    def ready(self) -> bool:
        return all(entry.barrier.generation != entry.generation for entry in self.entries)

    def finish(self, team: Team) -> None:
        if team.checker is not None:
            for entry in self.entries:
                team.checker.barriers.synced(team, entry.barrier, entry.lanes)

    def select(self, lanes: slice | np.ndarray) -> BarrierWait:
        entries = [GenerationEntry(e.barrier, e.generation, e.lanes[lanes]) for e in self.entries]
        return BarrierWait([e for e in entries if e.lanes.any()])

    def joinable(self, other: Wait) -> bool:
        return isinstance(other, BarrierWait)

    def join(self, other: BarrierWait, width: int, other_width: int) -> BarrierWait:
        entries = [padded(e, 0, other_width) for e in self.entries]
        return BarrierWait(entries + [padded(e, width, 0) for e in other.entries])

    def ready_lanes(self, width: int) -> np.ndarray | None:
        return ready_lanes(self.entries, width)

    def target(self) -> str:
        return ", ".join(str(entry.barrier) for entry in self.entries)


def padded(entry, before: int, after: int):
    """The same entry in a team with more lanes on either side."""
    pieces = (np.zeros(before, bool), entry.lanes, np.zeros(after, bool))
    values = {**entry.__dict__, "lanes": np.concatenate(pieces)}
    return type(entry)(**values)


def ready_lanes(entries: list, width: int) -> np.ndarray | None:
    """Lanes of the entries that are over, when that is some but not all of them."""
    lanes = np.zeros(width, bool)
    over = [entry for entry in entries if entry.over()]
    if not over or len(over) == len(entries):
        return None
    for entry in over:
        lanes |= entry.lanes
    return lanes


class GroupWait(Wait):
    """cp.async.bulk.wait_group and cp.async.wait_group: copies that must have been done.

    `covered`: what the checker has to know when the wait is over.
    """

    def __init__(self, copies: list, read: bool, name: str, covered: list | None) -> None:
        self.copies, self.read, self.name, self.covered = copies, read, name, covered

    def ready(self) -> bool:
        done = (c.read_done if self.read else c.done for c in self.copies)
        return all(done)

    def finish(self, team: Team) -> None:
        if self.covered:
            team.checker.copies.waited(self.covered)

    def target(self) -> str:
        return f"{self.name} copies"


class PollWait(Wait):
    """A loop that reads memory and has changed nothing: it will not, until something else does.

    `progress`: how often anything of the launch has changed so far.
    """

    def __init__(self, progress: Callable[[], int]) -> None:
        self.progress, self.seen = progress, progress()

    def ready(self) -> bool:
        return self.progress() != self.seen

    def target(self) -> str:
        return "memory that it polls"


class RegisterWait(Wait):
    """setmaxnreg.inc: registers that must become free in the CTA's pool."""

    def __init__(self, cta: Cta, warps: list, count: int) -> None:
        self.cta, self.warps, self.count = cta, warps, count

    def missing(self) -> int:
        return sum(32 * (self.count - warp.registers) for warp in self.warps)

    def ready(self) -> bool:
        return self.missing() <= self.cta.free_registers

    def finish(self, team: Team) -> None:
        self.cta.free_registers -= self.missing()
        for warp in self.warps:
            warp.registers = self.count

    def target(self) -> str:
        return (
            f"{self.missing()} registers for setmaxnreg.inc {self.count} "
            f"({self.cta.free_registers} free)"
        )


class AllocationWait(Wait):
    """tcgen05.alloc: columns that must become free. `finish` writes the address to `place`.

    `who`: the warp that asks, and its instruction. With cta_group::2 the pair allocates together:
    `turn` is the number of this request, and the other CTA `partner` must have made as many.
    """

    def __init__(
        self, who: tuple[Cta, int, int], place: int, columns: int, partner: Cta | None, turn: int
    ) -> None:
        (self.cta, self.warp, self.at), self.place, self.columns = who, place, columns
        self.partner, self.turn = partner, turn

    def ready(self) -> bool:
        if self.partner is not None and self.partner.tensor.pair_requests < self.turn:
            return False
        return self.cta.tensor.find(self.columns) is not None

    def finish(self, team: Team) -> None:
        address = self.cta.tensor.allocate(self.columns)
        self.cta.shared.write_word(self.place, address)
        if team.checker is not None:
            team.checker.tensor.allocated(self, address)

    def target(self) -> str:
        if self.partner is not None and self.partner.tensor.pair_requests < self.turn:
            return "tcgen05.alloc of the pair's other CTA"
        return f"{self.columns} free columns of tensor memory"
