"""A CuTe DSL kernel whose only argument that matters is a TMA descriptor."""

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def touch(atom: cute.CopyAtom):
    cpasync.prefetch_descriptor(atom)


@cute.jit
def host(tensor: cute.Tensor, swizzle: cutlass.Constexpr, box: cutlass.Constexpr):
    rank = len(box)
    layout = cute.make_ordered_layout(box, order=tuple(range(rank))[::-1])
    if cutlass.const_expr(swizzle > 0):
        layout = cute.make_composed_layout(cute.make_swizzle(swizzle, 4, 3), 0, layout)
    operation = cpasync.CopyBulkTensorTileG2SOp()
    atom, _ = cpasync.make_tiled_tma_atom(operation, tensor, layout, box)
    touch(atom).launch(grid=[1, 1, 1], block=[32, 1, 1])


def launch(tensor, swizzle, box):
    """Launches with a row-major torch tensor; `box` in the tensor's order of dimensions."""
    host(from_dlpack(tensor, assumed_align=128), swizzle, box)
