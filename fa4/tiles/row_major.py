"""Row-major tiles in swizzled shared memory, as TMA and MMAs of both architectures read them.

The same bytes are an operand in either direction: a tile (rows, columns) is K-major where the
product runs along its columns, and MN-major, transposed, where it runs along its rows.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from fa4.plan_base import BasePlan
from fa4.tiles.layouts import DTYPES


def row_major(plan: BasePlan, shape: tuple[int, int, int], span: int) -> cute.ComposedLayout:
    """(rows, columns, stage) in atoms of 8 rows, as wide as divides `span` columns."""
    dtype = DTYPES[plan.dtype]
    kind = sm90.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, dtype, span)
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(atom, shape, order=(0, 1, 2))


def transposed(tensor: cute.Tensor) -> cute.Tensor:
    """(rows, columns, stage) -> (columns, rows, stage)."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[1, 0, 2]))


def store_words(words: cute.Tensor, row: cute.Tensor, chunk: int) -> None:
    """Words of two 16-bit elements each to the chunk of a row that they make."""
    halves = cute.recast_ptr(words.iterator, dtype=row.element_type)
    count = 2 * cute.size(words)
    source = cute.make_tensor(halves, cute.make_layout(count))
    cute.autovec_copy(source, cute.local_tile(row, (count,), (chunk,)))


def parts(tensor: cute.Tensor, tile: tuple[int, int]) -> cute.Tensor:
    """(rows, columns, stage) -> (*tile, parts of the rows, parts of the columns, stage)."""
    return cute.flat_divide(tensor, tile)
