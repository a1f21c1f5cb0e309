"""Who runs next: the four schedules over warps and asynchronous engines."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from .program import Schedule
from .team import Team
from .waits import PollWait

if TYPE_CHECKING:
    from .machine import Cluster

_FUEL = 1000  # blocks a team may run before others get a turn
_IDLE_BLOCKS = 20000  # blocks without a store, an arrival or a copy before polling is a stall
_POLLING_BLOCKS = 4000  # the same before effects in flight may happen although a warp runs
_VAIN_WAITS = 3  # rounds of timed-out waits without progress before a deadlock is certain


class Scheduler:
    """Runs the teams of a cluster in turn (`early`, `late`)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.idle = self.vain = 0  # blocks and rounds without progress

    def teams(self) -> list[Team]:
        """The teams that have not ended."""
        return [team for cta in self.cluster.ctas for team in cta.teams if team.groups]

    def run(self, turns: float) -> str:
        """Returns "done", "blocked", "spinning", or "paused" after so many turns."""
        while turns > 0:
            turns -= 1
            teams = self.teams()
            if not teams:
                return "done"
            events = self.cluster.events
            blocks = self.turn(teams)
            if self.cluster.events != events:
                self.idle = self.vain = 0
                continue
            self.idle += blocks
            if self.idle > _IDLE_BLOCKS:
                self.idle = self.vain = 0
                return "spinning"
            if blocks and self.idle < _POLLING_BLOCKS:
                continue
            if self.cluster.engines.step():
                self.idle = self.vain = 0
                continue
            if blocks:
                continue
            if self._part_some(teams):
                self.vain = 0
                continue
            self.vain += 1
            if self.vain > _VAIN_WAITS or not self._give_up(teams):
                self.vain = 0
                return "spinning" if self._poll(teams) else "blocked"
        return "paused"

    def turn(self, teams: list[Team]) -> int:
        """Lets each team run until it waits. Returns the blocks run."""
        blocks = 0
        for team in teams:
            if team.runnable():
                blocks += _FUEL - team.run(_FUEL)
        if blocks and len(teams) > 1:
            for cta in self.cluster.ctas:
                cta.join_waiting()
        return blocks

    def _part_some(self, teams: list[Team]) -> bool:
        """All wait: parts one team of which some warps could go on."""
        return any(self._part(team) for team in teams)

    def _give_up(self, teams: list[Team]) -> bool:
        """All wait: ends waits that have a time limit, in vain."""
        gave_up = False
        for team in teams:
            for group in team.groups:
                if group.wait is not None and group.wait.give_up(team):
                    group.wait = None
                    gave_up = True
        return gave_up

    def _poll(self, teams: list[Team]) -> bool:
        """Whether some of them wait for memory that others may change."""
        return any(isinstance(g.wait, PollWait) for team in teams for g in team.groups)

    def _part(self, team: Team) -> bool:
        """Splits a team in which only some warps' barriers have completed."""
        if len(team.warps) == 1 or len(team.groups) != 1 or team.groups[0].wait is None:
            return False
        ready = team.groups[0].wait.ready_lanes(team.n)
        if ready is None:
            return False
        warps = ready.reshape(-1, 32).any(1)
        positions = [int(p) for p in range(len(team.warps)) if warps[p]]
        others = [p for p in range(len(team.warps)) if not warps[p]]
        if not positions or not others:
            return False
        team.settle()
        teams = team.cta.teams
        index = teams.index(team)
        parts = [team.extract(p, team.groups) for p in (positions, others)]
        teams[index : index + 1] = parts
        return True


class RandomScheduler(Scheduler):
    """Any runnable warp for a random while, or any effect in flight."""

    def turn(self, teams: list[Team]) -> int:
        rng, engines = self.cluster.rng, self.cluster.engines
        runnable = [team for team in teams if team.runnable()]
        actors: list[Team | Hashable] = [*runnable, *engines.keys()]
        if not actors:
            return 0
        chosen = rng.choice(actors)
        if isinstance(chosen, Team):
            fuel = rng.choice((1, 4, 16, 64))
            return fuel - chosen.run(fuel)
        engines.step(chosen)
        self.cluster.events += 1
        return 0


class PriorityScheduler(Scheduler):
    """Always the runnable actor of the highest priority; a few random demotions.

    Actors are warps and engines; loads in flight share one priority most of the time, so that
    "all memory is slow" and "one box is slow" are both likely.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        rng = cluster.rng
        self.priorities: dict[object, float] = {"loads": rng.random()}
        self.steps = 0
        self.demotions = {rng.randrange(1, 2000) for _ in range(6)}

    def _priority(self, actor: Team | Hashable) -> float:
        if isinstance(actor, Team):
            actor = ("warp", actor.cta.rank, actor.warps[0].index)
        if actor not in self.priorities:
            rng = self.cluster.rng
            single = actor[0] == "single"
            shared = single and rng.random() < 0.7
            self.priorities[actor] = self.priorities["loads"] if shared else rng.random()
        return self.priorities[actor]

    def turn(self, teams: list[Team]) -> int:
        engines = self.cluster.engines
        actors = [(self._priority(key), key) for key in engines.queues]
        actors += [(self._priority(team), team) for team in teams]
        actors.sort(key=lambda pair: -pair[0])
        for _, actor in actors:
            if isinstance(actor, Team):
                if not actor.runnable():
                    continue
                return self._run(actor)
            engines.step(actor)
            self.cluster.events += 1
            return 0
        return 0

    def _run(self, team: Team) -> int:
        events = self.cluster.events
        left = team.run(_FUEL, lambda: self.cluster.events != events)
        self.steps += 1
        if self.steps in self.demotions:
            key = ("warp", team.cta.rank, team.warps[0].index)
            self.priorities[key] = self.cluster.rng.random() * min(self.priorities.values())
        return _FUEL - left


def make_scheduler(cluster: Cluster, schedule: Schedule) -> Scheduler:
    """The scheduler of a schedule's kind."""
    kinds = {"random": RandomScheduler, "priority": PriorityScheduler}
    return kinds.get(schedule.kind, Scheduler)(cluster)
