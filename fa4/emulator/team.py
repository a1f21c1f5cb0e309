"""Warps that run in lock-step: registers of all their lanes side by side in one array each.

A team is one warp, or several warps of a CTA that stand at the same instruction. Inside a team,
lanes that part at a branch form groups; a team whose groups hold different warps splits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .errors import EmulatorError
from .special import special_value, symbol_address
from .waits import PollWait

if TYPE_CHECKING:
    from .cta import Cta
    from .waits import Wait

# A divergence of whole warps that lasts longer than this many blocks splits the team.
_PATIENCE = 8
_POISON_BITS = {"p": np.bool_, "h": np.uint16, "u": np.uint32, "f": np.uint32}
_POISON_BITS |= {"l": np.uint64, "d": np.uint64}
_VIEW = {"f": np.float32, "d": np.float64}


def poison(code: str, width: int) -> np.ndarray:
    """An unwritten register: all ones, which is a NaN in the float formats."""
    bits = _POISON_BITS[code]
    array = np.full(width, True if code == "p" else np.iinfo(bits).max, bits)
    return array.view(_VIEW[code]) if code in _VIEW else array


class Warp:
    """One warp of a CTA: its number, its register count and its instruction counters."""

    def __init__(self, index: int, registers: int, blocks: int) -> None:
        self.index = index
        self.registers = registers
        self.requests = 0  # setmaxnreg instructions executed
        self.hits = [0] * blocks


class Group:
    """Lanes of a team at one block. `mask` None means every lane; `wait` None means runnable."""

    __slots__ = ("mask", "pc", "wait")

    def __init__(self, pc: int, mask: np.ndarray | None, wait: Wait | None = None) -> None:
        self.pc, self.mask, self.wait = pc, mask, wait


class Team:
    """Registers, groups and the block loop. Generated code sees it as `w`."""

    def __init__(self, cta: Cta, warps: list[Warp], groups: list[Group], slots: list) -> None:
        self.cta, self.warps, self.groups, self.slots = cta, warps, groups, slots
        self.n = 32 * len(warps)
        self.every = np.ones(self.n, bool)
        self.threads = np.concatenate([np.arange(32) + 32 * w.index for w in warps])
        self.alive = self.threads < cta.launch.threads
        self.constants = cta.translation.constants.table(self.n)
        self.current: Group = groups[0]
        self.acting: np.ndarray | None = None  # lanes whose arrival is being counted
        self.hits = [0] * len(cta.translation.blocks)
        self.diverged = 0
        self.loop: tuple[int, int, list[bytes]] = (-1, 0, [])  # see _polls
        self.cache: dict[object, np.ndarray] = {}
        self.checker = cta.checker
        self.at = 0  # with a checker: the instruction that is being executed

    @classmethod
    def start(cls, cta: Cta, warps: list[Warp]) -> Team:
        """A team at the kernel's first instruction, with poisoned registers."""
        codes = cta.translation.registers.slot_codes
        shared = {code: poison(code, 32 * len(warps)) for code in set(codes)}
        team = cls(cta, warps, [Group(0, None)], [shared[code] for code in codes])
        if not team.alive.all():
            team.groups[0].mask = team.alive
        return team

    # ---- called by generated code

    def param(self, name: str, offset: int, size: int) -> np.ndarray:
        """`size` bytes of a kernel parameter, in every lane."""
        key = (name, offset, size)
        if key not in self.cache:
            start = self.cta.translation.param_offsets[name] + offset
            data = self.cta.params[start : start + size]
            self.cache[key] = np.full(self.n, data.view(f"u{size}")[0])
        return self.cache[key]

    def symbol(self, name: str) -> np.ndarray:
        """The address of a variable or parameter, as uint64."""
        if name not in self.cache:
            self.cache[name] = np.full(self.n, symbol_address(self.cta, name), np.uint64)
        return self.cache[name]

    def special(self, name: str) -> np.ndarray:
        """A special register as uint32 (clocks: uint64)."""
        if name not in self.cache:
            value = special_value(self, name)
            if name in ("%globaltimer", "%clock64", "%clock"):
                return value
            self.cache[name] = value
        return self.cache[name]

    def diverge(self, taken: np.ndarray, target: int, following: int, mask) -> int:
        """A branch that some lanes take: the group parts unless all agree."""
        if mask is None:
            self.current.pc, self.current.mask = following, ~taken
            self.groups.append(Group(target, taken))
            return -1
        taking = taken & mask
        count = np.count_nonzero(taking)
        if count == 0:
            return following
        if count == np.count_nonzero(mask):
            return target
        self.current.pc, self.current.mask = following, mask & ~taken
        self.groups.append(Group(target, taking))
        return -1

    def diverge_indexed(self, index, targets: tuple, guard, following: int, mask) -> int:
        """brx.idx: one group per distinct target."""
        active = self.every if mask is None else mask
        destination = np.full(self.n, following)
        jumping = active if guard is None else active & guard
        chosen = index[jumping]
        if np.count_nonzero(chosen >= len(targets)):
            raise EmulatorError(f"brx.idx index {int(chosen.max())} of {len(targets)} targets")
        destination[jumping] = np.asarray(targets)[chosen]
        first, *others = sorted(set(destination[active].tolist()))
        if not others:
            return first
        self.current.pc, self.current.mask = first, active & (destination == first)
        self.groups.extend(Group(pc, active & (destination == pc)) for pc in others)
        return -1

    def leave(self) -> int:
        """The current group has finished."""
        gone = self.current.mask
        self.alive = np.zeros(self.n, bool) if gone is None else self.alive & ~gone
        self.groups.remove(self.current)
        return -1

    def block_on(self, wait: Wait, following: int) -> int:
        """Continues at `following`, at once or when the wait is over."""
        if wait.ready():
            self._go_on(wait)
            return following
        self.current.pc, self.current.wait = following, wait
        return -1

    def _go_on(self, wait: Wait) -> None:
        wait.finish(self)
        if self.cta.observer is not None:
            self.cta.observer.waited(self, wait)

    # ---- the loop

    def runnable(self) -> bool:
        """Whether some group could run a block now."""
        return self._pick() is not None

    def run(self, fuel: int, stop: Callable[[], bool] | None = None) -> int:
        """Runs until every group waits, the fuel (in blocks) is spent, or `stop` says so.

        Returns the fuel left.
        """
        self.cta.cluster.running = self
        try:
            while fuel > 0 and self.groups:
                group = self._pick()
                if group is None:
                    break
                if group.wait is not None:
                    self.current = group
                    self._go_on(group.wait)
                    group.wait = None
                self.current = group
                if group.mask is None:
                    fuel = self._run_full(group, fuel, stop)
                else:
                    fuel = self._run_masked(group, fuel)
                    if len(self.groups) > 1 and self._should_split():
                        self.cta.split(self)
                        return fuel
                if stop is not None and stop():
                    break
        except EmulatorError as error:
            raise self.cta.locate(error, self) from None
        return fuel

    def _run_full(self, group: Group, fuel: int, stop: Callable[[], bool] | None) -> int:
        blocks, hits = self.cta.translation.blocks, self.hits
        slots, constants = self.slots, self.constants
        pc = group.pc
        while fuel > 0:
            group.pc = pc
            hits[pc] += 1
            fuel -= 1
            pc = blocks[pc].full(self, slots, constants)
            if pc < 0:
                return fuel
            if pc == group.pc and self._polls(pc):
                group.wait = PollWait(self.cta.cluster.machine.progress)
                return fuel
            if stop is not None and stop():
                break
        group.pc = pc
        return fuel

    def _polls(self, pc: int) -> bool:
        """Whether the block that jumps to itself found and left all as it did before."""
        events, (before, then, values) = self.cta.cluster.events, self.loop
        now = []
        if (before, then) == (pc, events):
            now = [self.slots[s].tobytes() for s in self.cta.translation.live_slots(pc)]
        self.loop = (pc, events, now)
        return bool(now) and now == values

    def _run_masked(self, group: Group, fuel: int) -> int:
        block = self.cta.translation.blocks[group.pc]
        for position in self._present(group).tolist():
            self.warps[position].hits[group.pc] += 1
        pc = block.masked(self, self.slots, self.constants, group.mask)
        if pc == group.pc and self._polls(pc):
            group.wait = PollWait(self.cta.cluster.machine.progress)
        elif pc >= 0:
            group.pc = pc
        self.diverged += 1
        if len(self.groups) > 1:
            self._merge()
        return fuel - 1

    def _pick(self) -> Group | None:
        """The runnable group with the lowest block number."""
        groups = self.groups
        if len(groups) == 1:
            wait = groups[0].wait
            return groups[0] if wait is None or wait.ready() else None
        groups.sort(key=lambda g: g.pc)
        for group in groups:
            if group.wait is not None and not group.wait.ready():
                continue
            block = self.cta.translation.blocks[group.pc]
            if block.collective and not self._complete(group):
                if group.wait is None:
                    continue
                # its wait is over: now it meets the lanes that stand at this block already
                group.wait.finish(self)
                group.wait = None
                self._merge()
                return self._pick()
            return group
        return None

    def _complete(self, group: Group) -> bool:
        """Whether each warp of the group has all its live lanes in it."""
        inside = group.mask.reshape(-1, 32)
        alive = self.alive.reshape(-1, 32)
        present = inside.any(1)
        return bool((inside[present] == alive[present]).all())

    def _merge(self) -> None:
        """Joins runnable groups that met at one block."""
        merged: dict[int, Group] = {}
        for group in list(self.groups):
            if group.wait is not None:
                continue
            other = merged.setdefault(group.pc, group)
            if other is not group:
                other.mask = other.mask | group.mask
                self.groups.remove(group)
        if len(self.groups) == 1:
            self.diverged = 0
            group = self.groups[0]
            if group.mask is not None and group.mask.all():
                group.mask = None

    # ---- splitting and joining

    def acting_warps(self) -> list[Warp]:
        """The warps that execute: those with arriving lanes, else those of the current group."""
        lanes = self.current.mask if self.acting is None else self.acting
        if lanes is None:
            return self.warps
        return [self.warps[p] for p in np.flatnonzero(lanes.reshape(-1, 32).any(1))]

    def _present(self, group: Group) -> np.ndarray:
        """Positions in the team of the warps with lanes in the group."""
        return np.flatnonzero(group.mask.reshape(-1, 32).any(1))

    def _should_split(self) -> bool:
        if len(self.warps) == 1:
            return False
        blocked = any(group.wait is not None for group in self.groups)
        return blocked or self.diverged > _PATIENCE

    def components(self) -> list[tuple[list[int], list[Group]]]:
        """Sets of warps that share no group with the others, each with its groups."""
        parts: list[tuple[set[int], list[Group]]] = []
        for group in self.groups:
            if group.mask is None:
                return [(list(range(len(self.warps))), [group])]
            warps, groups = set(self._present(group).tolist()), [group]
            for other in [part for part in parts if part[0] & warps]:
                parts.remove(other)
                warps |= other[0]
                groups = other[1] + groups
            parts.append((warps, groups))
        return [(sorted(warps), groups) for warps, groups in parts]

    def extract(self, positions: list[int], groups: list[Group]) -> Team:
        """A new team of some of the warps, with the groups that lie in them."""
        lanes = np.concatenate([np.arange(32) + 32 * p for p in positions])
        if positions == list(range(positions[0], positions[-1] + 1)):
            lanes = slice(32 * positions[0], 32 * (positions[-1] + 1))
        codes = self.cta.translation.registers.slot_codes
        blank = {code: poison(code, 32 * len(positions)) for code in set(codes)}
        slots = [blank[code] for code in codes]
        live = {s for g in groups for s in self.cta.translation.live_slots(g.pc)}
        live |= {s for g in groups if g.wait for s in g.wait.slots()}
        for slot in live:
            slots[slot] = self.slots[slot][lanes]
        moved = []
        for group in groups:
            mask = None if group.mask is None else group.mask[lanes]
            if mask is not None and mask.all():
                mask = None
            moved.append(Group(group.pc, mask, group.wait and group.wait.select(lanes)))
        team = Team(self.cta, [self.warps[p] for p in positions], moved, slots)
        team.alive = self.alive[lanes].copy()
        return team

    def join(self, other: Team) -> Team:
        """One team of two that stand whole at the same wait."""
        first, second = self.groups[0], other.groups[0]
        wait = first.wait.join(second.wait, self.n, other.n)
        slots = list(self.slots)
        codes = self.cta.translation.registers.slot_codes
        blank = {code: poison(code, self.n + other.n) for code in set(codes)}
        live = {*self.cta.translation.live_slots(first.pc), *wait.slots()}
        for slot, code in enumerate(codes):
            if slot in live:
                slots[slot] = np.concatenate((self.slots[slot], other.slots[slot]))
            else:
                slots[slot] = blank[code]
        return Team(self.cta, self.warps + other.warps, [Group(first.pc, None, wait)], slots)

    def settle(self) -> None:
        """Moves the team's counters to its warps (before it splits, joins or ends)."""
        for number, hits in enumerate(self.hits):
            if hits:
                for warp in self.warps:
                    warp.hits[number] += hits
                self.hits[number] = 0
