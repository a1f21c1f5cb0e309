"""Asynchronous engines: effects that happen some time after the instruction that asked."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from .program import Schedule

Effect = Callable[[], None]


@dataclass
class Copy:
    """A bulk store's progress: its source has been read; its destination has been written."""

    read_done: bool = False
    done: bool = False


@dataclass
class _Pending:
    order: int
    effect: Effect
    origin: str


class Engines:
    """Effects in flight. Those of one engine (key) happen in order, others in any order.

    Schedule `early` runs an effect at once. Otherwise the scheduler calls `step`.
    """

    def __init__(self, schedule: Schedule, rng: random.Random) -> None:
        self.immediate = schedule.kind == "early"
        self.rng = rng
        self.queues: dict[Hashable, deque[_Pending]] = {}
        self.count = 0

    def submit(self, key: Hashable, effect: Effect, origin: Callable[[], str]) -> None:
        """Hands an effect to engine `key`. None is an engine of its own."""
        if self.immediate:
            effect()
            return
        self.count += 1
        if key is None:
            key = ("single", self.count)
        self.queues.setdefault(key, deque()).append(_Pending(self.count, effect, origin()))

    def step(self, key: Hashable | None = None) -> bool:
        """Runs the next effect of `key`, or the oldest of all. False when nothing is in flight."""
        if not self.queues:
            return False
        if key is None:
            key = min(self.queues, key=lambda k: self.queues[k][0].order)
        queue = self.queues[key]
        pending = queue.popleft()
        if not queue:
            del self.queues[key]
        try:
            pending.effect()
        except Exception as error:
            if hasattr(error, "context") and not error.context:
                error.context = pending.origin
            raise
        return True

    def drain(self, key: Hashable) -> None:
        """Runs everything in flight of one engine."""
        while key in self.queues:
            self.step(key)

    def keys(self) -> list[Hashable]:
        return list(self.queues)
