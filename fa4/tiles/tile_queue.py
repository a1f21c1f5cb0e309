"""Hands out work tiles through shared memory: new ones from a global counter, some a second time.

A CTA that got short tiles takes more of them, since all CTAs share the counter. In the forward pass
a CTA's first tile is its own number, and the counter resets itself: every CTA fails exactly once to
get a tile, hence the fetch number `num_tiles` is the last, with which `atom.inc` wraps to 0. In a
backward pass the first kernel resets it.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from fa4.plan_hopper import SLOT_WORDS, SLOTS
from fa4.tiles.scheduler import WorkTile

FRESH, EXACT, END = 0, 1, -1  # a tile's first time, its second time, no tile: none follow


@dataclass(frozen=True)
class Assignment:
    """What a slot says: the tile and its coordinates, and FRESH, EXACT or END."""

    mode: Int32
    m: Int32
    head: Int32
    batch: Int32


@dataclass(frozen=True)
class TileSlots:
    """Assigned tiles in shared memory: entry (4, SLOTS): mode, m, head, batch.

    The load warp alone divides: coordinates are written, not numbers.
    """

    entry: cute.Tensor

    @cute.jit
    def put(self, slot: Int32, tile: WorkTile, mode: Int32) -> None:
        """Assign a tile to a slot that is free. For one warp."""
        if cute.arch.lane_idx() == 0:
            self.entry[0, slot] = mode
            self.entry[1, slot] = tile.m
            self.entry[2, slot] = tile.head
            self.entry[3, slot] = tile.batch

    @cute.jit
    def read(self, slot: Int32) -> Assignment:
        """What the load warp assigned to a slot. For one warp: the lane that reads also releases.

        Each lane could read; but then the release by one lane would order 31 reads before the next
        `put` through the warp's convergence alone, which racecheck does not follow.
        """
        words = cute.make_rmem_tensor(4, Int32)
        for i in cutlass.range_constexpr(4):
            words[i] = 0
        if cute.arch.lane_idx() == 0:
            for i in cutlass.range_constexpr(4):
                words[i] = self.entry[i, slot]
        return Assignment(*(cute.arch.shuffle_sync(words[i], 0) for i in range(4)))


@dataclass(frozen=True)
class TileCounter:
    """A number in global memory that all CTAs count with; behind `last` comes 0."""

    address: cute.Pointer
    last: Int32

    @cute.jit
    def ask(self) -> Int32:
        """Ask for a number, and leave the next one: a promise for `answer`. For one warp.

        The answer takes a thousand cycles, and nothing waits for it before `answer`: of an
        `atom.add` the compiler would make one for all lanes at once, with a shuffle behind it.
        """
        count = Int32(0)
        if cute.arch.lane_idx() == 0:
            count = cute.arch.inline_ptx(
                "atom.relaxed.gpu.global.inc.u32 {$w0}, [{$r0}], {$r1};",
                write_only_types=[Int32],
                read_only_args=[self.address.toint(), self.last],
            )
        return count

    @cute.jit
    def answer(self, asked: Int32) -> Int32:
        """The number that was asked for. For one warp."""
        return cute.arch.shuffle_sync(asked, 0)


@dataclass(frozen=True)
class TileQueue:
    """The forward pass: new tiles, and tiles that the attending warpgroups want done again."""

    slots: TileSlots
    number: cute.Tensor  # (SLOTS,) of the tile, for the load warp
    redo: cute.Tensor  # (SLOTS,)
    counter: TileCounter
    num_tiles: Int32

    @cute.jit
    def answer(self, asked: Int32) -> Int32:
        """The CTA's next new tile, num_tiles or more when there is none. For one warp."""
        ctas, _, _ = cute.arch.grid_dim()
        return ctas + self.counter.answer(asked)

    @cute.jit
    def put(self, slot: Int32, number: Int32, tile: WorkTile, mode: Int32) -> None:
        """Assign a tile to a slot that is free. For one warp."""
        if cute.arch.lane_idx() == 0:
            self.number[slot] = number
        self.slots.put(slot, tile, mode)

    @cute.jit
    def ask_again(self, slot: Int32) -> None:
        """Have the slot's tile done a second time, exactly. For any number of threads."""
        cute.arch.atomic_exch(self.redo.iterator + slot, Int32(1), sem="relaxed", scope="cta")

    @cute.jit
    def take_request(self, slot: Int32) -> Int32:
        """Whether the slot's tile must be done again; forgets it. For one warp."""
        asked = Int32(0)
        if cute.arch.lane_idx() == 0:
            asked = cute.arch.atomic_exch(
                self.redo.iterator + slot, Int32(0), sem="relaxed", scope="cta"
            )
        return cute.arch.shuffle_sync(asked, 0)


def tile_slots(base: cute.Pointer) -> TileSlots:
    """The slots that lie at `base` in shared memory, aligned to 16 bytes."""
    layout = cute.make_layout((SLOT_WORDS, SLOTS))
    return TileSlots(cute.make_tensor(cute.recast_ptr(base, dtype=Int32), layout))


def tile_queue(base: cute.Pointer, counter: cute.Pointer, num_tiles: Int32) -> TileQueue:
    """The queue whose slots, and what else it keeps of each, lie at `base` in shared memory."""
    slots = tile_slots(base)

    def words(first: int) -> cute.Tensor:
        return cute.make_tensor(slots.entry.iterator + first * SLOTS, cute.make_layout(SLOTS))

    again, last = words(SLOT_WORDS + 1), num_tiles - 1
    return TileQueue(slots, words(SLOT_WORDS), again, TileCounter(counter, last), num_tiles)
