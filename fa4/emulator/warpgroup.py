"""wgmma of a warpgroup: what its warps have issued, what is done, which registers are in flight.

An accumulator or A register belongs to the tensor core from the issue until a wgmma.wait_group
that covers it. Register values are taken at the issue and results appear with that wait, so an
access in between cannot be seen in the values: it is an error. Shared memory is read when the
operation runs, at any time between the two.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import WarpgroupError
from .translate.registers import registers_touched
from .waits import Wait, padded, ready_lanes

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team
    from .wgmma import Wgmma

WARPS = 4  # of a warpgroup


class WarpFlight:
    """What one warp has issued: the open group, the committed ones, the registers they use."""

    def __init__(self) -> None:
        self.issued = self.commits = self.finished = 0
        self.open: list[Wgmma] = []
        self.groups: deque[list[Wgmma]] = deque()
        self.owners: dict[tuple[int, ...], Wgmma] = {}  # accumulator slots -> their last operation
        self.accumulators = self.inputs = 0  # registers in flight, as bit masks
        self.fenced = False
        self.returned = 0  # registers that a wait has given back since the last fence
        self.touched = 0  # those of them that other instructions have accessed

    @property
    def watched(self) -> bool:
        """Whether accesses to registers matter now."""
        return bool(self.accumulators or self.inputs or self.returned)

    def fence(self) -> None:
        self.fenced, self.returned, self.touched = True, 0, 0

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []
        self.commits += 1

    def covered(self, limit: int) -> list[list[Wgmma]]:
        """The groups that a wait for at most `limit` pending ones is about."""
        return list(self.groups)[: max(len(self.groups) - limit, 0)]

    def release(self, limit: int) -> list[Wgmma]:
        """Ends the covered groups; returns the operations whose accumulators are final."""
        final = []
        for group in self.covered(limit):
            self.groups.popleft()
            self.finished += len(group)
            for operation in group:
                site = operation.site
                self.returned |= site.input_mask
                if self.owners.get(site.slots) is operation:
                    del self.owners[site.slots]
                    self.returned |= site.accumulator_mask
                    final.append(operation)
        flying = [op for group in (*self.groups, self.open) for op in group]
        self.accumulators = self.inputs = 0
        for operation in flying:
            self.accumulators |= operation.site.accumulator_mask
            self.inputs |= operation.site.input_mask
        return final


class Warpgroup:
    """The four warps [4 i, 4 i + 4) of a CTA. Their n-th wgmma must be the same one."""

    def __init__(self, cta: Cta, index: int) -> None:
        self.cta, self.index = cta, index
        self.flights = [WarpFlight() for _ in range(WARPS)]
        self.pending: dict[int, Wgmma] = {}  # by number: issued by some of the warps only
        self.engine = ("wgmma", cta.rank, index)

    def __str__(self) -> str:
        return f"warpgroup {self.index} (warps {WARPS * self.index}-{WARPS * self.index + 3})"

    def late_warps(self, operation: Wgmma) -> list[int]:
        """Warps that have not issued an operation yet."""
        return [WARPS * self.index + warp for warp in range(WARPS) if not operation.issued[warp]]


def warpgroup_of(cta: Cta, warp: int) -> Warpgroup:
    """The warpgroup of a warp. Raises WarpgroupError when the CTA does not have all of it."""
    index = warp // WARPS
    group = cta.warpgroups.get(index)
    if group is None:
        if WARPS * (index + 1) > cta.launch.threads // 32:
            raise WarpgroupError(
                f"wgmma in warp {warp}: its warpgroup is warps {WARPS * index}-{WARPS * index + 3}"
                f", and the CTA has only {cta.launch.threads} threads"
            )
        group = cta.warpgroups[index] = Warpgroup(cta, index)
    return group


def active_warps(w: Team, mask: np.ndarray | None) -> list[int]:
    """Positions of the active warps. Raises WarpgroupError unless all 32 lanes take part."""
    lanes = w.alive if mask is None else mask
    counts = lanes.reshape(-1, 32).sum(1)
    positions = np.flatnonzero(counts).tolist()
    for position in positions:
        if counts[position] != 32:
            raise WarpgroupError(
                f"{counts[position]} of 32 lanes of warp {w.warps[position].index} execute a wgmma "
                "instruction; all lanes of all four warps of a warpgroup must"
            )
    return positions


def flight_of(w: Team, position: int) -> WarpFlight:
    """The state of the warp at a position of a team."""
    warp = w.warps[position].index
    return warpgroup_of(w.cta, warp).flights[warp % WARPS]


def wgmma_fence(w: Team, mask) -> None:
    """wgmma.fence: earlier accesses to registers come before the next wgmma's."""
    for position in active_warps(w, mask):
        flight_of(w, position).fence()


def wgmma_commit(w: Team, mask) -> None:
    """wgmma.commit_group."""
    for position in active_warps(w, mask):
        flight_of(w, position).commit()


