"""Who runs next: the four schedules over warps and asynchronous engines."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from .program import Schedule
from .team import Team

if TYPE_CHECKING:
    from .machine import Cluster

_FUEL = 4000  # blocks a team may run before others get a turn
_IDLE_ROUNDS = 20  # rounds without progress before polling counts as a stall


class Scheduler:
    """Runs the teams of a cluster in turn (`early`, `late`)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def teams(self) -> list[Team]:
        """The teams that have not ended."""
        return [team for cta in self.cluster.ctas for team in cta.teams if team.groups]

    def run(self) -> str:
        """Returns "done", "blocked" or "spinning"."""
        idle = 0
        while True:
            teams = self.teams()
            if not teams:
                return "done"
            events = self.cluster.events
            ran = self.turn(teams)
            if ran and self.cluster.events != events:
                idle = 0
                continue
            if self.cluster.engines.step():
                idle = 0
                continue
            idle += 1
            if not ran and not self.unblock(idle):
                return "blocked"
            if idle > _IDLE_ROUNDS:
                return "spinning" if ran else "blocked"

    def turn(self, teams: list[Team]) -> bool:
        """Lets each team run until it waits. False when none could."""
        ran = False
        for team in teams:
            if team.runnable():
                team.run(_FUEL)
                ran = True
        if ran and len(teams) > 1:
            for cta in self.cluster.ctas:
                cta.join_waiting()
        return ran

    def unblock(self, idle: int) -> bool:
        """All wait: parts teams of which some warps could go on; ends timed waits in vain."""
        for team in self.teams():
            if self._part(team):
                return True
        if idle > 3:
            return False
        gave_up = False
        for team in self.teams():
            for group in team.groups:
                if group.wait is not None and group.wait.give_up(team):
                    group.wait = None
                    gave_up = True
        return gave_up

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

    def turn(self, teams: list[Team]) -> bool:
        rng, engines = self.cluster.rng, self.cluster.engines
        runnable = [team for team in teams if team.runnable()]
        actors: list[Team | Hashable] = [*runnable, *engines.keys()]
        if not actors:
            return False
        chosen = rng.choice(actors)
        if isinstance(chosen, Team):
            chosen.run(rng.choice((1, 4, 16, 64)))
        else:
            engines.step(chosen)
        return True


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

    def turn(self, teams: list[Team]) -> bool:
        engines = self.cluster.engines
        actors = [(self._priority(key), key) for key in engines.keys()]
        actors += [(self._priority(team), team) for team in teams]
        actors.sort(key=lambda pair: -pair[0])
        for _, actor in actors:
            if isinstance(actor, Team):
                if not actor.runnable():
                    continue
                self._run(actor)
            else:
                engines.step(actor)
            return True
        return False

    def _run(self, team: Team) -> None:
        events = self.cluster.events
        team.run(_FUEL, lambda: self.cluster.events != events)
        self.steps += 1
        if self.steps in self.demotions:
            key = ("warp", team.cta.rank, team.warps[0].index)
            self.priorities[key] = self.cluster.rng.random() * min(self.priorities.values())


def make_scheduler(cluster: Cluster, schedule: Schedule) -> Scheduler:
    """The scheduler of a schedule's kind."""
    kinds = {"random": RandomScheduler, "priority": PriorityScheduler}
    return kinds.get(schedule.kind, Scheduler)(cluster)
