"""One CTA: shared and tensor memory, barriers, warps, and names for all of them in reports."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .barriers import Mbarrier, NamedBarrier
from .bulk_copy import CopyGroups
from .engines import Copy
from .errors import AddressError, EmulatorError
from .labels import BarrierLabel, Labels
from .ptx.syntax import Instruction
from .shared import SharedMemory
from .team import Team, Warp
from .tensor_memory import TensorMemory

if TYPE_CHECKING:
    from .checker.checker import ClusterChecker
    from .machine import Cluster
    from .warpgroup import Warpgroup

_GENERATED = "<ptx block"
_SHOWN = 160  # characters of an instruction in reports; a wgmma may have 128 registers


class Cta:
    """A CTA of a running cluster. `rank` is its place in the cluster, `index` in the grid."""

    def __init__(self, cluster: Cluster, position: tuple[int, int, int], rank: int) -> None:
        machine = cluster.machine
        self.cluster, self.position, self.rank = cluster, position, rank
        self.launch, self.translation = machine.launch, machine.translation
        self.params, self.labels = machine.params, machine.labels or Labels()
        self.observer = machine.observer
        grid = self.launch.grid
        self.index = position[0] + grid[0] * (position[1] + grid[1] * position[2])
        kernel = self.translation.kernel
        self.shared = SharedMemory(
            kernel.static_shared, kernel.shared_align, self.launch.smem_bytes
        )
        self.tensor = TensorMemory(self)
        self.local = np.full((self.launch.threads + 31, max(kernel.local_bytes, 1)), 0xFF, np.uint8)
        if kernel.local_bytes:
            width = -(-kernel.local_bytes // 16) * 16
            self.local = np.full((-(-self.launch.threads // 32) * 32, width), 0xFF, np.uint8)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.retired: set[int] = set()
        self.named_barriers: dict[int, NamedBarrier] = {}
        self.cluster_phase: dict[int, int] = {}
        self.bulk_groups: dict[int, CopyGroups] = {}
        self.copy_groups: dict[int, CopyGroups] = {}
        self.warpgroups: dict[int, Warpgroup] = {}
        registers = machine.registers_per_thread
        count = -(-self.launch.threads // 32)
        blocks = len(self.translation.blocks)
        self.warps = [Warp(i, registers, blocks) for i in range(count)]
        self.free_registers = 0
        self.teams: list[Team] = []
        self.checker: ClusterChecker | None = None

    def begin(self, kind: str) -> None:
        """Creates the teams: all warps together under `early`, else warpgroups or single warps.

        A seed decides for each warpgroup whether its warps run in lock-step: that is one of the
        orders the hardware may choose, and several times faster to emulate.
        """
        self.checker = self.cluster.checker
        parts = [self.warps]
        if kind != "early":
            parts = []
            for start in range(0, len(self.warps), 4):
                group = self.warps[start : start + 4]
                together = kind != "late" and self.cluster.rng.random() < 0.5
                parts.extend([group] if together else [[warp] for warp in group])
        self.teams = [Team.start(self, part) for part in parts]

    # ---- other CTAs and objects

    def peer(self, address: int) -> Cta:
        """The CTA that a shared address belongs to. Raises AddressError."""
        rank = address >> 24
        if rank == self.rank:
            return self
        if rank >= len(self.cluster.ctas):
            raise AddressError(
                f"shared address {address:#x} names CTA {rank} of a cluster of "
                f"{len(self.cluster.ctas)}"
            )
        peer = self.cluster.ctas[rank]
        if peer.ended:
            raise AddressError(
                f"CTA {rank} of the cluster has ended, and its shared memory with it; its warps "
                "must not exit before the last access by others, say at a cluster barrier"
            )
        return peer

    @property
    def ended(self) -> bool:
        """Whether all its warps have exited."""
        return not any(team.groups for team in self.teams)

    def named(self, number: int) -> NamedBarrier:
        """Named barrier `number` (bar 0-15)."""
        barrier = self.named_barriers.get(number)
        if barrier is None:
            label = self.labels.named_barriers.get(number)
            name = f"named barrier {number}" + (f" {label}" if label else "")
            barrier = self.named_barriers[number] = NamedBarrier(self, number, name)
        return barrier

    def submit_copy(
        self,
        team: Team,
        lane: int,
        read: Callable[[], np.ndarray],
        write: Callable[[np.ndarray], None],
    ) -> None:
        """Starts a store in two steps (source read, destination written) in its thread's group."""
        copy, engines = Copy(), self.cluster.engines
        groups = self.bulk_groups.setdefault(int(team.threads[lane]), CopyGroups())
        groups.open.append(copy)

        def origin() -> str:
            return self.origin(team)

        def finish(data: np.ndarray) -> None:
            write(data)
            copy.done = True
            self.cluster.events += 1

        def start() -> None:
            data = read()
            copy.read_done = True
            self.cluster.events += 1
            engines.submit(None, lambda: finish(data), lambda: "")

        engines.submit(None, start, origin)

    # ---- teams

    def split(self, team: Team) -> None:
        """Replaces a team by one team per set of warps that share no group."""
        parts = team.components()
        if len(parts) < 2:
            return
        team.settle()
        index = self.teams.index(team)
        self.teams[index : index + 1] = [team.extract(*part) for part in parts]

    def join_waiting(self) -> None:
        """Joins teams of one warpgroup that stand whole at the same wait."""
        standing: dict[tuple[int, int], Team] = {}
        for team in list(self.teams):
            if len(team.groups) != 1 or team.groups[0].mask is not None:
                continue
            group = team.groups[0]
            if group.wait is None or len(team.warps) > 3:
                continue
            homes = {warp.index // 4 for warp in team.warps}
            if len(homes) > 1:
                continue
            key = (group.pc, homes.pop())
            other = standing.get(key)
            if other is None or not other.groups[0].wait.joinable(group.wait):
                standing[key] = team
                continue
            first, second = sorted((other, team), key=lambda t: t.warps[0].index)
            for each in (first, second):
                each.settle()
            joined = first.join(second)
            self.teams[self.teams.index(other)] = joined
            self.teams.remove(team)
            standing[key] = joined

    # ---- names

    def role(self, warp: int) -> str:
        """Role of a warp, for reports."""
        return self.labels.role(warp)

    def who(self, team: Team, lanes: np.ndarray | None = None) -> str:
        """The roles of a team, of the warps with `lanes` only when given."""
        warps = team.warps
        if lanes is not None and len(warps) > 1:
            present = np.flatnonzero(lanes.reshape(-1, 32).any(1)).tolist()
            warps = [warps[p] for p in present]
        roles = dict.fromkeys(self.role(warp.index) for warp in warps)
        suffix = f" of CTA {self.rank}" if len(self.cluster.ctas) > 1 else ""
        return "/".join(roles) + suffix

    def label(self, offset: int) -> BarrierLabel | None:
        """The label of the mbarrier at a shared offset."""
        return self.labels.mbarriers.get(offset - self.shared.dynamic_start)

    def barrier_name(self, offset: int) -> str:
        label = self.label(offset)
        place = f"mbarrier at dynamic shared offset {offset - self.shared.dynamic_start}"
        if len(self.cluster.ctas) > 1:
            place += f" of CTA {self.rank}"
        return f"{label} ({place})" if label else place

    def explain_missing(self, offset: int) -> str:
        """Why there is no mbarrier at an offset."""
        if offset in self.retired:
            return f"{self.barrier_name(offset)} has been invalidated"
        known = ", ".join(str(o - self.shared.dynamic_start) for o in sorted(self.mbarriers)[:12])
        return (
            f"{self.barrier_name(offset)} is not initialised "
            f"(dynamic offsets of initialised ones: {known or 'none'})"
        )

    # ---- events and places

    def signal(self, barrier: Mbarrier | NamedBarrier) -> None:
        """Counts progress and tells the observer."""
        self.cluster.events += 1
        if self.observer is not None:
            self.observer.signalled(barrier)

    def place(self, team: Team, instruction: Instruction | None) -> str:
        """`role, CTA, PTX line: text (source)` of an instruction."""
        position = "" if self.launch.grid == (1, 1, 1) else f", CTA {self.position}"
        text = f"in {self.who(team)}{position}"
        if instruction is None:
            return text
        shown = textwrap.shorten(instruction.text, _SHOWN, placeholder=" ...")
        text += f", PTX line {instruction.line}: {shown}"
        location = instruction.location
        if location is not None:
            text += f"\n  at {location}"
            if location.inlined_at is not None:
                text += f", inlined at {location.inlined_at}"
        return text

    def origin(self, team: Team) -> str:
        """The place of the instruction that is being executed."""
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(_GENERATED):
            frame = frame.f_back
        if frame is None:
            return self.place(team, None)
        name, line = frame.f_code.co_filename, frame.f_lineno
        return self.place(team, self.translation.instruction_at(name, line))

    def locate(self, error: EmulatorError, team: Team) -> EmulatorError:
        """Adds the place to an error that came out of a team's block."""
        if error.context:
            return error
        instruction = getattr(error, "instruction", None)
        trace = error.__traceback__
        while trace is not None and instruction is None:
            name = trace.tb_frame.f_code.co_filename
            if name.startswith(_GENERATED):
                instruction = self.translation.instruction_at(name, trace.tb_lineno)
            trace = trace.tb_next
        error.context = self.place(team, instruction)
        return error