def wait_wgmma(w: Team, limit: int, following: int, mask) -> int:
    """wgmma.wait_group: at most `limit` of the latest groups may be unfinished."""
    entries = []
    for position in active_warps(w, mask):
        lanes = np.zeros(w.n, bool)
        lanes[32 * position : 32 * position + 32] = True
        group = warpgroup_of(w.cta, w.warps[position].index)
        entries.append(FlightEntry(group, flight_of(w, position), limit, lanes))
    return w.block_on(WgmmaWait(entries), following)


@dataclass
class FlightEntry:
    """A warp (its lanes of the team) that waits for its groups."""

    group: Warpgroup
    flight: WarpFlight
    limit: int
    lanes: np.ndarray

    def over(self) -> bool:
        return all(op.done for group in self.flight.covered(self.limit) for op in group)


class WgmmaWait(Wait):
    """wgmma.wait_group; when over, the accumulators appear in their registers."""

    def __init__(self, entries: list[FlightEntry]) -> None:
        self.entries = entries

    def ready(self) -> bool:
        return all(entry.over() for entry in self.entries)

    def finish(self, team: Team) -> None:
        results: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}
        for entry in self.entries:
            lane = int(entry.lanes.argmax())
            warp = team.warps[lane // 32].index % WARPS
            final = entry.flight.release(entry.limit)
            if team.checker is not None:
                team.checker.tensor.wgmma_waited(team, lane, entry.flight.finished)
            for operation in final:
                piece = operation.registers[:, 32 * warp : 32 * warp + 32]
                results.setdefault(operation.site.slots, []).append((lane, piece))
        for slots, pieces in results.items():
            _deliver(team, slots, pieces)

    def select(self, lanes: slice | np.ndarray) -> WgmmaWait:
        entries = [FlightEntry(e.group, e.flight, e.limit, e.lanes[lanes]) for e in self.entries]
        return WgmmaWait([e for e in entries if e.lanes.any()])

    def joinable(self, other: Wait) -> bool:
        return isinstance(other, WgmmaWait)

    def join(self, other: WgmmaWait, width: int, other_width: int) -> WgmmaWait:
        entries = [padded(e, 0, other_width) for e in self.entries]
        return WgmmaWait(entries + [padded(e, width, 0) for e in other.entries])

    def ready_lanes(self, width: int) -> np.ndarray | None:
        return ready_lanes(self.entries, width)

    def target(self) -> str:
        for entry in self.entries:
            for operation in (op for group in entry.flight.covered(entry.limit) for op in group):
                if not operation.done:
                    late = entry.group.late_warps(operation)
                    why = f", which warps {late} have not issued" if late else ""
                    return f"wgmma at PTX line {operation.site.line} of {entry.group}{why}"
        return "wgmma groups"


def _deliver(team: Team, slots: tuple[int, ...], pieces: list[tuple[int, np.ndarray]]) -> None:
    """Stores accumulators of some warps: pieces are (first lane, registers x 32)."""
    codes = team.cta.translation.registers.slot_codes
    if 32 * len(pieces) == team.n:
        values = np.empty((len(slots), team.n), np.float32)
    else:
        values = np.stack([team.slots[slot].view(np.float32) for slot in slots])
    for lane, piece in pieces:
        values[:, lane : lane + 32] = piece
    words = values.view(np.uint32)
    for number, slot in enumerate(slots):
        team.slots[slot] = values[number] if codes[slot] == "f" else words[number]


def watch_registers(w: Team, number: int, mask) -> None:
    """Called before block `number` runs: none of its registers may be in flight."""
    groups = w.cta.warpgroups
    if not groups:
        return
    accessed = w.cta.translation.blocks[number].block.accessed
    lanes = None if mask is None else mask.reshape(-1, 32).any(1)
    for position, warp in enumerate(w.warps):
        group = groups.get(warp.index // WARPS)
        if group is None or (lanes is not None and not lanes[position]):
            continue
        flight = group.flights[warp.index % WARPS]
        if not flight.watched:
            continue
        if accessed & (flight.accumulators | flight.inputs):
            _refuse(w, number, flight)
        flight.touched |= accessed & flight.returned


def _refuse(w: Team, number: int, flight: WarpFlight) -> None:
    """Raises for the first instruction of a block that meets a register in flight."""
    translation = w.cta.translation
    block, numbers = translation.blocks[number].block, translation.numbers
    for instruction in translation.kernel.instructions[block.start : block.end]:
        if instruction.root == "wgmma":
            continue
        reads, writes = registers_touched(instruction)
        for names, masks, what in (
            (reads | writes, flight.accumulators, "accesses accumulator"),
            (writes, flight.inputs, "overwrites A register"),
        ):
            for name in sorted(names):
                if masks >> numbers[name] & 1:
                    error = WarpgroupError(
                        f"the instruction {what} {name} of a wgmma that no wgmma.wait_group has "
                        "covered yet"
                    )
                    error.instruction = instruction
                    raise error
