"""Which (query tile pair, head, batch) a CTA works on, and in what order."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from fa4.tiles.registers import pinned


@dataclass(frozen=True)
class WorkTile:
    """Coordinates of one unit of work: `m` counts pairs of query tiles."""

    m: Int32
    head: Int32
    head_kv: Int32
    batch: Int32


@dataclass(frozen=True)
class TileSchedule:
    """Static persistent schedule: CTA i takes tiles i, i + grid, i + 2 grid, ...

    Heads are taken in sections whose keys and values fit in L2 together. Within a section the
    longest tiles come first (causal: the last rows), so that the grid ends evenly, and all heads
    of one length follow each other.
    """

    num_m: Int32
    heads: Int32
    heads_kv: Int32
    batch: Int32
    section: Int32  # heads (over the whole batch) whose K and V share L2
    longest_first: cutlass.Constexpr[bool]

    @property
    def num_tiles(self) -> Int32:
        """All tiles of the problem."""
        return self.num_m * self.heads * self.batch

    @cute.jit
    def decode(self, tile: Int32) -> WorkTile:
        """Tile number -> coordinates."""
        section, heads = (
            pinned(self.section),
            pinned(self.heads),
        )  # divisors: no hoisted reciprocals
        per_section = section * self.num_m
        first = (tile // per_section) * section
        within = tile % per_section
        width = cutlass.min(section, heads * self.batch - first)
        m = within // width
        head_and_batch = first + within % width
        if cutlass.const_expr(self.longest_first):
            m = self.num_m - 1 - m
        head = head_and_batch % heads
        return WorkTile(
            m=m,
            head=head,
            head_kv=head // (heads // self.heads_kv),
            batch=head_and_batch // heads,
        )
