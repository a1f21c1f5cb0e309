"""How a thread holds its part of a wgmma accumulator.

Of the 16 rows of its warp it has lane / 4 and lane / 4 + 8, and of each the pairs of columns at
2 (lane % 4), 8 apart: in registers two of the first row, two of the second, and so on.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from fa4.numerics.mask import CHUNK, BlockMask, hide

ROWS_PER_THREAD = 2
ROW_STEP = 8  # between them


def accumulator(mma: cute.TiledMma, tile: tuple[int, int]) -> cute.Tensor:
    """Float32 registers for a tile of (rows, columns): ((2, 2, columns / 8), 1, 1)."""
    return cute.make_rmem_tensor(mma.partition_shape_C(tile), Float32)


def accumulator_row(registers: cute.Tensor, r: int) -> cute.Tensor:
    """The thread's elements of its row r: pairs of columns, 8 apart."""
    pairs = cute.size(registers) // 4
    layout = cute.make_layout((2, pairs), stride=(1, 4))
    return cute.make_tensor(registers.iterator + 2 * r, layout)


@cute.jit
def hide_row(row: cute.Tensor, mask: BlockMask, thread: Int32) -> None:
    """Elements of a row -> -inf where the mask does not see their column."""
    columns = cutlass.const_expr(4 * cute.size(row))
    for chunk in cutlass.range_constexpr(-(-columns // CHUNK)):
        width = min(CHUNK, columns - chunk * CHUNK)
        bits = tuple(8 * pair + c for pair in range(width // 8) for c in range(2))
        first = chunk * CHUNK // 4
        word = mask.visible(chunk) >> (thread % 4 * 2)
        hide(row, (first, first + len(bits)), word, bits)
