"""Where dQ is summed up: float32, in the order of the registers that it comes from.

A tile of dQ is what some threads hold in registers: a warpgroup of Hopper its accumulator, a warp
of Blackwell its lanes of tensor memory. The four-register vectors of a tile lie thread after
thread, so that neither writing nor reading it has bank conflicts or scattered addresses.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32, Int64

VECTOR = 4  # floats: 16 bytes


def dq_layout(floats: int, sizes: tuple[Int32, Int32, Int32]) -> cute.Layout:
    """(floats of a block, block, head, batch) of the sum; sizes: blocks, heads, batch.

    A head's stride has 64 bits, and so has every offset: 2^24 rows are 2^31 floats at head dim 128.
    """
    blocks, heads, batch = sizes
    head = cute.assume(Int64(blocks) * floats, divby=floats)
    return cute.make_layout((floats, blocks, heads, batch), stride=(1, floats, head, head * heads))


def dq_vectors(registers: cute.Tensor) -> cute.Tensor:
    """(VECTOR, vectors) view of a thread's accumulator."""
    layout = cute.make_layout((VECTOR, cute.size(registers) // VECTOR))
    return cute.make_tensor(registers.iterator, layout)


def dq_target(
    block: cute.Tensor, registers: cute.Tensor, tile: Int32, thread: Int32, threads: int
) -> cute.Tensor:
    """(VECTOR, vectors) view of a thread's part of a tile, of `threads`, of the block (floats,)."""
    vectors = cute.size(registers) // VECTOR
    layout = cute.make_layout((VECTOR, vectors), stride=(1, VECTOR * threads))
    first = tile * (vectors * VECTOR * threads) + thread * VECTOR
    return cute.make_tensor(block.iterator + cute.assume(first, divby=VECTOR), layout)
