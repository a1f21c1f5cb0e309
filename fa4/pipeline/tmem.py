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
    return TmemMap(s=s, p=s, o=o, allocated=_allocated(o[1] + head_dim_v))


@dataclass(frozen=True)
class BackwardTmemMap:
    """First column of each tile of a backward kernel, whose lanes are keys but for dQ's queries.

    P lies on its S and dS on its dP: the queries of each compute warpgroup on the first half of the
    columns that its threads have read. dQ lies on dS, after dK has read that.
    scores_ahead: S has columns of its own, so S of the next block can be computed while dP, dS and
    dQ of this one are alive. At head dims (192, 128) dV and dK leave 192 columns, which is one dQ:
    S, dP and dQ take turns there.
    """

    s: int
    dp: int
    dq: int
    dv: int
    dk: int
    scores_ahead: bool
    allocated: int

    def describe(self) -> str:
        """One line for people."""
        placed = ", ".join(f"{n} at {getattr(self, n.lower())}" for n in ("S", "dP", "dV", "dK"))
        return f"{placed}; P on S, dS on dP, dQ on dS at {self.dq}; {self.allocated} columns"


def backward_tmem_map(tile: int, head_dim: int, head_dim_v: int) -> BackwardTmemMap:
    """S, dP, dV and dK side by side where they fit, otherwise dP on S."""
    ahead = tile + max(tile, head_dim) + head_dim_v + head_dim <= COLUMNS
    dp = tile if ahead else 0
    dv = dp + max(tile, head_dim)
    dk = dv + head_dim_v
    return BackwardTmemMap(
        s=0, dp=dp, dq=dp, dv=dv, dk=dk, scores_ahead=ahead, allocated=_allocated(dk + head_dim)
    )


def _allocated(used: int) -> int:
    """What tcgen05.alloc takes for so many columns. Raises ValueError when there are too few."""
    if used > COLUMNS:
        raise ValueError(f"the tiles need {used} of {COLUMNS} tensor memory columns")
    return 1 << (used - 1).bit_length()
