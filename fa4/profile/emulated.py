"""The emulator's timeline of roles.

Every warp has a clock. It advances by one with each instruction that the warp executes; behind a
wait it is set to the clock of the last arrival of the phase, if that is later (Lamport's logical
clock). So the timeline does not depend on the order in which the emulator happens to run warps: it
is that of a machine in which each live warp executes one instruction per tick and signals, copies
and MMAs take no time. No other model of time is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fa4.emulator.barriers import Mbarrier, NamedBarrier
from fa4.emulator.labels import BarrierLabel, Labels
from fa4.emulator.observe import Observer
from fa4.emulator.sessions import session
from fa4.emulator.waits import BarrierWait, MbarrierWait
from fa4.profile.timeline import Arrival, Timeline, Track, Wait
from fa4.profile.workload import Workload

if TYPE_CHECKING:
    from fa4.emulator.cta import Cta
    from fa4.emulator.team import Team, Warp
    from fa4.emulator.waits import GenerationEntry, PhaseEntry
    from fa4.emulator.waits import Wait as EngineWait

UNIT = "executed warp instructions"
NOTE = (
    "Emulated on a CPU, no time model: each live warp executes one instruction per tick; signals, "
    "copies and MMAs take no time. Not a measurement."
)

Barrier = Mbarrier | NamedBarrier


def emulate(workload: Workload, sms: int = 1) -> Timeline:
    """Run a workload on CPU tensors in the emulator, on a GPU of `sms` SMs, and watch it."""
    clocks = RoleClocks()
    with session(arch=workload.plan.arch, num_sms=sms, observer=clocks):
        workload.launch()
    return clocks.timeline(workload.title)


@dataclass
class _Phase:
    """The phase that a barrier is in, and its latest arrival so far."""

    number: int
    latest: Arrival | None = None


class RoleClocks(Observer):
    """Observes one launch under the schedule `early`; `timeline` then tells what happened.

    Barriers are named by the labels that the launch has.
    """

    def __init__(self) -> None:
        self.late: dict[tuple[int, int], int] = {}  # what waits added to a warp's count
        self.current: dict[Barrier, _Phase] = {}
        self.ended_by: dict[tuple[Barrier, int], Arrival] = {}
        self.waits: list[Wait] = []
        self.tracks: list[Track] = []
        self.sizes: np.ndarray | None = None

    def signalled(self, barrier: Barrier) -> None:
        """Remember the latest arrival of every phase."""
        team = barrier.cta.cluster.running
        phase = self.current.setdefault(barrier, _Phase(0))
        for warp, clock in self._clocks(team, team.acting_warps()):
            if phase.latest is None or clock > phase.latest.at:
                phase.latest = Arrival(team.cta.index, warp.index, clock)
        if phase.number != _number(barrier):
            self.ended_by[barrier, phase.number] = phase.latest
            self.current[barrier] = _Phase(_number(barrier))

    def waited(self, team: Team, wait: EngineWait) -> None:
        """Set the clocks of the warps that come out of a wait."""
        if not isinstance(wait, (MbarrierWait, BarrierWait)):
            return
        for entry in wait.entries:
            ended_by = self.ended_by.get((entry.barrier, _waited_for(entry)))
            if ended_by is None:
                continue  # the first acquire of a stage: nothing had to happen
            present = np.flatnonzero(entry.lanes.reshape(-1, 32).any(1))
            for warp, clock in self._clocks(team, [team.warps[p] for p in present]):
                if ended_by.at > clock:
                    self._wait(team.cta, warp, entry.barrier, clock, ended_by)

    def ended(self, cta: Cta) -> None:
        """Close the tracks of a CTA."""
        for warp in cta.warps:
            executed = int(self._sizes(cta) @ np.array(warp.hits))
            end = executed + self.late.get((cta.index, warp.index), 0)
            role = cta.role(warp.index)
            self.tracks.append(Track(cta.index, warp.index, role, 0, end, executed))

    def timeline(self, title: str) -> Timeline:
        """Everything that was seen."""
        return Timeline(title, UNIT, NOTE, tuple(self.tracks), tuple(self.waits))

    def _wait(self, cta: Cta, warp: Warp, barrier: Barrier, begin: int, ended_by: Arrival) -> None:
        label = _label(cta.labels, barrier)
        self.waits.append(
            Wait(cta.index, warp.index, label.edge, label.stage, begin, ended_by.at, ended_by)
        )
        key = (cta.index, warp.index)
        self.late[key] = self.late.get(key, 0) + ended_by.at - begin

    def _clocks(self, team: Team, warps: list[Warp]) -> Iterator[tuple[Warp, int]]:
        """Clocks of some of a team's warps, exact to the basic block."""
        sizes = self._sizes(team.cta)
        together = int(sizes @ np.array(team.hits))
        for warp in warps:
            executed = together + int(sizes @ np.array(warp.hits))
            yield warp, executed + self.late.get((team.cta.index, warp.index), 0)

    def _sizes(self, cta: Cta) -> np.ndarray:
        """Instructions of each basic block."""
        if self.sizes is None:
            blocks = [entry.block for entry in cta.translation.blocks]
            self.sizes = np.array([block.end - block.start for block in blocks])
        return self.sizes


def _number(barrier: Barrier) -> int:
    return barrier.phase if isinstance(barrier, Mbarrier) else barrier.generation


def _waited_for(entry: PhaseEntry | GenerationEntry) -> int:
    """The phase whose end was waited for: the last one that has ended, or an earlier one."""
    if isinstance(entry.barrier, NamedBarrier):
        return entry.generation
    return entry.phase if entry.by_number else entry.barrier.phase - 1


def _label(labels: Labels, barrier: Barrier) -> BarrierLabel:
    if isinstance(barrier, Mbarrier):
        return barrier.cta.label(barrier.offset) or BarrierLabel(str(barrier))
    found = labels.named_barriers.get(barrier.number)
    return found or BarrierLabel("all threads" if barrier.number == 0 else barrier.name)
