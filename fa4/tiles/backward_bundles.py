"""What the kernels of a backward pass share: TMA copies, values per query row, the sum of dQ."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from fa4.tiles.bundles import Source, TmaTensor


@dataclass(frozen=True)
class BackwardTma:
    """Q, dO (Sq, D or Dv, H, B), K, V, dK, dV (Sk, D or Dv, Hk, B)."""

    q: TmaTensor
    do: TmaTensor
    k: TmaTensor
    v: TmaTensor
    dk: TmaTensor
    dv: TmaTensor


@dataclass(frozen=True)
class RowBlock:
    """Which block of query rows: its number within the sequence, its query head and batch."""

    index: Int32
    head: Int32
    batch: Int32


@dataclass(frozen=True)
class BackwardRows:
    """Per query row, padded to whole blocks of queries.

    lse and delta (padded Sq, H, B): LSE in log2 units, +inf for rows that see no key, and
    rowsum(O dO) - dLSE. dq (floats of a block, block, H, B): accumulated in the order of registers.
    turns (part, block, H, B): see DqTurn; None unless deterministic. counter (1,): how many
    work tiles the CTAs have taken; None where each has one.
    """

    lse: cute.Tensor
    delta: cute.Tensor
    dq: cute.Tensor
    turns: cute.Tensor | None
    counter: cute.Tensor | None

    def block(self, number: Int32) -> RowBlock:
        """That of a CTA which has one; numbers count blocks, then heads, then batch."""
        blocks, heads = cute.size(self.dq, mode=[1]), cute.size(self.dq, mode=[2])
        return RowBlock(number % blocks, number // blocks % heads, number // blocks // heads)


def tiles_of(
    copy: TmaTensor, smem: cute.Tensor, head: Int32, batch: Int32, box: tuple[int, int]
) -> Source:
    """Tiles of `box` rows and columns of one head, and the stages they are copied to."""
    tiles = cute.local_tile(copy.tensor[None, None, head, batch], box, (None, 0))
    return Source(copy, *copy.partition(smem, cute.group_modes(tiles, 0, 2)))


def block_of(values: cute.Tensor, at: RowBlock, rows: int) -> cute.Tensor:
    """Those of `values` (Sq, H, B) that a block of `rows` has."""
    return cute.local_tile(values[None, at.head, at.batch], (rows,), (at.index,))
