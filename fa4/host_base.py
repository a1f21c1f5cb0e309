"""What the host sides of both passes share: the argument block, TMA descriptors, a launch."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_ptr

from fa4.arguments import INTEGERS, NUMBERS
from fa4.plan_base import BasePlan
from fa4.tiles.block_range import Visibility
from fa4.tiles.bundles import TmaTensor

LOAD, STORE = cpasync.CopyBulkTensorTileG2SOp, cpasync.CopyBulkTensorTileS2GOp


def argument_pointer(address: int) -> cute.Pointer:
    """What a host's `__call__` takes as `block`: the packed values at this address."""
    return make_ptr(Int64, address, cute.AddressSpace.generic, assumed_align=8)


@dataclass(frozen=True)
class ArgumentReader:
    """The argument block, read field by field."""

    block: cute.Pointer

    integers, numbers = INTEGERS, NUMBERS

    def int64(self, name: str) -> Int64:
        """An integer field."""
        return self._field(self.block, self.integers.index(name))

    def int32(self, name: str) -> Int32:
        """An integer field that is a length, a count or a window."""
        return Int32(self.int64(name))

    def float32(self, name: str) -> Float32:
        """A floating-point field."""
        numbers = cute.recast_ptr(self.block + len(self.integers), dtype=Float64)
        return Float32(self._field(numbers, self.numbers.index(name)))

    def tensor(self, name: str, shape: tuple[str, str, str, str], dtype: type) -> cute.Tensor:
        """(rows, columns, heads, batch) with the strides of `name`, multiples of 16 bytes."""
        row, head, batch = (
            cute.assume(self.int64(f"{name}_{axis}"), divby=8) for axis in ("row", "head", "batch")
        )
        layout = cute.make_layout(
            tuple(self.int32(size) for size in shape), stride=(row, 1, head, batch)
        )
        return cute.make_tensor(self.pointer(name, dtype, 16), layout)

    def per_row(self, name: str, rows: str = "seqlen_q") -> cute.Tensor:
        """(rows, H, B) view of contiguous floats (B, H, Sq); rows: the field that says how many."""
        seqlen, heads = self.int32("seqlen_q"), self.int32("heads_q")
        layout = cute.make_layout(
            (self.int32(rows), heads, self.int32("batch")),
            stride=(1, Int64(seqlen), Int64(seqlen) * heads),
        )
        return cute.make_tensor(self.pointer(name, Float32, 4), layout)

    def visibility(self, plan: BasePlan) -> Visibility:
        """Which keys the plan's rows see."""
        return Visibility(
            seqlen_q=self.int32("seqlen_q"),
            seqlen_k=self.int32("seqlen_k"),
            left=self.int32("left"),
            right=self.int32("right"),
            left_bound=plan.left_bound,
            right_bound=plan.right_bound,
            n_block=plan.n_block,
        )

    def ctas(self, plan: BasePlan, tiles: Int32) -> Int32:
        """How many CTAs work on so many tiles."""
        if plan.persistent:
            return cutlass.min(tiles, self.int32("num_ctas"))
        return tiles

    def pointer(self, name: str, dtype: type, align: int) -> cute.Pointer:
        """An address field, in global memory."""
        return cute.make_ptr(dtype, self.int64(name), cute.AddressSpace.gmem, assumed_align=align)

    def _field(self, base: cute.Pointer, index: int) -> Int64 | Float64:
        return cute.make_tensor(base, cute.make_layout(index + 1))[index]


def tma_boxes(
    operation: type, tensor: cute.Tensor, layout: cute.ComposedLayout, box: tuple[int, int]
) -> TmaTensor:
    """TMA of a tensor by boxes. operation: LOAD or STORE; layout: of boxes in shared memory."""
    one = cute.select(layout, mode=[0, 1])
    return tma_tensor(cpasync.make_tiled_tma_atom(operation(), tensor, one, box))


def tma_tensor(info: cpasync.TmaInfo) -> TmaTensor:
    """The part of it that kernels take."""
    return TmaTensor(info[0], info[1])


def launch_kernel(
    kernel: object,
    name: str,
    arguments: tuple,
    grid: tuple[Int32, int],
    stream: cuda.CUstream,
    use_pdl: bool = False,
) -> None:
    """grid: (CTAs, threads of each). use_pdl: start in the wake of the kernel before."""
    # With "cutlass" in its entry name ptxas generates different code
    kernel.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel(*arguments).launch(
        grid=[grid[0], 1, 1],
        block=[grid[1], 1, 1],
        stream=stream,
        min_blocks_per_mp=1,  # without it ptxas ignores setmaxnreg
        use_pdl=use_pdl,
    )
