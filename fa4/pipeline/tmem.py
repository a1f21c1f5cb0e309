"""The column map of tensor memory: 128 lanes (one per row) by 512 columns of 32 bits."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = 512


@dataclass(frozen=True)
class TmemMap:
    """First column of each tile, for query tile 0 and 1.

    P (16-bit, half as many columns) lies on top of the S it was computed from: S is dead once it
    is in registers, and at head dim 128 S0, S1, O0 and O1 fill all 512 columns.
    """

    s: tuple[int, int]
    p: tuple[int, int]
    o: tuple[int, int]
    allocated: int  # tcgen05.alloc takes powers of two

    def describe(self) -> str:
        """One line for people."""
        named = [("S0", self.s[0]), ("S1", self.s[1]), ("O0", self.o[0]), ("O1", self.o[1])]
        placed = ", ".join(f"{name} at {column}" for name, column in named)
        return (
            f"{placed}; P0 on S0 at {self.p[0]}, P1 on S1 at {self.p[1]}; {self.allocated} columns"
        )


def tmem_map(n_block: int, head_dim_v: int) -> TmemMap:
    """S0 S1 O0 O1 side by side; P starts where its S starts."""
    s = (0, n_block)
    o = (2 * n_block, 2 * n_block + head_dim_v)
    used = o[1] + head_dim_v
    if used > COLUMNS:
        raise ValueError(f"{n_block=} {head_dim_v=} need {used} of {COLUMNS} tensor memory columns")
    return TmemMap(s=s, p=s, o=o, allocated=1 << (used - 1).bit_length())
