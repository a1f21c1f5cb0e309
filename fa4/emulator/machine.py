"""A launch: its clusters, each run by its schedule, and the counts at the end."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from .barriers import NamedBarrier, check_warpgroups
from .checker.checker import ClusterChecker, LaunchChecker
from .checker.findings import CheckError
from .cta import Cta
from .engines import Engines
from .errors import EmulatorError, LaunchError
from .memory import GlobalMemory
from .program import Launch, Program, RunStats, Schedule
from .residents import Residents
from .schedule import make_scheduler

if TYPE_CHECKING:
    from .labels import Labels
    from .observe import Observer
    from .team import Team

_REGISTER_FILE = 65536  # 32-bit registers of an SM


class Cluster:
    """The CTAs that run together, their engines and their count of progress."""

    def __init__(self, machine: Machine, origin: tuple[int, int, int], number: int) -> None:
        self.machine, self.memory = machine, machine.memory
        self.events = self.mmas = 0
        self.rng = random.Random(f"{machine.schedule.kind} {machine.schedule.seed} {number}")
        self.engines = Engines(machine.schedule, self.rng)
        self.barrier = NamedBarrier(None, -1, "cluster barrier")
        self.ctas: list[Cta] = []
        self.running: Team | None = None
        x, y, _ = machine.launch.cluster
        for rank in range(machine.launch.cluster_size):
            offset = (rank % x, rank // x % y, rank // (x * y))
            position = tuple(o + d for o, d in zip(origin, offset, strict=True))
            self.ctas.append(Cta(self, position, rank))
        self.barrier.cta = self.ctas[0]
        self.checker: ClusterChecker | None = None
        if machine.checker is not None:
            self.checker = ClusterChecker(machine.checker, self)
        for cta in self.ctas:
            cta.begin(machine.schedule.kind)
        self.scheduler = make_scheduler(self, machine.schedule)

    def clock(self) -> int:
        """A time that only moves forward: progress so far."""
        return self.events

    def run(self, turns: float) -> str:
        """Runs until "done", "blocked" (nothing can move), "spinning" (warps poll memory), or
        "paused" after so many turns."""
        return self.scheduler.run(turns)

    def finish(self) -> None:
        """Effects still in flight happen; tensor memory must be free."""
        while self.engines.step():
            pass
        if self.checker is not None:
            self.checker.check_exit()
        for cta in self.ctas:
            cta.tensor.check_empty()
            check_warpgroups(cta)


class Machine:
    """Everything one launch needs."""

    def __init__(
        self,
        program: Program,
        launch: Launch,
        memory: GlobalMemory,
        schedule: Schedule,
        labels: Labels | None,
        watching: tuple[Observer | None, bool],
    ) -> None:
        self.launch, self.schedule = launch, schedule
        self.labels, (self.observer, check) = labels, watching
        self.kernel = program.kernel
        self.translation = program.checked() if check else program.translation
        self.checker: LaunchChecker | None = None
        self.params = self._parameters()
        self.memory = memory.with_ranges(self._own_ranges())
        if check:
            self.checker = LaunchChecker(program, labels, self.memory)
            if launch.unordered is not None:
                self.checker.global_shadow.begin_unordered(launch.unordered)
        self.registers_per_thread = launch.registers_per_thread or self._registers()
        self._check_launch()
        grid, cluster = launch.grid, launch.cluster
        self.waiting = [
            (x, y, z)
            for z in range(0, grid[2], cluster[2])
            for y in range(0, grid[1], cluster[1])
            for x in range(0, grid[0], cluster[0])
        ]
        self.waiting.reverse()
        self.started = 0
        self.residents = Residents(self)
        self.counts: dict[tuple[int, str], int] = Counter()
        self.mmas = 0

    def _parameters(self) -> np.ndarray:
        """The parameter block at a 64-byte aligned address, as uint8."""
        if len(self.launch.params) != self.kernel.param_bytes:
            raise LaunchError(
                f"{len(self.launch.params)} bytes of parameters; kernel {self.kernel.name} takes "
                f"{self.kernel.param_bytes}"
            )
        raw = np.zeros(self.kernel.param_bytes + 192, np.uint8)
        start = -raw.ctypes.data % 64
        block = raw[start : start + self.kernel.param_bytes + 128]
        block[: self.kernel.param_bytes] = np.frombuffer(self.launch.params, np.uint8)
        return block

    def _own_ranges(self) -> list[tuple[int, int, str]]:
        ranges = [(self.params.ctypes.data, self.params.size, "kernel parameters")]
        for name, data in self.translation.variables.items():
            ranges.append((data.ctypes.data, data.size, f"variable {name}"))
        return ranges

    def _registers(self) -> int:
        """Registers per thread at launch: what ptxas may use under the kernel's directives."""
        if self.kernel.max_registers:
            return self.kernel.max_registers
        threads = -(-self.launch.threads // 32) * 32
        budget = _REGISTER_FILE // (threads * self.kernel.min_ctas)
        return min(budget // 8 * 8, 255)

    def _check_launch(self) -> None:
        required = self.kernel.required_threads
        if required and self.launch.threads > required:
            raise LaunchError(
                f"block {self.launch.block} has {self.launch.threads} threads; the kernel is "
                f"compiled for {required}"
            )
        if self.launch.cluster_size > 16:
            raise LaunchError(f"cluster {self.launch.cluster}: at most 16 CTAs")

    def cancel_next(self) -> tuple[int, int, int] | None:
        """Takes the next cluster out of the grid, for a running CTA to do its work."""
        return self.waiting.pop() if self.waiting else None

    def run(self) -> RunStats:
        """Runs the grid. An error of a checked run also tells what was found before it."""
        begin = time.perf_counter()
        try:
            with np.errstate(all="ignore"):
                self.residents.run()
        except EmulatorError as error:
            if self.checker is not None and self.checker.findings:
                found = CheckError({self.kernel.name: list(self.checker.findings.values())})
                error.message += f"\n\nbefore that: {found}"
            raise
        return self._stats(time.perf_counter() - begin)

    def progress(self) -> int:
        """How often anything has changed in any cluster."""
        return self.residents.progress()

    def start(self, origin: tuple[int, int, int]) -> Cluster:
        """The next cluster, at a place in the grid."""
        cluster = Cluster(self, origin, self.started)
        self.started += 1
        return cluster

    def collect(self, cluster: Cluster) -> None:
        """A cluster's warps have ended: its last effects, and its counts."""
        cluster.finish()
        self.mmas += cluster.mmas
        for cta in cluster.ctas:
            for team in cta.teams:
                team.settle()
            for warp in cta.warps:
                role = cta.role(warp.index)
                for block, hits in enumerate(warp.hits):
                    if hits:
                        self.counts[block, role] += hits
            if self.observer is not None:
                self.observer.ended(cta)

    def _stats(self, seconds: float) -> RunStats:
        stats = RunStats(seconds=seconds, mmas=self.mmas)
        by_role, by_line = Counter(), Counter()
        for (number, role), hits in self.counts.items():
            block = self.translation.blocks[number].block
            by_role[role] += hits * (block.end - block.start)
            for instruction in self.kernel.instructions[block.start : block.end]:
                if instruction.location:
                    by_line[instruction.location.file, instruction.location.line] += hits
        stats.by_role, stats.by_line = dict(by_role), dict(by_line)
        stats.warp_instructions = sum(by_role.values())
        if self.checker is not None:
            stats.findings = list(self.checker.findings.values())
            stats.remarks = list(self.checker.remarks)
            stats.touched = self.checker.global_shadow.touched()
        return stats
