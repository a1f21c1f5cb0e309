"""Vector clocks: what each warp of a cluster knows to have happened.

An actor is anything whose steps are counted: a warp (its memory accesses), the loads from and
stores to tensor memory of a warp, the tensor core as one warp drives it, the bulk stores of a
thread, an mbarrier (its phases). A step of an actor has happened before something that a warp does
now when the warp's clock has reached its number.

A warp has five clocks. Which of them counts depends on how memory is reached:

GENERIC  what barriers and waits order: program order, arrivals, completions that were waited for.
ASYNC    the part of it that a fence.proxy.async has made visible to TMA and to the operands that
         MMAs take from shared memory.
TENSOR   what accesses to tensor memory are ordered behind: their own completed ones, and what was
         acquired before the latest tcgen05.fence::after_thread_sync.
PENDING  what has been acquired about tensor memory, with that fence still to come.
PUBLIC   TENSOR as of the latest tcgen05.fence::before_thread_sync: what an arrival passes on.
"""

from __future__ import annotations

import numpy as np

GENERIC, ASYNC, TENSOR, PENDING, PUBLIC = range(5)
PASSED_ON = 3  # a barrier carries GENERIC, ASYNC and TENSOR
GRID_BEFORE = 1  # an actor: its one step is the end of the grid that this one may overlap
NEVER = np.iinfo(np.int32).max  # a step that has not been completed
_FIRST_SIZE = 256


class Clocks:
    """The clocks of all warps of a cluster, and the names of the actors."""

    def __init__(self, warps: int) -> None:
        self.size = _FIRST_SIZE
        self.names: list[tuple] = [("nothing",), ("grid before",)]
        self.numbers: dict[tuple, int] = {}
        self.warps = np.zeros((warps, 5, self.size), np.int32)
        self.carried: list[Carrier] = []
        self.own = np.array([self.actor(("warp", slot)) for slot in range(warps)])
        self.warps[np.arange(warps), GENERIC, self.own] = 1

    def actor(self, name: tuple) -> int:
        """The number of an actor; `name` starts with its kind."""
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = len(self.names)
            self.names.append(name)
            if number >= self.size:
                self._grow()
        return number

    def _grow(self) -> None:
        extra = self.size
        self.size += extra
        self.warps = np.pad(self.warps, ((0, 0), (0, 0), (0, extra)))
        for carrier in self.carried:
            carrier.grow(extra)

    def step(self, slots: np.ndarray | list[int]) -> None:
        """What these warps do from now on is not covered by what they have passed on so far."""
        self.warps[slots, GENERIC, self.own[slots]] += 1

    def snapshot(self, slot: int) -> np.ndarray:
        """What an asynchronous operation that a warp issues now passes on when it completes."""
        return self.warps[slot, [GENERIC, ASYNC, PUBLIC]]

    def learn(self, slot: int, actor: int, step: int, tensor: bool = False) -> None:
        """A warp knows that an actor has come to a step."""
        rows = [GENERIC, TENSOR] if tensor else [GENERIC]
        self.warps[slot, rows, actor] = np.maximum(self.warps[slot, rows, actor], step)


class Carrier:
    """What is known through a barrier: `done` by its completed phases, `arriving` by this one."""

    def __init__(self, clocks: Clocks, name: tuple) -> None:
        self.clocks = clocks
        self.actor = clocks.actor(name)
        self.done = np.zeros((PASSED_ON, clocks.size), np.int32)
        self.arriving = np.zeros_like(self.done)
        self.phase = 0
        clocks.carried.append(self)

    def grow(self, extra: int) -> None:
        self.done = np.pad(self.done, ((0, 0), (0, extra)))
        self.arriving = np.pad(self.arriving, ((0, 0), (0, extra)))

    def add(self, passed_on: np.ndarray) -> None:
        """Someone arrives who knows this: an array (PASSED_ON, size at that time)."""
        target = self.arriving[:, : passed_on.shape[1]]
        np.maximum(target, passed_on, out=target)

    def arrive(self, slots: list[int], relaxed: bool) -> None:
        """Warps arrive. Tensor memory follows its own fences, whatever the arrival orders."""
        warps = self.clocks.warps
        for slot in slots:
            known, target = warps[slot], self.arriving
            if not relaxed:
                np.maximum(target[:TENSOR], known[:TENSOR], out=target[:TENSOR])
            np.maximum(target[TENSOR], known[PUBLIC], out=target[TENSOR])
        self.clocks.step(slots)

    def complete(self) -> None:
        """The phase ends."""
        self.phase += 1
        np.maximum(self.done, self.arriving, out=self.done)
        self.arriving[...] = 0
        self.done[:, self.actor] = self.phase

    def acquire(self, slots: list[int], relaxed: bool) -> None:
        """Warps have seen the completed phases."""
        for slot in slots:
            known = self.clocks.warps[slot]
            if not relaxed:
                np.maximum(known[:TENSOR], self.done[:TENSOR], out=known[:TENSOR])
            np.maximum(known[PENDING], self.done[TENSOR], out=known[PENDING])
