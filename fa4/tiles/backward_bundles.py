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

    def where(self, number: Int32) -> tuple[Int32, Int32, Int32]:
        """(block, head, batch) of a CTA that has a block of rows; numbers run in this order."""
        blocks, heads = cute.size(self.dq, mode=[1]), cute.size(self.dq, mode=[2])
        return number % blocks, number // blocks % heads, number // blocks // heads


def tiles_of(
    copy: TmaTensor, smem: cute.Tensor, where: tuple[Int32, Int32], box: tuple[int, int]
) -> Source:
    """Tiles of `box` rows and columns of one (head, batch), and the stages they are copied to."""
    head, batch = where
    tiles = cute.local_tile(copy.tensor[None, None, head, batch], box, (None, 0))
    return Source(copy, *copy.partition(smem, cute.group_modes(tiles, 0, 2)))


def block_of(values: cute.Tensor, where: tuple[Int32, Int32, Int32], rows: int) -> cute.Tensor:
    """`rows` values (Sq, H, B) of one (block, head, batch)."""
    block, head, batch = where
    return cute.local_tile(values[None, head, batch], (rows,), (block,))
