"""Tensor memory and the tensor cores: tcgen05 and wgmma."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .clocks import ASYNC, GENERIC, TENSOR
from .copy_checks import Flight
from .shadow import View

if TYPE_CHECKING:
    from ..barriers import Mbarrier
    from ..cta import Cta
    from ..mma import Product
    from ..team import Team
    from ..waits import AllocationWait
    from .checker import ClusterChecker

HALVES = 8  # of 16 lanes
_ALL, _LOWER = slice(None), slice(0, HALVES, 2)  # lanes 0-15 of each quarter


class TensorChecks:
    """Called by tcgen05 and wgmma instructions."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.checker, self.clocks, self.records = checker, checker.clocks, checker.records
        warps = len(self.clocks.own)
        actor = self.clocks.actor
        self._loads = np.array([actor(("tcgen05.ld", slot)) for slot in range(warps)])
        self._stores = np.array([actor(("tcgen05.st", slot)) for slot in range(warps)])
        self._issued = {False: np.zeros(warps, np.int32), True: np.zeros(warps, np.int32)}
        self._mmas: dict[int, int] = {}  # by issuing warp
        self._groups: dict[int, int] = {}  # wgmma of a warp

    # ---- tcgen05.ld, st and their waits

    def access(self, w: Team, places: list[tuple[int, int, int]], span: tuple, write: bool) -> None:
        """A load or store. `places`: (position of the warp, lane, column); `span`: columns, lanes.

        Warps that hold consecutive quarters at one column go in one step.
        """
        columns, lanes = span
        first = places[0][2]
        together = lanes == 32 and all(
            place == (places[0][0] + i, places[0][1] + 32 * i, first)
            for i, place in enumerate(places)
        )
        for part in [places] if together else [[place] for place in places]:
            slots = [self.checker.slot(w, 32 * position) for position, _, _ in part]
            numbers = self._records(w, slots, write)
            start, halves = part[0][1] // 16, lanes // 16
            where = (
                slice(part[0][2], part[0][2] + columns),
                slice(start, start + halves * len(part)),
            )
            self._touch(w.cta, where, slots, np.repeat(numbers, halves), write)

    def _records(self, w: Team, slots: list[int], write: bool) -> list[int]:
        actors, issued = self._stores if write else self._loads, self._issued[write]
        issued[slots] += 1
        numbers = [
            self.records.add(slot, w.at, int(actors[slot]), int(issued[slot])) for slot in slots
        ]
        if not write and not self.checker.rules.load_waits:
            self.wait(slots, False)
        return numbers

    def _touch(self, cta: Cta, where, slots: list[int], numbers: np.ndarray, write: bool) -> None:
        lanes = np.repeat(slots, len(numbers) // len(slots))
        view = View(self.records, self.clocks.warps, TENSOR, lanes=lanes)
        shadow = self.checker.tensor_memory(cta)
        (shadow.write if write else shadow.read)(where, False, numbers, view)

    def wait(self, slots: list[int], store: bool) -> None:
        """tcgen05.wait::st or ::ld: the warps' stores or loads are over."""
        actors = self._stores if store else self._loads
        for row in (GENERIC, TENSOR):
            self.clocks.warps[slots, row, actors[slots]] = self._issued[store][slots]

    def allocated(self, wait: AllocationWait, column: int) -> None:
        """tcgen05.alloc: the columns hold nothing, and their address is written."""
        cta = wait.cta
        where = (slice(column, column + wait.columns), _ALL)
        self.checker.tensor_memory(cta).forget(where)
        slot = cta.rank * self.checker.per_cta + wait.warp
        number = self.checker.of_warp(slot, wait.at, ("write", False, False))
        view = View(self.records, self.clocks.warps[slot], GENERIC)
        word = wait.place >> 2
        self.checker.shared[cta.rank].write(slice(word, word + 1), True, number, view)

    def freed(self, w: Team, column: int, columns: int) -> None:
        """tcgen05.dealloc: all accesses to the columns must be over."""
        slot = self.checker.slots(w, None)[0]
        kind = ("dealloc", False, False)
        number = self.checker.of_warp(slot, w.at, kind)
        view = View(self.records, self.clocks.warps[slot], GENERIC)
        where = (slice(column, column + columns), _ALL)
        shadow = self.checker.tensor_memory(w.cta)
        shadow.write(where, False, number, view)
        shadow.forget(where)

    # ---- tcgen05.mma, cp and commit

    def _core(self, slot: int) -> int:
        return self.clocks.actor(("tensor core", slot))

    def mma(self, w: Team, lane: int, job: Product) -> None:
        """tcgen05.mma: operands are read, and D written, some time from now on."""
        slot = self.checker.slot(w, lane)
        core = self._core(slot)
        step = self._mmas[slot] = self._mmas.get(slot, 0) + 1
        read = self.records.add(slot, w.at, core, step)
        write = self.records.add(slot, w.at, core, step)
        known = self.clocks.warps[slot]
        shared = View(self.records, known, ASYNC, own=core)
        tensor = View(self.records, known, TENSOR, own=core)
        for cta in job.ctas:
            for units in job.shared_units(cta):
                self.checker.shared[cta.rank].read(units, False, read, shared)
            memory = self.checker.tensor_memory(cta)
            if job.a_tensor:
                column = job.a & 0xFFFF
                memory.read((slice(column, column + 8), _ALL), False, read, tensor)
            column, columns, half = job.d & 0xFFFF, job.d_columns, job.rows == 64 and not job.pair
            where = (slice(column, column + columns), _LOWER if half else _ALL)
            if job.accumulate:
                memory.read(where, False, read, tensor)
            memory.write(where, False, write, tensor)

    def copy(self, w: Team, lane: int, cta: Cta, units: np.ndarray, where: tuple) -> None:
        """tcgen05.cp: shared memory to tensor memory."""
        slot = self.checker.slot(w, lane)
        core = self._core(slot)
        step = self._mmas[slot] = self._mmas.get(slot, 0) + 1
        known = self.clocks.warps[slot]
        number = self.records.add(slot, w.at, core, step)
        view = View(self.records, known, ASYNC, own=core)
        self.checker.shared[cta.rank].read(units, False, number, view)
        number = self.records.add(slot, w.at, core, step)
        view = View(self.records, known, TENSOR, own=core)
        self.checker.tensor_memory(cta).write(where, False, number, view)

    def commit(self, w: Team, lane: int, barriers: list[Mbarrier]) -> list[Flight]:
        """tcgen05.commit: passes on the warp's MMAs; it is its own fence before_thread_sync."""
        flights = [self.checker.copies.flight(w, lane, barrier) for barrier in barriers]
        for flight in flights:
            slot, passed_on = flight.slot, flight.passed_on
            passed_on[2] = self.clocks.warps[slot, TENSOR]
            passed_on[[0, 2], self._core(slot)] = self._mmas.get(slot, 0)
        return flights

    def check_exit(self) -> None:
        """At the end: every MMA has been committed and waited for."""
        known = self.checker.known_to_all()
        for slot, step in self._mmas.items():
            if known[self._core(slot)] < step:
                self.checker.misuse_at(
                    slot,
                    self._last_site(slot),
                    "the CTA may end before this MMA is complete: no tcgen05.commit that somebody "
                    "waits for covers it",
                )

    def _last_site(self, slot: int) -> int:
        core, records = self._core(slot), self.records
        return int(records.site[np.flatnonzero(records.actor[: records.count] == core)[-1]])

    # ---- wgmma

    def _warp_core(self, slot: int) -> int:
        return self.clocks.actor(("wgmma", slot))

    def wgmma(self, w: Team, units: list[np.ndarray], warps: list[tuple[int, int]]) -> None:
        """wgmma.mma_async reads operands from shared memory.

        `warps` that issue it: (position in the team, how many each has issued).
        """
        readers = []
        for position, number in warps:
            slot = self.checker.slot(w, 32 * position)
            core = self._warp_core(slot)
            self._groups[slot] = number
            record = self.records.add(slot, w.at, core, number)
            view = View(self.records, self.clocks.warps[slot], ASYNC, own=core)
            readers.append((record, view))
        for operand in units:
            self.checker.shared[w.cta.rank].read_by_several(operand, readers)

    def wgmma_waited(self, w: Team, lane: int, number: int) -> None:
        """wgmma.wait_group: the first `number` operations are over."""
        slot = self.checker.slot(w, lane)
        self.clocks.learn(slot, self._warp_core(slot), number)

    def check_wgmma_exit(self) -> None:
        for slot, number in self._groups.items():
            core = self._warp_core(slot)
            if self.clocks.warps[slot, GENERIC, core] < number:
                sites = self.records.site[: self.records.count]
                last = sites[self.records.actor[: self.records.count] == core][-1]
                self.checker.misuse_at(
                    slot,
                    int(last),
                    "the warp may end before this wgmma is complete: no wgmma.wait_group covers it",
                )
