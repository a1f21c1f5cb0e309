"""Accesses to memory, as rows of parallel arrays. Row 0 stands for "nobody"."""

from __future__ import annotations

import numpy as np

from .clocks import NEVER


class Records:
    """`actor` and `step`: what must be known for the access to be over; see clocks.py.

    `generic`: through the generic proxy. `strong`: an atomic, or a load or store that the PTX ISA
    calls strong: two of them never race. `narrow`: of less than a word. `slot`: the warp that did
    it, or for which an engine did it. `site`: index of the instruction in the kernel. `cluster` and
    `moment` (how often it had released before) are for global memory only.
    """

    never = NEVER

    def __init__(self) -> None:
        self.count = 1
        self.actor = np.zeros(4096, np.int32)
        self.step = np.zeros(4096, np.int32)
        self.generic = np.zeros(4096, np.int8)
        self.strong = np.zeros(4096, np.bool_)
        self.narrow = np.zeros(4096, np.bool_)
        self.slot = np.zeros(4096, np.int32)
        self.site = np.zeros(4096, np.int32)
        self.cluster = np.zeros(4096, np.int32)
        self.moment = np.zeros(4096, np.int32)
        self._latest: dict[tuple, tuple[int, int]] = {}

    def add(self, slot: int, site: int, actor: int, step: int = NEVER) -> int:
        """A new access of an asynchronous engine; by default not over yet."""
        number = self.count
        if number == len(self.actor):
            self._grow()
        self.actor[number], self.step[number] = actor, step
        self.slot[number], self.site[number] = slot, site
        self.count = number + 1
        return number

    def of_warp(self, slot: int, site: int, actor: int, step: int, kind: tuple) -> int:
        """An access of a warp; the same again within one step is the same access.

        `kind`: (what, strong, narrow).
        """
        key = (slot, site, kind)
        latest = self._latest.get(key)
        if latest is not None and latest[0] == step:
            return latest[1]
        number = self.add(slot, site, actor, step)
        self.generic[number] = 1
        self.strong[number], self.narrow[number] = kind[1:]
        self._latest[key] = (step, number)
        return number

    def _grow(self) -> None:
        for name in ("actor", "step", "generic", "strong", "narrow", "slot", "site", "cluster"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate((array, np.zeros_like(array))))
        self.moment = np.concatenate((self.moment, np.zeros_like(self.moment)))
