"""Which (tile, head, batch) a CTA works on, and in what order."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute import FastDivmodDivisorV2 as Divisor


@dataclass(frozen=True)
class WorkTile:
    """Coordinates of one unit of work.

    `m` counts what a CTA takes at a time: rows of queries (`BasePlan.cta_rows`), in a backward pass
    blocks of keys, whose heads are those of keys and values.
    """

    m: Int32
    head: Int32
    head_kv: Int32
    batch: Int32


@dataclass(frozen=True)
class TileSchedule:
    """The order of tiles. Who takes which number is the kernel's affair: on Blackwell's forward
    CTA i takes i, i + grid, i + 2 grid, ..., on its backward its own alone; on Hopper a CTA takes
    the next one from a counter, see tile_queue.py.

    Heads are taken in sections, see `launch.section_sizes`: what they share fits in L2. Within a
    section all heads of one m follow each other, and m ascends or descends: with the longest tiles
    first (of a causal forward pass the last rows) the grid ends evenly. See `tile_schedule`.

    Divisors multiply and shift: a division by a number that only the launch knows takes 200 cycles,
    five of them in a row kept the load warp from its next tile.
    """

    num_m: Int32
    num_heads: Int32  # over the whole batch
    heads: Divisor
    group: Divisor  # query heads per key/value head
    section: Divisor  # heads that share L2
    last_section: Divisor  # those of the last section
    section_tiles: Divisor
    before_last: Int32  # sections
    descending: cutlass.Constexpr[bool]

    @property
    def num_tiles(self) -> Int32:
        """All tiles of the problem."""
        return self.num_m * self.num_heads

    @cute.jit
    def decode(self, tile: Int32) -> WorkTile:
        """Tile number -> coordinates."""
        number = cutlass.min(tile // self.section_tiles, self.before_last)
        first = number * self.section.divisor
        within = tile - first * self.num_m
        m, head = divmod(within, self.section)
        if number == self.before_last:
            m, head = divmod(within, self.last_section)
        if cutlass.const_expr(self.descending):
            m = self.num_m - 1 - m
        batch, head = divmod(first + head, self.heads)
        return WorkTile(m=m, head=head, head_kv=head // self.group, batch=batch)


@cute.jit
def tile_schedule(
    num_m: Int32,
    heads: Int32,
    heads_kv: Int32,
    batch: Int32,
    sections: tuple[Int32, Int32],
    descending: cutlass.Constexpr[bool],
) -> TileSchedule:
    """The schedule of `num_m` tiles for each of `heads * batch`.

    sections: heads of a section, heads of the last one.
    """
    section, last = sections
    num_heads, group = heads * batch, heads // heads_kv
    divisors = (cute.fast_divmod_create_divisor_v2(n) for n in (heads, group, section, last))
    section_tiles = cute.fast_divmod_create_divisor_v2(section * num_m)
    before_last = (num_heads - last) // section
    return TileSchedule(num_m, num_heads, *divisors, section_tiles, before_last, descending)
