"""Where dQ is summed up: float32, in the order of the registers that it comes from.

A tile of dQ is the accumulator of one warpgroup. Its four-register vectors lie thread after thread,
so that neither writing nor reading it has bank conflicts or scattered addresses.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32

VECTOR = 4  # floats: 16 bytes
WARPGROUP_THREADS = 128


def dq_vectors(registers: cute.Tensor) -> cute.Tensor:
    """(VECTOR, vectors) view of a thread's accumulator."""
    layout = cute.make_layout((VECTOR, cute.size(registers) // VECTOR))
    return cute.make_tensor(registers.iterator, layout)


def dq_target(
    block: cute.Tensor, registers: cute.Tensor, tile: Int32, thread: Int32
) -> cute.Tensor:
    """(VECTOR, vectors) view of a thread's part of a tile of the block (floats,)."""
    vectors = cute.size(registers) // VECTOR
    layout = cute.make_layout((VECTOR, vectors), stride=(1, VECTOR * WARPGROUP_THREADS))
    first = tile * (vectors * VECTOR * WARPGROUP_THREADS) + thread * VECTOR
    return cute.make_tensor(block.iterator + cute.assume(first, divby=VECTOR), layout)
