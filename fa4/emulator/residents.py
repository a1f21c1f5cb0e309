"""Which clusters of a launch have started, and which of them goes on next.

They start in grid order. Usually one runs to its end before the next starts, unless it polls global
memory: then later ones may start, as many as it takes. With `Schedule.resident` that many run side
by side, and never more, so that one which polls for what a later one writes may wait for ever, as
on a GPU with no more room.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from .errors import DeadlockError
from .report import deadlock_report

if TYPE_CHECKING:
    from .machine import Cluster, Machine

_TURNS = {"early": (8,), "late": (1,), "random": (1, 10, 100), "priority": (100,)}
_DEMOTION = 0.05  # how likely another priority follows such a slice


class Residents:
    """The clusters that have started and not ended, oldest first."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.kind = machine, machine.schedule.kind
        self.limit = machine.schedule.resident
        self.rng = random.Random(f"{self.kind} {machine.schedule.seed} residents")
        self.clusters: list[Cluster] = []
        self.priorities: dict[Cluster, float] = {}
        self.turns = self.ended = 0
        self._polling: dict[Cluster, int] = {}  # and the progress when it was found to

    def run(self) -> None:
        """Runs the grid. Raises DeadlockError when nothing can move any more."""
        while self.machine.waiting or self.clusters:
            cluster = self._next()
            state = cluster.run(self._slice())
            if state == "blocked":
                raise DeadlockError(deadlock_report(cluster, "no warp can make progress"))
            if state == "done":
                self._end(cluster)
            elif state == "spinning":
                self._polling[cluster] = self.progress()

    def _next(self) -> Cluster:
        """The cluster that goes on, a new one if there is room."""
        waiting = self.machine.waiting
        while waiting and len(self.clusters) < (self.limit or 1):
            self._start()
        awake = [cluster for cluster in self.clusters if self._is_awake(cluster)]
        if not awake and waiting and self.limit is None:
            awake = [self._start()]
        if not awake:
            progress = self.progress()
            awake = [cluster for cluster in self.clusters if self._polling[cluster] != progress]
        if not awake:
            raise DeadlockError(deadlock_report(self.clusters[0], self._why()))
        chosen = self._choose(awake)
        self._polling.pop(chosen, None)
        return chosen

    def _is_awake(self, cluster: Cluster) -> bool:
        """Whether it did not poll when it last ran, or something has happened since."""
        if cluster not in self._polling:
            return True
        return self.limit is not None and self._polling[cluster] != self.progress()

    def progress(self) -> int:
        """How often anything has changed so far."""
        return self.ended + sum(cluster.events for cluster in self.clusters)

    def _choose(self, awake: list[Cluster]) -> Cluster:
        """`early` takes turns, `late` prefers the newest, the others follow the seed."""
        self.turns += 1
        if self.kind == "early":
            return awake[self.turns % len(awake)]
        if self.kind == "late":
            return awake[-1]
        if self.kind == "random":
            return self.rng.choice(awake)
        return max(awake, key=self.priorities.__getitem__)

    def _slice(self) -> float:
        """For how many turns of its warps a cluster goes on before another may."""
        if self.limit is None:
            return math.inf
        if self.kind == "priority" and self.rng.random() < _DEMOTION:
            self.priorities[self.rng.choice(self.clusters)] = self.rng.random()
        return self.rng.choice(_TURNS[self.kind])

    def _start(self) -> Cluster:
        cluster = self.machine.start(self.machine.waiting.pop())
        self.clusters.append(cluster)
        self.priorities[cluster] = self.rng.random()
        return cluster

    def _end(self, cluster: Cluster) -> None:
        """It leaves, and those that poll look again."""
        self.clusters.remove(cluster)
        del self.priorities[cluster]
        self._polling.clear()
        self.machine.collect(cluster)
        self.ended += cluster.events + 1

    def _why(self) -> str:
        why = "warps poll memory that nobody changes (clusters run in grid order"
        if self.limit is not None:
            why += f", {self.limit} side by side; {len(self.machine.waiting)} have not started"
        return why + ")"
